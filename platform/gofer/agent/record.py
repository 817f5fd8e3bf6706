"""Writing the journal: each event is stored, added to the state, and shown to whoever listens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from gofer.agent.journal import KINDS, Event, Journal
from gofer.agent.state import State, apply

Listener = Callable[[str, dict[str, Any]], None]
"""Called with a kind and data, for journaled events and for deltas. Contract: must not raise or block.

Deltas are masked; events are what the journal holds, in which a model's words are verbatim: mask before showing.
"""


class Recorder:
    """The only writer of a run's journal, and its stopwatch."""

    def __init__(self, journal: Journal, listen: Listener) -> None:
        self._journal = journal
        self._lock = asyncio.Lock()
        self._since = time.monotonic()
        self.listen = listen
        self.state = State()

    async def load(self) -> None:
        """Fold what an earlier worker, if there was one, has written."""
        for event in await self._journal.load():
            apply(self.state, event)
        self._since = time.monotonic()

    async def __call__(self, kind: str, data: dict[str, Any], parent_id: int | None = None) -> None:
        async with self._lock:
            now = time.monotonic()
            data = {**data, "ms": int((now - self._since) * 1000)}
            event_id = await self._journal.append(kind, data, parent_id)
            self._since = now
            apply(self.state, Event(event_id, kind, data, parent_id, KINDS[kind].version))
        self.listen(kind, data)
