"""The engine against an oracle: whatever people, workers and time do, nothing is lost, doubled or out of order."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Connection, func, select
from sqlmodel import SQLModel

from gofer.errors import Conflict, Fenced
from gofer.jobs import queue
from gofer.jobs.control import expire_questions
from gofer.jobs.outcome import Cancel, Dead, Done, Outcome, Retry, Snooze, Wait
from gofer.jobs.queue import Claim
from gofer.settings import Settings
from gofer.store.bootstrap import database_for
from gofer.store.database import Database
from gofer.store.tables import jobs
from gofer.vault.envelope import Vault
from gofer.vault.keyring import open_ring
from support.world import World

T = TypeVar("T")

LANES = st.sampled_from(["a", "b", "c"])
LIVE = ("ready", "running", "scheduled", "waiting")
MAX_ATTEMPTS = 3

ENDS: dict[str, Outcome] = {
    "done": Done(),
    "retry": Retry("flaky", after=0),
    "back off": Retry("flaky", after=60),
    "snooze": Snooze(60),
    "snooze at once": Snooze(0),
    "wait": Wait("Which one?", expires_after=600),
    "cancel": Cancel("cancelled"),
    "dead": Dead("hopeless"),
}


@dataclass
class Expected:
    """What the oracle believes of a job."""

    lane: str
    state: str
    attempts: int = 0
    max_attempts: int = MAX_ATTEMPTS
    fence: int = 0
    cancelled: bool = False
    claims: list[Claim] = field(default_factory=list)


class Engine(RuleBasedStateMachine):
    """Drives the real verbs on a real database and an oracle beside them."""

    url: ClassVar[str] = ""
    template: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.expected: dict[int, Expected] = {}
        self.delayed: set[int] = set()
        """Jobs whose first delay has not passed, for when they get out of a blocked lane."""
        self.world: World = self.run(self.open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    async def open(self) -> World:
        folder = Path(self.folder.name)
        url = self.url
        if not url:
            (folder / "gofer.db").write_bytes(self.template.read_bytes())
        self.database: Database = database_for(Settings(data_dir=folder, database_url=url))
        await self.database.start()
        vault = Vault(open_ring(folder, ciphertext_exists=False))
        await self.database.write(_empty)
        return await World.made(self.database, vault)

    def teardown(self) -> None:
        self.run(self.database.close())
        self.loop.close()
        self.folder.cleanup()

    # What may happen.

    @rule(lane=LANES, delay=st.sampled_from([0, 60]))
    def submit(self, lane: str, delay: float) -> None:
        job = self.run(self.world.submit(lane, delay=delay, max_attempts=MAX_ATTEMPTS))
        state = "blocked" if self.taken(lane) else "scheduled" if delay else "ready"
        self.expected[job] = Expected(lane, state)
        if delay:
            self.delayed.add(job)

    @rule(limit=st.integers(1, 3), owner=st.sampled_from(["worker-1", "worker-2"]))
    def claim(self, limit: int, owner: str) -> None:
        claims = self.run(self.world.claim(limit=limit, owner=owner))
        ready = sorted(job for job, known in self.expected.items() if known.state == "ready")
        assert [claim.id for claim in claims] == ready[:limit]
        for claim in claims:
            known = self.expected[claim.id]
            known.state, known.attempts, known.fence = "running", known.attempts + 1, known.fence + 1
            assert (claim.fence, claim.attempts) == (known.fence, known.attempts)
            known.claims.append(claim)

    @precondition(lambda self: any(known.claims for known in self.expected.values()))
    @rule(data=st.data(), how=st.sampled_from(sorted(ENDS)))
    def end(self, data: st.DataObject, how: str) -> None:
        """Any claim ever made tries to end its job; only the one that holds it may."""
        claims = [claim for known in self.expected.values() for claim in known.claims[-2:]]
        claim = data.draw(st.sampled_from(claims))
        known = self.expected[claim.id]
        outcome = ENDS[how]
        if known.state != "running" or known.fence != claim.fence:
            with pytest.raises(Fenced):
                self.run(self.world.end(claim, outcome))
            return
        self.run(self.world.end(claim, outcome))
        self.after(claim.id, known, outcome)

    def after(self, job: int, known: Expected, outcome: Outcome) -> None:
        if isinstance(outcome, Snooze | Wait):
            known.attempts -= 1
        if isinstance(outcome, Retry) and known.attempts >= known.max_attempts:
            outcome = Dead("flaky")
        match outcome:
            case Done():
                known.state = "done"
            case Dead():
                known.state = "dead"
            case Cancel():
                known.state = "cancelled"
            case Wait():
                known.state = "ready" if known.cancelled else "waiting"
            case Retry(after=delay) | Snooze(after=delay):
                known.state = "scheduled" if delay and not known.cancelled else "ready"
        if known.state in ("done", "dead", "cancelled"):
            self.free(known.lane)

    @rule()
    def time_passes(self) -> None:
        """Leases run out, delays end, questions expire; the sweeps do their work."""
        self.run(self.world.pass_time(10_000))
        lost = [(job, known) for job, known in self.expected.items() if known.state == "running"]
        self.run(self.world.sweep())
        for job, known in lost:
            self.after(job, known, Cancel("x") if known.cancelled else Retry("worker.lost", after=0))
        self.run(self.world.run(queue.stage))
        self.run(self.world.run(expire_questions))
        for known in self.expected.values():
            if known.state in ("scheduled", "waiting"):
                known.state = "ready"
        self.delayed = set()

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.expected)))
        known = self.expected[job]
        if known.state in ("done", "dead", "cancelled"):
            with pytest.raises(Conflict):
                self.run(self.world.cancel(job))
            return
        self.run(self.world.cancel(job))
        known.cancelled = True
        if known.state == "blocked":
            known.state = "cancelled"
        elif known.state != "running":
            known.state = "ready"

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def redrive(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.expected)))
        known = self.expected[job]
        if known.state not in ("dead", "cancelled"):
            with pytest.raises(Conflict):
                self.run(self.world.redrive(job))
            return
        self.run(self.world.redrive(job))
        known.state = "blocked" if self.taken(known.lane) else "ready"
        known.cancelled = False
        known.max_attempts = max(known.max_attempts, known.attempts + 1)
        self.delayed.discard(job)

    # The oracle.

    def taken(self, lane: str) -> bool:
        return any(known.lane == lane and known.state in LIVE for known in self.expected.values())

    def free(self, lane: str) -> None:
        blocked = sorted(
            job for job, known in self.expected.items() if (known.lane, known.state) == (lane, "blocked")
        )
        if blocked:
            self.expected[blocked[0]].state = "scheduled" if blocked[0] in self.delayed else "ready"

    # What must always hold.

    @invariant()
    def the_database_agrees_with_the_oracle(self) -> None:
        rows = self.run(self.world.rows(select(jobs.c.id, jobs.c.state, jobs.c.attempts, jobs.c.fence)))
        found = {row.id: (row.state, row.attempts, row.fence) for row in rows}
        assert found == {
            job: (known.state, known.attempts, known.fence) for job, known in self.expected.items()
        }

    @invariant()
    def attempts_are_bounded_and_a_lane_has_one_live_job(self) -> None:
        assert all(known.attempts <= known.max_attempts for known in self.expected.values())
        live = (
            select(jobs.c.lane).where(jobs.c.state.in_(LIVE)).group_by(jobs.c.lane).having(func.count() > 1)
        )
        assert self.run(self.world.rows(live)) == []

    @invariant()
    def nothing_is_stranded(self) -> None:
        for known in self.expected.values():
            assert known.state != "blocked" or self.taken(known.lane)


def _empty(c: Connection) -> None:
    for table in reversed(SQLModel.metadata.sorted_tables):
        c.execute(table.delete())


CALM = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None, "derandomize": False}


@pytest.mark.parametrize("runs", [4, pytest.param(12, marks=pytest.mark.slow)])
def test_on_sqlite(sqlite_url: str, runs: int) -> None:
    machine = type("OnSqlite", (Engine,), {"template": Path(sqlite_url.removeprefix("sqlite:///"))})
    run_state_machine_as_test(machine, settings=settings(max_examples=runs, stateful_step_count=25, **CALM))  # type: ignore[arg-type]


@pytest.mark.slow
def test_on_postgres(postgres_url: str) -> None:
    machine = type("OnPostgres", (Engine,), {"url": postgres_url})
    run_state_machine_as_test(machine, settings=settings(max_examples=3, stateful_step_count=20, **CALM))  # type: ignore[arg-type]
