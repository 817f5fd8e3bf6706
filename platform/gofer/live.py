"""What runs say while they say it, for whoever watches. Nothing here is kept, and nothing waits.

Everything that matters is in the event log; a watcher that is slow or late reads it there. Watchers in other
processes are told a few times a second, in sealed parcels.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from gofer.errors import GoferError
from gofer.jobs.signals import Signals
from gofer.store.sealing import seal, unseal
from gofer.vault.envelope import DataKey, Vault, aad, key_id

log = structlog.get_logger()

MOST_UNREAD, MOST_CHARACTERS = 500, 200_000
"""What is kept for a watcher that does not keep up; the oldest goes first."""
PAUSE = 0.2
"""Seconds between two sendings to other processes."""
BREATH = 0.02
"""Seconds in which what belongs together comes together, when nothing was sent for a while."""
MOST_SHARED = 8_000
"""Characters of one call's or one turn's words in a sending: more nobody reads in a fifth of a second."""
IN_ONE, MOST_BYTES = 400, 5_600
"""Characters in a part, and bytes of parts in a parcel: sealed and in base64 it still fits in a notification."""
MOST_PARCELS = 30
"""Parcels in a sending; a worker whose runs print without end must not drown the database."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Something a run said just now: a delta, or an event that is in the log by now."""

    job_id: int
    kind: str
    data: dict[str, Any]

    @property
    def is_delta(self) -> bool:
        """Whether it is in no log."""
        return self.kind.endswith(".delta")

    @property
    def size(self) -> int:
        """How much it weighs while it waits."""
        return len(self.data["text"]) if self.is_delta else 0


class Watcher:
    """One watcher's own queue."""

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()
        self._size = 0
        self._woken = asyncio.Event()

    def tell(self, piece: Piece) -> None:
        """Add a piece. Contract: never blocks, never raises."""
        self._pieces.append(piece)
        self._size += piece.size
        while len(self._pieces) > MOST_UNREAD or self._size > MOST_CHARACTERS:
            self._size -= self._pieces.popleft().size
        self._woken.set()

    def wake(self) -> None:
        """Have it look at the log."""
        self._woken.set()

    async def wait(self, timeout: float) -> list[Piece]:
        """What came since the last return; empty after the timeout, or when only woken."""
        try:
            async with asyncio.timeout(timeout):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()
        pieces = list(self._pieces)
        self._pieces.clear()
        self._size = 0
        return pieces


class Live:
    """Who watches which conversation."""

    def __init__(self) -> None:
        self._watchers: dict[str, set[Watcher]] = defaultdict(set)

    @contextmanager
    def watching(self, conversation_id: str) -> Iterator[Watcher]:
        """Watch a conversation for as long as the block lasts."""
        watcher = Watcher()
        self._watchers[conversation_id].add(watcher)
        try:
            yield watcher
        finally:
            self._watchers[conversation_id].discard(watcher)
            if not self._watchers[conversation_id]:
                del self._watchers[conversation_id]

    def tell(self, conversation_id: str, job_id: int, kind: str, data: dict[str, Any]) -> None:
        """Tell whoever watches. Contract: never blocks, never raises."""
        for watcher in self._watchers.get(conversation_id, ()):
            watcher.tell(Piece(job_id, kind, data))


class SharedLive(Live):
    """Who watches here is told at once, who watches in other processes a few times a second."""

    def __init__(self, signals: Signals, vault: Vault, owner: str) -> None:
        super().__init__()
        self._signals = signals
        self._vault = vault
        self._owner = owner
        self._gathered: dict[str, _Gathered] = defaultdict(_Gathered)
        self._due: asyncio.TimerHandle | None = None
        self._sent_at = 0.0
        self._key = b""
        signals.on_parcel(self._take)

    def tell(self, conversation_id: str, job_id: int, kind: str, data: dict[str, Any]) -> None:
        super().tell(conversation_id, job_id, kind, data)
        if kind.endswith(".delta") and kind not in ("text.delta", "tool.delta"):
            return
        self._gathered[conversation_id].add(job_id, kind, data)
        if self._due is None:
            loop = asyncio.get_running_loop()
            self._due = loop.call_at(max(loop.time() + BREATH, self._sent_at + PAUSE), self._send)

    def _send(self) -> None:
        self._due = None
        self._sent_at = asyncio.get_running_loop().time()
        gathered, self._gathered = self._gathered, defaultdict(_Gathered)
        parcels = [
            self._parcel(conversation_id, words)
            for conversation_id, each in gathered.items()
            for words in each.in_parcels()
        ]
        self._signals.post(parcels[:MOST_PARCELS])

    def _parcel(self, conversation_id: str, words: list[Any]) -> str:
        if not self._key or key_id(self._key) != self._vault.ring.active.fingerprint:
            self._key = self._vault.new_data_key(_place(self._owner))
        key = self._vault.unwrap(self._key, _place(self._owner))
        sealed = seal(key, words, "live", conversation_id)
        return " ".join((self._owner, conversation_id, _ascii(self._key), _ascii(sealed)))

    def _take(self, parcel: str) -> None:
        """Hand a parcel of another process to who watches here; one that cannot be read is none."""
        try:
            owner, conversation_id, wrapped, sealed = parcel.split(" ")
            if owner == self._owner or conversation_id not in self._watchers:
                return
            key: DataKey = self._vault.unwrap(base64.b64decode(wrapped), _place(owner))
            words = unseal(key, base64.b64decode(sealed), "live", conversation_id)
        except (ValueError, GoferError) as error:
            log.debug("live.unreadable", error=str(error))
            return
        for job_id, kind, call_id, text in words:
            Live.tell(self, conversation_id, job_id, kind, {"call_id": call_id, "text": text})


class _Gathered:
    """What was said in one conversation since the last sending: deltas joined, and which events came between."""

    def __init__(self) -> None:
        self._said: list[list[Any]] = []
        self._open: dict[tuple[int, str, str], list[Any]] = {}

    def add(self, job_id: int, kind: str, data: dict[str, Any]) -> None:
        place = (job_id, kind, str(data.get("call_id", "")))
        if not kind.endswith(".delta"):
            # Its data is in the log; that it happened is enough to look there.
            self._open.clear()
            self._said.append([*place, ""])
        elif place in self._open:
            said = self._open[place]
            said[3] = (said[3] + data["text"])[-MOST_SHARED:]
        else:
            self._open[place] = [*place, data["text"][-MOST_SHARED:]]
            self._said.append(self._open[place])

    def in_parcels(self) -> Iterator[list[list[Any]]]:
        """So many at a time that they fit; what never would is left out."""
        parcel: list[list[Any]] = []
        weight = 0
        for part in self._parts():
            more = len(json.dumps(part).encode())
            if parcel and weight + more > MOST_BYTES:
                yield parcel
                parcel, weight = [], 0
            if more <= MOST_BYTES:
                parcel.append(part)
                weight += more
        if parcel:
            yield parcel

    def _parts(self) -> Iterator[list[Any]]:
        for *place, text in self._said:
            for start in range(0, max(len(text), 1), IN_ONE):
                yield [*place, text[start : start + IN_ONE]]


def _place(owner: str) -> bytes:
    return aad("live", owner)


def _ascii(value: bytes) -> str:
    return base64.b64encode(value).decode()
