"""What runs say while they say it, for whoever watches in this process. Nothing here is kept, and nothing waits.

Everything that matters is in the event log; a watcher that is slow, late or in another process reads it there.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

MOST_UNREAD, MOST_CHARACTERS = 500, 200_000
"""What is kept for a watcher that does not keep up; the oldest goes first."""


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
