"""Wake-ups: tell a process that there is something to look at, so that it need not poll all the time.

A signal carries no work and may be lost; a slow poll finds what was missed. Within one process it is an event. On
Postgres it is a NOTIFY, at most one for each topic and moment, because a NOTIFY in each commit would serialise all
commits. With Redis it is a publish. Parcels go the same way: a few words for watchers in other processes, which may be
lost too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog

from gofer.database_url import driver_arguments

log = structlog.get_logger()

JOBS = "jobs"
"""The topic of new, changed and cancelled jobs."""
EVENTS = "events"
"""The topic of new rows in the event log."""
SECRETS = "secrets"
"""A secret or connection changed: read them anew, and mask what is new."""

QUIET = 0.05
"""Seconds between two notifications of a topic to other processes."""
MAX_UNSENT = 20
"""Notifications that may wait for a slow server; parcels beyond that are lost."""


class Subscription:
    """One waiter's view of a topic; it remembers a wake-up that comes between two waits."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake the waiter, or let its next wait return at once."""
        self._event.set()

    async def wait(self, timeout: float | None = None) -> bool:
        """Return when woken since the last return, or after the timeout: whether it was woken."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._event.wait()
        woken = self._event.is_set()
        self._event.clear()
        return woken


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

    @property
    def reaches_others(self) -> bool:
        """Whether there can be other processes to send parcels to."""

    def post(self, parcels: Sequence[str]) -> None:
        """Send parcels to every process that listens, this one too. Contract: never blocks, never raises.

        A parcel is ASCII of less than 8,000 characters: Postgres takes no more in a notification.
        """

    def on_parcel(self, take: Callable[[str], None]) -> None:
        """Call a function with each parcel that comes. Contract of the function: never blocks, never raises."""


class LocalSignals:
    """Within one process."""

    reaches_others = False

    def __init__(self) -> None:
        self._waiters: dict[str, set[Subscription]] = defaultdict(set)
        self._take: Callable[[str], None] = lambda parcel: None

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

    def post(self, parcels: Sequence[str]) -> None:
        """There is nobody else to send to."""

    def on_parcel(self, take: Callable[[str], None]) -> None:
        self._take = take


class SharedSignals(LocalSignals):
    """Between processes: wakes its own waiters at once, and tells other processes once per topic within `QUIET`."""

    name = "shared"
    reaches_others = True

    def __init__(self) -> None:
        super().__init__()
        self._due: dict[str, asyncio.TimerHandle | None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Task[None] | None = None
        self._in_turn = asyncio.Lock()
        """asyncpg takes one statement at a time, and parcels keep their order."""

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
            # Others were told a moment ago. They are told once more when the quiet time is over.
            if self._due[topic] is None:
                self._due[topic] = asyncio.get_running_loop().call_later(QUIET, self._tell_again, topic)
            return
        self._tell(topic)

    def _tell(self, topic: str) -> None:
        self._due[topic] = None
        asyncio.get_running_loop().call_later(QUIET, self._be_quiet_no_more, topic)
        self._send(CHANNEL, [topic])

    def post(self, parcels: Sequence[str]) -> None:
        if len(self._tasks) < MAX_UNSENT:
            self._send(PARCELS, parcels)

    def _send(self, channel: str, words: Sequence[str]) -> None:
        task = asyncio.get_running_loop().create_task(self._tell_others(channel, words))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tell_again(self, topic: str) -> None:
        self._due.pop(topic, None)
        self._tell(topic)

    def _be_quiet_no_more(self, topic: str) -> None:
        if self._due.get(topic, ...) is None:
            del self._due[topic]

    async def _tell_others(self, channel: str, words: Sequence[str]) -> None:
        try:
            async with self._in_turn:
                await self._publish(channel, words)
        except Exception as error:  # noqa: BLE001 - a lost wake-up costs a second, not a job
            log.debug("signals.not_sent", error=str(error))

    async def _keep_listening(self) -> None:
        while True:
            try:
                await self._listen()
            except Exception as error:  # noqa: BLE001 - the safety poll works meanwhile
                log.warning("signals.interrupted", via=self.name, error=str(error))
            await asyncio.sleep(1)

    def _on_notification(self, channel: str, word: str) -> None:
        if channel == CHANNEL:
            LocalSignals.wake(self, word)
        else:
            self._take(word)

    async def _publish(self, channel: str, words: Sequence[str]) -> None:
        raise NotImplementedError

    async def _listen(self) -> None:
        """Listen until the connection breaks."""
        raise NotImplementedError


CHECK_EVERY, CHECK_TIMEOUT = 10.0, 10.0
"""Seconds between two checks of a silent connection, and for each: a router may have dropped it unnoticed."""
CHANNEL = "gofer"
PARCELS = "gofer_parcels"


class PostgresSignals(SharedSignals):
    """By NOTIFY, over a connection of its own outside the pool."""

    name = "postgres"

    def __init__(self, url: str) -> None:
        super().__init__()
        self._address = driver_arguments(url)
        self._connection: Any = None

    async def _publish(self, channel: str, words: Sequence[str]) -> None:
        if self._connection is not None:
            query = "SELECT pg_notify($1, word) FROM unnest($2::text[]) AS word"
            await self._connection.execute(query, channel, list(words))

    async def _listen(self) -> None:
        import asyncpg

        connection = await asyncpg.connect(**self._address)
        try:
            broken = asyncio.Event()
            connection.add_termination_listener(lambda _: broken.set())
            for channel in (CHANNEL, PARCELS):
                await connection.add_listener(channel, lambda *args: self._on_notification(*args[-2:]))
            self._connection = connection
            while not await _is_set(broken, within=CHECK_EVERY):
                async with self._in_turn:
                    await connection.execute("SELECT 1", timeout=CHECK_TIMEOUT)
        finally:
            self._connection = None
            with contextlib.suppress(Exception):
                await connection.close(timeout=2)


async def _is_set(event: asyncio.Event, *, within: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            await event.wait()
    return event.is_set()


class RedisSignals(SharedSignals):
    """By publish and subscribe."""

    name = "redis"

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._client: Any = None

    async def _publish(self, channel: str, words: Sequence[str]) -> None:
        if self._client is not None:
            for word in words:
                await self._client.publish(channel, word)

    async def _listen(self) -> None:
        from redis.asyncio import Redis

        async with Redis.from_url(self._url, socket_connect_timeout=5) as client, client.pubsub() as pubsub:
            await pubsub.subscribe(CHANNEL, PARCELS)
            self._client = client
            try:
                async for message in pubsub.listen():
                    if message["type"] == "message":
                        self._on_notification(message["channel"].decode(), message["data"].decode())
            finally:
                self._client = None
