"""`gofer say` and `gofer chat`: talking to an agent from a terminal."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Any

import typer

from gofer.cli.client import Api, open_api, wait_for_supervisor
from gofer.cli.exit_codes import FAILED, TRY_LATER, USAGE, CommandFailed
from gofer.cli.output import AsJson, harmless, show

Agent = Annotated[
    str,
    typer.Option(help="The agent that answers in a new conversation. By default the routes decide."),
]
Conversation = Annotated[
    str, typer.Option(help="The id of a conversation to continue, instead of a new one.")
]
MAX_TEXT = 100_000
MAX_RECONNECTIONS = 20
_NAMED = re.compile(r"\*\*([a-z0-9-]+)\*\*\n+")

HELP = "Write a message and press Enter; /help shows what the agent knows; Ctrl-D ends the chat."


def say(
    text: Annotated[str, typer.Argument(help="The message; - reads it from stdin.", show_default=False)],
    conversation: Conversation = "",
    agent: Agent = "",
    wait: Annotated[bool, typer.Option(help="Wait for the answer and print it.")] = True,
    as_json: AsJson = False,
) -> None:
    """Send a message to an agent and print its answer. Exit code 1 when it could not answer.

    \b
    gofer say 'What changed in the last release?'
    gofer say --conversation conv_k3v9 'And before that?'
    git diff | gofer say -
    """
    _check_agent(conversation, agent)
    words = sys.stdin.read(MAX_TEXT + 1) if text == "-" else text
    if not words.strip():
        raise CommandFailed("There is nothing to say.", USAGE)
    if len(words) > MAX_TEXT:
        raise CommandFailed(f"A message has at most {MAX_TEXT:,} characters.", USAGE)
    said = asyncio.run(_say(words, conversation, agent, wait=wait))
    show(said, as_json, lambda: _print_said(said))
    if said.get("failed"):
        raise typer.Exit(FAILED)


def _print_said(said: dict[str, Any]) -> None:
    if "answer" not in said:
        print(f"Said in {said['conversation_id']}; job {said['job_id']} answers it.")
        return
    print(harmless(said["answer"]))
    for question in said["questions"]:
        print(f"\nIt asks, and waits: gofer questions answer {question['question']} TEXT")


async def _say(text: str, conversation: str, agent: str, *, wait: bool) -> dict[str, Any]:
    async with _server() as api:
        if not wait:
            taken: dict[str, Any] = await _post(api, text, conversation, agent)
            return taken
        talk = _Talk(api, conversation)
        taken = await talk.send(text, agent)
        async for frame in talk.until_quiet():
            # Who waits for the answer alone should know, too, that the model has not begun yet.
            if (
                frame["type"] == "item"
                and frame["item"]["id"].startswith("slow-")
                and talk.is_new(frame["item"])
            ):
                print(harmless(frame["item"]["text"]), file=sys.stderr, flush=True)
        answer = "\n\n".join(item["text"] for item in talk.replies)
        failed = not answer or any(item["error"] for item in talk.replies)
        return {**taken, "answer": answer, "questions": talk.open_questions(), "failed": failed}


def _check_agent(conversation: str, agent: str) -> None:
    if conversation and agent:
        why = f"--agent is for a new conversation. In one that is there, say: /agent {agent}"
        raise CommandFailed(why, USAGE)


async def _post(api: Api, text: str, conversation: str, agent: str) -> Any:
    if conversation:
        return await api.ask("POST", f"/conversations/{conversation}/messages", json={"text": text})
    return await api.ask("POST", "/messages", json={"text": text, "agent": agent})


@asynccontextmanager
async def _server() -> AsyncIterator[Api]:
    """The running server's API: without one, nobody would answer."""
    from gofer.settings import load_settings
    from gofer.web.unix_socket import somebody_listens

    settings = load_settings()
    await wait_for_supervisor(settings)
    if not somebody_listens(settings.socket_path):
        raise CommandFailed("No server is running, so nobody would answer. Run: gofer serve", TRY_LATER)
    async with open_api(settings) as api:
        yield api


class _Talk:
    """One conversation: what is sent, and the frames that come back."""

    def __init__(self, api: Api, conversation: str) -> None:
        self._api = api
        self.conversation = conversation
        self._after = ""
        self.replies: list[dict[str, Any]] = []
        """What was answered since the last message."""
        self._seen: set[str] = set()

    async def send(self, text: str, agent: str = "") -> dict[str, Any]:
        """Say something. What happens from here on is told by `until_quiet`."""
        if self.conversation and not self._after:
            self._after = await self._place_of_now()
        taken: dict[str, Any] = await _post(self._api, text, self.conversation, agent)
        self.conversation = taken["conversation_id"]
        self._after = self._after or "0.0"
        self.replies = []
        return taken

    async def answer(self, question_id: str, text: str) -> None:
        """Answer a question that a run has asked."""
        await self._api.ask("POST", f"/questions/{question_id}/answer", json={"text": text})
        self.replies = []

    def is_new(self, item: dict[str, Any]) -> bool:
        """Whether this item is new. Each item comes again when anything about its run changes."""
        new = item["id"] not in self._seen
        self._seen.add(item["id"])
        return new

    def open_questions(self) -> list[dict[str, Any]]:
        """What a run waits for."""
        return [item for item in self.replies if item["question"] and item["open"]]

    async def until_quiet(self) -> AsyncGenerator[dict[str, Any]]:
        """Frames until nothing is being done and something was answered, or a person is asked."""
        for _ in range(MAX_RECONNECTIONS):
            async with aclosing(self._frames()) as frames:
                async for frame in frames:
                    if frame["type"] == "item" and frame["item"]["kind"] == "reply":
                        self._keep(frame["item"])
                    yield frame
                    if frame["type"] == "state" and self._is_quiet(frame["state"]):
                        return
        raise CommandFailed("The server ended the stream again and again. Run: gofer status", TRY_LATER)

    def _is_quiet(self, state: str) -> bool:
        # A question that was answered comes again, and is not the answer that is waited for.
        answered = [item for item in self.replies if not item["question"] or item["open"]]
        return bool(answered) and (state == "idle" or (state == "waiting" and bool(self.open_questions())))

    def _keep(self, item: dict[str, Any]) -> None:
        """Keep a reply once: it comes again when its question was answered."""
        self.replies = [each for each in self.replies if each["id"] != item["id"]] + [item]

    async def _place_of_now(self) -> str:
        async with aclosing(self._frames()) as frames:
            async for _ in frames:
                if self._after:
                    break
        return self._after

    async def _frames(self) -> AsyncGenerator[dict[str, Any]]:
        path = f"/conversations/{self.conversation}/live"
        params = {"after": self._after} if self._after else {}
        async with aclosing(self._api.lines(path, params=params)) as lines:
            async for line in lines:
                name, _, value = line.partition(": ")
                if name == "id":
                    self._after = value
                elif name == "data":
                    yield json.loads(value)


def chat(conversation: Conversation = "", agent: Agent = "") -> None:
    """Talk with an agent in this terminal, and see its answers, commands and questions live.

    \b
    gofer chat
    gofer chat --agent reviewer
    gofer chat --conversation conv_k3v9
    """
    _check_agent(conversation, agent)
    asyncio.run(_chat(conversation, agent))


async def _chat(conversation: str, agent: str) -> None:
    async with _server() as api:
        talk = _Talk(api, conversation)
        print(HELP)
        while (line := await asyncio.to_thread(_read, "\n> ")) is not None:
            if not line.strip():
                continue
            try:
                if (waiting := talk.open_questions()) and not line.startswith("/"):
                    await talk.answer(waiting[0]["question"], _chosen(waiting[0], line))
                else:
                    await talk.send(line, "" if talk.conversation else agent)
                await _show(talk)
            except CommandFailed as error:
                print(f"gofer: {error}", file=sys.stderr)
        if talk.conversation:
            print(f"\nGo on with: gofer chat --conversation {talk.conversation}")


def _read(prompt: str) -> str | None:
    try:
        return input(prompt)
    except EOFError:
        return None


def _chosen(item: dict[str, Any], line: str) -> str:
    """A choice by its number, or whatever else was typed."""
    word = line.strip()
    choices: list[str] = item["choices"]
    return choices[int(word) - 1] if word.isdecimal() and 0 < int(word) <= len(choices) else word


async def _show(talk: _Talk) -> None:
    """Print what happens until it is the person's turn."""
    streamed: dict[int, str] = {}
    async for frame in talk.until_quiet():
        if frame["type"] == "text":
            before = streamed.get(frame["job"], "")
            streamed[frame["job"]] = frame["text"] if frame["whole"] else before + frame["text"]
            _write(harmless(unprinted(before, streamed[frame["job"]])))
        elif frame["type"] == "item" and talk.is_new(frame["item"]):
            _show_item(frame["item"], streamed)


def _show_item(item: dict[str, Any], streamed: dict[int, str]) -> None:
    if item["kind"] == "step":
        _end_line(streamed, item["job"])
        _write(f"· {harmless(str(item.get('title') or item.get('name') or item.get('tool', 'tool')))}\n")
    elif item["kind"] == "aside":
        before = streamed.pop(item["job"], "")
        _write("\n" if before else f"{harmless(item['text'])}\n")
    elif item["kind"] == "reply":
        _write(harmless(unprinted(streamed.pop(item["job"], ""), item["text"])) + "\n")
        for number, choice in enumerate(item["choices"] if item["open"] else (), 1):
            _write(f"  {number}. {harmless(choice)}\n")


def unprinted(before: str, text: str) -> str:
    """What to print of a text when this much stands there already. An answer begins with its agent's name where there
    are several, which nobody has said before it: it comes after what is there."""
    if text.startswith(before):
        return text.removeprefix(before)
    named = _NAMED.match(text)
    if named and text[named.end() :].startswith(before):
        return f"{text[named.end() :].removeprefix(before)}\n({named[1]})"
    if before != before.rstrip():  # an answer does not end with the white space that the model ended with
        return unprinted(before.rstrip(), text)
    return f"\n{text}"


def _end_line(streamed: dict[int, str], job: int) -> None:
    if streamed.pop(job, ""):
        _write("\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
