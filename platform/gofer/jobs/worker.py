"""A worker: claims jobs into its slots, renews their leases, stops what is cancelled or lost, and ends each run."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import structlog

from gofer.crash import crash_point
from gofer.errors import Fenced, StoreError
from gofer.jobs import lease, maintenance, queue
from gofer.jobs.control import expire_questions
from gofer.jobs.cron import tick
from gofer.jobs.finish import Apology, FinishedRun, FinishResult, finish_runs
from gofer.jobs.lease import Lease, clock
from gofer.jobs.notifications import EVENTS, JOBS, Signals
from gofer.jobs.outcome import OUTAGE, STOPPED, Cancel, Dead, Draft, Outcome, Retry, Snooze
from gofer.jobs.queue import NO_BOUNDS, Claim, TaskBounds
from gofer.secrets.key_check import open_canary
from gofer.store import row_macs
from gofer.store.database import Database
from gofer.vault.envelope import Vault
from gofer.vault.errors import KeyMissing, KeyRefused

log = structlog.get_logger()


@dataclass(eq=False)
class Run:
    """A claimed job as its handler sees it."""

    claim: Claim
    lease: Lease = field(default_factory=lambda: Lease(clock(), math.inf))
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when somebody asked to stop; a handler may end in its own way within the grace, else it is cancelled."""
    paused: bool = False
    """Somebody asked to pause; a handler that can stops between two steps."""
    pause_read: bool = False
    """The same as the run's last write found it in the job's row, which is sooner than the worker's next look."""
    over: bool = False
    """Its handler has ended; its end is being written."""
    lost: bool = False
    """Its job is no longer ours, so it is being stopped."""
    endless: bool = False
    """Set by a handler that goes on until it is stopped: a process that ends need not wait for it."""


InHand = Mapping[tuple[int, int], tuple[Run, asyncio.Task[None], str]]
"""The runs of a process by job and fence, each with its task and its pool."""
Handler = Callable[[Run], Awaitable[Outcome]]
"""Does one kind of job. Contract: whatever it raises becomes a retry."""

CANCEL_GRACE = 1.5
STUBBORN_AFTER = 0.3
"""Seconds a cancelled handler has to end before its job goes on without it. With CANCEL_GRACE it is below two."""
RENEWALS_PER_LEASE = 3
BETWEEN_LOOKS = 0.05
"""Seconds between two looks for cancels and due jobs, however often there is something new."""
MAX_TOGETHER = 64
"""Runs whose ends share a transaction."""
TRIES_TO_END = 5
"""Failures of the store after which a run's end is written in short: another try follows."""
ENDERS = 2
"""Such transactions at once, so that on Postgres one is prepared while the other commits."""
REFUSED_WAIT = 60
"""Seconds until a job whose connection or agent has a refused row is tried again."""
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
    tasks: TaskBounds = NO_BOUNDS
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
        self._running: dict[tuple[int, int], tuple[Run, asyncio.Task[None], str]] = {}
        """By job and fence: after a lost lease this process may claim the same job again while the old run still ends.
        """
        self._stopping = False
        self._locked_out = False
        self._asked_at = 0.0
        """When this worker last claimed: the leases count from there."""
        self._unheard = False
        """Whether that claim had no answer yet: some jobs may be ours without our knowing."""
        self._rescue_from = 0.0
        """Before that moment no worker counts as silent."""
        self._loops: list[asyncio.Task[None]] = []
        self._freed = signals.subscribe(JOBS)
        # Not the system's randomness: a call for it releases the interpreter lock, and then waits for it.
        self._dice = random.Random()  # noqa: S311
        self._endings: list[FinishedRun] = []
        self._enders: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start claiming jobs."""
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "renew": self._renew_loop,
            "look": self._look_loop,
            "upkeep": self._upkeep_loop,
            "tidy": self._tidy_loop,
            "claim": self._claim_loop,
        }
        self._loops = [
            asyncio.create_task(self._forever(name, loop), name=name) for name, loop in loops.items()
        ]

    async def stop(self) -> None:
        """Claim no more; give what runs its time, then hand it back without costing it a try."""
        self._stopping = True
        await _cancel([task for task in self._loops if task.get_name() != "renew"])
        await _cancel([task for run, task, _ in self._running.values() if run.endless])
        tasks = [task for _, task, _ in self._running.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=self._capacity.stop_within)
        await _cancel([task for _, task, _ in self._running.values()])
        while self._enders:
            await asyncio.wait(self._enders)
        await _cancel(self._loops)
        self._signals.unsubscribe(JOBS, self._freed)

    @property
    def running(self) -> int:
        """Jobs in hand."""
        return len(self._running)

    def has_room(self, pool: str) -> bool:
        """Whether it can take one more job of a pool now."""
        return self._room().get(pool, 0) > 0

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
        return self._capacity.poll_interval * self._dice.uniform(0.8, 1.2)

    # Claiming and running.

    async def _claim_loop(self) -> None:
        while not self._stopping:
            if self._locked_out:
                await self._look_at_key()
            if self._unheard:
                await self._hand_back_unheard()
            self._asked_at, self._unheard = clock(), True
            for pool, claimed in (await self._claim(self._room())).items():
                for claim in claimed:
                    self._begin(claim, pool)
            self._unheard = False
            await self._freed.wait(self._jittered())

    async def _look_at_key(self) -> None:
        """Check that this process has the key the store is sealed with. Another process may have rotated it, and this
        machine's key file may come later. Without the key a worker would only use up the tries of jobs."""
        try:
            await self._database.read(open_canary, vault=self._vault)
        except KeyRefused as error:
            if not self._locked_out:
                log.error("worker.master_key_missing", error=str(error))
            self._locked_out = True
        else:
            self._locked_out = False

    def _room(self) -> dict[str, int]:
        """How many more jobs each pool can take. A run that is over frees its slot before its end is written, up to a
        bound."""
        if self._locked_out:
            return {}
        held = Counter(pool for *_, pool in self._running.values())
        over = Counter(pool for run, _, pool in self._running.values() if run.over)
        return {
            pool: min(slots - held[pool] + over[pool], 2 * slots - held[pool])
            for pool, slots in self._capacity.slots.items()
        }

    async def _claim(self, free: Mapping[str, int]) -> dict[str, list[Claim]]:
        if not any(room > 0 for room in free.values()):
            return {}
        claiming = asyncio.ensure_future(
            queue.claim(
                self._database,
                owner=self.owner,
                lease=self._capacity.lease,
                limits=free,
                max_running=self._capacity.max_running,
                tasks=self._capacity.tasks,
            )
        )
        try:
            claims = await asyncio.shield(claiming)
        except asyncio.CancelledError:
            # The worker stops during a claim: what it got must be handed back like the rest.
            with contextlib.suppress(StoreError):
                for pool, claimed in (await claiming).items():
                    for claim in claimed:
                        self._begin(claim, pool)
            raise
        if any(claims.values()):
            crash_point("job.claimed")
        return claims

    async def _hand_back_unheard(self) -> None:
        """Hand back jobs from a claim whose answer was lost: the store may have given them to us."""
        for claim in await self._database.read(queue.held_by, owner=self.owner):
            if (claim.id, claim.fence) not in self._running:
                self._hand_in(FinishedRun(claim, Snooze(0, OUTAGE), self._apology))

    def _begin(self, claim: Claim, pool: str) -> None:
        run = Run(claim, Lease(self._asked_at, self._capacity.lease))
        task = asyncio.create_task(self._run(run), name=f"job-{claim.id}")
        self._running[claim.id, claim.fence] = (run, task, pool)

    async def _run(self, run: Run) -> None:
        claim = run.claim
        lease.current.set(run.lease)
        structlog.contextvars.bind_contextvars(
            **_log_fields(claim)
        )  # of this task alone, so they end with it
        try:
            outcome, apology = await self._outcome(run)
        except Fenced as error:
            _log_unfinished(claim, error)
            self._free(claim)
            return
        except StoreError as error:
            log.warning("job.store_failed", error=str(error))
            outcome, apology = Snooze(0, OUTAGE), self._apology
        crash_point("job.concluding")
        run.over = True
        self._freed.set()
        self._hand_in(FinishedRun(claim, outcome, apology))

    def _hand_in(self, ending: FinishedRun) -> None:
        """Queue the end of a run to be written."""
        self._endings.append(ending)
        if len(self._enders) < ENDERS:
            self._enders.add(asyncio.create_task(self._end_together(), name="endings"))

    def _free(self, claim: Claim) -> None:
        """Give a run's slot to another."""
        if self._running.pop((claim.id, claim.fence), None) is not None:
            self._freed.set()

    async def _outcome(self, run: Run) -> tuple[Outcome, Apology | None]:
        """The outcome of a run, and who writes the apology if its handler did not."""
        claim = run.claim
        handler = self._handlers.get(claim.kind)
        if claim.cancel_requested:
            return Cancel("cancelled"), self._apology
        if handler is None:
            return Dead("unknown_kind"), self._apology
        try:
            return await _handle(handler, run), None
        except asyncio.CancelledError:
            if run.cancelled.is_set():
                return Cancel("cancelled"), self._apology
            if self._stopping:
                return Snooze(0, STOPPED), None
            # The job is lost, and fenced in a moment; or the handler cancelled itself, which must not go on for ever.
            return Retry("interrupted"), self._apology
        except (Fenced, StoreError):
            raise
        except row_macs.RowRefused as error:
            # It goes on by itself once somebody has accepted the row, or put it right.
            log.warning("job.waits", error=str(error))
            return Snooze(REFUSED_WAIT, error.code), None
        except Exception as error:
            if isinstance(error, KeyMissing):
                await self._look_at_key()
                if self._locked_out:
                    return Snooze(0, "worker.locked_out"), None
            log.exception("job.failed", error=type(error).__name__)
            return Retry("internal"), self._apology

    async def _end_together(self) -> None:
        """Write the ends of all runs that are over in one transaction; more of them gather while it commits."""
        try:
            while self._endings:
                batch, self._endings = self._endings[:MAX_TOGETHER], self._endings[MAX_TOGETHER:]
                await self._end(batch)
        finally:
            # Without an await after the last look: an ending that comes next must find that nobody writes.
            self._enders.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _end(self, batch: list[FinishedRun]) -> None:
        try:
            results = await self._database.write(finish_runs, vault=self._vault, endings=batch)
        except StoreError as error:
            await self._end_later(batch, error)
            return
        except Exception as error:  # noqa: BLE001 - told where a single one is written
            if len(batch) == 1:
                _log_unfinished(batch[0].claim, error)
                self._free(batch[0].claim)
                return
            for ending in batch:
                await self._end([ending])
            return
        for ending, result in zip(batch, results, strict=True):
            self._free(ending.claim)
            if result is None:
                _log_unfinished(ending.claim, Fenced())
            else:
                _log_finish(ending, result)
        if any(result is not None and result.woke for result in results):
            self._signals.wake(JOBS)
        self._signals.wake(EVENTS)

    async def _end_later(self, batch: list[FinishedRun], error: StoreError) -> None:
        """Keep the jobs and wait for the store to come back. A worker that stops cannot wait."""
        if self._stopping:
            for ending in batch:
                _log_unfinished(ending.claim, error)
                self._free(ending.claim)
            return
        log.warning("jobs.end_delayed", jobs=len(batch), error=str(error))
        self._endings = [self._once_more(ending) for ending in batch] + self._endings
        await asyncio.sleep(self._jittered())

    def _once_more(self, ending: FinishedRun) -> FinishedRun:
        failures = ending.failures + 1
        if failures < TRIES_TO_END:
            return dataclasses.replace(ending, failures=failures)
        return FinishedRun(ending.claim, Snooze(0, OUTAGE, ending.outcome.cost), self._apology, failures)

    # Leases, cancels and upkeep.

    async def _renew_loop(self) -> None:
        while True:
            in_hand, asked_at = dict(self._running), clock()
            if in_hand:
                ids = {job_id for job_id, _ in in_hand}
                held = await self._database.write(
                    queue.renew, owner=self.owner, lease=self._capacity.lease, held=ids
                )
                for (job_id, fence), (run, _, _) in in_hand.items():
                    if (job := held.get(job_id)) is not None and job.fence == fence:
                        run.lease.prolong(asked_at, self._capacity.lease)
                self._let_go(in_hand, held)
            await asyncio.sleep(self._capacity.lease / RENEWALS_PER_LEASE)

    def _let_go(self, in_hand: InHand, held: Mapping[int, queue.HeldJob]) -> None:
        """Stop the runs that somebody asked to stop or to pause, and those whose job is no longer ours."""
        for (job_id, own), (run, task, _) in in_hand.items():
            job = held.get(job_id)
            if job is None or job.fence != own:
                if not run.lost and not task.done():
                    run.lost = True
                    task.cancel()
                continue
            run.paused = job.pause_requested
            if job.cancel_requested and not run.cancelled.is_set():
                run.cancelled.set()
                asyncio.get_running_loop().call_later(CANCEL_GRACE, task.cancel)

    async def _look_loop(self) -> None:
        """Notice cancels and due jobs soon: at each wake-up and each poll."""
        woken = self._signals.subscribe(JOBS)
        try:
            while True:
                await woken.wait(await self._look())
                await asyncio.sleep(BETWEEN_LOOKS)
        finally:
            self._signals.unsubscribe(JOBS, woken)

    async def _look(self) -> float:
        """Look once; returns the seconds until the next look is due."""
        if in_hand := dict(self._running):
            self._let_go(in_hand, await self._database.read(queue.held, owner=self.owner))
        promoted, following = await self._database.write(queue.stage)
        if promoted:
            self._signals.wake(JOBS)
        pause = self._jittered()
        return pause if following is None else min(pause, following + 0.001)

    async def _upkeep_loop(self) -> None:
        """Do what must happen within a second: due schedules, silent workers, questions that nobody answered."""
        while True:
            try:
                woke = await self._keep_up()
            except StoreError:
                # Nobody could renew while the store was away. Workers that live do it now, before they count as lost.
                self._rescue_from = clock() + self._capacity.lease / RENEWALS_PER_LEASE
                raise
            if woke:
                self._signals.wake(JOBS)
            await asyncio.sleep(self._jittered())

    async def _keep_up(self) -> int:
        database = self._database
        woke = await database.write(tick) + await database.write(expire_questions)
        # A worker without the key cannot write apologies: it leaves lost jobs to others.
        rescues = not self._locked_out and clock() >= self._rescue_from
        for claim in await database.read(maintenance.lost_jobs) if rescues else []:
            woke += await self._rescue(claim)
        return woke

    async def _rescue(self, claim: Claim) -> bool:
        for apology in (self._apology, _no_words):
            rescue = partial(maintenance.rescue, vault=self._vault, claim=claim, apology=apology)
            try:
                found = await self._database.write(rescue)
            except StoreError:
                raise
            except Exception:
                # Where no words can be sealed (a tampered key), the job ends without any: other jobs are waiting.
                log.exception("job.not_rescued", job=claim.id)
            else:
                if found:
                    log.warning("job.lost", job=claim.id, worker=claim.owner)
                return found
        return False

    async def _tidy_loop(self) -> None:
        """Do what may take its time: repair what should not exist, and remove what is old."""
        database = self._database
        while True:
            untangled = await database.write(maintenance.repair_lanes)
            if untangled:
                log.error("jobs.untangled", count=untangled)
                self._signals.wake(JOBS)
            pruned = await database.write(maintenance.prune, older_than=self._capacity.keep_finished)
            await database.write(maintenance.seen, worker_id=self.owner)
            # As long as there is much to prune, go on with it; the pause lets others write.
            await asyncio.sleep(self._jittered() * (1 if any(pruned.values()) else TIDY_EVERY))


async def _handle(handler: Handler, run: Run) -> Outcome:
    """The outcome of a handler. A handler that does not end when it is cancelled is left behind; the fence stops its
    writes."""
    working = asyncio.ensure_future(handler(run))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        working.cancel()
        await asyncio.wait([working], timeout=STUBBORN_AFTER)
        if not working.done():
            log.error("job.abandoned")
            raise
    return working.result()


def _log_finish(ending: FinishedRun, result: FinishResult) -> None:
    crash_point("job.concluded")
    how = type(ending.outcome).__name__.lower()
    log.info("job.concluded", state=result.state, outcome=how, **_log_fields(ending.claim))


def _log_unfinished(claim: Claim, error: Exception) -> None:
    """Log that a run ended without writing its end. Its lease runs out, and a worker goes on from its journal."""
    if isinstance(error, Fenced):
        log.warning("job.fenced", **_log_fields(claim))
    elif isinstance(error, StoreError):
        log.warning("job.not_concluded", error=str(error), **_log_fields(claim))
    else:
        log.error("job.not_concluded", exc_info=error, **_log_fields(claim))


def _log_fields(claim: Claim) -> dict[str, Any]:
    """The fields that identify a run in the log."""
    return {"job": claim.id, "attempt": claim.fence, "kind": claim.kind}


def _no_words(connection: object, claim: Claim, reason: str) -> tuple[Draft, ...]:
    return ()


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end; asked again where a fault in between hid the cancellation."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=5)
