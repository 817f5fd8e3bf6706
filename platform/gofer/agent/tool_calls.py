"""Running the calls a turn asked for: started before, finished after, each exactly once where that matters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from itertools import groupby

from gofer.agent.conversation import ConversationMessage, Inbox, QuestionAnswer, Questions
from gofer.agent.interfaces import Limits, Ran, Surroundings, Tools
from gofer.agent.loop_detection import call_sig, result_sig
from gofer.agent.outcome import Asked, Failed
from gofer.agent.state import Call, Recorder
from gofer.agent.transcript import OUTCOME_UNKNOWN
from gofer.agent.untrusted import name, plain, quotes
from gofer.tool import Question, Tier, ToolResult

SERVICE_WAIT = "service.wait"
"""The reason of a run that waits until a service lets a tool go on."""
MAX_DELAYS = 10
"""Delays of one call, after which the model is told instead."""
WROTE_INSTEAD = "They did not answer the question itself, but wrote what follows."
NOBODY_ANSWERED = "Nobody answered in time. Go on without, or end with what you have."


class ToolCalls:
    """The hands of the loop."""

    def __init__(
        self, record: Recorder, tools: Tools, limits: Limits, inbox: Inbox, questions: Questions
    ) -> None:
        self._record = record
        self._tools = tools
        self._limits = limits
        self._inbox = inbox
        self._questions = questions
        self.stopping = asyncio.Event()

    async def act(self) -> Asked | Failed | None:
        """Give every pending call its result; or say that one of them waits for a person or a service."""
        for group in self._groups(self._record.state.pending):
            waiting = [one for one in await asyncio.gather(*map(self._one, group)) if one is not None]
            if waiting:
                # Who asked a person may be answered at any time; a service says when.
                asked = [one for one in waiting if isinstance(one, Asked)]
                return asked[0] if asked else waiting[-1]
        return None

    def _groups(self, calls: list[Call]) -> Iterator[list[Call]]:
        """Neighbours that may run side by side together, every other call alone, in the order asked."""
        for parallel, group in groupby(calls, self._tools.parallel):
            together = list(group)
            yield from [together] if parallel else [[call] for call in together]

    async def _one(self, call: Call) -> Asked | Failed | None:
        if call.asked is not None:
            return await self._answer(call)
        refusal = self._tools.refusal(call, narrowed=self._record.state.narrowed)
        if refusal is not None:
            await self._finish(call, refusal, 0)
        elif call.started and call.tier != Tier.READ:
            await self._finish(call, await self._tools.recover(call, self._surroundings()) or _unknown(), 0)
        else:
            return await self._run(call)
        return None

    async def _run(self, call: Call) -> Asked | Failed | None:
        parent = self._record.state.rounds[-1].event_id
        if not call.started:
            started = {"call_id": call.id, "name": call.name, "tier": self._tools.tier(call)}
            await self._record("tool.started", started, parent)
        begin = time.monotonic()
        ran = await self._tools.run(call, self._surroundings())
        if ran.retry_after is not None and call.delays < MAX_DELAYS:
            return await self._delayed(call, ran.result.content, ran.retry_after)
        question = ran.result.question
        if question is None:
            await self._finish(call, ran, int((time.monotonic() - begin) * 1000))
            return None
        data = {"call_id": call.id, "text": question.text, "choices": list(question.choices)}
        await self._record("run.asked", {**data, "expires_after": question.expires_after}, parent)
        return self._asked(call)

    async def _delayed(self, call: Call, detail: str, after: float) -> Failed:
        data = {"call_id": call.id, "name": call.name[:200], "after": after, "detail": detail}
        await self._record("tool.delayed", data, self._record.state.rounds[-1].event_id)
        return Failed(SERVICE_WAIT, detail, self._record.state.included_to, after, waiting=True)

    def _surroundings(self) -> Surroundings:
        state = self._record.state
        return Surroundings(
            narrowed=state.narrowed,
            plan=state.plan,
            seconds_left=self._limits.time_left(state),
            stopping=self._wait_stop,
            on_output=lambda call_id, text: self._record.listen(
                "tool.delta", {"call_id": call_id, "text": text}
            ),
        )

    async def _wait_stop(self) -> None:
        await self.stopping.wait()

    def _asked(self, call: Call, seen: Sequence[ConversationMessage] = ()) -> Asked:
        assert call.asked is not None
        question = Question(call.asked["text"], tuple(call.asked["choices"]), call.asked["expires_after"])
        state = self._record.state
        seen_to = seen[-1].seq if seen else state.included_to
        return Asked(call.id, question, state.included_to, seen_to, state.narrowed)

    async def _answer(self, call: Call) -> Asked | None:
        state = self._record.state
        answer = await self._questions.answer(call.id)
        if answer is None:
            unread = await self._inbox.unread(state.included_to)
            heard = [said for said in unread if not said.background and not quotes(said.trust, state.trust)]
            if not heard:
                return self._asked(call, unread)
            if state.background or heard[0].identity == state.asker:
                answer = _typed(call, heard[0])
        await self._finish(call, Ran(_answered(answer), "ok"), 0)
        return None

    async def _finish(self, call: Call, ran: Ran, took_ms: int) -> None:
        result = ran.result
        data = {
            "call_id": call.id,
            "name": call.name[:200],
            "status": ran.status,
            "content": result.content,
            "images": await self._tools.pictures(result),
            "details": dict(result.details),
            "is_error": result.is_error,
            "exit_code": result.exit_code,
            "timed_out": result.timed_out,
            "truncated": result.truncated,
            "more": result.more,
            "untrusted": result.untrusted,
            "progress": result.progress,
            "polling": self._tools.polling(call),
            "asked": call.asked is not None,
            "call_sig": call_sig(call.name, call.input),
            "result_sig": result_sig(result),
            "took_ms": took_ms,
        }
        await self._record("tool.finished", data, self._record.state.rounds[-1].event_id)


def _typed(call: Call, said: ConversationMessage) -> QuestionAnswer | None:
    """What somebody wrote, if it answers the question: anything an open one, one of its choices another."""
    assert call.asked is not None
    choices, wrote = call.asked["choices"], said.text.strip()
    chosen = [choice for choice in choices if choice.strip().casefold() == wrote.casefold()]
    if not wrote or (choices and not chosen):
        return None
    return QuestionAnswer(chosen[0] if chosen else wrote, said.author, said.trust)


def _unknown() -> Ran:
    return Ran(ToolResult(OUTCOME_UNKNOWN, is_error=True), "unknown")


def _answered(answer: QuestionAnswer | None) -> ToolResult:
    if answer is None:
        return ToolResult(WROTE_INSTEAD, progress=True)
    if answer.expired:
        return ToolResult(NOBODY_ANSWERED, is_error=True)
    text = f"{name(answer.by)}, {answer.trust}, answered:\n{plain(answer.text)}"
    return ToolResult(text, progress=True, untrusted=answer.trust in ("stranger", "unknown"))
