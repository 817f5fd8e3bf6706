"""The demo: scenes that send real webhooks to a throw-away instance and check what comes back.

A scene is an async generator of Steps over a Stage; add one to `SCENES`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from gofer_standins.anthropic import Anthropic, Reply, call, calls, say
from gofer_standins.github import GitHubService, git
from gofer_standins.hello import Fault, HelloService
from gofer_standins.instance import Instance, throw_away
from gofer_standins.loopback import serve
from gofer_standins.telegram import Chat, Telegram

REPLY_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class DemoStep:
    """One thing that happened, and whether it should have."""

    what: str
    ok: bool
    ms: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """What a scene works with."""

    instance: Instance
    http: httpx2.AsyncClient
    hello: HelloService
    connection: str
    model: Anthropic
    """A stand-in for the model provider, with a script."""

    async def post(self, body: bytes, headers: dict[str, str]) -> httpx2.Response:
        """A webhook over HTTP."""
        return await self.http.post(
            f"{self.instance.url}/hooks/{self.connection}", content=body, headers=headers
        )

    async def send(self, id: str, room: str, text: str) -> httpx2.Response:
        """A signed message."""
        body = self.hello.message(id, room, text)
        return await self.post(body, self.hello.signed(body))


Scene = Callable[[Stage], AsyncIterator[DemoStep]]


class Watch:
    """Measures steps: each takes the time since the one before."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def step(self, what: str, ok: bool, detail: str = "") -> DemoStep:
        """A step that ends now."""
        before, self._last = self._last, time.perf_counter()
        return DemoStep(what, ok, round((self._last - before) * 1000, 1), detail)


async def one_message(stage: Stage) -> AsyncIterator[DemoStep]:
    """A signed message becomes a durable job and one delivered reply."""
    watch = Watch()
    answer = await stage.send("m1", "lobby", "Good morning!")
    yield watch.step("webhook acknowledged, after the commit", answer.json() == {"result": "accepted"})
    came = await stage.hello.wait_for(lambda ledger: len(ledger) == 1)
    yield watch.step("reply delivered", came, stage.hello.ledger[0].text if came else "no reply came")


async def a_repeat(stage: Stage) -> AsyncIterator[DemoStep]:
    """The service sends the same delivery again, as services do."""
    watch = Watch()
    answer = await stage.send("m1", "lobby", "Good morning!")
    yield watch.step("repeat recognised", answer.json() == {"result": "repeat"})


async def a_forgery(stage: Stage) -> AsyncIterator[DemoStep]:
    """Somebody without the key tries the door."""
    watch = Watch()
    body = stage.hello.message("m2", "lobby", "Let me in")
    unsigned = await stage.post(body, {"content-type": "application/json"})
    yield watch.step("unsigned request refused", unsigned.status_code == 401, "401, nothing stored")
    forged = await stage.post(body, {**stage.hello.signed(body), "x-hello-signature": "0" * 64})
    yield watch.step("forged signature refused", forged.status_code == 401, "401, nothing stored")


async def two_at_once(stage: Stage) -> AsyncIterator[DemoStep]:
    """Two messages to one conversation, the second while the first is being worked on."""
    watch = Watch()
    for id, text in (("m3", "$ sleep 0.5; echo the first is done"), ("m4", "$ echo so is the second")):
        answer = await stage.send(id, "workshop", text)
        yield watch.step(f"message {id} acknowledged", answer.json() == {"result": "accepted"})
    settled = await _until_quiet(stage)
    replies = [reply for reply in stage.hello.ledger if reply.room == "workshop"]
    # One reply may answer both; what it must not do is leave the second out.
    well = settled and 1 <= len(replies) <= 2 and "so is the second" in replies[-1].text
    yield watch.step(
        "both answered, one run at a time", well, replies[-1].text if replies else "no reply came"
    )


async def a_lost_answer(stage: Stage) -> AsyncIterator[DemoStep]:
    """The service takes a reply and the connection breaks before it says so."""
    watch = Watch()
    stage.hello.faults.append(Fault("dropped"))
    answer = await stage.send("m5", "cellar", "Is anybody there?")
    yield watch.step("webhook acknowledged", answer.json() == {"result": "accepted"})
    settled = await _until_quiet(stage)
    found = [reply for reply in stage.hello.ledger if reply.to == "m5"]
    once = settled and len(found) == 1
    yield watch.step("looked before sending again", once, f"{len(found)} reply in the service's ledger")


async def a_phone(stage: Stage) -> AsyncIterator[DemoStep]:
    """A person on Telegram pairs with a code, asks, and is answered in the chat."""
    watch = Watch()
    async with Telegram() as telegram:
        made = await stage.instance.ask(
            "POST",
            "/connections",
            json={
                "integration": "telegram",
                "name": "demo",
                "settings": {"api_url": telegram.url},
                "secrets": {"token": telegram.token},
            },
        )
        found = re.search(r"start=([A-Z0-9]{8})", str(made.get("invitation", "")))
        yield watch.step("bot connected by its token, pairing code made", found is not None)
        ann = telegram.world.add_person("Ann")
        chat = telegram.world.private(ann)
        telegram.phones.say(ann, chat, f"/start {found.group(1) if found else ''}")
        said = await _answers(telegram, chat, 1)
        yield watch.step("paired from the phone", "owner" in said, said)
        telegram.phones.say(ann, chat, "$ echo hello from the sandbox")
        said = await _answers(telegram, chat, 2)
        yield watch.step("asked and answered in the chat", "hello from the sandbox" in said, said)
        telegram.updates.answer_at_once()  # else the poll under way would last 25 seconds
        await _disconnect(stage, made["connection"]["id"])


async def _disconnect(stage: Stage, connection_id: str) -> None:
    """Disable a connection and let its jobs end: its stand-in ends with the scene, and nothing may call it later."""
    await stage.instance.ask("PATCH", f"/connections/{connection_id}", json={"enabled": False})
    await _until_quiet(stage)


async def _answers(telegram: Telegram, chat: Chat, count: int) -> str:
    """The last of so many answers, once it is whole."""

    def whole() -> bool:
        said = telegram.said(chat)
        return len(said) >= count and not any(text.endswith(" …") for text in said)

    try:
        await telegram.until(whole, within=REPLY_TIMEOUT)
    except (AssertionError, TimeoutError):
        return "no answer came"
    return telegram.said(chat)[-1]


REQUEST = """@gofer please fix this
$tool github_checkout {}
$ cd ~/repo && sed -i 's/helo/hello/' greeting.txt && git commit -qam 'Spell the greeting right'
$ cd ~/repo && git push -q origin HEAD 2>&1
$tool github_open_pull {"title": "Spell the greeting right", "changed": "One letter more.", "why": "It was missing.", \
"tested": "Read it aloud.", "uncertain": "Nothing."}"""


async def an_issue(stage: Stage) -> AsyncIterator[DemoStep]:
    """A request on a GitHub issue becomes a draft pull request whose diff was made in the sandbox."""
    watch = Watch()
    async with GitHubService().open() as github:
        app, key = github.create_app()
        repository = github.create_repository("acme/greeter", {"greeting.txt": "helo\n"}, ada="write")
        github.install(app, "acme/greeter")
        settings = {"api_url": github.api_url, "web_url": github.url, "app_id": app.id, "handle": app.slug}
        settings["poll_every"] = 0.2
        made = await stage.instance.ask(
            "POST",
            "/connections",
            json={
                "integration": "github",
                "name": "demo",
                "settings": {**settings, "login": app.user.login},
                "secrets": {"private_key": key, "webhook_secret": app.webhook_secret},
            },
        )
        app.hook_url = f"{stage.instance.url}/hooks/{made['connection']['id']}"
        issue = await github.open_issue("mallory", repository, "The greeting is misspelt", "It says helo.")
        await github.comment("ada", repository, issue.number, REQUEST)
        accepted = [one.status_code for one in github.world.deliveries] == [200, 200]
        detail = "a stranger's issue, and a maintainer's request"
        yield watch.step("signed webhooks acknowledged", accepted, detail)
        replies = [one for one in repository.comments.values() if one.user.login == app.user.login]
        deadline = time.monotonic() + REPLY_TIMEOUT
        while time.monotonic() < deadline and not any("Opened the draft" in one.body for one in replies):
            await asyncio.sleep(0.05)
            replies = [one for one in repository.comments.values() if one.user.login == app.user.login]
        pulls = [one for one in repository.issues.values() if one.head]
        well = len(replies) == 1 and len(pulls) == 1 and pulls[0].draft
        detail = f"{len(replies)} comment, {len(pulls)} draft pull request"
        if not well:
            detail = replies[-1].body[-300:] if replies else "no comment came"
        yield watch.step("one comment, one draft pull request", well, detail)
        if pulls:
            diff = git.run(repository.path, "diff", "-U0", f"main...{pulls[0].head}").splitlines()[-2:]
            yield watch.step("its diff was made in the sandbox", diff == ["-helo", "+hello"], " ".join(diff))
        dead = not [one for one in github.world.minted if one.permissions.get("contents") == "write" and
                    one.value in github.world.tokens]  # fmt: skip
        await _disconnect(stage, made["connection"]["id"])
        yield watch.step("the tokens with which it could write are revoked", dead)


MODEL_KEY = "rehearsal-key-of-the-demo"
TASK = "Write a program that prints the first twelve primes, run it, and tell me their sum."

PROGRAM = """n=1 count=0 sum=0
while ((count < 12)); do
  ((n += 1)); prime=1
  for ((d = 2; d * d <= n; d++)); do ((n % d)) || prime=0; done
  ((prime)) && { printf '%s ' "$n"; ((count += 1, sum += n)); }
done
echo; echo "sum $sum"
"""
TASK_RESULT = "sum 197"
"""What the program prints and the script does not know."""


def _model_turn(request: Mapping[str, Any]) -> Reply:
    """The next turn, by the tools that it is offered and by how many answers the transcript has."""
    turn = sum(1 for message in request["messages"] if message["role"] == "assistant")
    offered = {tool["name"] for tool in request.get("tools", ())}
    if "submit_plan" in offered:
        return calls(
            call("submit_plan", reply="First I look, then I count.", tasks=PLAN, keep=[], remember=[])
        )
    if "finish_task" in offered:
        return _worker_turn(request, turn)
    if "A goal has come to its end" in str(request["messages"][0]):
        return say(f"The words have {GOAL_RESULT} letters in all.")
    if turn == 0:
        writing = call("write", path="primes.sh", content=PROGRAM)
        return say("I shall write it first.", writing, call("ls", path="."))
    if turn == 1:
        return calls(call("bash", command="bash primes.sh"))
    return say(f"Done. The shell printed:\n```\n{_printed(request)}\n```")


def _printed(request: Mapping[str, Any]) -> str:
    """The last command's output, as the request brought it back."""
    for message in reversed(request["messages"]):
        for block in message["content"]:
            if block["type"] == "tool_result":
                content = block["content"]
                text = (
                    content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
                )
                return text.strip()
    return ""


async def a_real_task(stage: Stage) -> AsyncIterator[DemoStep]:
    """A model gets a key, and works on a task with tools in a real shell."""
    watch = Watch()
    await stage.instance.ask("PUT", "/secrets", json={"name": "anthropic_key", "value": MODEL_KEY})
    yield watch.step("model key put into the vault, without a restart", True)
    answer = await stage.send("m6", "bench", TASK)
    yield watch.step("task acknowledged", answer.json() == {"result": "accepted"})
    settled = await _until_quiet(stage)
    replies = [reply for reply in stage.hello.ledger if reply.to == "m6"]
    told = replies[0].text if replies else "no reply came"
    turns, well = len(stage.model.received), settled and len(replies) == 1 and TASK_RESULT in told
    yield watch.step(f"answered with what the shell printed, after {turns} model calls", well, told)
    yield watch.step("every request to the model was valid", not stage.model.refused)


GOAL = "Find out what letters the words of this demo have in all, and tell me their number."
GOAL_RESULT = "15"
PLAN = [
    {"title": "Write the words down", "kind": "execution", "instructions": "Write three words.", "needs": []},
    {"title": "Count their letters", "kind": "execution", "instructions": "Count the letters.", "needs": [1]},
]


def _worker_turn(request: Mapping[str, Any], turn: int) -> Reply:
    """What a worker does with its task: one command, and its end."""
    if turn == 0:
        writes = "Write three words." in str(request["messages"])
        command = "echo gofer plans goals > words; cat words" if writes else "tr -d ' \\n' < words | wc -c"
        return calls(call("bash", command=command))
    printed = _printed(request).splitlines()
    return calls(call("finish_task", outcome="done", summary=printed[0] if printed else "nothing"))


async def a_goal(stage: Stage) -> AsyncIterator[DemoStep]:
    """A goal is planned, done in two tasks by workers of their own, and reported once."""
    watch = Watch()
    made = await stage.instance.ask("POST", "/goals", json={"text": GOAL})
    yield watch.step("goal taken, to be planned", made.get("state") in ("planning", "active"))
    deadline = time.monotonic() + REPLY_TIMEOUT
    goal = made
    while time.monotonic() < deadline and goal["finished_at"] is None:
        await asyncio.sleep(0.05)
        goal = await stage.instance.ask("GET", f"/goals/{made['id']}")
    steps = [task for task in goal["tasks"] if task["number"]]
    detail = ", then ".join(f"{task['title'].lower()} ({task['state']})" for task in steps) or goal["state"]
    yield watch.step(
        "planned, and both tasks done", [task["state"] for task in steps] == ["done", "done"], detail
    )
    await _until_quiet(stage)
    where = f"/conversations/{made['conversation_id']}/messages"
    said = [each["text"] or "" for each in (await stage.instance.ask("GET", where))["messages"]]
    reports = [text for text in said if GOAL_RESULT in text and "It cost" in text]
    yield watch.step(
        "reported once, with what it cost", len(reports) == 1, reports[0] if reports else str(said)
    )


SCENES: tuple[tuple[str, Scene], ...] = (
    ("A message", one_message),
    ("A repeat", a_repeat),
    ("A forgery", a_forgery),
    ("Two at once", two_at_once),
    ("A lost answer", a_lost_answer),
    ("A phone on Telegram", a_phone),
    ("An issue on GitHub", an_issue),
    ("A real task", a_real_task),
    ("A goal", a_goal),
)


WITHOUT_SHELL = (one_message, a_repeat, a_forgery, a_lost_answer)
"""The scenes in which no command is run."""


async def play(*, shell: bool = True) -> AsyncIterator[tuple[str, DemoStep]]:
    """Start everything, play every scene, check the ledger, end everything. Without a shell, only some scenes."""
    async with _stage("bubblewrap" if shell else "off") as stage:
        yield "The start", DemoStep("instance ready", True, round(stage.instance.started_in * 1000, 1))
        for name, scene in SCENES:
            if shell or scene in WITHOUT_SHELL:
                async for step in scene(stage):
                    yield name, step
        async for step in _reckoning(stage):
            yield "The reckoning", step


@contextlib.asynccontextmanager
async def _stage(sandbox: str) -> AsyncIterator[Stage]:
    hello = HelloService(signing_key=secrets.token_urlsafe(32))
    model = Anthropic(_model_turn, key=MODEL_KEY)
    async with (
        hello.open(),
        serve(model.app) as provider,
        throw_away(anthropic_base_url=provider, request_timeout="2", sandbox=sandbox) as instance,
        httpx2.AsyncClient(timeout=60) as http,
    ):
        made = await instance.ask(
            "POST",
            "/connections",
            json={
                "integration": "hello",
                "name": "demo",
                "settings": {"reply_url": hello.url},
                "secrets": {"signing_key": hello.signing_key},
            },
        )
        yield Stage(instance, http, hello, made["connection"]["id"], model)


async def _reckoning(stage: Stage) -> AsyncIterator[DemoStep]:
    """What the service's own ledger says, once nothing is left to do."""
    watch = Watch()
    quiet = await _until_quiet(stage)
    yield watch.step("nothing left to do, nothing dead", quiet)
    ledger = stage.hello.ledger
    keys = [reply.key for reply in ledger]
    once = len(keys) == len(set(keys)) and not stage.hello.refused
    yield watch.step("every reply exactly once in the service's ledger", once, f"{len(keys)} replies")


async def _until_quiet(stage: Stage) -> bool:
    """Wait until no job is open. Return False when a job is dead, or still open at the end."""
    deadline = time.monotonic() + REPLY_TIMEOUT
    while time.monotonic() < deadline:
        jobs = (await stage.instance.ask("GET", "/status"))["jobs"]
        if not jobs or set(jobs) == {"dead"}:
            return not jobs
        await asyncio.sleep(0.02)
    return False
