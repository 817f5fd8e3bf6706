"""A furnished store and short words for what happens in it, so that a test reads like what it proves."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

from sqlalchemy import Connection, func, select, true, update

from gofer.intake.arrival import Arrival, Taken
from gofer.intake.transaction import take_in
from gofer.integration import Author, Incoming, Parsed
from gofer.jobs import control, maintenance, queue
from gofer.jobs.finish import FinishResult, finish_run
from gofer.jobs.notifications import LocalSignals, Signals
from gofer.jobs.outcome import Done, Draft, Outcome
from gofer.jobs.queue import AGENT, SERVICE, Claim
from gofer.jobs.worker import Capacity, Handler, Worker
from gofer.mac_upgrade import start
from gofer.runs.answer import apology
from gofer.secrets.key_check import check_canary
from gofer.store import events, row_macs
from gofer.store.bootstrap import FIRST_WORKSPACE, seed_agent, seed_workspace
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.encryption import conversation_key
from gofer.store.ids import new_id
from gofer.store.messages import open_stored, seal_message
from gofer.store.tables import (
    JobState,
    Trust,
    agents,
    attempts,
    bindings,
    connections,
    deliveries,
    hops,
    jobs,
    messages,
    participants,
    questions,
    replies,
    routes,
    runtimes,
    schedules,
)
from gofer.vault.envelope import Vault

CONNECTION = "hello_test"


class World:
    """One workspace, one agent that hears everything, one connection of `gofer_hello`."""

    def __init__(self, database: Database, vault: Vault) -> None:
        self.database = database
        self.vault = vault
        self._numbers = itertools.count(1)

    @classmethod
    async def made(cls, database: Database, vault: Vault) -> World:
        world = cls(database, vault)
        await database.write(world._furnish)
        return world

    @classmethod
    async def found(cls, database: Database, vault: Vault) -> World:
        """The same where the rows are there already."""
        world = cls(database, vault)
        await database.write(lambda connection: start(connection, vault, recorded=None))
        return world

    # Furniture.

    def _furnish(self, connection: Connection) -> None:
        seed_workspace(connection)
        check_canary(connection, self.vault)
        start(connection, self.vault, recorded=None)
        seed_agent(connection)
        self._connect(connection, CONNECTION)

    async def connect(self, id_: str, **values: Any) -> str:
        """Another connection."""
        await self.run(lambda c: self._connect(c, id_, **values))
        return id_

    def _connect(self, connection: Connection, id_: str, **values: Any) -> None:
        row = {
            "id": id_,
            "workspace_id": FIRST_WORKSPACE,
            "integration": "hello",
            "name": id_,
            "enabled": True,
            "settings": {"reply_url": "http://127.0.0.1:1/"},
            **values,
        }
        row_macs.insert(connection, connections, {"created_at": now(), **row})

    async def agent(
        self, name: str, *, trigger: str = "any", event: str = "*", kind: str = "also", **values: Any
    ) -> str:
        """Another agent and the route by which it hears; by default it answers beside the first."""
        id_ = new_id("agent")

        def make(c: Connection) -> None:
            row = {
                "id": id_,
                "workspace_id": FIRST_WORKSPACE,
                "name": name,
                "model": "offline",
                "settings": {},
            }
            row_macs.insert(c, agents, {**row, "created_at": now(), **values})
            route = {"id": new_id("route"), "workspace_id": FIRST_WORKSPACE, "agent_id": id_, "priority": 0}
            row_macs.insert(c, routes, {**route, "event": event, "trigger": trigger, "kind": kind, "rank": 1})

        await self.run(make)
        return id_

    async def run(self, verb: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a verb in a transaction of its own."""
        return await self.database.write(partial(verb, *args, **kwargs) if args or kwargs else verb)

    async def rows(self, query: Any) -> list[Any]:
        return list(await self.database.read(lambda c: c.execute(query).all()))

    async def count(self, table: Any, *conditions: Any) -> int:
        return int((await self.rows(select(func.count()).select_from(table).where(*conditions)))[0][0])

    # Jobs.

    async def submit(self, lane: str | None = None, *, kind: str = "work", **values: Any) -> int:
        """A job in a lane of its own, or in the one named."""
        lane = lane or f"lane-{next(self._numbers)}"
        return int(
            await self.run(queue.submit, workspace_id=FIRST_WORKSPACE, kind=kind, lane=lane, **values) or 0
        )

    async def claim(
        self, limit: int = 1, *, owner: str = "worker-1", lease: float = 30, pool: str = AGENT, **values: Any
    ) -> list[Claim]:
        found = await queue.claim(self.database, owner=owner, lease=lease, limits={pool: limit}, **values)
        return found.get(pool, [])

    async def claim_one(self, **values: Any) -> Claim:
        (claim,) = await self.claim(**values)
        return claim

    async def end(self, claim: Claim, outcome: Outcome | None = None) -> FinishResult:
        """End a run, by default well."""
        ended: FinishResult = await self.run(
            lambda c: finish_run(c, self.vault, claim, outcome if outcome is not None else Done())
        )
        return ended

    async def work(self, **values: Any) -> Claim:
        """Claim the next job and end it well."""
        claim = await self.claim_one(**values)
        await self.end(claim)
        return claim

    async def job(self, job_id: int) -> Any:
        return (await self.rows(select(jobs).where(jobs.c.id == job_id)))[0]

    async def state(self, job_id: int) -> JobState:
        return JobState((await self.job(job_id)).state)

    async def states(self, *job_ids: int) -> list[str]:
        return [str(await self.state(job_id)) for job_id in job_ids]

    async def tries(self, job_id: int) -> list[tuple[int, str, str]]:
        """The attempts of a job: number, outcome, reason."""
        query = select(attempts.c.number, attempts.c.outcome, attempts.c.reason)
        return [
            tuple(row) for row in await self.rows(query.where(attempts.c.job_id == job_id).order_by("fence"))
        ]

    async def cancel(self, job_id: int) -> JobState:
        state: JobState = await self.run(control.cancel, job_id=job_id, by="test")
        return state

    async def redrive(self, job_id: int) -> JobState:
        state: JobState = await self.run(control.redrive, job_id=job_id, by="test")
        return state

    async def sweep(self) -> int:
        """Rescue what is lost and untangle what is stranded; returns how many of both."""
        found = 0
        for claim in await self.database.read(maintenance.lost_jobs):
            found += await self.run(maintenance.rescue, vault=self.vault, claim=claim, apology=apology)
        return found + int(await self.run(maintenance.repair_lanes))

    async def pass_time(self, seconds: float) -> None:
        """Let the clock of the database seem to move on, by moving every time it compares with into the past."""

        def move(c: Connection) -> None:
            for column in _TIMES:
                moved = {column.name: column - seconds}
                if column.table in row_macs.TABLES:
                    row_macs.update(c, column.table, true(), moved)
                else:
                    c.execute(update(column.table).values(moved))

        await self.run(move)

    # Conversations.

    async def say(self, text: str = "hello", **values: Any) -> Taken:
        """A message arrives."""
        return await self.deliver(self.arrival(text, **values))

    async def deliver(self, arrival: Arrival) -> Taken:
        taken: Taken = await self.run(lambda c: take_in(c, self.vault, arrival))
        return taken

    def arrival(
        self,
        text: str = "hello",
        *,
        room: str = "kitchen",
        by: str = "ann",
        id_: str | None = None,
        body: str | None = None,
        same_body_window: float = 0,
        connection_id: str = CONNECTION,
        addressed: bool = True,
        **incoming: Any,
    ) -> Arrival:
        """A delivery on its way into the store."""
        id_ = id_ or f"auto-{next(self._numbers)}"
        message = Incoming(
            conversation=room,
            author=Author(by),
            text=text,
            addressed=addressed,
            **{"external_id": id_, **incoming},
        )
        body = text if body is None else body
        return Arrival(
            workspace_id=FIRST_WORKSPACE,
            connection_id=connection_id,
            integration="hello",
            source="webhook",
            parsed=Parsed(delivery_id=id_, event=message.event, message=message),
            body=body.encode(),
            body_hash=hashlib.sha256(body.encode()).hexdigest(),
            same_body_window=same_body_window,
        )

    async def participants(self) -> list[Any]:
        return await self.rows(select(participants).order_by(participants.c.agent_id))

    async def binding(self, room: str = "kitchen") -> str:
        return str((await self.rows(select(bindings.c.id).where(bindings.c.ref == room)))[0][0])

    async def draft(self, *parts: str, room: str = "kitchen", **values: Any) -> Draft:
        return Draft(await self.binding(room), parts or ("an answer",), **values)

    async def answer(self, text: str = "an answer", *, to: int | None = None, **claiming: Any) -> Claim:
        """An agent claims the next answer job and answers it, having read up to a message (by default all)."""
        claim = await self.claim_one(**claiming)
        (ref,) = await self.rows(select(bindings).where(bindings.c.conversation_id == claim.conversation_id))
        last = select(func.max(messages.c.seq)).where(messages.c.conversation_id == claim.conversation_id)
        read_to = to if to is not None else (await self.rows(last))[0][0]
        await self.end(claim, Done(drafts=(Draft(ref.id, (text,)),), included_to=read_to))
        return claim

    async def replies(self, room: str | None = None) -> list[Any]:
        query = select(replies).order_by(replies.c.id)
        if room is not None:
            query = query.where(replies.c.binding_id == await self.binding(room))
        return await self.rows(query)

    async def answer_jobs(self) -> list[Any]:
        return await self.rows(select(jobs).where(jobs.c.kind == "answer").order_by(jobs.c.id))

    async def kinds_of_events(self, job_id: int) -> list[str]:
        return [row["kind"] for row in await self.database.read(partial(events.of_job, job_id=job_id))]

    # Workers.

    @contextlib.asynccontextmanager
    async def worker(
        self,
        handlers: Mapping[str, Handler],
        *,
        owner: str = "worker-1",
        signals: Signals | None = None,
        vault: Vault | None = None,
        slots: int = 4,
        pools: Mapping[str, int] | None = None,
        **capacity: Any,
    ) -> AsyncIterator[Worker]:
        """A running worker that looks often."""
        limits: dict[str, Any] = {"lease": 30.0, "poll_interval": 0.05, "stop_within": 0.2, **capacity}
        worker = Worker(
            owner=owner,
            database=self.database,
            vault=vault or self.vault,
            signals=signals or LocalSignals(),
            handlers=handlers,
            apology=apology,
            capacity=Capacity(slots=pools or {AGENT: slots, SERVICE: slots}, **limits),
        )
        await worker.start()
        try:
            yield worker
        finally:
            await worker.stop()


_TIMES = (
    jobs.c.run_at,
    jobs.c.lease_until,
    jobs.c.finished_at,
    attempts.c.ended_at,
    questions.c.expires_at,
    replies.c.confirm_at,
    deliveries.c.received_at,
    schedules.c.next_at,
    hops.c.created_at,
    hops.c.deadline,
    hops.c.ended_at,
    runtimes.c.seen_at,
    runtimes.c.active_at,
)


def admit(connection: Connection, world: World, conversation: str, seq: int, trust: Trust) -> None:
    """Somebody looked up who wrote a message."""
    here = (messages.c.conversation_id == conversation) & (messages.c.seq == seq)
    row = connection.execute(select(messages).where(here)).one()
    key = conversation_key(connection, world.vault, conversation)
    stored = open_stored(key, row)
    sealed = seal_message(key, conversation, seq, stored.message, trust, came_by=row.connection_id)
    connection.execute(update(messages).where(here).values(trust=trust, sealed=sealed))
