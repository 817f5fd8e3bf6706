"""A recorded run drives the loop: the turns of a journal, one after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from gofer.agent.journal import JournalEvent
from gofer.agent.model import Delta, Features, ModelError, ModelEvent, ModelRequest, Turn, Usage
from gofer.agent.state import texts


class Replay:
    """Answers with what was answered before, whatever it is asked; raises when the record ends."""

    def __init__(self, turns: Iterable[Turn], *, context_window: int = 1_000_000) -> None:
        self.name = "replay/recorded"
        self.context_window = context_window
        self.features = Features()
        self._turns = list(turns)
        self._next = 0
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.requests.append(request)
        if self._next >= len(self._turns):
            raise ModelError("invalid", "The record has no further turn.", model=self.name)
        turn = self._turns[self._next]
        self._next += 1
        for text in texts(turn.content):
            yield Delta("text", text)
        yield turn


def recorded_turns(events: Iterable[JournalEvent]) -> list[Turn]:
    """The turns of a journal."""
    return [
        Turn(
            event.data["content"],
            event.data["stop"],
            Usage(**event.data["usage"]),
            event.data["model"],
            message_id=event.data["message_id"],
            malformed=event.data["malformed"],
            cut_call=event.data["cut_call"],
        )
        for event in events
        if event.kind == "turn.finished"
    ]
