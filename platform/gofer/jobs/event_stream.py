"""Follows the event log live: one reader for the whole process, however many watch.

A watcher first reads by itself what it missed. Then it gets what the reader finds. A watcher that does not keep up is
let go, so that nobody else waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from sqlalchemy import Connection, literal_column, select, tuple_

from gofer.errors import NotFound, TooBusy
from gofer.jobs.notifications import EVENTS, Signals
from gofer.store.database import Database
from gofer.store.encryption import conversation_key
from gofer.store.events import Cursor, after, open_words
from gofer.store.tables import events
from gofer.vault.envelope import DataKey, Vault
from gofer.vault.redaction import Redactor

log = structlog.get_logger()

MAX_WATCHERS = 500
MAX_BEHIND = 2000
"""Events a watcher may lag before it is let go."""
PAGE = 200
LOOK_AGAIN, LOOKS = 0.25, 8
"""Seconds between looks after a signal, and how many: on Postgres an event becomes visible a moment after its signal.
"""
LOOK_ANYWAY = 1.0
"""Seconds between looks without a signal: some things happen without one, and one may be lost."""

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events to see; everything when nothing is named."""

    job_id: int | None = None
    conversation_id: str | None = None

    def covers(self, event: Mapping[str, Any]) -> bool:
        """Whether one is among them."""
        if self.job_id is not None and event["job_id"] != self.job_id:
            return False
        return self.conversation_id is None or event["conversation_id"] == self.conversation_id


class FellBehind(Exception):
    """The watcher does not keep up. It may come back with the place it has reached."""


@dataclass(slots=True, eq=False)
class _Watcher:
    wanted: EventFilter
    since: Cursor
    waiting: list[Event] = field(default_factory=list)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    lost: bool = False

    def hand(self, found: Iterable[Event]) -> None:
        self.waiting += [event for event in found if self.wanted.covers(event)]
        if len(self.waiting) > MAX_BEHIND:
            self.waiting.clear()
            self.lost = True
        if self.waiting or self.lost:
            self.woken.set()


class Follower:
    """Shows events, with their words, to whoever watches."""

    def __init__(self, *, database: Database, vault: Vault, redactor: Redactor, signals: Signals) -> None:
        self._database = database
        self._vault = vault
        self._redactor = redactor
        self._signals = signals
        self._watchers: set[_Watcher] = set()
        self._wakes: dict[str, set[Callable[[], None]]] = defaultdict(set)
        self._heeds: dict[Callable[[Event], None], frozenset[str]] = {}
        self._place = Cursor()
        self._reading: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    @property
    def watching(self) -> int:
        """How many watch."""
        return len(self._watchers)

    def check_room(self) -> None:
        """Raises TooBusy when too many watch."""
        if len(self._watchers) >= MAX_WATCHERS:
            raise TooBusy(f"{MAX_WATCHERS} are watching already.", retry_after=30)

    async def close(self) -> None:
        """Let every watcher go."""
        self._closed = True
        for watcher in self._watchers:
            watcher.woken.set()
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading

    async def watch(
        self, wanted: EventFilter, cursor: Cursor | None, *, pulse: float
    ) -> AsyncIterator[list[Event]]:
        """Events from a place on, or from now; an empty list after `pulse` seconds without any.

        Ends when the process does. Raises TooBusy when too many watch, FellBehind when this one is too slow.
        """
        self.check_room()
        watcher = await self._join(wanted)
        try:
            if cursor is not None:
                async for missed in self._missed(wanted, cursor, watcher.since):
                    yield missed
            while not self._closed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pulse):
                        await watcher.woken.wait()
                if watcher.lost:
                    raise FellBehind
                watcher.woken.clear()
                found, watcher.waiting = watcher.waiting, []
                yield found
        finally:
            self._watchers.discard(watcher)

    @contextlib.asynccontextmanager
    async def waking(self, conversation_id: str, wake: Callable[[], None]) -> AsyncIterator[None]:
        """Have `wake` called at every event of a conversation, for as long as the block lasts. It costs no task, and no
        words are opened. Contract: `wake` neither blocks nor raises."""
        async with self._turn:
            await self._begin()
            self._wakes[conversation_id].add(wake)
        try:
            yield
        finally:
            self._wakes[conversation_id].discard(wake)
            if not self._wakes[conversation_id]:
                del self._wakes[conversation_id]

    @contextlib.asynccontextmanager
    async def heeding(self, kinds: frozenset[str], hear: Callable[[Event], None]) -> AsyncIterator[None]:
        """Have `hear` called with every event of some kinds, without its words, for as long as the block lasts.
        Contract: `hear` neither blocks nor raises."""
        async with self._turn:
            await self._begin()
            self._heeds[hear] = kinds
        try:
            yield
        finally:
            del self._heeds[hear]

    async def _begin(self) -> None:
        if self._reading is None or self._reading.done():
            self._place = await self._database.read(end_of_log)
            self._reading = asyncio.create_task(self._read(), name="follower")

    async def _join(self, wanted: EventFilter) -> _Watcher:
        async with self._turn:
            await self._begin()
            watcher = _Watcher(wanted, self._place)
            self._watchers.add(watcher)
        return watcher

    async def _missed(self, wanted: EventFilter, cursor: Cursor, to: Cursor) -> AsyncIterator[list[Event]]:
        while True:
            found = await self._database.read(self._between, wanted=wanted, cursor=cursor, to=to)
            if not found:
                return
            cursor = cursor_of(found[-1])
            yield found

    async def _read(self) -> None:
        woken, looks = self._signals.subscribe(EVENTS), LOOKS
        try:
            while self._watchers or self._wakes or self._heeds:
                try:
                    await self._look()
                except Exception as error:  # noqa: BLE001 - the database may come back
                    log.warning("follower.cannot_read", error=str(error))
                    await asyncio.sleep(1)
                signalled = await woken.wait(LOOK_AGAIN if looks else LOOK_ANYWAY)
                looks = LOOKS if signalled else max(looks - 1, 0)
        finally:
            self._signals.unsubscribe(EVENTS, woken)

    async def _look(self) -> None:
        """Everything new, page by page, each opened once for all who watch."""
        while await self._look_once():
            pass

    async def _look_once(self) -> bool:
        # Nobody joins between reading a page and handing it out: they would miss it.
        async with self._turn:
            wanted = [watcher.wanted for watcher in self._watchers]
            found, self._place = await self._database.read(
                self._after, wanted=lambda event: any(each.covers(event) for each in wanted)
            )
            for watcher in self._watchers:
                watcher.hand(found)
            touched = {event["conversation_id"] for event in found} & self._wakes.keys()
            for wake in [wake for conversation_id in touched for wake in self._wakes[conversation_id]]:
                wake()
            for hear, kinds in self._heeds.items():
                for event in found:
                    if event["kind"] in kinds:
                        hear(event)
        return bool(found)

    def _after(self, connection: Connection, wanted: Callable[[Event], bool]) -> tuple[list[Event], Cursor]:
        found, place = after(connection, self._place, limit=PAGE)
        opener = _Opener(connection, self._vault, self._redactor)
        return [opener(event) if wanted(event) else event for event in found], place

    def _between(
        self, connection: Connection, wanted: EventFilter, cursor: Cursor, to: Cursor
    ) -> list[Event]:
        place = tuple_(events.c.tx, events.c.id)
        query = (
            select(events)
            .where(place > tuple_(cursor.tx, cursor.id), place <= tuple_(to.tx, to.id))
            .order_by(events.c.tx, events.c.id)
            .limit(PAGE)
        )
        if wanted.job_id is not None:
            query = query.where(events.c.job_id == wanted.job_id)
        if wanted.conversation_id is not None:
            query = query.where(events.c.conversation_id == wanted.conversation_id)
        opener = _Opener(connection, self._vault, self._redactor)
        return [opener(dict(row._mapping)) for row in connection.execute(query)]


def cursor_of(event: Mapping[str, Any]) -> Cursor:
    """Where an event stands in the log."""
    return Cursor(event["tx"], event["id"])


def end_of_log(connection: Connection) -> Cursor:
    """The place after everything that is there and cannot be overtaken."""
    query = select(events.c.tx, events.c.id).order_by(events.c.tx.desc(), events.c.id.desc()).limit(1)
    if connection.dialect.name == "postgresql":
        oldest: Any = literal_column("pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
        query = query.where(events.c.tx < oldest)
    row = connection.execute(query).one_or_none()
    return Cursor(row.tx, row.id) if row is not None else Cursor()


def open_events(
    connection: Connection, vault: Vault, redactor: Redactor, found: Iterable[Event]
) -> list[Event]:
    """Events with their words, masked."""
    opener = _Opener(connection, vault, redactor)
    return [opener(event) for event in found]


class _Opener:
    """Opens events' words within one transaction; those of a purged conversation are gone."""

    def __init__(self, connection: Connection, vault: Vault, redactor: Redactor) -> None:
        self._connection = connection
        self._vault = vault
        self._redactor = redactor
        self._keys: dict[str, DataKey | None] = {}

    def __call__(self, event: Event) -> Event:
        shown = {name: value for name, value in event.items() if name != "sealed"}
        if (key := self._key(event["conversation_id"])) is not None:
            shown["data"] = {**event["data"], **open_words(key, event)}
        shown["data"] = self._redactor.redact_value(shown["data"])
        return shown

    def _key(self, conversation_id: str | None) -> DataKey | None:
        if conversation_id is None:
            return None
        if conversation_id not in self._keys:
            try:
                self._keys[conversation_id] = conversation_key(self._connection, self._vault, conversation_id)
            except NotFound:
                self._keys[conversation_id] = None
        return self._keys[conversation_id]
