"""An agent changes Gofer itself: it works on a copy of the source in its shell, an owner approves the diff with a
button, `gofer up` runs the new release, and another button brings the old one back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from e2e.process import free_port
from gofer.crash import EXIT_CODE
from gofer.releases.lifecycle import last_failure, waiting_releases
from gofer.web.unix_socket import reachable
from gofer_standins.anthropic import Anthropic, call, calls, say
from gofer_standins.loopback import serve as loopback
from gofer_standins.telegram import Chat, Message, Person, Telegram
from gofer_supervisor.home import CURRENT, GOOD, Home
from support.patience import Deadline, eventually, patience
from telegram.house import open_house
from telegram.test_identity import put

AHOY = "sed -i 's/Hello. Write to me/Ahoy. Write to me/' ~/gofer-source/platform/gofer/commands/answers.py"


def start(data_dir: Path, *command: str, **environment: str) -> subprocess.Popen[bytes]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GOFER_")}
    given = {"GOFER_DATA_DIR": str(data_dir), "GOFER_PORT": str(free_port()), "GOFER_LOG_TO": "stderr"}
    with (data_dir.parent / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "gofer", *command],
            env={**kept, **given, **environment},
            stdout=log,
            stderr=log,
        )


@asynccontextmanager
async def gofer_up(data_dir: Path, **environment: str) -> AsyncIterator[Home]:
    """`gofer up` with the release that is installed."""
    running = start(data_dir, "up", "--probation", "1", **environment)
    try:
        yield Home(str(data_dir / "home"))
        running.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(running.wait, patience(60)) == 0
    finally:
        running.kill()
        running.wait()


def with_button(telegram: Telegram, chat: Chat, label: str) -> list[Message]:
    return [one for one in chat.by_bot(telegram.bot.id) if label in str(one.get("reply_markup"))]


async def asked(telegram: Telegram, chat: Chat, label: str) -> Message:
    """The message in a chat with such a button, when it comes."""
    await eventually(lambda: bool(with_button(telegram, chat, label)), within=120)
    (found,) = with_button(telegram, chat, label)
    return found


async def greeting(telegram: Telegram, person: Person, chat: Chat) -> str:
    before = len(telegram.said(chat))
    telegram.phones.say(person, chat, "/start")
    await eventually(lambda: len(telegram.said(chat)) > before, within=120)
    return telegram.said(chat)[-1]


def changing_model() -> Anthropic:
    """Somebody who changes the greeting."""
    return Anthropic(
        [
            calls(call("gofer_source")),
            calls(call("bash", command=AHOY)),
            calls(call("propose_release", summary="Greet people as sailors do.")),
            say("I have proposed it."),
        ]
    )


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("sqlite", marks=pytest.mark.slow(long=True)),
        pytest.param("postgresql", marks=pytest.mark.chaos),
    ],
)
async def test_a_change_is_staged_and_asked_about_once_when_the_process_dies_after_staging_it(
    telegram: Telegram, tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    model, data_dir = changing_model(), tmp_path / "gofer"
    put(data_dir, {"gofer.toml": "self_update = true\n"})
    url = "" if kind == "sqlite" else str(request.getfixturevalue("postgres_url"))
    environment = {"GOFER_DATABASE_URL": url, "GOFER_LEASE": "3"} if url else {}
    async with open_house(telegram, data_dir, database_url=url) as house:
        ann, chat = await house.owner()
    async with loopback(model.app) as address:
        environment |= {"GOFER_ANTHROPIC_KEY": model.key, "GOFER_ANTHROPIC_BASE_URL": address}
        telegram.phones.say(ann, chat, "Change the greeting to Ahoy, please.")
        doomed = {"GOFER_CRASH_AT": "release.staged", "GOFER_BUILD": "first"}
        dying = start(data_dir, "serve", **environment, **doomed)
        try:
            assert await asyncio.to_thread(dying.wait, patience(120)) == EXIT_CODE
        finally:
            dying.kill()
            dying.wait()
        async with gofer_up(data_dir, **environment) as home:
            (staged,) = waiting_releases(home)
            question = await asked(telegram, chat, "Approve")
            assert staged in question["text"]
            told = "is built from the change"
            await eventually(lambda: any(told in said for said in telegram.said(chat)), within=60)
            await eventually(lambda: home.linked(GOOD) != "", within=60)
            assert sum(told in said for said in telegram.said(chat)) == 1
            assert len(with_button(telegram, chat, "Approve")) == len(waiting_releases(home)) == 1
    assert model.refused == []


@pytest.mark.slow(long=True)
async def test_a_change_of_the_greeting_is_approved_by_a_button_and_taken_back_by_another(
    telegram: Telegram, tmp_path: Path
) -> None:
    model, data_dir = changing_model(), tmp_path / "data"
    put(data_dir, {"gofer.toml": "self_update = true\n"})
    async with open_house(telegram, data_dir) as house:
        ann, chat = await house.owner()
    async with (
        loopback(model.app) as url,
        gofer_up(data_dir, GOFER_ANTHROPIC_KEY=model.key, GOFER_ANTHROPIC_BASE_URL=url) as home,
    ):
        assert (await greeting(telegram, ann, chat)).startswith("Hello.")
        await eventually(lambda: home.linked(GOOD) != "", within=60)
        first = home.linked(CURRENT)

        telegram.phones.say(ann, chat, "Change the greeting to Ahoy, please.")
        question = await asked(telegram, chat, "Approve")
        text = question["text"]
        assert "The agent gofer made it, asked by Ann: Greet people as sailors do." in text
        assert "platform/gofer/commands/answers.py" in text
        assert '+HELLO = "Ahoy.' in text
        assert "a scripted conversation went as it should" in text
        assert "leaves the store" in text
        assert home.linked(CURRENT) == first, "nothing is deployed without an owner's word"

        telegram.phones.press(ann, question, "Approve")
        notice = await asked(telegram, chat, "Roll back")
        second = home.linked(CURRENT)
        assert second == home.linked(GOOD) != first
        assert home.manifest(second)["approved_by"] == "Ann"
        assert (await greeting(telegram, ann, chat)).startswith("Ahoy.")

        telegram.phones.press(ann, notice, "Roll back")
        await eventually(lambda: "was taken back" in telegram.said(chat)[-1], within=120)
        assert home.linked(CURRENT) == home.linked(GOOD) == first
        assert (await greeting(telegram, ann, chat)).startswith("Hello.")
        said = "\n".join(telegram.said(chat))
        assert said.count("has proved itself") == said.count("was taken back") == 1
    assert model.refused == []


@asynccontextmanager
async def owner_of(data_dir: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """The API as the owner at the machine uses it."""
    with reachable(data_dir / "gofer.sock") as name:
        transport = httpx2.AsyncHTTPTransport(uds=name, verify=False, retries=3)
        async with httpx2.AsyncClient(transport=transport, base_url="http://gofer/api/v1") as client:
            yield client


async def heard(data_dir: Path, method: str, path: str, **request: Any) -> dict[str, Any]:
    """The answer of whichever release runs, once one does. What was not answered, since the release ended, is asked
    again; what is refused then was done the first time."""
    deadline, asked = Deadline(120), False
    while True:
        answer = None
        with contextlib.suppress(httpx2.TransportError, OSError):
            async with owner_of(data_dir) as owner:
                answer = await owner.request(method, path, **request)
        if answer is not None and answer.status_code != 503:
            again = asked and answer.status_code == 409
            assert answer.is_success or again, f"{method} {path}: {answer.status_code} {answer.text}"
            return {} if again else dict(answer.json())
        assert deadline.left > 0, f"{method} {path}: no answer"
        asked = asked or answer is None
        await asyncio.sleep(0.2)


async def texts_in(data_dir: Path, conversation: str) -> list[str]:
    found = await heard(data_dir, "GET", f"/conversations/{conversation}/messages")
    return [str(each["text"]) for each in found["messages"]]


async def open_question(data_dir: Path, choice: str) -> dict[str, Any]:
    """The open question with such a choice, when it comes."""
    deadline = Deadline(120)
    while True:
        asked = (await heard(data_dir, "GET", "/questions"))["questions"]
        if found := [each for each in asked if choice in each["choices"]]:
            (question,) = found
            return dict(question)
        failure = last_failure(Home(str(data_dir / "home")))
        assert failure is None, failure
        assert deadline.left > 0, f"{choice}: {asked}"
        await asyncio.sleep(0.2)


async def web_greeting(data_dir: Path) -> tuple[str, str]:
    """What a new room is greeted with, and the room."""
    deadline = Deadline(120)
    room = (await heard(data_dir, "POST", "/messages", json={"text": "/help"}))["conversation_id"]
    while len(texts := await texts_in(data_dir, room)) < 2:
        assert deadline.left > 0, texts
        await asyncio.sleep(0.2)
    return texts[0].partition(" ")[0], room


async def told_in(data_dir: Path, words: str, *rooms: str) -> None:
    """Wait until something is said in one of these rooms; once."""
    deadline = Deadline(120)
    while True:
        said = [text for room in rooms for text in await texts_in(data_dir, room)]
        if found := [text for text in said if words in text]:
            assert len(found) == 1
            return
        assert deadline.left > 0, said
        await asyncio.sleep(0.2)


@pytest.mark.slow(long=True)
async def test_an_owner_without_any_chat_but_the_web_changes_gofer_and_takes_it_back(tmp_path: Path) -> None:
    model, data_dir = changing_model(), tmp_path / "data"
    put(data_dir, {"gofer.toml": "self_update = true\n"})
    async with (
        loopback(model.app) as url,
        gofer_up(data_dir, GOFER_ANTHROPIC_KEY=model.key, GOFER_ANTHROPIC_BASE_URL=url) as home,
    ):
        assert (await web_greeting(data_dir))[0] == "Hello."
        await eventually(lambda: home.linked(GOOD) != "", within=60)
        first = home.linked(CURRENT)
        wish = {"text": "Change the greeting to Ahoy, please."}
        room = (await heard(data_dir, "POST", "/messages", json=wish))["conversation_id"]
        question = await open_question(data_dir, "Approve")
        assert '+HELLO = "Ahoy.' in question["question"]
        await told_in(data_dir, "is built from the change", room)
        assert home.linked(CURRENT) == first, "nothing is deployed without an owner's word"

        await heard(data_dir, "POST", f"/questions/{question['id']}/answer", json={"text": "Approve"})
        notice = await open_question(data_dir, "Roll back")
        second = home.linked(CURRENT)
        assert second == home.linked(GOOD) != first
        await told_in(data_dir, "has proved itself", room)
        greeted, room = await web_greeting(data_dir)
        assert greeted == "Ahoy."

        await heard(data_dir, "POST", f"/questions/{notice['id']}/answer", json={"text": "Roll back"})
        await eventually(lambda: home.manifest(second).get("taken_back") is not None, within=120)
        greeted, newest = await web_greeting(data_dir)
        assert greeted == "Hello.", "what is said of a release is so"
        assert home.linked(CURRENT) == home.linked(GOOD) == first
        await told_in(data_dir, "was taken back, and", room, newest)
        assert (await heard(data_dir, "GET", "/questions"))["questions"] == []
    assert model.refused == []
