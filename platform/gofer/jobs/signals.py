"""Wake-ups: how a process learns that there is something to look at, without asking all the time.

A signal carries no work and may be lost; the safety poll finds what was missed. In one process it is an event;
on Postgres a NOTIFY, coalesced because one per commit serialises all commits; with Redis a publish.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import Any, Protocol

import structlog

log = structlog.get_logger()

JOBS = "jobs"
"""The topic of new, changed and cancelled jobs."""
EVENTS = "events"
"""The topic of new rows in the event log."""
SECRETS = "secrets"
"""A secret or connection changed: read them anew, and mask what is new."""

QUIET = 0.05
"""Seconds between two notifications of a topic to other processes."""


class Subscription:
    """One waiter's own memory of a topic, so that no wake-up falls between two waits."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake the waiter, or let its next wait return at once."""
        self._event.set()

    async def wait(self, timeout: float | None = None) -> None:
        """Return when woken since the last return, or after the timeout."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            pass
        self._event.clear()


class Signals(Protocol):
    """Wakes whoever subscribed to a topic, here and in other processes."""

    async def start(self) -> None:
        """Begin to listen to other processes; must not fail when they cannot be reached."""

    async def close(self) -> None:
        """Stop listening."""

    def subscribe(self, topic: str) -> Subscription:
        """A new waiter."""

    def unsubscribe(self, topic: str, subscription: Subscription) -> None:
        """Let a waiter go."""

    def wake(self, topic: str) -> None:
        """Wake a topic's waiters. Contract: never blocks, never raises."""


class LocalSignals:
    """Within one process."""

    def __init__(self) -> None:
        self._waiters: dict[str, set[Subscription]] = defaultdict(set)

    async def start(self) -> None:
        """There is nobody else to listen to."""

    async def close(self) -> None:
        """There is nobody else to listen to."""

    def subscribe(self, topic: str) -> Subscription:
        subscription = Subscription()
        self._waiters[topic].add(subscription)
        return subscription

    def unsubscribe(self, topic: str, subscription: Subscription) -> None:
        self._waiters[topic].discard(subscription)

    def wake(self, topic: str) -> None:
        for waiter in self._waiters[topic]:
            waiter.set()


class SharedSignals(LocalSignals):
    """Between processes: wakes its own at once and tells the others at most once per topic and `QUIET`."""

    name = "shared"

    def __init__(self) -> None:
        super().__init__()
        self._due: dict[str, asyncio.TimerHandle | None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._listener = asyncio.create_task(self._keep_listening(), name=f"{self.name}-signals")

    async def close(self) -> None:
        for timer in self._due.values():
            if timer is not None:
                timer.cancel()
        for task in (*self._tasks, *([self._listener] if self._listener else [])):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def wake(self, topic: str) -> None:
        super().wake(topic)
        if topic in self._due:
            # Told a moment ago: once more when the quiet time is over, however many wakes come until then.
            if self._due[topic] is None:
                self._due[topic] = asyncio.get_running_loop().call_later(QUIET, self._tell_again, topic)
            return
        self._tell(topic)

    def _tell(self, topic: str) -> None:
        self._due[topic] = None
        loop = asyncio.get_running_loop()
        loop.call_later(QUIET, self._be_quiet_no_more, topic)
        task = loop.create_task(self._tell_others(topic))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tell_again(self, topic: str) -> None:
        self._due.pop(topic, None)
        self._tell(topic)

    def _be_quiet_no_more(self, topic: str) -> None:
        if self._due.get(topic, ...) is None:
            del self._due[topic]

    async def _tell_others(self, topic: str) -> None:
        try:
            await self._publish(topic)
        except Exception as error:  # noqa: BLE001 - a lost wake-up costs a second, not a job
            log.debug("signals.not_sent", error=str(error))

    async def _keep_listening(self) -> None:
        while True:
            try:
                await self._listen()
            except Exception as error:  # noqa: BLE001 - the safety poll works meanwhile
                log.warning("signals.interrupted", via=self.name, error=str(error))
            await asyncio.sleep(1)

    async def _publish(self, topic: str) -> None:
        raise NotImplementedError

    async def _listen(self) -> None:
        """Listen until the connection breaks."""
        raise NotImplementedError


CHANNEL = "gofer"


class PostgresSignals(SharedSignals):
    """By NOTIFY, over a connection of its own outside the pool."""

    name = "postgres"

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = "postgresql://" + url.partition("://")[2]
        self._connection: Any = None
        self._in_turn = asyncio.Lock()
        """asyncpg takes one statement at a time."""

    async def _publish(self, topic: str) -> None:
        async with self._in_turn:
            if self._connection is not None:
                await self._connection.execute("SELECT pg_notify($1, $2)", CHANNEL, topic)

    async def _listen(self) -> None:
        import asyncpg

        connection = await asyncpg.connect(self._url, timeout=10)
        try:
            broken = asyncio.Event()
            connection.add_termination_listener(lambda _: broken.set())
            await connection.add_listener(CHANNEL, lambda *args: LocalSignals.wake(self, str(args[-1])))
            self._connection = connection
            await broken.wait()
        finally:
            self._connection = None
            with contextlib.suppress(Exception):
                await connection.close(timeout=2)


class RedisSignals(SharedSignals):
    """By publish and subscribe."""

    name = "redis"

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._client: Any = None

    async def _publish(self, topic: str) -> None:
        if self._client is not None:
            await self._client.publish(CHANNEL, topic)

    async def _listen(self) -> None:
        from redis.asyncio import Redis

        async with Redis.from_url(self._url, socket_connect_timeout=5) as client, client.pubsub() as pubsub:
            await pubsub.subscribe(CHANNEL)
            self._client = client
            try:
                async for message in pubsub.listen():
                    if message["type"] == "message":
                        LocalSignals.wake(self, message["data"].decode())
            finally:
                self._client = None
