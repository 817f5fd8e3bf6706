"""Gofer's agent under measurement: the real store, queue, worker, answerer, loop and tools.

Only the model is scripted, and the shell's answers are ready. `python -m benchmarks.agent_ours CONVERSATIONS`
prints how much a process grows by conversations that were answered once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import itertools
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog
import uvloop
from sqlalchemy import Connection

from gofer.agent.model import Features, Model, ModelEvent, ModelRequest, Turn, Usage
from gofer.agent.models.catalogue import AUTO, Catalogue
from gofer.app import Platform, open_app
from gofer.connections.changes import add_connection
from gofer.handlers import SERVICE_SLOTS
from gofer.intake.admit import Admitter
from gofer.intake.arrival import Arrival
from gofer.intake.transaction import take_in
from gofer.integration import Author, Incoming, Parsed
from gofer.jobs.finish import finish_run
from gofer.jobs.kinds import ANSWER
from gofer.jobs.notifications import JOBS
from gofer.jobs.outcome import Done, Outcome
from gofer.jobs.queue import AGENT, SERVICE, Claim, claim
from gofer.jobs.worker import Capacity, Run, Worker
from gofer.runs.agent_files import AgentFiles
from gofer.runs.answer import Answerer, apology
from gofer.runs.model_keys import ModelKeys
from gofer.runs.shell_access import Loans, ShellAccessGrants
from gofer.runs.shells import Shells
from gofer.settings import Settings
from gofer.store.bootstrap import FIRST_AGENT, FIRST_WORKSPACE
from gofer.store.tables import Trust
from gofer.tool import CommandResult, Entry, Shell

TOOLS = (("bash", {"command": "make test"}), ("read", {"path": "notes.txt"}), ("ls", {"path": "."}))
ANSWERED = "All done."
_OUTPUT = b"x" * 300
_UNLIMITED = "[limits]\njob_dollars = 1000\nday_dollars = 1000000\n"
"""Budgets are reserved and settled as ever; only none is used up."""


class Scripted:
    """Calls three tools, one a turn, then answers; or answers at once. `pause` is what a turn of it takes."""

    name = AUTO
    context_window = 200_000
    features = Features()

    def __init__(self, pause: float = 0) -> None:
        self.calls = len(TOOLS)
        self.recalls = 0
        """How often it searches its memory in a turn before it answers, in the place of other tools."""
        self.pause = pause
        self._ids = itertools.count(1)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        if self.pause:
            await asyncio.sleep(self.pause)
        done = 0
        while any(block["type"] == "tool_result" for block in request.messages[-1 - 2 * done]["content"]):
            done += 1
        if self.recalls and not done and request.tools:
            ids = [next(self._ids) for _ in range(self.recalls)]
            asked = [{"query": f"which shelf is for the blue cups of day {number}"} for number in ids]
            found = [
                {"type": "tool_use", "id": f"toolu_{number}", "name": "recall", "input": query}
                for number, query in zip(ids, asked, strict=True)
            ]
            yield Turn(found, "tool_use", Usage(100, 0, 0, 0, 10), self.name)
            return
        if done == (1 if self.recalls else self.calls) or not request.tools:
            yield Turn([{"type": "text", "text": ANSWERED}], "end", Usage(100, 0, 0, 0, 10), self.name)
            return
        name, arguments = TOOLS[done]
        call = {"type": "tool_use", "id": f"toolu_{next(self._ids)}", "name": name, "input": dict(arguments)}
        yield Turn([call], "tool_use", Usage(100, 0, 0, 0, 10), self.name)


class _Keys(ModelKeys):
    """Knows the scripted model alone."""

    scripted: Catalogue

    async def catalogue(self, workspace_id: str) -> Catalogue:
        return self.scripted


class _Canned:
    """A shell whose answers are ready, so that no time is a command's."""

    def __init__(self, output: bytes) -> None:
        self._output = output

    async def run(
        self, command: str, *, timeout: float, tag: str = "", on_output: Callable[[bytes], None] | None = None
    ) -> CommandResult:
        return CommandResult(self._output, 0)

    async def recover(self, tag: str) -> CommandResult | None:
        return None

    async def confine(self, *, narrowed: bool) -> None: ...

    async def cancel(self) -> None: ...

    async def read(self, path: str, *, limit: int) -> bytes:
        return self._output

    async def write(self, path: str, data: bytes) -> None: ...

    async def list(self, path: str) -> list[Entry]:
        return [Entry("notes.txt", "file", len(self._output))]

    async def seed(self, rule: str) -> str:
        return ""


class _CannedShells(Shells):
    output = _OUTPUT

    @contextlib.asynccontextmanager
    async def lend(
        self,
        claim: Claim,
        trust: Trust,
        equipping: ShellAccessGrants | None = None,
        stopped: asyncio.Event | None = None,
    ) -> AsyncIterator[Shell | None]:
        yield _Canned(self.output)


class Bench:
    """One instance on SQLite, with one connection."""

    def __init__(
        self, platform: Platform, connection_id: str, scripted: Model | None, output: bytes = _OUTPUT
    ) -> None:
        self.platform = platform
        self._connection_id = connection_id
        self._numbers = itertools.count(1)
        self._took: asyncio.Queue[float] = asyncio.Queue()
        self._answerer = self._make(scripted, output)

    def _make(self, scripted: Model | None, output: bytes) -> Answerer:
        platform = self.platform
        settings, database, vault = platform.settings, platform.database, platform.vault
        keys = ModelKeys(settings=settings, database=database, vault=vault, http=platform.http)
        self.shells = Shells(settings=settings, database=database)
        if scripted is not None:
            keys = _Keys(settings=settings, database=database, vault=vault, http=platform.http)
            keys.scripted = Catalogue({}, _made={(AUTO, ""): scripted})
            self.shells = _CannedShells(settings=settings, database=database)
            self.shells.output = output
        return Answerer(
            settings=settings,
            database=database,
            vault=vault,
            accounts=platform.accounts,
            admitter=Admitter(
                database=database, vault=vault, accounts=platform.accounts, redactor=platform.redactor
            ),
            redactor=platform.redactor,
            shells=self.shells,
            loans=Loans(),
            uses=platform.uses,
            keys=keys,
            agents=AgentFiles(settings.data_dir / "agents"),
            servers=platform.servers_for_run,
        )

    async def hear(self, rooms: Sequence[str], text: str = "Do it.", trust: Trust = Trust.UNKNOWN) -> None:
        """A message arrives in each room, all at once."""

        def take(connection: Connection) -> None:
            for room in rooms:
                take_in(connection, self.platform.vault, self._arrival(room, text, trust))

        await self.platform.database.write(take)
        self.platform.signals.wake(JOBS)

    def _arrival(self, room: str, text: str, trust: Trust) -> Arrival:
        id_ = f"m{next(self._numbers)}"
        message = Incoming(
            conversation=room, author=Author("ann"), text=text, addressed=True, external_id=id_
        )
        return Arrival(
            workspace_id=FIRST_WORKSPACE,
            connection_id=self._connection_id,
            integration="hello",
            source="webhook",
            parsed=Parsed(delivery_id=id_, event=message.event, message=message),
            body=text.encode(),
            body_hash=hashlib.sha256(text.encode()).hexdigest(),
            trust=trust,
        )

    async def remember(self, room: str, count: int) -> None:
        """Give a room a history that is read and answered; before there is a worker."""
        database, vault = self.platform.database, self.platform.vault
        for begin in range(0, count, 500):
            rooms = [room] * min(500, count - begin)
            await self.hear(rooms, "The third shelf is for the blue cups. " * 2, trust=Trust.OWNER)
        (waiting,) = (await claim(database, owner="past", lease=60, limits={AGENT: 1}))[AGENT]
        await database.write(
            lambda connection: finish_run(connection, vault, waiting, Done(included_to=count))
        )

    async def ask(self, room: str) -> float:
        """Seconds of one run, from the claimed job to its outcome."""
        await self.hear([room])
        return await self._took.get()

    async def answered(self, count: int) -> None:
        """Wait for so many runs."""
        for _ in range(count):
            await self._took.get()

    async def handle(self, run: Run) -> Outcome:
        """The handler of answer jobs, timed."""
        began = time.perf_counter()
        outcome = await self._answerer.handle(run)
        if not (isinstance(outcome, Done) and outcome.drafts):
            raise RuntimeError(f"the run should have answered, and ended with {outcome}")
        self._took.put_nowait(time.perf_counter() - began)
        return replace(
            outcome, drafts=()
        )  # sending is not the agent's work, and would go on beside the next run

    @contextlib.asynccontextmanager
    async def working(self, slots: int = 16) -> AsyncIterator[Worker]:
        """A worker is there; what it answers is sent to nobody."""
        worker = Worker(
            owner=self.platform.owner,
            database=self.platform.database,
            vault=self.platform.vault,
            signals=self.platform.signals,
            handlers={ANSWER: self.handle},
            apology=apology,
            capacity=Capacity(slots={AGENT: slots, SERVICE: SERVICE_SLOTS}),
        )
        await worker.start()
        try:
            yield worker
        finally:
            await worker.stop()


@contextlib.asynccontextmanager
async def bench(scripted: Model | None, output: bytes = _OUTPUT) -> AsyncIterator[Bench]:
    """A fresh instance with this model, or with the offline one and real shells."""
    with tempfile.TemporaryDirectory(prefix="gofer-bench-") as folder:
        settings = Settings(data_dir=Path(folder), keep_shells=False)
        agents = settings.data_dir / "agents"
        await asyncio.to_thread(agents.mkdir)
        model = AUTO if scripted is not None else "auto"
        (agents / f"{FIRST_AGENT}.toml").write_text(
            f'name = "{FIRST_AGENT}"\nmodel = "{model}"\n{_UNLIMITED}'
        )
        async with open_app(settings, roles=frozenset()) as platform:
            connection_id = await platform.database.write(
                partial(
                    add_connection,
                    vault=platform.vault,
                    workspace_id=FIRST_WORKSPACE,
                    integration=platform.registry.get("hello"),
                    name="bench",
                    settings={"reply_url": "http://127.0.0.1:1/"},
                    secrets_given={},
                    by="bench",
                )
            )
            made = Bench(platform, connection_id, scripted, output)
            await made.shells.start()
            try:
                yield made
            finally:
                await made.shells.stop()


def _resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _growth(count: int) -> float:
    """Bytes a conversation leaves in the process that answered it once."""
    async with bench(None) as made, made.working():
        await _each_once(made, [f"warm {number}" for number in range(100)])
        before = _resident()
        await _each_once(made, [f"room {number}" for number in range(count)])
        return (_resident() - before) / count


async def _each_once(made: Bench, rooms: list[str]) -> None:
    for begin in range(0, len(rooms), 50):
        await made.hear(rooms[begin : begin + 50])
        await made.answered(len(rooms[begin : begin + 50]))


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(_growth(int(sys.argv[1])))))
