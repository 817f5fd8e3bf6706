"""The loop: read what is unread, think, act, until there is an answer.

It knows a Model, Tools, a Journal, Limits, a Context and an Inbox by what they can do, and nothing of HTTP, chats
or databases. Its only state is the fold of its journal, so it can be killed anywhere and started again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gofer.agent.context import text_size
from gofer.agent.context.operations import Piece, reminder
from gofer.agent.conversation import (
    ConversationMessage,
    Covers,
    Delegations,
    Inbox,
    Memories,
    Questions,
    StopSignal,
    Trust,
    rank,
)
from gofer.agent.interfaces import Context, Limits, Tools
from gofer.agent.journal import Journal
from gofer.agent.limits import Go, Halt, Note
from gofer.agent.loop_detection import LoopFinding, detect_loop
from gofer.agent.model import Block, Model
from gofer.agent.outcome import PAUSED, Answered, Asked, Delegated, Failed, Outcome, Stopped
from gofer.agent.state import Listener, Recorder, recalled_block, texts
from gofer.agent.tools.bash import Masker
from gofer.agent.transcript import MAX_TEXT, note, quotes, render
from gofer.agent.turn import ModelCall, ToolCalls

LOOP_REASONS = ("loop.repeat", "loop.poll", "loop.cycle", "loop.stale", "loop.errors")
"""Reasons to stop a run that has made progress before: the model gets a last turn to say how far it got."""
GRACE = 1.0
"""Seconds a tool has to end when the run is stopped. The run itself has longer, to write that down."""
MAX_NEW_CHARACTERS = 120_000
"""Characters of new messages taken into one turn."""
REMINDER_TOKENS = 600
"""Of what is recalled at a run's start without being asked for."""
CONTINUE = Note("", "Your answer was cut at the token limit. Go on exactly where it ended.")
CUT_CALL = Note("", "Your last tool call was cut at the token limit and was not run. Make it shorter.")
EMPTY = Note("model.empty", "Your last answer was empty. Say in words what you did or found.")
T = TypeVar("T")


class Loop:
    """One job of an agent."""

    def __init__(
        self,
        *,
        model: Model,
        tools: Tools,
        journal: Journal,
        limits: Limits,
        context: Context,
        inbox: Inbox,
        questions: Questions,
        covers: Covers,
        memories: Memories | None = None,
        delegations: Delegations | None = None,
        mask: Masker,
        listen: Listener = lambda kind, data: None,
    ) -> None:
        self._record = Recorder(journal, listen)
        self._limits = limits
        self._context = context
        self._inbox = inbox
        self._covers = covers
        self._tool_calls = ToolCalls(self._record, tools, limits, inbox, questions, delegations)
        self._model_call = ModelCall(self._record, model, limits, context, mask)
        self._turn_input = TurnInput(self._record, context, inbox, memories)

    async def run(self) -> Outcome:
        """Work until the run has an end. It may be cancelled or killed at any point, and run again."""
        await self._record.load()
        if not self._record.state.begun:
            await self._begin()
        while self._record.state.end is None:
            if self._inbox.paused():
                return Failed(PAUSED, "", self._record.state.included_to, waiting=True)
            came = await run_until_stopped(self._step(), self._inbox.stopped(), self._let_go)
            if isinstance(came, StopSignal):
                await self._stopped(came)
            elif came is not None:
                return came
        return self._end()

    async def fullness(self) -> float:
        """How much of its room the history of the next run will take."""
        return await self._context.fullness(self._record.state)

    async def _step(self) -> Asked | Delegated | Failed | None:
        """Do the next thing, decided by the state alone."""
        state = self._record.state
        if await self._conclude():
            return None
        if state.pending:
            return await self._tool_calls.act()
        return await self._think()

    async def _begin(self) -> None:
        await self._record("run.started", await self._turn_input.start(self._covers))
        if (halt := self._limits.check_start(self._record.state)) is not None:
            await self._stop(halt)

    async def _conclude(self) -> bool:
        """End the run if the last answer ends it; returns whether it did."""
        state = self._record.state
        last = state.rounds[-1] if state.rounds else None
        if last is None or not last.stop:
            return False
        ended_by = [call.result for call in last.calls if call.result is not None and call.result.get("ends")]
        if ended_by and not state.pending:
            result = ended_by[0]["details"].get("task_result", {})
            end = {"text": ended_by[0]["content"], "included_to": state.included_to, "result": result}
            await self._record("run.answered", end)
            return True
        text = (state.partial + "".join(texts(last.answer or []))).strip()
        if last.stop == "refusal":
            await self._stop(Halt("model.refused", "The model declined to do this."), text)
        elif state.wrapping_up is not None:
            await self._stop(Halt(**state.wrapping_up), text)
        elif last.stop == "unknown":
            why = (
                f"The model broke off for a reason unknown to me ({last.detail}), so this may be incomplete."
            )
            await self._stop(Halt("model.stopped", why), text)
        elif last.stop == "end" and text:
            await self._record("run.answered", {"text": text, "included_to": state.included_to})
        elif last.stop == "end" and EMPTY.code in state.given:
            await self._stop(Halt(EMPTY.code, "The model gave no answer."))
        else:
            return False
        return True

    async def _think(self) -> Failed | None:
        state = self._record.state
        finding = detect_loop(state) if state.wrapping_up is None else None
        ending = Halt(finding.code, finding.text) if finding is not None and finding.stop else None
        if ending is not None and ending.code not in LOOP_REASONS:
            await self._stop(ending, state.partial)
            return None
        for point in await self._context.shrink(state):
            await self._record(point.kind, point.data)
        heard = await self._turn_input.listen(finding if ending is None else None)
        size = await self._context.worst_size(state, heard.blocks)
        go = await self._limits.before_turn(state, size, awaited=heard.awaited, ending=ending)
        if isinstance(go, Halt):
            # Without the results of tools, the money may suffice for a last answer.
            cleared = self._context.clear(state)
            for point in cleared:
                await self._record(point.kind, point.data)
            if not cleared:
                await self._stop(go, state.partial)
            return None
        if go.warning is not None:
            await self._record("run.warned", {"code": go.warning.code, "sentence": go.warning.text})
        await self._record("turn.started", await self._turn_input.turn(heard, go))
        if self._inbox.paused():  # whoever paused before this was written pays for no call
            await self._model_call.forgo()
            return None
        return await self._model_call.think(go, self._stop)

    async def _stop(self, why: Halt, text: str = "") -> None:
        state = self._record.state
        data = {"code": why.code, "sentence": why.sentence, "text": text, "included_to": state.included_to}
        await self._record("run.stopped", data)

    async def _let_go(self, step: asyncio.Task[Any]) -> None:
        """Let a step go: a tool gets a moment to end what it began; a stream is dropped."""
        self._tool_calls.stopping.set()
        if self._record.state.pending:
            await asyncio.wait({step}, timeout=GRACE)

    async def _stopped(self, signal: StopSignal) -> None:
        await self._model_call.abandon()
        if self._record.state.end is None:
            await self._stop(Halt(signal.code, signal.sentence), self._record.state.partial)

    def _end(self) -> Answered | Stopped:
        end = self._record.state.end
        assert end is not None
        data = end.data
        if end.kind == "run.answered":
            state = self._record.state
            result = data.get("result")
            return Answered(data["text"], data["included_to"], state.warning, state.narrowed, result)
        text = "\n\n".join(part for part in (data["text"], data["sentence"]) if part)
        return Stopped(data["code"], data["sentence"], text, data["included_to"], self._record.state.narrowed)


async def run_until_stopped(
    step: Coroutine[Any, Any, T],
    stopped: Coroutine[Any, Any, StopSignal],
    let_go: Callable[[asyncio.Task[T]], Awaitable[None]],
) -> T | StopSignal:
    """The result of a step; or the stop signal, if that came first."""
    doing, wish = asyncio.ensure_future(step), asyncio.ensure_future(stopped)
    try:
        await asyncio.wait({doing, wish}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        await let_go(doing)
        doing.cancel()
        await asyncio.wait({doing})
        return wish.result()
    finally:
        for task in (doing, wish):
            task.cancel()
            with contextlib.suppress(BaseException):
                await task


@dataclass(frozen=True, slots=True)
class NewInput:
    """The input of one turn."""

    said: Sequence[ConversationMessage]
    notes: Sequence[Note]
    blocks: list[Block]
    awaited: bool
    """Whether one of the authors waits for an answer."""
    pieces: list[Piece] = field(default_factory=list)
    """What is shown of memories, without their words …"""
    content: str = ""
    """… and with them."""


@dataclass(eq=False, repr=False)
class TurnInput:
    """Collects what is new to the model at a turn: messages that may steer it, and our own notes."""

    record: Recorder
    context: Context
    inbox: Inbox
    memories: Memories | None = None

    async def start(self, covers: Covers) -> dict[str, Any]:
        """The data of the first event. The run works for the most trusted of those who woke it."""
        unread = await self.inbox.unread(covers.read_seq)
        waking = [said for said in unread if said.addressed] or unread
        woken_by = max(waking, key=lambda said: rank(said.trust), default=None)
        trust: Trust = woken_by.trust if woken_by else "unknown"
        after, to = await self.context.start(covers.read_seq)
        return {
            "trust": trust,
            "woken_by": woken_by.author if woken_by else "",
            "asker": woken_by.identity if woken_by else "",
            "background": all(said.background for said in waking if not quotes(said.trust, trust)),
            "history_after": after,
            "history_to": to,
            "identity": covers.identity,
            "digest": covers.digest,
        }

    async def listen(self, finding: LoopFinding | None) -> NewInput:
        """What to tell the model at the next turn."""
        said = await self._news()
        notes = self._last_words()
        if finding is not None:
            notes.append(Note(f"nudge:{finding.code}", finding.text))
        awaited = any(one.addressed and self._steers(one) and not one.background for one in said)
        blocks = [*self._blocks(said), *(note(one.text) for one in notes)]
        pieces, content = await self._remind(said)
        if content:
            blocks.append(recalled_block(content))
        return NewInput(said, notes, blocks, awaited, pieces, content)

    async def _remind(self, said: Sequence[ConversationMessage]) -> tuple[list[Piece], str]:
        """What memory has to say to the beginning of a run."""
        state = self.record.state
        asked = "\n".join(one.text for one in said if one.addressed and self._steers(one))
        if self.memories is None or state.rounds or not asked.strip():
            return [], ""
        narrowed = any(one.has_strangers_words for one in said) or await self.context.tainted(state)
        found = await self.memories.remind(asked, history_after=state.history_after, narrowed=narrowed)
        return reminder(found, REMINDER_TOKENS, text_size)

    async def turn(self, heard: NewInput, go: Go) -> dict[str, Any]:
        """The data of the event with which a turn starts."""
        state = self.record.state
        blocks = heard.blocks + [note(one.text) for one in go.notes]
        # The journal keeps what was recalled by its id: purging a memory takes it out of every run that has seen it.
        kept = [block for block in blocks if not heard.content or block != recalled_block(heard.content)]
        strangers = any(one.has_strangers_words for one in heard.said)
        return {
            "turn": state.turns + 1,
            "input": kept,
            "pieces": heard.pieces,
            "content": heard.content,
            "included_to": heard.said[-1].seq if heard.said else state.included_to,
            "reserved": go.reserve,
            "size": await self.context.raw_size(state, blocks),
            "notes": [one.code for one in (*heard.notes, *go.notes) if one.code],
            "narrowed": strangers or (not state.rounds and await self.context.tainted(state)),
            "awaited": heard.awaited,
            "asker": self._asker(heard.said),
            "wrap_up": {"code": go.wrap_up.code, "sentence": go.wrap_up.sentence} if go.wrap_up else None,
        }

    def _asker(self, said: Sequence[ConversationMessage]) -> str:
        """The identity of whoever asked last: one of these messages' authors, or the one before."""
        asking = [one.identity for one in said if one.addressed and self._steers(one)]
        return asking[-1] if asking else self.record.state.asker

    async def _news(self) -> Sequence[ConversationMessage]:
        """New messages up to the last one that may steer this run; later ones wait for a run of their own."""
        unread = await self.inbox.unread(self.record.state.included_to)
        steering = [index for index, said in enumerate(unread) if self._steers(said)]
        if not steering:
            return []
        end, size = steering[0], 0
        for index in range(steering[0], steering[-1] + 1):
            size += min(len(unread[index].text), MAX_TEXT)
            if size > MAX_NEW_CHARACTERS:
                break
            end = index if index in steering else end
        return unread[: end + 1]

    def _steers(self, said: ConversationMessage) -> bool:
        """Whether a message may steer the run: not one of a less trusted person, nor a schedule's in a run that
        somebody waits for."""
        state = self.record.state
        return not quotes(said.trust, state.trust) and (state.background or not said.background)

    def _last_words(self) -> list[Note]:
        """What to tell the model about how its last answer ended."""
        state = self.record.state
        last = state.rounds[-1] if state.rounds else None
        if last is None or not last.stop or last.calls:
            return []
        if state.cut_call:
            return [CUT_CALL]
        return [CONTINUE] if last.answer else [EMPTY]

    def _blocks(self, said: Sequence[ConversationMessage]) -> list[Block]:
        state = self.record.state
        return [block for one in said for block in render(one, state.trust)]
