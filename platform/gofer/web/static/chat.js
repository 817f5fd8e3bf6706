"use strict";
/* The chat, live. Items come from the server as HTML under an id that stays: one that comes twice is shown once. What
   was written is kept here until the server says that it has it, and is sent again under the same id. */
(() => {
  const chat = document.querySelector("[data-chat]");
  if (!chat) return;
  const $ = (selector) => chat.querySelector(selector);
  let room = chat.dataset.room, base = `/chat/${room}`, entering = null;
  const csrf = document.querySelector("meta[name=gofer-csrf]").content;
  const list = $("[data-items]"), scroller = $("[data-scroller]"), empty = $("[data-empty]");
  const streaming = $("[data-streaming]"), trouble = $("[data-trouble]"), status = $("[data-status]");
  const composer = $("[data-composer]"), text = $("[data-text]"), stop = $("[data-stop]"), hint = $("[data-hint]");
  const attached = $("[data-attached]"), picker = $("[data-file]"), agent = $("[data-agent]");
  const WORDS = {idle: "ready", queued: "waiting its turn", working: "working", waiting: "waits for you", retrying: "will try again"};
  const NO_LINE = "No connection, trying again";
  const LONGEST_OUTPUT = 20000;
  if (chat.hasAttribute("data-older")) return;

  const name = composer.elements.id.value;
  let cursor = chat.dataset.cursor, link = null, tries = 0, fallen = false, speaking = null;

  // Staying at the end, unless somebody reads further up.
  const atEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 80;
  const toEnd = () => { scroller.scrollTop = scroller.scrollHeight; };
  function keeping(change) { const end = atEnd(); change(); if (end) toEnd(); }

  // Items.
  function element(html) {
    const holder = document.createElement("template");
    holder.innerHTML = html;
    return holder.content.querySelector("li");
  }
  function put(item) {
    const fresh = element(item.html), old = document.getElementById(item.id);
    if (old) {
      const card = old.querySelector("details"), next = fresh.querySelector("details");
      if (card && next && card.dataset.touched) { next.open = card.open; next.dataset.touched = "1"; }
      const said = old.querySelector(".output")?.textContent, output = fresh.querySelector(".output");
      if (said && output && !output.textContent && fresh.querySelector(".live")) { output.textContent = said; output.hidden = false; }
      const focused = old.contains(document.activeElement);
      old.replaceWith(fresh);
      if (focused) (fresh.querySelector("summary, button, a") || text).focus();
    } else {
      const later = [...list.children].find((each) => each.dataset.place > item.place);
      list.insertBefore(fresh, later || null);
    }
    const words = early.get(item.id), output = fresh.querySelector(".output");
    early.delete(item.id);
    if (words && output && fresh.querySelector(".live")) print(output, words);
    if (fresh.dataset.client) { settle(fresh.dataset.client); listRoom(fresh); }
    if (speaking !== null && fresh.dataset.job === String(speaking) && !fresh.classList.contains("step")) quiet();
  }
  list.addEventListener("click", (event) => {
    const summary = event.target.closest("summary");
    if (summary) summary.parentElement.dataset.touched = "1";
  });
  function listRoom(item) {
    const rooms = $(".rooms ul");
    if (rooms.querySelector("[aria-current]")) return;
    rooms.querySelector("li.muted")?.remove();
    const entry = document.createElement("li"), anchor = document.createElement("a");
    anchor.href = base; anchor.setAttribute("aria-current", "page");
    const first = (item.querySelector(".plain")?.textContent || "Files").replace(/\s+/g, " ").trim();
    anchor.textContent = first.length > 60 ? `${first.slice(0, 59).trim()}…` : first;
    entry.append(anchor);
    rooms.prepend(entry);
  }
  // From another process, output may come before its card.
  const early = new Map();
  function print(output, words) {
    output.hidden = false;
    output.textContent = (output.textContent + words).slice(-LONGEST_OUTPUT);
    output.scrollTop = output.scrollHeight;
  }
  function quiet() { speaking = null; streaming.hidden = true; streaming.firstElementChild.textContent = ""; }

  // What comes from the server.
  const FRAMES = {
    news(frame) {
      keeping(() => {
        frame.items.forEach(put);
        empty.hidden = list.children.length > 0;
        showState(frame.state);
        if (frame.state === "idle" && speaking !== null && !frame.items.length) quiet();
      });
      cursor = frame.cursor;
    },
    text(frame) {
      keeping(() => {
        // The whole of it comes at a beginning, and to who comes in the middle; what follows is added.
        if (frame.whole || speaking !== frame.job) quiet();
        if (!frame.text) return;
        speaking = frame.job;
        streaming.hidden = false;
        streaming.firstElementChild.textContent += frame.text;
      });
    },
    output(frame) {
      const card = document.getElementById(frame.item), output = card?.querySelector(".output");
      if (!card) early.set(frame.item, ((frame.whole ? "" : early.get(frame.item) || "") + frame.text).slice(-LONGEST_OUTPUT));
      // What has ended shows all it printed; words that come later are among them.
      else if (card.querySelector(".live")) keeping(() => { if (frame.whole) output.textContent = ""; print(output, frame.text); });
    },
    taken(frame) { written.delete(frame.id); keep(); },
    refused(frame) {
      if (frame.final) { written.delete(frame.id); keep(); settle(frame.id); }
      complain(frame.detail);
    },
  };
  function showState(state) {
    chat.dataset.state = state;
    if (status.textContent !== WORDS[state]) status.textContent = WORDS[state];
    stop.hidden = state === "idle";
    status.classList.toggle("live", state === "working");
    status.classList.toggle("info", state === "working");
    status.classList.toggle("warn", state === "waiting" || state === "retrying");
    hint.textContent = state === "working" ? "What you write now reaches it at its next step." : "";
  }
  function complain(words) { trouble.textContent = words; trouble.hidden = !words; }

  // What was written and is not yet known to have arrived; kept over a reload.
  const key = () => `gofer-unsent-${room}`;
  const written = new Map(JSON.parse(sessionStorage.getItem(key()) || "[]"));
  function keep() { sessionStorage.setItem(key(), JSON.stringify([...written])); }
  const pending = new Map();
  function settle(id) { pending.get(id)?.remove(); pending.delete(id); }
  function show(id, message) {
    if (pending.has(id) || message.stop || message.press) return;
    if (list.querySelector(`[data-client="${id}"]`)) return;
    const item = document.createElement("li"), who = document.createElement("p"), words = document.createElement("div");
    item.className = "item said pending";
    item.dataset.place = "9".repeat(10);
    who.className = "who"; who.textContent = "Sending …";
    words.className = "plain"; words.textContent = message.text || message.files.map((file) => file.name).join(", ");
    item.append(who, words);
    list.append(item);
    pending.set(id, item);
    empty.hidden = true;
    toEnd();
  }
  function newId() {
    if (crypto.randomUUID) return crypto.randomUUID();
    return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  }
  function say(message) {
    const id = newId();
    written.set(id, message);
    keep();
    show(id, message);
    deliver(id, message);
  }
  // A conversation is made when the first thing happens in it; what was written goes there once there is a line.
  function enter() { entering ??= made().catch(missed); return entering; }
  function missed() { entering = null; offline(); setTimeout(() => written.size && enter(), 3000); }
  async function made() {
    // By the page's own name: asked again after a lost answer, it is the same conversation; another tab has its own.
    const asked = {method: "POST", headers: {accept: "application/json", "x-gofer-csrf": csrf}, body: new URLSearchParams({id: name})};
    const answer = await fetch("/chat", asked);
    if (answer.redirected) return location.reload();
    const result = await answer.json();
    if (!answer.ok) { entering = null; return complain(result.detail); }
    sessionStorage.removeItem(key());
    room = result.room; base = `/chat/${room}`;
    keep();
    history.replaceState(null, "", base);
    connect();
  }
  function deliver(id, message) {
    if (!room) return enter();
    if (link instanceof WebSocket && link.readyState === WebSocket.OPEN) link.send(JSON.stringify({id, ...message}));
    else if (fallen) post(id, message);
  }
  async function post(id, message) {
    try {
      const answer = await fetch(`${base}/say`, {
        method: "POST", headers: {"content-type": "application/json", "x-gofer-csrf": csrf}, body: JSON.stringify({id, ...message}),
      });
      if (answer.redirected) return location.reload();
      if (answer.ok) return FRAMES.taken({id});
      const problem = await answer.json();
      FRAMES.refused({id, detail: problem.detail, final: answer.status < 500 && answer.status !== 429});
    } catch { setTimeout(() => written.has(id) && post(id, message), 3000); }
  }

  // The line: a WebSocket; where none passes, server-sent events; again and again, later each time.
  function connect() {
    const url = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${base}/live?after=${cursor}`;
    let opened = false;
    link = new WebSocket(url);
    link.onopen = () => { opened = true; online(); };
    link.onmessage = (event) => heard(event.data);
    link.onclose = async (event) => {
      offline();
      if (event.code === 4408 || event.code === 4429 || event.code === 4409) complain(`${event.reason} Connecting again …`);
      if (opened || ++tries < 2) return again(connect);
      const answer = await fetch(base, {method: "HEAD"}).catch(() => null);
      // Nobody there at all: another way would not lead there either.
      if (answer === null) return again(connect);
      if (!turnedAway(answer)) fallBack();
    };
  }
  function turnedAway(answer) {
    if (answer.redirected) location.reload();
    if (answer.status === 404) complain("This conversation is gone: it was purged.");
    return answer.redirected || answer.status === 404;
  }
  function fallBack() {
    fallen = true;
    link = new EventSource(`${base}/live?after=${cursor}`);
    link.onopen = online;
    link.onmessage = (event) => heard(event.data);
    link.onerror = () => { offline(); if (link.readyState === EventSource.CLOSED) { fallen = false; again(connect); } };
  }
  function heard(data) { const frame = JSON.parse(data); FRAMES[frame.type]?.(frame); }
  function offline() {
    status.textContent = NO_LINE;
    status.classList.remove("live", "info");
    status.classList.add("warn");
    hint.textContent = "What you write now is kept and sent when it is back.";
  }
  function online() {
    tries = 0;
    complain("");
    showState(chat.dataset.state);
    for (const [id, message] of written) { show(id, message); deliver(id, message); }
  }
  const alive = () => link instanceof WebSocket ? link.readyState === WebSocket.OPEN : link?.readyState === EventSource.OPEN;
  addEventListener("offline", offline);
  addEventListener("online", () => { if (alive()) showState(chat.dataset.state); });
  function again(how) {
    tries += 1;
    setTimeout(how, Math.min(15000, 300 * 2 ** tries) * (0.5 + Math.random() / 2));
  }

  // Writing.
  let files = [];
  composer.addEventListener("submit", (event) => {
    event.preventDefault();
    if (event.submitter === stop) return say({stop: true});
    const words = text.value;
    if (!words.trim() && !files.length) return text.focus();
    const message = {text: words};
    if (files.length) message.files = files.map(({hash, name}) => ({hash, name}));
    if (agent && !agent.disabled) message.agent = agent.value;
    say(message);
    text.value = ""; files = []; showFiles(); grow(); text.focus();
    if (agent) agent.disabled = true;
  });
  list.addEventListener("submit", (event) => {
    event.preventDefault();
    const [, question, choice] = /^(.*):(\d+)$/.exec(event.submitter.value);
    for (const button of event.target.querySelectorAll("button")) button.disabled = true;
    say({press: {question, choice: Number(choice)}});
    text.focus();
  });
  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    composer.requestSubmit($("[data-send]"));
  });
  function grow() { text.style.removeProperty("height"); text.rows = Math.min(12, Math.max(2, text.value.split("\n").length)); }
  text.addEventListener("input", grow);

  // Files: picked, pasted or dropped.
  $("[data-attach]").hidden = false;
  function showFiles() {
    attached.hidden = !files.length;
    attached.replaceChildren(...files.map((file, index) => {
      const item = document.createElement("li"), remove = document.createElement("button");
      remove.type = "button"; remove.textContent = "×"; remove.setAttribute("aria-label", `Remove ${file.name}`);
      remove.onclick = () => { files.splice(index, 1); showFiles(); text.focus(); };
      item.append(file.name, remove);
      return item;
    }));
  }
  async function attach(given) {
    if (!room) await enter();
    if (!room) return;
    for (const file of given) {
      hint.textContent = `Uploading ${file.name} …`;
      const form = new FormData();
      form.append("file", file);
      try {
        const answer = await fetch(`${base}/files`, {method: "POST", headers: {"x-gofer-csrf": csrf}, body: form});
        const result = await answer.json();
        if (answer.ok) { files.push(...result.files); complain(""); } else complain(`${file.name}: ${result.detail}`);
      } catch { complain(`${file.name} could not be uploaded. Try again.`); }
      hint.textContent = "";
      showFiles();
    }
    picker.value = "";
  }
  picker.addEventListener("change", () => attach([...picker.files]));
  text.addEventListener("paste", (event) => { if (event.clipboardData.files.length) { event.preventDefault(); attach([...event.clipboardData.files]); } });
  chat.addEventListener("dragover", (event) => { event.preventDefault(); chat.classList.add("dropping"); });
  chat.addEventListener("dragleave", () => chat.classList.remove("dropping"));
  chat.addEventListener("drop", (event) => { event.preventDefault(); chat.classList.remove("dropping"); attach([...event.dataTransfer.files]); });

  showState(chat.dataset.state);
  toEnd();
  if (matchMedia("(min-width: 801px)").matches) text.focus();
  else $(".roomlist").removeAttribute("open");
  if (room) connect();
  else for (const [id, message] of written) { show(id, message); deliver(id, message); }
})();
