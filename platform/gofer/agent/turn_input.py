"""What is new to the model at a turn: messages that may steer, and our own notes to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gofer.agent.conversation import ConversationMessage, Covers, Inbox, Trust, rank
from gofer.agent.interfaces import Context
from gofer.agent.limits import Go, Note
from gofer.agent.loop_detection import LoopFinding
from gofer.agent.model import Block
from gofer.agent.state import Recorder
from gofer.agent.untrusted import MAX_TEXT, note, quotes, render

MOST_AT_ONCE = 120_000
"""Characters of new messages taken into one turn."""
CONTINUE = Note("", "Your answer was cut at the token limit. Go on exactly where it ended.")
CUT_CALL = Note("", "Your last tool call was cut at the token limit and was not run. Make it shorter.")
EMPTY = Note("model.empty", "Your last answer was empty. Say in words what you did or found.")


@dataclass(frozen=True, slots=True)
class NewInput:
    """The input of one turn."""

    said: Sequence[ConversationMessage]
    notes: Sequence[Note]
    blocks: list[Block]
    awaited: bool
    """Somebody in it waits for an answer."""


class TurnInput:
    """The ears of the loop."""

    def __init__(self, record: Recorder, context: Context, inbox: Inbox) -> None:
        self._record = record
        self._context = context
        self._inbox = inbox

    async def start(self, covers: Covers) -> dict[str, Any]:
        """The first event: the run works for the most trusted of those who woke it."""
        unread = await self._inbox.unread(covers.read_seq)
        waking = [said for said in unread if said.addressed] or unread
        woken_by = max(waking, key=lambda said: rank(said.trust), default=None)
        trust: Trust = woken_by.trust if woken_by else "unknown"
        after, to = await self._context.start(covers.read_seq)
        return {
            "trust": trust,
            "woken_by": woken_by.author if woken_by else "",
            "asker": woken_by.identity if woken_by else "",
            "background": all(said.background for said in waking if not quotes(said.trust, trust)),
            "history_after": after,
            "history_to": to,
        }

    async def listen(self, finding: LoopFinding | None) -> NewInput:
        """What to tell the model at the next turn."""
        said = await self._news()
        notes = self._last_words()
        if finding is not None:
            notes.append(Note(f"nudge:{finding.code}", finding.text))
        awaited = any(one.addressed and self._steers(one) and not one.background for one in said)
        return NewInput(said, notes, [*self._blocks(said), *(note(one.text) for one in notes)], awaited)

    async def turn(self, heard: NewInput, go: Go) -> dict[str, Any]:
        """The event with which a turn starts."""
        state = self._record.state
        blocks = heard.blocks + [note(one.text) for one in go.notes]
        strangers = any(one.has_strangers_words for one in heard.said)
        return {
            "turn": state.turns + 1,
            "input": blocks,
            "included_to": heard.said[-1].seq if heard.said else state.included_to,
            "reserved": go.reserve,
            "size": await self._context.raw_size(state, blocks),
            "notes": [one.code for one in (*heard.notes, *go.notes) if one.code],
            "narrowed": strangers or (not state.rounds and await self._context.tainted(state)),
            "awaited": heard.awaited,
            "asker": self._asker(heard.said),
            "wrap_up": {"code": go.wrap_up.code, "sentence": go.wrap_up.sentence} if go.wrap_up else None,
        }

    def _asker(self, said: Sequence[ConversationMessage]) -> str:
        """Whoever asked last: one of these, or still the one before."""
        asking = [one.identity for one in said if one.addressed and self._steers(one)]
        return asking[-1] if asking else self._record.state.asker

    async def _news(self) -> Sequence[ConversationMessage]:
        """New messages up to the last that may steer; the others behind it wait for a run of their own."""
        unread = await self._inbox.unread(self._record.state.included_to)
        steering = [index for index, said in enumerate(unread) if self._steers(said)]
        if not steering:
            return []
        end, size = steering[0], 0
        for index in range(steering[0], steering[-1] + 1):
            size += min(len(unread[index].text), MAX_TEXT)
            if size > MOST_AT_ONCE:
                break
            end = index if index in steering else end
        return unread[: end + 1]

    def _steers(self, said: ConversationMessage) -> bool:
        """Not what less trusted people say; nor a schedule, in a run that somebody waits for."""
        state = self._record.state
        return not quotes(said.trust, state.trust) and (state.background or not said.background)

    def _last_words(self) -> list[Note]:
        """What to tell the model about how its last answer ended."""
        state = self._record.state
        last = state.rounds[-1] if state.rounds else None
        if last is None or not last.stop or last.calls:
            return []
        if state.cut_call:
            return [CUT_CALL]
        return [CONTINUE] if last.answer else [EMPTY]

    def _blocks(self, said: Sequence[ConversationMessage]) -> list[Block]:
        state = self._record.state
        return [block for one in said for block in render(one, state.trust)]
