"""Simple, real implementations of the agent's ports: lists and dictionaries, a bash on a temporary directory."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gofer.agent.conversation import (
    ConversationMessage,
    Covers,
    Memories,
    QuestionAnswer,
    StopSignal,
    Summary,
)
from gofer.agent.journal import JournalEvent
from gofer.agent.limits import Scope, Short
from gofer.agent.loop import Loop
from gofer.agent.model import Model
from gofer.agent.prices import load_prices
from gofer.agent.tools.bash import Masker, NoMask
from gofer.agent.tools.builtin import builtin_tools
from gofer.errors import Fenced
from gofer.runs.agent_files import AgentSpec
from gofer.runs.build import Ports, build
from gofer.runs.conversation_shell import WorkspaceChanges
from gofer.tool import CommandResult, Entry, Tool


class Killed(BaseException):
    """Stands for the death of the process at a point of the journal."""


class ListJournal:
    """Keeps events as JSON, as a store would. `die_after` ends the worker after so many events of its own: at once, or
    when it has done what comes next and is about to write that down (`late`).
    """

    def __init__(
        self, events: Iterable[JournalEvent] = (), die_after: int | None = None, *, late: bool = False
    ) -> None:
        self.lines = [self._dump(event) for event in events]
        self.die_after = die_after
        self.late = late
        self.fenced = False

    def _dump(self, event: JournalEvent) -> str:
        return json.dumps([event.id, event.kind, event.data, event.parent_id], allow_nan=False)

    async def append(self, kind: str, data: dict[str, Any], parent_id: int | None = None) -> int:
        if self.fenced:
            raise Fenced
        if self.die_after is not None and len(self.lines) >= self.die_after:
            raise Killed
        self.lines.append(self._dump(JournalEvent(len(self.lines) + 1, kind, data, parent_id)))
        if self.die_after is not None and len(self.lines) >= self.die_after and not self.late:
            raise Killed
        return len(self.lines)

    async def load(self) -> Sequence[JournalEvent]:
        return self.events

    @property
    def events(self) -> list[JournalEvent]:
        return [JournalEvent(*json.loads(line)) for line in self.lines]

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def last(self, kind: str) -> dict[str, Any]:
        return next(event.data for event in reversed(self.events) if event.kind == kind)

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.events if event.kind == kind]


class ListInbox:
    def __init__(self, *said: ConversationMessage) -> None:
        self.messages = list(said)
        self._stop: asyncio.Future[StopSignal] | None = None
        self.wish: StopSignal | None = None
        self.pauses = False

    async def unread(self, after: int) -> Sequence[ConversationMessage]:
        return [said for said in self.messages if said.seq > after and not said.by_us]

    async def stopped(self) -> StopSignal:
        while self.wish is None:
            await asyncio.sleep(0.01)
        return self.wish

    def paused(self) -> bool:
        return self.pauses

    def stop(self) -> None:
        self.wish = StopSignal()


@dataclass
class ListHistory:
    messages: list[ConversationMessage] = field(default_factory=list)
    last: Summary | None = None

    async def summary(self) -> Summary | None:
        return self.last

    async def between(self, after: int, to: int, *, newest: int) -> Sequence[ConversationMessage]:
        return [said for said in self.messages if after < said.seq <= to][-newest:]

    async def answer(self, number: int) -> str | None:
        found = (said.text for said in self.messages if said.by_us and said.number == number)
        return next(found, None)


@dataclass
class Answers:
    given: dict[str, QuestionAnswer] = field(default_factory=dict)

    async def answer(self, call_id: str) -> QuestionAnswer | None:
        return self.given.get(call_id) or self.given.get("*")


@dataclass
class DictLedger:
    amounts: dict[str, int] = field(default_factory=dict)
    others: int = 0
    """Spent by other jobs today."""

    async def reserve(
        self, key: str, amount: int, caps: Mapping[Scope, int], *, background: bool = False
    ) -> Short | None:
        rest = self.others + sum(value for other, value in self.amounts.items() if other != key)
        for scope, cap in caps.items():
            if rest + amount > cap:
                return Short(scope, rest)
        self.amounts[key] = amount
        return None

    async def settle(self, key: str, amount: int, model: str = "") -> None:
        self.amounts[key] = amount

    @property
    def total(self) -> int:
        return sum(self.amounts.values())


@dataclass
class DictBlobs:
    kept: dict[str, bytes] = field(default_factory=dict)

    async def put(self, data: bytes, media_type: str) -> str:
        ref = hashlib.sha256(data).hexdigest()[:32]
        self.kept[ref] = data
        return ref

    async def get(self, ref: str) -> bytes | None:
        return self.kept.get(ref)


class LocalShell:
    """bash in a directory, a process per command; no isolation, for the tests' own commands only."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.commands: list[str] = []
        self._outcomes: dict[str, CommandResult] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._cancelled = False
        self.confined: list[bool] = []
        self._changes = WorkspaceChanges(directory)

    async def run(
        self, command: str, *, timeout: float, tag: str = "", on_output: Callable[[bytes], None] | None = None
    ) -> CommandResult:
        self.commands.append(command)
        self._cancelled, timed_out = False, False
        process = self._process = await asyncio.create_subprocess_exec(
            # uvloop leaves a copy of the pipe open, which whatever the command starts would hold.
            "bash", "-c", f"eval exec {{3..99}}'>&-'\n{command}", cwd=self.directory, stdout=-1,
            stderr=asyncio.subprocess.STDOUT,
            stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        output = bytearray()

        async def read() -> None:
            assert process.stdout is not None
            while chunk := await process.stdout.read(65536):
                output.extend(chunk)
                if on_output:
                    on_output(chunk)
            await process.wait()

        try:
            await asyncio.wait_for(read(), timeout)
        except TimeoutError:
            timed_out = True
            self._kill()
            await process.wait()
        except asyncio.CancelledError:
            self._kill()
            raise
        finally:
            process._transport.close()  # type: ignore[attr-defined]
        code = None if timed_out or self._cancelled else process.returncode
        changed = self._changes.changed()
        result = CommandResult(bytes(output), code, timed_out, self._cancelled, changed=changed)
        self._outcomes[tag] = result
        return result

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    async def recover(self, tag: str) -> CommandResult | None:
        return self._outcomes.get(tag)

    async def confine(self, *, narrowed: bool) -> None:
        self.confined.append(narrowed)

    async def cancel(self) -> None:
        self._cancelled = True
        self._kill()

    async def read(self, path: str, *, limit: int) -> bytes:
        return (self.directory / path).read_bytes()[:limit]

    async def write(self, path: str, data: bytes) -> None:
        target = self.directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        self._changes.forget()

    async def list(self, path: str) -> list[Entry]:
        return [
            Entry(one.name, "dir" if one.is_dir() else "file", one.stat().st_size)
            for one in (self.directory / path).iterdir()
        ]

    async def seed(self, rule: str) -> str:
        return ""


def ada(text: str, seq: int = 1, **more: Any) -> ConversationMessage:
    """The owner says something."""
    return ConversationMessage(seq, "Ada", "owner", text, **{"identity": "hello/1", **more})


def bob(text: str, seq: int = 1, **more: Any) -> ConversationMessage:
    """A stranger says something."""
    return ConversationMessage(seq, "Bob", "stranger", text, **{"identity": "hello/2", **more})


@dataclass
class World:
    """Everything one conversation's runs need; a new `loop` on it is a new worker."""

    model: Model
    shell: LocalShell | None = None
    inbox: ListInbox = field(default_factory=lambda: ListInbox(ada("Do it.")))
    journal: ListJournal = field(default_factory=ListJournal)
    history: ListHistory = field(default_factory=ListHistory)
    questions: Answers = field(default_factory=Answers)
    ledger: DictLedger = field(default_factory=DictLedger)
    blobs: DictBlobs = field(default_factory=DictBlobs)
    covers: Covers = field(default_factory=lambda: Covers(read_seq=0))
    spec: AgentSpec = field(default_factory=lambda: AgentSpec(name="gofer"))
    tools: list[Tool[Any]] = field(default_factory=builtin_tools)
    memories: Memories | None = None
    mask: Masker = field(default_factory=NoMask)
    heard: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    async def loop(self) -> Loop:
        ports = Ports(
            journal=self.journal,
            inbox=self.inbox,
            history=self.history,
            questions=self.questions,
            ledger=self.ledger,
            blobs=self.blobs,
            covers=self.covers,
            shell=self.shell,
            memories=self.memories,
            mask=self.mask,
            listen=lambda kind, data: self.heard.append((kind, data)),
        )
        return await build(self.spec, self.model, self.tools, load_prices(), ports)

    async def run(self) -> Any:
        return await (await self.loop()).run()
