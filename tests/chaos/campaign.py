"""One campaign: an installation on one database, a service, people who write, and a hand that kills."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.process import Gofer
from e2e.scenario import Scenario, prepared
from gofer_standins.hello import Fault
from support.servers import Server

LEASE = 1.0
ROOMS = 5
PATIENCE = 90.0
LAST_BACKOFF = 300.0
"""Seconds to wait for the end of everything: a reply that met several faults in a row waits long for its next try."""

FAULTS = (Fault("busy", 1), Fault("broken"), Fault("dropped"), Fault("stalled", 1.5))


@dataclass
class Tally:
    """What a campaign found."""

    database: str
    service: str
    cycles: int
    seconds: float = 0
    messages: int = 0
    replies: int = 0
    done: Counter[str] = field(default_factory=Counter)
    """How often each thing was done to a process."""
    fenced: int = 0
    """Writes of processes that had been stopped past their lease, refused."""
    orphans: int = 0
    most_orphans: int = 0
    bad_ends: int = 0
    """Processes that did not end well when asked to."""
    found: dict[str, list[str]] = field(default_factory=dict)
    log: str = ""
    """Where the processes' log was kept, if anything is wrong."""

    @property
    def complaints(self) -> list[str]:
        """Everything that is wrong, in words."""
        listed = [f"{kind}: {one}" for kind, some in self.found.items() for one in some]
        if self.orphans > self.most_orphans:
            listed.append(f"orphans: {self.orphans}, which is more than {self.most_orphans}")
        if self.bad_ends:
            listed.append(f"bad ends: {self.bad_ends}")
        if listed and self.log:
            listed.append(f"the log is in {self.log}")
        return listed

    @property
    def clean(self) -> bool:
        return not self.complaints

    def figures(self) -> dict[str, Any]:
        """For a machine."""
        return {
            "database": self.database,
            "service": self.service,
            "cycles": self.cycles,
            "seconds": round(self.seconds, 1),
            "messages": self.messages,
            "replies": self.replies,
            **self.done,
            "fenced": self.fenced,
            "orphans": self.orphans,
            **{kind: len(some) for kind, some in self.found.items()},
        }

    def line(self) -> str:
        """For a person."""
        wrong = ", ".join(f"{len(some)} {kind.replace('_', ' ')}" for kind, some in self.found.items())
        done = ", ".join(f"{count} {name}" for name, count in sorted(self.done.items()))
        return (
            f"{self.database} with {self.service}: {self.cycles} cycles ({done}) in {self.seconds:.0f} s; "
            f"{self.messages} messages, {self.replies} replies, {self.orphans} orphan openings, "
            f"{self.fenced} fenced; {wrong}"
        )


async def campaign(database: str, service: str, cycles: int, *, seed: int = 1) -> Tally:
    """Run one; what it returns says whether anything was lost."""
    chance = random.Random(f"{seed} {database} {service}")
    tally = Tally(database, service, cycles)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gofer-chaos-") as folder, postgres_or_none(database) as url:
        data_dir = Path(folder) / "data"
        data_dir.mkdir(mode=0o700)
        async with prepared(data_dir, url, integration=service, lease=LEASE, slots=4) as scenario:
            try:
                await _Campaign(scenario, chance, tally, split=database == "postgresql").run()
            finally:
                if not tally.found or not tally.clean:
                    tally.log = tempfile.mkstemp(prefix=f"gofer-chaos-{database}-{service}-", suffix=".log")[
                        1
                    ]
                    shutil.copy(scenario.log, tally.log)
    tally.seconds = time.monotonic() - begun
    return tally


@contextlib.contextmanager
def postgres_or_none(kind: str) -> Iterator[str]:
    """The address of a Postgres of its own; empty for SQLite."""
    if kind == "sqlite":
        yield ""
        return
    server = Server("postgres")
    try:
        yield server.postgres_url("postgres")
    finally:
        server.leave()


class _Campaign:
    def __init__(self, scenario: Scenario, chance: random.Random, tally: Tally, *, split: bool) -> None:
        self._scenario = scenario
        self._chance = chance
        self._tally = tally
        # An SQLite file belongs to one process.
        roles: list[tuple[str, ...]] = [("web",), ("worker",), ("worker",)] if split else [("web", "worker")]
        self._processes = [(role, scenario.start(*role)) for role in roles]
        self._enough = asyncio.Event()

    async def run(self) -> None:
        for _, gofer in self._processes:
            gofer.wait_until_ready()
        talking = [asyncio.create_task(self._talk(f"room{number}")) for number in range(ROOMS)]
        for _ in range(self._tally.cycles):
            await self._cycle()
        self._enough.set()
        self._scenario.service.faults.clear()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*talking)
        await self._scenario.settle(LAST_BACKOFF)
        for _, gofer in self._processes:
            self._tally.bad_ends += gofer.stop() != 0
        await self._judge()

    async def _talk(self, room: str) -> None:
        """Somebody who writes, waits for the answer, though not always and not for ever, and writes again."""
        number = 0
        while not self._enough.is_set():
            number += 1
            id_, seen = f"{room}-{number}", self._answers(room)
            await self._scenario.say(id_, room, f'$tool mark {{"line": "{id_}"}}' if number % 3 else "well?")
            until = time.monotonic() + self._chance.choice([0.05, 0.5, 5, 20])
            while time.monotonic() < until and self._answers(room) == seen and not self._enough.is_set():
                await asyncio.sleep(0.05)

    def _answers(self, room: str) -> int:
        return sum(reply.room == room for reply in self._scenario.shown())

    async def _cycle(self) -> None:
        if self._chance.random() < 0.8:
            await self._until_somebody_is_heard()
        await asyncio.sleep(self._chance.uniform(0, 0.5))
        if self._chance.random() < 0.4:
            fault = self._chance.choice(FAULTS)
            self._scenario.service.faults.append(fault)
            self._tally.done[fault.kind] += 1
        place = self._chance.randrange(len(self._processes))
        role, gofer = self._processes[place]
        what = self._chance.choices(["kill", "stop", "freeze"], [5, 2, 3])[0]
        self._tally.done[what] += 1
        if what == "kill":
            gofer.kill()
        elif what == "stop":
            self._tally.bad_ends += await asyncio.to_thread(gofer.stop) != 0
        else:
            await self._freeze(gofer)
        if gofer.ended:
            self._processes[place] = (role, self._scenario.start(*role))

    async def _until_somebody_is_heard(self) -> None:
        """Most blows fall on processes at work; the others on some that are just starting."""
        before, deadline = self._heard, time.monotonic() + PATIENCE
        while self._heard == before and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    @property
    def _heard(self) -> int:
        return sum(len(ids) for ids in self._scenario.acknowledged.values())

    async def _freeze(self, gofer: Gofer) -> None:
        """Past the lease, so that others take over; then it wakes, believing that it still holds its jobs."""
        gofer.signal(signal.SIGSTOP)
        await asyncio.sleep(LEASE * self._chance.uniform(1.2, 2.0))
        gofer.signal(signal.SIGCONT)

    async def _judge(self) -> None:
        scenario, tally = self._scenario, self._tally
        found = await scenario.findings()
        marks = Path(scenario.environment["GOFER_TEST_MARKS"])
        times = Counter(marks.read_text().split() if marks.exists() else [])
        found.doubled += [
            f"the mark {line} was left {count} times" for line, count in times.items() if count > 1
        ]
        tally.found = {
            "lost": found.lost,
            "doubled": found.doubled,
            "out_of_order": found.out_of_order,
            "stranded": found.stranded,
            "held_twice": found.held_twice,
            "refused": list(scenario.service.refused),
        }
        tally.messages = self._heard
        tally.replies = len(scenario.shown())
        tally.fenced = scenario.log.read_text().count('"job.fenced"')
        tally.orphans = scenario.orphans()
        interrupted = tally.done["kill"] + tally.done["freeze"] + tally.done["stop"]
        # Each may come between an opening and its id in every conversation; a service that hangs up, in one.
        tally.most_orphans = ROOMS * interrupted + tally.done["dropped"] + tally.done["stalled"]
