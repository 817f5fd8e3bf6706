"""The loop: read what is unread, think, act, until there is an answer.

It knows a Model, Tools, a Journal, Limits, a Context and an Inbox by what they can do, and nothing of HTTP, chats
or databases. Its only state is the fold of its journal, so it can be killed anywhere and started again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any

from gofer.agent.acting import Acting
from gofer.agent.context import Context
from gofer.agent.conversation import Covers, Inbox, Questions, Said, StopSignal, rank
from gofer.agent.journal import Journal
from gofer.agent.limits import Go, Halt, Limits, Note
from gofer.agent.model import Block, Model
from gofer.agent.outcome import Answered, Asked, Failed, Outcome, Stopped
from gofer.agent.progress import look
from gofer.agent.record import Listener, Recorder
from gofer.agent.state import texts
from gofer.agent.thinking import Thinking
from gofer.agent.tools.runner import Tools
from gofer.agent.untrusted import note, plain, quotes, render

GRACE = 1.5
"""Seconds a tool has to let go when the run is stopped."""
MOST_AT_ONCE = 120_000
"""Characters of new messages taken into one turn."""
CONTINUE = Note("", "Your answer was cut at the token limit. Go on exactly where it ended.")
CUT_CALL = Note("", "Your last tool call was cut at the token limit and was not run. Make it shorter.")
EMPTY = Note("model.empty", "Your last answer was empty. Say in words what you did or found.")


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
        listen: Listener = lambda kind, data: None,
    ) -> None:
        self._record = Recorder(journal, listen)
        self._limits = limits
        self._context = context
        self._inbox = inbox
        self._covers = covers
        self._acting = Acting(self._record, tools, limits, inbox, questions)
        self._thinking = Thinking(self._record, model, limits, context)

    async def run(self) -> Outcome:
        """Work until an end. May be cancelled, or killed, at any point, and run again."""
        await self._record.load()
        if not self._record.state.begun:
            await self._begin()
        while self._record.state.end is None:
            pause = await self._unless_stopped(self._step())
            if pause is not None:
                return pause
        return self._end()

    async def _step(self) -> Asked | Failed | None:
        """The next thing to do, by the state alone."""
        state = self._record.state
        if await self._conclude():
            return None
        if state.pending:
            return await self._acting.act()
        return await self._think()

    async def _begin(self) -> None:
        unread = await self._inbox.unread(self._covers.read_seq)
        waking = [said for said in unread if said.addressed] or unread
        woken_by = max(waking, key=lambda said: rank(said.trust), default=None)
        after, to = await self._context.start(self._covers.read_seq)
        data = {
            "trust": woken_by.trust if woken_by else self._covers.trust,
            "woken_by": woken_by.author if woken_by else "",
            "prompt": self._covers.prompt,
            "history_after": after,
            "history_to": to,
        }
        await self._record("run.started", data)
        if (halt := self._limits.check_start()) is not None:
            await self._stop(halt)

    async def _conclude(self) -> bool:
        """Whether the last answer ends the run; it is ended then."""
        state = self._record.state
        last = state.rounds[-1] if state.rounds else None
        if last is None or not last.stop:
            return False
        text = (state.partial + "".join(texts(last.answer or []))).strip()
        if last.stop == "refusal":
            await self._stop(Halt("model.refused", "The model declined to do this."), text)
        elif state.wrapping_up is not None:
            await self._stop(Halt(**state.wrapping_up), text)
        elif last.stop == "end" and text:
            await self._record("run.answered", {"text": text, "included_to": state.included_to})
        elif last.stop == "end" and EMPTY.code in state.given:
            await self._stop(Halt(EMPTY.code, "The model gave no answer."))
        else:
            return False
        return True

    async def _think(self) -> Failed | None:
        state = self._record.state
        finding = look(state)
        if finding is not None and finding.stop:
            await self._stop(Halt(finding.code, finding.text), state.partial)
            return None
        for point in await self._context.shrink(state):
            await self._record(point.kind, point.data)
        said = await self._news()
        notes = [*self._last_words(), *([Note(f"nudge:{finding.code}", finding.text)] if finding else [])]
        input_ = self._blocks(said, notes)
        size = await self._context.size(state, input_)
        go = await self._limits.before_turn(state, size)
        if isinstance(go, Halt):
            await self._stop(go, state.partial)
            return None
        if go.warning is not None:
            await self._record("run.warned", {"code": go.warning.code, "sentence": go.warning.text})
        await self._start_turn(said, input_, notes, go)
        return await self._thinking.think(go, self._stop)

    async def _news(self) -> Sequence[Said]:
        """New messages up to the last that may steer; those of less trust behind it wait for a run of their own."""
        state = self._record.state
        taken: list[Said] = []
        size = 0
        for said in await self._inbox.unread(state.included_to):
            size += len(said.text)
            if taken and size > MOST_AT_ONCE:
                break
            taken.append(said)
        while taken and state.rounds and quotes(taken[-1].trust, state.trust):
            taken.pop()
        return taken

    def _last_words(self) -> list[Note]:
        """What to tell the model about how its last answer ended."""
        state = self._record.state
        last = state.rounds[-1] if state.rounds else None
        if last is None or not last.stop or last.calls:
            return []
        if state.cut_call:
            return [CUT_CALL]
        return [CONTINUE] if last.answer else [EMPTY]

    def _blocks(self, said: Sequence[Said], notes: Sequence[Note]) -> list[Block]:
        state = self._record.state
        blocks = [block for one in said for block in render(one, state.trust)]
        if not state.rounds and state.prompt:
            origin = {"seq": state.included_to, "trust": state.trust, "quoted": False}
            blocks.append({"type": "text", "text": f"[task]\n{plain(state.prompt)}", "origin": origin})
        return blocks + [note(one.text) for one in notes]

    async def _start_turn(self, said: Sequence[Said], input_: list[Block], notes: list[Note], go: Go) -> None:
        state = self._record.state
        strangers = any(one.has_strangers_words for one in said)
        input_ = input_ + [note(one.text) for one in go.notes]
        data = {
            "turn": state.turns + 1,
            "input": input_,
            "included_to": said[-1].seq if said else state.included_to,
            "reserved": go.reserve,
            "size": await self._context.raw_size(state, input_),
            "notes": [one.code for one in (*notes, *go.notes) if one.code],
            "narrowed": strangers or (not state.rounds and await self._context.tainted(state)),
            "wrap_up": {"code": go.wrap_up.code, "sentence": go.wrap_up.sentence} if go.wrap_up else None,
        }
        await self._record("turn.started", data)

    async def _stop(self, why: Halt, text: str = "") -> None:
        state = self._record.state
        data = {"code": why.code, "sentence": why.sentence, "text": text, "included_to": state.included_to}
        await self._record("run.stopped", data)

    async def _unless_stopped(
        self, work: Coroutine[Any, Any, Asked | Failed | None]
    ) -> Asked | Failed | None:
        """Do a step, but end the run within two seconds when somebody wants that."""
        step = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._inbox.stopped())
        try:
            await asyncio.wait({step, stop}, return_when=asyncio.FIRST_COMPLETED)
            if step.done():
                return step.result()
            await self._let_go(step)
            await self._stopped(stop.result())
            return None
        finally:
            for task in (step, stop):
                task.cancel()
                with contextlib.suppress(BaseException):
                    await task

    async def _let_go(self, step: asyncio.Future[Any]) -> None:
        self._acting.stopping.set()
        if self._record.state.pending:
            await asyncio.wait({step}, timeout=GRACE)
        step.cancel()
        await asyncio.wait({step})

    async def _stopped(self, signal: StopSignal) -> None:
        await self._thinking.abandon()
        if self._record.state.end is None:
            await self._stop(Halt(signal.code, signal.sentence), self._record.state.partial)

    def _end(self) -> Answered | Stopped:
        end = self._record.state.end
        assert end is not None
        data = end.data
        if end.kind == "run.answered":
            return Answered(data["text"], data["included_to"])
        text = "\n\n".join(part for part in (data["text"], data["sentence"]) if part)
        return Stopped(data["code"], data["sentence"], text, data["included_to"])
