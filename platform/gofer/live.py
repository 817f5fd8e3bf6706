"""What runs say while they say it, for whoever watches, here and in other processes.

Everything that matters is in the event log; what is kept here is only what is not there yet: the words of a turn
that goes on, and what a command has printed so far. Whoever begins to watch in the middle gets it from its beginning.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import structlog

from gofer.errors import GoferError
from gofer.jobs.notifications import Signals
from gofer.store.encryption import seal, unseal
from gofer.vault.envelope import DataKey, Vault, aad, key_id

log = structlog.get_logger()
AFTERGLOW = 5.0
"""Seconds after which what a run has said is let go: by then it is in the log, and has been seen there."""
PAUSE = 0.2
"""Seconds between two sendings to other processes."""
BREATH = 0.02
"""Seconds in which what belongs together comes together, when nothing was sent for a while."""
MAX_SHARED = 8_000
"""Characters of one call's output in a sending: more nobody reads in a fifth of a second."""
PART_SIZE, MAX_BYTES = 400, 5_600
"""Characters in a part, and bytes of parts in a parcel: sealed and in base64 it still fits in a notification."""
MAX_PARCELS = 30
"""Parcels in a sending; a worker whose runs print without end must not drown the database."""
MAX_TEXT, MAX_OUTPUT = 1_000_000, 16_000
"""Characters kept of a turn's words, and of what one call prints: the last ones, the rest is in the log later."""
Place = tuple[int, str]
"""A job, and its call; without a call, what the model itself says."""
Part = list[Any]
"""Job, call, name of the beginning, characters before, text, and whether it goes on."""


@dataclass(slots=True)
class TurnText:
    """The words of one turn, or what one call has printed."""

    name: str
    """Of this beginning: another name is another beginning."""
    most: int
    text: str = ""
    start: int = 0
    """How many characters came before those that are kept."""
    open: bool = True
    """Whether they are in no log yet."""
    goes_on: bool = False
    """Whether the next turn takes up where this one was cut."""

    @property
    def end(self) -> int:
        """How many characters came."""
        return self.start + len(self.text)

    def add(self, text: str) -> None:
        """Go on."""
        whole = self.text + text
        self.start += max(len(whole) - self.most, 0)
        self.text = whole[-self.most :]

    def after(self, at: int) -> str:
        """What came after a place, as far as it is kept."""
        return self.text[max(at - self.start, 0) :]


def drop_closed(said: dict[Place, TurnText]) -> None:
    """Let go of words that are in the log."""
    for place in [place for place, words in said.items() if not words.open]:
        del said[place]


@dataclass(frozen=True, slots=True)
class Fresh:
    """What somebody has not seen: a beginning that replaces what came before, or more of what they know."""

    job_id: int
    call_id: str
    name: str
    at: int
    """How many characters come before it."""
    text: str
    whole: bool
    open: bool


class Reading:
    """How far somebody has read. Words that are in the log are finished, but never begun: the log has them."""

    def __init__(self) -> None:
        self._seen: dict[Place, tuple[str, int, bool]] = {}

    def of(self, said: Mapping[Place, TurnText]) -> Iterator[Fresh]:
        """Yield the unread parts, and mark them as read."""
        for place, words in said.items():
            name, at, was_open = self._seen.get(place, ("", 0, True))
            whole = name != words.name or at < words.start
            if whole and not words.open:
                continue
            at = words.start if whole else at
            text = words.after(at)
            if text or (whole and name) or was_open != words.open:
                self._seen[place] = (words.name, words.end, words.open)
                yield Fresh(*place, words.name, at, text, whole, words.open)

    def back_to(self, place: Place, name: str, at: int) -> None:
        """Read again from there on, or from the beginning if it is another one."""
        seen = self._seen.get(place)
        if seen is not None and seen[0] == name:
            self._seen[place] = (name, min(at, seen[1]), seen[2])
        else:
            self._seen.pop(place, None)

    def forget(self, job_id: int) -> None:
        """A job's words are to be read again from their beginning."""
        self._seen.pop((job_id, ""), None)


class Watcher:
    """One who watches a conversation, at their own pace: what they have not read yet waits, joined."""

    def __init__(self, said: dict[Place, TurnText]) -> None:
        self._said = said
        self._reading = Reading()
        self._woken = asyncio.Event()
        self._log = False

    def wake(self, *, log: bool = True) -> None:
        """There are fresh words, or, with `log`, something new in the log. Contract: never blocks or raises."""
        self._log = self._log or log
        self._woken.set()

    async def wait(self, timeout: float) -> bool:
        """Wait for anything new; whether to look at the log, as also after the timeout."""
        try:
            async with asyncio.timeout(timeout):
                await self._woken.wait()
        except TimeoutError:
            return True
        self._woken.clear()
        log, self._log = self._log, False
        return log

    def fresh(self, jobs: Collection[int]) -> list[Fresh]:
        """What some jobs have said and this one has not read."""
        said = {place: words for place, words in self._said.items() if place[0] in jobs}
        return list(self._reading.of(said))

    def forget(self, job_id: int) -> None:
        """Forget the words of a job that were wiped off the screen; if it goes on, it starts from its beginning."""
        self._reading.forget(job_id)


class Live:
    """What is being said in each conversation, and who watches it."""

    def __init__(self, owner: str = "") -> None:
        self._owner = owner
        self._begun = 0
        self._said: dict[str, dict[Place, TurnText]] = defaultdict(dict)
        self._watchers: dict[str, set[Watcher]] = defaultdict(set)

    @contextmanager
    def watching(self, conversation_id: str) -> Iterator[Watcher]:
        """Watch a conversation for as long as the block lasts."""
        watcher = Watcher(self._said[conversation_id])
        self._watchers[conversation_id].add(watcher)
        try:
            yield watcher
        finally:
            self._watchers[conversation_id].discard(watcher)
            if not self._watchers[conversation_id]:
                del self._watchers[conversation_id]
                self._unwatched(conversation_id)

    def tell(self, conversation_id: str, job_id: int, kind: str, data: dict[str, Any]) -> None:
        """A run said or did something. Contract: never blocks, never raises."""
        said = self._said[conversation_id]
        turn, call = (job_id, ""), (job_id, str(data.get("call_id", "")))
        if kind == "text.delta":
            self._words(said, turn).add(data["text"])
        elif kind == "tool.delta":
            self._words(said, call).add(data["text"])
        elif kind == "turn.failed" or (kind == "turn.started" and not self._words(said, turn).goes_on):
            drop_closed(said)
            said[turn] = self._begin(turn)
        elif kind == "turn.finished":
            _finish(self._words(said, turn), data)
        elif kind == "tool.finished" and call in said:
            said[call].open = False
        self._wake(conversation_id, log=not kind.endswith(".delta"))

    def over(self, conversation_id: str, job_id: int) -> None:
        """A run has ended, however it did. Its words are let go in a moment, unless it begins again."""
        left = {place: words for place, words in self._said[conversation_id].items() if place[0] == job_id}
        for words in left.values():
            words.open = words.goes_on = False
        asyncio.get_running_loop().call_later(AFTERGLOW, self._let_go, conversation_id, left)

    def _let_go(self, conversation_id: str, left: dict[Place, TurnText]) -> None:
        said = self._said.get(conversation_id, {})
        for place, words in left.items():
            if said.get(place) is words:
                del said[place]
        self._unwatched(conversation_id)

    def _unwatched(self, conversation_id: str) -> None:
        if conversation_id not in self._watchers and not self._said.get(conversation_id, True):
            del self._said[conversation_id]

    def _wake(self, conversation_id: str, *, log: bool) -> None:
        for watcher in self._watchers.get(conversation_id, ()):
            watcher.wake(log=log)

    def _words(self, said: dict[Place, TurnText], place: Place) -> TurnText:
        if place not in said:
            said[place] = self._begin(place)
        return said[place]

    def _begin(self, place: Place) -> TurnText:
        self._begun += 1
        return TurnText(f"{self._owner}/{self._begun}", MAX_OUTPUT if place[1] else MAX_TEXT)


def _finish(words: TurnText, data: dict[str, Any]) -> None:
    """An answer that was cut goes on in the next turn, unless it was about to do something."""
    acts = any(block["type"] == "tool_use" for block in data["content"])
    words.goes_on = data["stop"] in ("max_tokens", "pause") and not acts
    words.open = words.goes_on


class SharedLive(Live):
    """Tells watchers here at once, and watchers in other processes a few times a second, in sealed parcels.

    A parcel may get lost, and a watcher may come late: each part says how many characters come before it, and a
    process that lacks some asks for them.
    """

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
        self._signals.post(parcels[:MAX_PARCELS])

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
            self._receive(conversation_id, words)

    def _answer(self, conversation_id: str, known: list[list[Any]]) -> None:
        there = {(job_id, call_id): (name, at) for job_id, call_id, name, at in known}
        mine = [place for place, words in self._said[conversation_id].items() if self._is_mine(words)]
        for place in mine:
            self._sent[conversation_id].back_to(place, *there.get(place, ("", 0)))
        if mine:
            self._to_send(conversation_id, log=False)

    def _receive(self, conversation_id: str, words: dict[str, Any]) -> None:
        said = self._said[conversation_id]
        fitting = [add_part(said, part) for part in words["parts"]]
        if not all(fitting):
            self._ask(conversation_id)
        self._wake(conversation_id, log=words["log"])


__all__ = ["Fresh", "Live", "SharedLive", "Watcher"]


def parts_of(fresh: Fresh) -> Iterator[Part]:
    """In pieces, each with its place; of what a call prints without end, the last of it."""
    cut = max(len(fresh.text) - MAX_SHARED, 0) if fresh.call_id else 0
    fresh = replace(fresh, at=fresh.at + cut, text=fresh.text[cut:])
    for start in range(0, max(len(fresh.text), 1), PART_SIZE):
        text = fresh.text[start : start + PART_SIZE]
        goes_on = fresh.open or start + PART_SIZE < len(fresh.text)
        yield [fresh.job_id, fresh.call_id, fresh.name, fresh.at + start, text, goes_on]


def in_parcels(parts: Iterator[Part]) -> Iterator[list[Part]]:
    """So many at a time that they fit, and an empty one if there are none; what never would is left out."""
    parcel: list[Part] = []
    weight = sent = 0
    for part in parts:
        more = len(json.dumps(part).encode())
        if parcel and weight + more > MAX_BYTES:
            yield parcel
            parcel, weight, sent = [], 0, sent + 1
        if more <= MAX_BYTES:
            parcel.append(part)
            weight += more
    if parcel or not sent:
        yield parcel


def add_part(said: dict[Place, TurnText], part: Part) -> bool:
    """Add a part where it belongs; False when what comes before it is missing."""
    job_id, call_id, name, at, text, goes_on = part
    place: Place = (job_id, call_id)
    words = said.get(place)
    if words is None or words.name != name:
        words = TurnText(name, MAX_OUTPUT if call_id else MAX_TEXT)
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
