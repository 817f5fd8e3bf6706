"""What the runs of this process say, and who watches them here."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from gofer.live.buffer import MOST_OUTPUT, MOST_TEXT, Fresh, Place, Reading, TurnText, drop_closed

AFTERGLOW = 5.0
"""Seconds after which what a run has said is let go: by then it is in the log, and has been seen there."""


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
        """What a job says was wiped off the screen: if it goes on, it is needed from its beginning."""
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
        return TurnText(f"{self._owner}/{self._begun}", MOST_OUTPUT if place[1] else MOST_TEXT)


def _finish(words: TurnText, data: dict[str, Any]) -> None:
    """An answer that was cut goes on in the next turn, unless it was about to do something."""
    acts = any(block["type"] == "tool_use" for block in data["content"])
    words.goes_on = data["stop"] in ("max_tokens", "pause") and not acts
    words.open = words.goes_on
