"""The host: announces the runtimes of its file, takes orders, carries them out once, and says what became of them."""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from gofer.client.mcp_api import CallerApi, Problem
from gofer.crash import crash_point
from gofer.errors import ConfigError
from gofer.runtime_host.acp import AcpAdapter
from gofer.runtime_host.configuration import HostSettings, RuntimeSettings, TmuxSettings, not_found
from gofer.runtime_host.interfaces import (
    ORDER_ID,
    Adapter,
    Clock,
    HostReport,
    NotDelivered,
    Order,
    OrderRun,
    RuntimeLook,
    tail_of,
)
from gofer.runtime_host.state import OrderJournal, RuntimeState, StateFolder
from gofer.runtime_host.tmux import TmuxAdapter

HEARTBEAT = 15.0
"""Seconds between two announcements until Gofer has said how often it wants them."""
POLL_WAIT = 25
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0
"""Seconds before Gofer is tried again, doubled each time."""
DRAIN_TIMEOUT = 30.0
"""Seconds for what was begun to end when the host is stopped."""
QUESTION_PAUSE, QUESTION_TIMEOUT = 2.0, 3600.0
MAX_ORDERS_AT_ONCE = 100
MAX_WORKING = 50
"""Orders at work of which Gofer is asked whether they are over."""
REFUSED = (401, 403)
"""Statuses that say that the token is wrong."""
FINAL = ("delivered", "failed", "answered", "unknown")


class RuntimeHost:
    """Everything that the host does, between one start and one stop."""

    def __init__(
        self,
        settings: HostSettings,
        api: CallerApi,
        folder: StateFolder,
        tell: Callable[[str], None],
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._api = api
        self._tell_user = tell
        self._clock = clock or Clock()
        self._journal = OrderJournal(folder)
        self.name = f"{settings.host}.{folder.instance[:8]}"
        """Two machines that call themselves the same are two hosts."""
        self._adapters = {
            name: _adapter(name, runtime, folder, self._clock) for name, runtime in settings.runtimes.items()
        }
        self._locks = {name: asyncio.Lock() for name in self._adapters}
        self._crashes = dict.fromkeys(self._adapters, 0)
        """How many crashes were reported to Gofer."""
        self._told: dict[str, str] = {}
        self._known = False
        """Gofer has taken the token once."""
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._begun: set[str] = set()
        self._forced: dict[str, asyncio.Event] = {}
        self._over: dict[str, asyncio.Event] = {}
        self._every = HEARTBEAT
        self._hurry = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until stopped. Raises ConfigError when Gofer refuses the token at the first call."""
        for name, runtime in self._settings.runtimes.items():
            for word in not_found(runtime):
                self._tell_user(f"{name}: {word} is not on the PATH of this host, so it cannot be started.")
        await asyncio.gather(*(adapter.open() for adapter in self._adapters.values()))
        await self._settle_the_past()
        work = [asyncio.create_task(each) for each in (self._heartbeats(), self._orders(), self._tell_late())]
        stopped = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait([*work, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                task.result()
        finally:
            await _end([*work, stopped])
            await self._drain()

    async def _settle_the_past(self) -> None:
        """What a host that died had begun may have happened: it is not done again. What can be seen to wait in a
        terminal is sent; of the rest it is said that it is unknown."""
        for order, runtime, tail in self._journal.interrupted:
            end = HostReport(status="unknown", reason="host.restarted")
            if runtime in self._adapters:
                with contextlib.suppress(NotDelivered):
                    end = await self._adapters[runtime].recover(tail) or end
            self._tell_user(
                f"Order {order} was begun by a host that died: {end.status} {end.reason}".rstrip()
            )
            self._journal.finish(order, end)

    async def _call(self, method: str, path: str, **request: Any) -> Mapping[str, Any]:
        """Ask Gofer; raises Problem, also for an answer that is none of its."""
        told = await self._api(method, path, **request)
        if not isinstance(told, dict):
            raise Problem(502, "unreadable", "The server's answer is not Gofer's.")
        return told

    # Announcing.

    async def _heartbeats(self) -> None:
        delay = FIRST_DELAY
        while True:
            self._hurry.clear()
            reached = await self._announce_all()
            pause = self._every if reached else delay
            delay = FIRST_DELAY if reached else min(2 * delay, LONGEST_DELAY)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._hurry.wait()

    async def _announce_all(self) -> bool:
        """Announce every runtime as it really is; returns whether Gofer was reached."""
        reached = await asyncio.gather(*(self._announce(name) for name in self._adapters))
        return all(reached)

    async def _announce(self, name: str, *, leaving: bool = False) -> bool:
        adapter, runtime = self._adapters[name], self._settings.runtimes[name]
        seen = await self._look(name)
        crashed = adapter.crashes > self._crashes[name]
        said = {
            "agent": runtime.agent,
            "kind": adapter.kind,
            "host": self.name,
            "state": "offline" if leaving else seen.state,
            "session": seen.session,
            "program": seen.program,
            "can_resume": adapter.can_resume and not leaving,
            "can_spawn": adapter.can_spawn and not leaving,
            "crashed": crashed and not leaving,
        }
        if seen.reason == "runtime.gone" and not leaving and not self._locks[name].locked():
            said["gone"] = True
        try:
            told = await self._call("PUT", f"/runtimes/{name}", body=said)
        except Problem as problem:
            return self._note_problem(name, problem)
        self._known = True
        self._crashes[name] += said["crashed"] is True
        every = told.get("heartbeat_every")
        self._every = min(max(every, 0.1), 300.0) if isinstance(every, int | float) else HEARTBEAT
        self._say(name, _described(name, seen))
        return True

    async def _look(self, name: str) -> RuntimeLook:
        try:
            return await self._adapters[name].look()
        except Exception as error:  # noqa: BLE001 # one runtime that goes wrong must not end the host
            self._say(f"{name} error", f"{name}: {type(error).__name__}: {error}")
            return RuntimeLook(alive=False, reason="host.failed")

    def _note_problem(self, name: str, problem: Problem) -> bool:
        self._check_token(problem)
        if problem.status == 404:
            runtime = self._settings.runtimes[name]
            how = f"gofer runtimes add {name} --agent {runtime.agent} --kind {runtime.kind}"
            self._say(
                name, f"{name}: Gofer knows no such runtime of yours. Ask an owner for: {how} --member YOU"
            )
        else:
            self._say(name, f"{name}: {_in_words(problem)}")
        return problem.status < 500

    def _check_token(self, problem: Problem) -> None:
        if problem.status in REFUSED and not self._known:
            raise ConfigError(
                f"Gofer refuses the token: {problem} Make one: gofer tokens add host --scope runtimes:write"
            )

    def _say(self, about: str, words: str) -> None:
        """Tell the user something, once until it changes."""
        if self._told.get(about) != words:
            self._told[about] = words
            self._tell_user(words)

    # Orders.

    async def _orders(self) -> None:
        """Wait for orders and begin them; while Gofer is away, try again and again, ever more seldom."""
        delay, asked = FIRST_DELAY, {"host": self.name, "wait": POLL_WAIT}
        fresh: dict[str, Any] = {"fresh": True}
        older = False
        while True:
            working = [] if older else [id for id, over in self._over.items() if not over.is_set()]
            more = fresh | ({"working": ",".join(working[:MAX_WORKING])} if working else {})
            try:
                found = await self._call("GET", "/runtimes/orders", query=asked | more)
            except Problem as problem:
                self._check_token(problem)
                # What was handed out may be lost on its way; a Gofer that is older than this host knows no such words.
                older = older or problem.status == 400
                fresh = {} if older else {"fresh": True}
                self._say("orders", f"No orders: {_in_words(problem)}")
                await asyncio.sleep(delay)
                delay = min(2 * delay, LONGEST_DELAY)
                continue
            delay, fresh = FIRST_DELAY, {}
            if self._told.pop("orders", ""):
                self._tell_user("Gofer is there again.")
                self._hurry.set()
            for id in list(found.get("over") or ())[:MAX_WORKING]:
                if isinstance(id, str) and id in self._over:
                    self._over[id].set()
            for given in list(found.get("orders") or ())[:MAX_ORDERS_AT_ONCE]:
                self._take(given)

    def _take(self, given: Any) -> None:
        try:
            order = Order.model_validate(given)
        except ValidationError:
            id = given.get("id") if isinstance(given, dict) else None
            self._tell_user("Gofer gave an order that makes no sense; it is refused.")
            if isinstance(id, str) and re.fullmatch(ORDER_ID, id) and id not in self._runs:
                self._begin(id, self._report(id, HostReport(status="failed", reason="order.malformed")))
            return
        if order.id in self._runs:
            if order.force and order.id in self._forced:
                self._forced[order.id].set()
            return
        if self._journal.knows(order.id):
            # It was begun before: it is never done again, only told again.
            unknown = HostReport(status="unknown", reason="host.restarted")
            self._begin(order.id, self._report(order.id, self._journal.end_of(order.id) or unknown))
            return
        self._over[order.id] = asyncio.Event()
        self._begin(order.id, self._carry_out(order))

    def _begin(self, order: str, work: Any) -> None:
        task = self._runs[order] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._runs.pop(order, None))

    async def _carry_out(self, order: Order) -> None:
        last = HostReport(status="deferred")

        async def begin() -> None:
            self._journal.begin(order.id, order.runtime, tail_of(order))
            self._begun.add(order.id)
            crash_point("host.begun")

        async def report(said: HostReport) -> None:
            nonlocal last
            last = said
            await self._report(order.id, said)

        async def renew() -> None:
            while last.status == "deferred":
                await asyncio.sleep(order.lease / 4)
                if last.status == "deferred":
                    await self._report(order.id, last)

        async def ask(text: str, choices: list[str]) -> str | None:
            return await self._ask(order.id, text, choices)

        renewing = asyncio.create_task(renew())
        forced, over = asyncio.Event(), self._over[order.id]
        self._forced[order.id] = forced
        try:
            end = await self._outcome(OrderRun(order, begin, report, ask, forced, over, self._clock))
        finally:
            del self._forced[order.id], self._over[order.id]
            await _end([renewing])
        crash_point("host.done")
        if order.id in self._begun:
            self._journal.finish(order.id, end)
        words = f"{order.runtime}: {order.action} for order {order.id}: {end.status} {end.reason}".rstrip()
        self._tell_user(words)
        await self._report(order.id, end)
        self._hurry.set()

    async def _outcome(self, run: OrderRun) -> HostReport:
        order = run.order
        adapter = self._adapters.get(order.runtime)
        if adapter is None:
            return HostReport(status="failed", reason="order.unknown_runtime")
        lock = self._locks[order.runtime]
        try:
            if order.action == "look":
                return await adapter.carry_out(run)
            if lock.locked():
                return HostReport(status="failed", reason="runtime.busy")
            async with lock:
                try:
                    return await adapter.carry_out(run)
                finally:
                    # Before the next hop is chosen: a program that fails again and again is not tried on and on.
                    for _ in range(adapter.crashes - self._crashes[order.runtime]):
                        await self._announce(order.runtime)
        except NotDelivered as error:
            if str(error) != error.reason:
                self._tell_user(f"{order.runtime}: {order.action}: {error}")
            return HostReport(status="failed", reason=error.reason)
        except asyncio.CancelledError:
            begun = order.id in self._begun
            return HostReport(status="unknown" if begun else "failed", reason="host.draining")
        except Exception as error:  # noqa: BLE001 # one order that goes wrong must not end the host
            self._tell_user(f"{order.runtime}: {type(error).__name__}: {error}")
            begun = order.id in self._begun
            return HostReport(status="unknown" if begun else "failed", reason="host.failed")

    # Reporting and asking.

    async def _report(self, order: str, said: HostReport) -> None:
        """Report an order's state to Gofer. The end is repeated until it arrives; other states are sent once."""
        delay = FIRST_DELAY
        while True:
            try:
                await self._call("POST", f"/runtimes/orders/{order}", body=said.model_dump())
            except Problem as problem:
                if problem.status >= 500 or problem.status in (*REFUSED, 429):
                    if said.status == "deferred":
                        return
                    await asyncio.sleep(delay)
                    delay = min(2 * delay, LONGEST_DELAY)
                    continue
                self._tell_user(f"Gofer does not take the report of order {order}: {problem}")
            if said.status in FINAL and self._journal.knows(order):
                self._journal.told(order)
            return

    async def _tell_late(self) -> None:
        """Tell what an earlier host could not tell any more."""
        for order, end in self._journal.untold.items():
            if order not in self._runs:
                self._begin(order, self._report(order, end))
        await asyncio.Event().wait()

    async def _ask(self, order: str, text: str, choices: list[str]) -> str | None:
        """Ask people, and wait; None when they do not answer, or the order is over."""
        key, until = str(uuid.uuid4()), asyncio.get_running_loop().time() + QUESTION_TIMEOUT
        asked: Mapping[str, Any] = {}
        while asyncio.get_running_loop().time() < until:
            try:
                if not asked:
                    said = {"text": text, "choices": choices}
                    path = f"/runtimes/orders/{order}/questions"
                    asked = await self._call("POST", path, body=said, key=key)
                found = await self._call("GET", f"/runtimes/questions/{asked['question']}")
            except Problem as problem:
                if problem.status < 500:
                    return None
            else:
                if found["state"] != "open":
                    return str(found["answer"]) if found["state"] == "answered" else None
            await asyncio.sleep(QUESTION_PAUSE)
        return None

    # The end.

    async def _drain(self) -> None:
        """Take nothing new, let what was begun end, say that the host leaves, and let the agents go."""
        waiting = [task for id, task in self._runs.items() if id not in self._begun]
        for task in waiting:
            task.cancel()
        if self._runs:
            await asyncio.wait(list(self._runs.values()), timeout=DRAIN_TIMEOUT)
        await _end(list(self._runs.values()), within=DRAIN_TIMEOUT / 10)
        with contextlib.suppress(ConfigError, TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT / 10):
                await asyncio.gather(*(self._announce(name, leaving=True) for name in self._adapters))
        await asyncio.gather(*(adapter.close() for adapter in self._adapters.values()))


async def _end(tasks: list[asyncio.Task[Any]], within: float | None = None) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=within)


def _adapter(name: str, settings: RuntimeSettings, folder: StateFolder, clock: Clock) -> Adapter:
    if isinstance(settings, TmuxSettings):
        return TmuxAdapter(name, settings, clock)
    return AcpAdapter(name, settings, RuntimeState(folder, name))


def _in_words(problem: Problem) -> str:
    return "Gofer cannot be reached; trying again." if problem.code == "unreachable" else str(problem)


def _described(name: str, seen: RuntimeLook) -> str:
    if seen.alive and not seen.reason:
        return f"{name}: {seen.state}, {seen.program}"
    more = seen.detail or seen.program
    return f"{name}: {seen.state} ({seen.reason}{f', {more}' if more else ''})"
