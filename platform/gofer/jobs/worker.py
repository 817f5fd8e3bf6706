"""A worker: claims jobs into its slots, renews their leases, stops what is cancelled or lost, and ends each run."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import structlog

from gofer.crash import crash_point
from gofer.errors import Fenced, StoreError
from gofer.jobs import queue, upkeep
from gofer.jobs.conclude import Concluded, conclude
from gofer.jobs.cron import tick
from gofer.jobs.outcome import Cancel, Dead, Draft, Outcome, Retry, Snooze
from gofer.jobs.queue import Claim
from gofer.jobs.signals import EVENTS, JOBS, Signals
from gofer.jobs.steer import expire_questions
from gofer.jobs.upkeep import Apology
from gofer.store.database import Database
from gofer.vault.envelope import Vault

log = structlog.get_logger()


@dataclass(eq=False)
class Run:
    """A claimed job as its handler sees it."""

    claim: Claim
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when somebody asked to stop; a handler may end in its own way within the grace, else it is cancelled."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process is about to end; what can be put down at once should be."""


Handler = Callable[[Run], Awaitable[Outcome]]
"""Does one kind of job. Contract: whatever it raises becomes a retry."""

CANCEL_GRACE = 1.8
RENEWALS_PER_LEASE = 3
TIDY_EVERY = 15
"""Poll intervals between two rounds of tidying."""


@dataclass(frozen=True)
class Capacity:
    """How much one process takes on."""

    slots: Mapping[str, int]
    lease: float = 30
    poll_interval: float = 1
    stop_within: float = 20
    max_running: int | None = None
    keep_finished: float = 30 * 86400


class Worker:
    """Runs jobs until it is told to stop."""

    def __init__(
        self,
        *,
        owner: str,
        database: Database,
        vault: Vault,
        signals: Signals,
        handlers: Mapping[str, Handler],
        apology: Apology,
        capacity: Capacity,
    ) -> None:
        self.owner = owner
        self._database = database
        self._vault = vault
        self._signals = signals
        self._handlers = handlers
        self._apology = apology
        self._capacity = capacity
        self._running: dict[int, tuple[Run, asyncio.Task[None], str]] = {}
        self._stopping = False
        self._loops: list[asyncio.Task[None]] = []
        self._freed = {pool: signals.subscribe(JOBS) for pool in capacity.slots}

    async def start(self) -> None:
        """Begin to claim."""
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "renew": self._renew_loop,
            "look": self._look_loop,
            "upkeep": self._upkeep_loop,
            "tidy": self._tidy_loop,
        }
        loops |= {f"claim-{pool}": partial(self._claim_loop, pool) for pool in self._capacity.slots}
        self._loops = [
            asyncio.create_task(self._forever(name, loop), name=name) for name, loop in loops.items()
        ]

    async def stop(self) -> None:
        """Claim no more; give what runs its time, then hand it back without costing it a try."""
        self._stopping = True
        await _cancel([task for task in self._loops if task.get_name() != "renew"])
        for run, _, _ in self._running.values():
            run.stopping.set()
        tasks = [task for _, task, _ in self._running.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=self._capacity.stop_within)
        await _cancel([task for _, task, _ in self._running.values()])
        await _cancel(self._loops)

    @property
    def running(self) -> int:
        """Jobs in hand."""
        return len(self._running)

    async def _forever(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """A loop that a passing database fault slows down and never ends."""
        while True:
            try:
                await loop()
            except StoreError as error:
                log.warning("worker.store_failed", loop=name, error=str(error))
            except Exception:
                log.exception("worker.loop_failed", loop=name)
            await asyncio.sleep(self._jittered())

    def _jittered(self) -> float:
        return self._capacity.poll_interval * random.uniform(0.8, 1.2)  # noqa: S311 - spreads the load

    # Claiming and running.

    async def _claim_loop(self, pool: str) -> None:
        freed = self._freed[pool]
        while not self._stopping:
            free = self._capacity.slots[pool] - sum(1 for *_, held in self._running.values() if held == pool)
            claims = await self._claim(pool, free) if free > 0 else []
            for claim in claims:
                self._begin(claim, pool)
            if not claims or len(claims) == free:
                await freed.wait(self._jittered())

    async def _claim(self, pool: str, free: int) -> list[Claim]:
        claims = await self._database.write(
            partial(
                queue.claim,
                owner=self.owner,
                lease=self._capacity.lease,
                limit=free,
                pool=pool,
                max_running=self._capacity.max_running,
            )
        )
        if claims:
            crash_point("job.claimed")
        return claims

    def _begin(self, claim: Claim, pool: str) -> None:
        run = Run(claim)
        task = asyncio.create_task(self._run(run, pool), name=f"job-{claim.id}")
        self._running[claim.id] = (run, task, pool)

    async def _run(self, run: Run, pool: str) -> None:
        claim = run.claim
        bound = {"job": claim.id, "attempt": claim.fence, "kind": claim.kind}
        with structlog.contextvars.bound_contextvars(**bound):
            try:
                outcome = await self._outcome(run)
                crash_point("job.concluding")
                await self._conclude(claim, outcome)
                crash_point("job.concluded")
            except Fenced:
                log.warning("job.fenced")
            except StoreError as error:
                # The lease runs out and another worker, or this one, takes it up from its journal.
                log.warning("job.not_concluded", error=str(error))
            finally:
                self._running.pop(claim.id, None)
                self._freed[pool].set()

    async def _outcome(self, run: Run) -> Outcome:
        claim = run.claim
        handler = self._handlers.get(claim.kind)
        if handler is None:
            return Dead("unknown_kind")
        if claim.cancel_requested:
            return await self._cancelled(claim)
        try:
            outcome = await handler(run)
        except asyncio.CancelledError:
            if run.cancelled.is_set():
                return await self._cancelled(claim)
            return Snooze(0, "worker.stopped")
        except (Fenced, StoreError):
            raise
        except Exception as error:
            log.exception("job.failed", error=type(error).__name__)
            return Retry("internal", drafts=await self._apologise(claim, "internal"))
        return outcome

    async def _cancelled(self, claim: Claim) -> Cancel:
        return Cancel("cancelled", drafts=await self._apologise(claim, "cancelled"))

    async def _apologise(self, claim: Claim, reason: str) -> tuple[Draft, ...]:
        return await self._database.read(lambda connection: self._apology(connection, claim, reason))

    async def _conclude(self, claim: Claim, outcome: Outcome) -> Concluded:
        # A shutdown must not tear the end off a run that is done.
        writing = asyncio.ensure_future(
            self._database.write(lambda connection: conclude(connection, self._vault, claim, outcome))
        )
        try:
            concluded = await asyncio.shield(writing)
        except asyncio.CancelledError:
            concluded = await writing
        log.info("job.concluded", state=concluded.state, outcome=type(outcome).__name__.lower())
        if concluded.woke:
            self._signals.wake(JOBS)
        self._signals.wake(EVENTS)
        return concluded

    # Leases, cancels and upkeep.

    async def _renew_loop(self) -> None:
        while True:
            await asyncio.sleep(self._capacity.lease / RENEWALS_PER_LEASE)
            if self._running:
                held = await self._database.write(
                    partial(queue.renew, owner=self.owner, lease=self._capacity.lease)
                )
                self._let_go_of_lost(held)

    def _let_go_of_lost(self, held: Mapping[int, tuple[int, bool]]) -> None:
        for job_id, (run, task, _) in list(self._running.items()):
            fence, _cancel_requested = held.get(job_id, (None, False))
            if fence != run.claim.fence and not task.done():
                task.cancel()

    async def _look_loop(self) -> None:
        """Notice cancels and due jobs soon: at each wake-up and each poll."""
        woken = self._signals.subscribe(JOBS)
        while True:
            if self._running:
                for job_id in await self._database.read(partial(queue.cancels, owner=self.owner)):
                    self._cancel(job_id)
            promoted, following = await self._database.write(queue.stage)
            if promoted:
                self._signals.wake(JOBS)
            pause = self._jittered()
            await woken.wait(pause if following is None else min(pause, following + 0.001))

    def _cancel(self, job_id: int) -> None:
        run, task, _ = self._running.get(job_id, (None, None, None))
        if run is None or task is None or run.cancelled.is_set():
            return
        run.cancelled.set()
        asyncio.get_running_loop().call_later(CANCEL_GRACE, task.cancel)

    async def _upkeep_loop(self) -> None:
        """What must be noticed within a second: due schedules, silent workers, questions nobody answered."""
        database = self._database
        while True:
            woke = await database.write(tick) + await database.write(expire_questions)
            for claim in await database.read(upkeep.lost_jobs):
                if await database.write(
                    partial(upkeep.rescue, vault=self._vault, claim=claim, apology=self._apology)
                ):
                    log.warning("job.lost", job=claim.id, worker=claim.owner)
                    woke += 1
            if woke:
                self._signals.wake(JOBS)
            await asyncio.sleep(self._jittered())

    async def _tidy_loop(self) -> None:
        """What may take its time: making good what should not exist, and removing what is old."""
        database = self._database
        while True:
            untangled = await database.write(upkeep.untangle)
            if untangled:
                log.error("jobs.untangled", count=untangled)
                self._signals.wake(JOBS)
            pruned = await database.write(partial(upkeep.prune, older_than=self._capacity.keep_finished))
            await database.write(partial(upkeep.seen, worker_id=self.owner))
            # As long as there is much to prune, go on with it; the pause lets others write.
            await asyncio.sleep(self._jittered() * (1 if any(pruned.values()) else TIDY_EVERY))


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task
