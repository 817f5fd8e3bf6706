"use strict";
/* What the pages do beyond reading: keys, relative times, the theme, live parts, charts. All of it may be absent. */
(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Times: the server writes them relative to its answer; here they go on ageing.
  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  function relative(seconds) {
    const size = Math.abs(seconds);
    if (size < 1) return "now";
    const [length, unit] = UNITS.find(([length]) => size >= length);
    const words = `${Math.floor(size / length)} ${unit}`;
    return seconds < 0 ? `in ${words}` : `${words} ago`;
  }
  function age(root = document) {
    const now = Date.now();
    for (const time of $$("time[data-relative]", root)) {
      const words = relative((now - Date.parse(time.dateTime)) / 1000);
      if (time.textContent !== words) time.textContent = words;
    }
  }
  setInterval(age, 1000);

  // The theme: system, light, dark; a cookie, so that the server's first byte already has it.
  const THEMES = ["system", "light", "dark"];
  function showTheme(theme) {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    for (const button of $$("[data-theme-toggle]")) { button.textContent = `Theme: ${theme}`; button.hidden = false; }
  }
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-theme-toggle]")) return;
    const now = document.documentElement.dataset.theme || "system";
    const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
    document.cookie = `gofer_theme=${next}; path=/; max-age=31536000; samesite=lax`;
    showTheme(next);
    drawCharts();
  });

  // Copying, asking before harm, ticking every box.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const place = $(button.dataset.copy);
    // Without https there is no clipboard for pages: then it is marked, and the keyboard copies it.
    if (!navigator.clipboard) { getSelection().selectAllChildren(place); button.textContent = "Marked"; return; }
    await navigator.clipboard.writeText(place.textContent.trim());
    button.textContent = "Copied";
  });
  document.addEventListener("submit", (event) => {
    const words = event.submitter?.dataset.confirm || event.target.dataset.confirm;
    if (words && !window.confirm(words)) event.preventDefault();
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-all]"))
      for (const box of $$("tbody input[type=checkbox]", event.target.closest("table"))) box.checked = event.target.checked;
    if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
  });

  // Keys.
  const rows = () => $$("tr[data-row]");
  function move(step) {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((row) => row.classList.contains("at"));
    const next = Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + step));
    all.forEach((row, index) => row.classList.toggle("at", index === next));
    $("a", all[next])?.focus();
    all[next].scrollIntoView({block: "nearest"});
  }
  const KEYS = {
    "/": () => $("[data-search]")?.focus(),
    j: () => move(1),
    k: () => move(-1),
    Enter: () => $("tr.at a")?.click(),
    r: () => location.reload(),
    "?": () => $("#keys")?.showModal(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.key === "Escape" && event.target.matches("input, select")) return event.target.blur();
    if (event.target.closest("input, textarea, select, dialog, [contenteditable]")) return;
    if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
    const act = KEYS[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-keys]")) $("#keys")?.showModal();
  });

  // Live parts: whatever comes over the stream makes them fetch themselves, at most twice a second. What it says is
  // other people's words, so it is looked at by nobody here: only the server makes pages of them.
  let due = null;
  function changed() {
    due ??= setTimeout(() => {
      due = null;
      for (const part of $$("[data-live]")) htmx.trigger(part, "gofer:changed");
    }, 400);
  }
  function follow(url) {
    let source = null, last = "", over = false;
    // A browser has six lines to a server: a page in the background needs none.
    function look() {
      if (document.hidden || over) { source?.close(); source = null; return; }
      if (source) return;
      source = new EventSource(url + (last && `&after=${last}`));
      source.onmessage = (event) => { last = event.lastEventId; changed(); };
      source.addEventListener("end", () => { over = true; look(); changed(); });
    }
    document.addEventListener("visibilitychange", look);
    look();
  }
  for (const place of $$("[data-follow]")) follow(place.dataset.follow);
  // Who was signed out meanwhile keeps what they see and have typed, and is told so.
  document.addEventListener("htmx:before:response", (event) => {
    if (!event.detail.ctx.response.raw.redirected) return;
    event.preventDefault();
    const told = $("[data-signed-out]");
    $("a", told).href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`;
    told.hidden = false;
  });
  document.addEventListener("htmx:after:swap", () => { age(); drawCharts(); });

  // Charts: the figures are in the page as a table, too.
  function colour(element, name) {
    const probe = document.createElement("i");
    probe.style.color = `var(--${name})`;
    element.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }
  const HUES = ["accent", "model", "info", "warn", "bad", "tool", "ok", "muted"];
  function drawCharts() {
    if (!window.uPlot) return;
    for (const place of $$("[data-chart]")) {
      place.replaceChildren();
      const {days, series, budget} = JSON.parse(place.dataset.chart);
      if (!days.length) continue;
      const axis = {stroke: colour(place, "muted"), grid: {stroke: colour(place, "line"), width: 1}, ticks: {stroke: colour(place, "line"), width: 1}};
      const stacked = [];
      series.forEach((one, index) => stacked.push(one.values.map((value, day) => value + (stacked[index - 1]?.[day] ?? 0))));
      const lines = series.map((one, index) => {
        const hue = colour(place, HUES[index % HUES.length]);
        return {label: one.name, stroke: hue, fill: hue, width: 0, paths: uPlot.paths.bars({size: [0.7, 60]}), points: {show: false},
          value: (plot, value, at, day) => (day == null ? "–" : `$${one.values[day].toFixed(4)}`)};
      });
      const data = [days, ...stacked];
      if (budget) {
        lines.push({label: "budget", stroke: colour(place, "bad"), dash: [6, 4], width: 2, points: {show: false}});
        data.push(days.map(() => budget));
      }
      // The tallest bars are drawn first, so that what they are the sum of stays in view.
      const drawn = series.map((_, index) => index).reverse();
      new uPlot({
        width: Math.max(260, place.clientWidth), height: 260, cursor: {y: false},
        scales: {x: {time: true}, y: {range: (plot, low, high) => [0, Math.max(high, 0.0001) * 1.1]}},
        axes: [axis, {...axis, size: 64, values: (plot, ticks) => ticks.map((tick) => `$${+tick.toFixed(4)}`)}],
        series: [{label: "Day", value: "{YYYY}-{MM}-{DD}"}, ...drawn.map((index) => lines[index]), ...lines.slice(series.length)],
      }, [data[0], ...drawn.map((index) => data[index + 1]), ...data.slice(series.length + 1)], place);
    }
  }
  let resized = null;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(drawCharts, 150); });

  // A chart has the colours it was drawn in.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);

  showTheme(document.documentElement.dataset.theme || "system");
  // The phone's menu stays closed until asked for; on a wide screen it is always open.
  const menu = $(".menu");
  const wide = matchMedia("(min-width: 801px)");
  const fold = () => { if (menu) menu.open = wide.matches; };
  wide.addEventListener("change", fold);
  fold();
  age();
  drawCharts();
})();
