"""A server set up by hand as docs/models.md says, with a provider of one's own, and people at a real terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gofer_standins.loopback import serve
from gofer_standins.openai import OpenAI, Reply
from support.async_bridge import Elsewhere
from support.command_line import PATIENCE, Process, environment, gofer

ASKS = "Which colour?"


class Impatient(Process):
    """Calls a model slow at once, so that nobody has to wait for it here."""

    CONSTANTS: ClassVar = {"gofer.agent.turn.SLOW_AFTER": 0.7}


def script(body: Any) -> Reply:
    """Slow when it is greeted, asks about paint, and says what was answered."""
    last = str(body["messages"][-1]["content"])
    if "Hello" in last and not script.slept:  # type: ignore[attr-defined]
        script.slept = True  # type: ignore[attr-defined]
        return Reply(fault="silent")
    if "paint" in last:
        question = {"question": ASKS, "choices": ["red", "blue"]}
        return Reply("Let me ask.", (("ask_user", question),))
    if body["messages"][-1]["role"] == "tool":
        return Reply(f"You said {'blue' if 'blue' in last else last}.")
    return Reply("Good morning.")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, OpenAI]]:
    """The steps of docs/models.md, one by one."""
    script.slept = False  # type: ignore[attr-defined]
    service, elsewhere, stack = (
        OpenAI(script, key="sk-or-its-own", models=("glm",)),
        Elsewhere(),
        AsyncExitStack(),
    )
    url = elsewhere.run(stack.enter_async_context(serve(service.app)))
    data = tmp_path_factory.mktemp("talking") / "data"
    data.mkdir(mode=0o700)
    (data / "models.toml").write_text(
        f'[providers.router]\nbase_url = "{url}/v1"\nkey = "router_key"\nfirst_token_timeout = 1.5\n'
        'models."glm" = {window = 32000, price = {input = 0.5, output = 2}}\n'
    )
    (data / "coder.toml").write_text('model = "router/glm"\n')
    server = Impatient(data)
    try:
        server.wait_until_ready()
        assert gofer(data, "agents", "put", "coder", str(data / "coder.toml")).returncode == 0
        yield server, service
    finally:
        server.close()
        elsewhere.run(stack.aclose())
        elsewhere.close()


class Keyboard:
    """A command at a terminal of its own."""

    def __init__(self, data_dir: Path, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gofer", *arguments],
            env={**environment(data_dir), "TERM": "xterm"},
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.shown = ""

    def see(self, words: str) -> str:
        """What is shown until the words are; the next look begins after them."""
        deadline = time.monotonic() + PATIENCE
        while words not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if select.select([self._ours], [], [], 0.1)[0]:
                self.shown += os.read(self._ours, 4096).decode().replace("\r\n", "\n")
        before, _, self.shown = self.shown.partition(words)
        return before

    def type(self, line: str) -> None:
        os.write(self._ours, f"{line}\n".encode())
        self.see(f"{line}\n")

    def end(self) -> int:
        """Ctrl-D."""
        os.write(self._ours, b"\x04")
        self.see("Go on with: gofer chat --conversation conv_")
        code = self._process.wait(PATIENCE)
        os.close(self._ours)
        return code


def test_a_provider_with_a_key_of_its_own_is_set_up_by_hand(served: tuple[Process, OpenAI]) -> None:
    server, service = served
    without = gofer(server.data_dir, "say", "--agent", "coder", "Good evening")
    assert without.returncode == 1
    assert "run `gofer doctor`" in without.stdout
    doctor = gofer(server.data_dir, "doctor")
    assert "gofer secrets put router_key" in doctor.stdout
    put = gofer(server.data_dir, "secrets", "put", "router_key", stdin="sk-or-its-own\n")
    assert put.returncode == 0, put.stderr
    said = gofer(server.data_dir, "say", "--agent", "coder", "Good evening")
    assert said.returncode == 0
    assert "Good morning." in said.stdout
    assert service.received[-1]["model"] == "glm"
    asked = gofer(server.data_dir, "doctor", "--call")
    assert re.search(r"ok +.*router", asked.stdout), asked.stdout
    costs = gofer(server.data_dir, "costs").stdout
    assert re.search(r"coder .* \$0\.000[1-9]", costs), costs


def test_who_waits_for_a_slow_model_is_told_on_stderr(served: tuple[Process, OpenAI]) -> None:
    server, _ = served
    gofer(server.data_dir, "secrets", "put", "router_key", stdin="sk-or-its-own\n")
    said = gofer(server.data_dir, "say", "--agent", "coder", "Hello")
    assert said.returncode == 0
    assert said.stdout == "**coder**\n\nGood morning.\n"
    assert said.stderr == "The model takes long to begin. I go on as soon as it does.\n"


def test_a_question_is_answered_at_the_terminal_by_number_or_in_words(served: tuple[Process, OpenAI]) -> None:
    server, _ = served
    gofer(server.data_dir, "secrets", "put", "router_key", stdin="sk-or-its-own\n")
    chat = Keyboard(server.data_dir, "chat", "--agent", "coder")
    chat.see("> ")
    for answer in ("2", "blue"):
        chat.type("paint the door")
        shown = chat.see("> ")
        assert shown.count(ASKS) == 1, shown
        assert "1. red\n  2. blue\n" in shown
        chat.type(answer)
        assert chat.see("> ").count("You said blue.") == 1
    assert chat.end() == 0
    asked = gofer(server.data_dir, "say", "--agent", "coder", "paint the wall")
    assert ASKS in asked.stdout
    number = re.search(r"gofer questions answer (\S+) TEXT", asked.stdout)
    assert number, asked.stdout
    assert gofer(server.data_dir, "questions", "answer", number[1], "blue").returncode == 0


def test_what_people_wrote_does_nothing_to_the_terminal_that_shows_their_memories(
    served: tuple[Process, OpenAI],
) -> None:
    data = served[0].data_dir
    said = gofer(data, "say", "a \x1b[31mred \x1b]0;title\x07 sail", "--no-wait", "--json")
    turn = f"mem_{json.loads(said.stdout)['conversation_id'].removeprefix('conv_')}.1"
    for words in (("show", turn), ("forget", turn), ("restore", turn), ("show", turn)):
        shown = gofer(data, "memory", *words)
        assert (shown.returncode, set("\x1b\x07") & set(shown.stdout)) == (0, set()), (words, shown.stderr)
    assert shown.stdout.count("red") == 2, "the message, and what was restored"
