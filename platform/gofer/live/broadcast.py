"""What runs say, carried to who watches in other processes: a few times a second, in sealed parcels.

A parcel may get lost, and a watcher may come late: each part says how many characters come before it, and who lacks
some asks for them.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import structlog

from gofer.errors import GoferError
from gofer.jobs.notifications import Signals
from gofer.live.buffer import MOST_OUTPUT, MOST_TEXT, Fresh, Place, Reading, TurnText, drop_closed
from gofer.live.local import Live, Watcher
from gofer.store.encryption import seal, unseal
from gofer.vault.envelope import DataKey, Vault, aad, key_id

log = structlog.get_logger()

PAUSE = 0.2
"""Seconds between two sendings to other processes."""
BREATH = 0.02
"""Seconds in which what belongs together comes together, when nothing was sent for a while."""
MOST_SHARED = 8_000
"""Characters of one call's output in a sending: more nobody reads in a fifth of a second."""
IN_ONE, MOST_BYTES = 400, 5_600
"""Characters in a part, and bytes of parts in a parcel: sealed and in base64 it still fits in a notification."""
MOST_PARCELS = 30
"""Parcels in a sending; a worker whose runs print without end must not drown the database."""

Part = list[Any]
"""Job, call, name of the beginning, characters before, text, and whether it goes on."""


class SharedLive(Live):
    """Who watches here is told at once, who watches in other processes a few times a second."""

    def __init__(self, signals: Signals, vault: Vault, owner: str) -> None:
        super().__init__(owner)
        self._signals = signals
        self._vault = vault
        self._sent: dict[str, Reading] = defaultdict(Reading)
        self._unsent: dict[str, bool] = {}
        """Conversations with something to send, and whether there is something new in the log."""
        self._due: asyncio.TimerHandle | None = None
        self._sent_at = 0.0
        self._key = b""
        signals.on_parcel(self._take)

    @contextmanager
    def watching(self, conversation_id: str) -> Iterator[Watcher]:
        first = conversation_id not in self._watchers
        with super().watching(conversation_id) as watcher:
            if first:
                self._ask(conversation_id)
            yield watcher

    def tell(self, conversation_id: str, job_id: int, kind: str, data: dict[str, Any]) -> None:
        super().tell(conversation_id, job_id, kind, data)
        if not kind.endswith(".delta") or kind in ("text.delta", "tool.delta"):
            self._to_send(conversation_id, log=not kind.endswith(".delta"))

    def over(self, conversation_id: str, job_id: int) -> None:
        super().over(conversation_id, job_id)
        self._to_send(conversation_id, log=False)

    def _unwatched(self, conversation_id: str) -> None:
        """Keep of a conversation that nobody watches what this process itself says in it."""
        said = self._said.get(conversation_id, {})
        for place in [place for place, words in said.items() if not self._is_mine(words)]:
            if conversation_id not in self._watchers:
                del said[place]
        super()._unwatched(conversation_id)
        if conversation_id not in self._said:
            self._sent.pop(conversation_id, None)

    def _is_mine(self, words: TurnText) -> bool:
        return words.name.startswith(f"{self._owner}/")

    # Sending.

    def _to_send(self, conversation_id: str, *, log: bool) -> None:
        self._unsent[conversation_id] = self._unsent.get(conversation_id, False) or log
        if self._due is None:
            loop = asyncio.get_running_loop()
            self._due = loop.call_at(max(loop.time() + BREATH, self._sent_at + PAUSE), self._send)

    def _send(self) -> None:
        self._due = None
        self._sent_at = asyncio.get_running_loop().time()
        unsent, self._unsent = self._unsent, {}
        parcels = [
            self._parcel(conversation_id, {"log": news, "parts": parts})
            for conversation_id, news in unsent.items()
            for parts in in_parcels(self._parts(conversation_id))
        ]
        self._signals.post(parcels[:MOST_PARCELS])

    def _parts(self, conversation_id: str) -> Iterator[Part]:
        said = self._said.get(conversation_id, {})
        mine = {place: words for place, words in said.items() if self._is_mine(words)}
        for fresh in self._sent[conversation_id].of(mine) if mine else ():
            yield from parts_of(fresh)

    def _parcel(self, conversation_id: str, words: dict[str, Any]) -> str:
        if not self._key or key_id(self._key) != self._vault.ring.active.fingerprint:
            self._key = self._vault.new_data_key(_place(self._owner))
        key = self._vault.unwrap(self._key, _place(self._owner))
        sealed = seal(key, words, "live", conversation_id)
        return " ".join((self._owner, conversation_id, _ascii(self._key), _ascii(sealed)))

    def _ask(self, conversation_id: str) -> None:
        """Have others say what is missing here."""
        said = self._said.get(conversation_id, {})
        known = [[*place, words.name, words.end] for place, words in said.items() if not self._is_mine(words)]
        self._signals.post([self._parcel(conversation_id, {"ask": known[:20]})])

    # Receiving.

    def _take(self, parcel: str) -> None:
        """A parcel of another process; one that cannot be read is none."""
        try:
            owner, conversation_id, wrapped, sealed = parcel.split(" ")
            if owner == self._owner or conversation_id not in self._said:
                return
            key: DataKey = self._vault.unwrap(base64.b64decode(wrapped), _place(owner))
            words = unseal(key, base64.b64decode(sealed), "live", conversation_id)
        except (ValueError, GoferError) as error:
            log.debug("live.unreadable", error=str(error))
            return
        if "ask" in words:
            self._answer(conversation_id, words["ask"])
        elif conversation_id in self._watchers:
            self._hear(conversation_id, words)

    def _answer(self, conversation_id: str, known: list[list[Any]]) -> None:
        there = {(job_id, call_id): (name, at) for job_id, call_id, name, at in known}
        mine = [place for place, words in self._said[conversation_id].items() if self._is_mine(words)]
        for place in mine:
            self._sent[conversation_id].back_to(place, *there.get(place, ("", 0)))
        if mine:
            self._to_send(conversation_id, log=False)

    def _hear(self, conversation_id: str, words: dict[str, Any]) -> None:
        said = self._said[conversation_id]
        fitting = [fits(said, part) for part in words["parts"]]
        if not all(fitting):
            self._ask(conversation_id)
        self._wake(conversation_id, log=words["log"])


def parts_of(fresh: Fresh) -> Iterator[Part]:
    """In pieces, each with its place; of what a call prints without end, the last of it."""
    cut = max(len(fresh.text) - MOST_SHARED, 0) if fresh.call_id else 0
    fresh = replace(fresh, at=fresh.at + cut, text=fresh.text[cut:])
    for start in range(0, max(len(fresh.text), 1), IN_ONE):
        text = fresh.text[start : start + IN_ONE]
        goes_on = fresh.open or start + IN_ONE < len(fresh.text)
        yield [fresh.job_id, fresh.call_id, fresh.name, fresh.at + start, text, goes_on]


def in_parcels(parts: Iterator[Part]) -> Iterator[list[Part]]:
    """So many at a time that they fit, and an empty one if there are none; what never would is left out."""
    parcel: list[Part] = []
    weight = sent = 0
    for part in parts:
        more = len(json.dumps(part).encode())
        if parcel and weight + more > MOST_BYTES:
            yield parcel
            parcel, weight, sent = [], 0, sent + 1
        if more <= MOST_BYTES:
            parcel.append(part)
            weight += more
    if parcel or not sent:
        yield parcel


def fits(said: dict[Place, TurnText], part: Part) -> bool:
    """Add a part where it belongs; False when what comes before it is missing."""
    job_id, call_id, name, at, text, goes_on = part
    place: Place = (job_id, call_id)
    words = said.get(place)
    if words is None or words.name != name:
        words = TurnText(name, MOST_OUTPUT if call_id else MOST_TEXT)
        if at and not call_id:
            return False
        words.start = at
        drop_closed(said)
        said[place] = words
    if at > words.end:
        if not call_id:
            return False
        words.start, words.text = at, ""  # more was printed than was sent
    words.add(text[words.end - at :])
    if not goes_on and at + len(text) >= words.end:
        words.open = False
    return True


def _place(owner: str) -> bytes:
    return aad("live", owner)


def _ascii(value: bytes) -> str:
    return base64.b64encode(value).decode()
