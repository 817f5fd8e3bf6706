"""One turn: the model is called, then the tools it asks for.

A call of the model is streamed, charged whatever becomes of it, and journaled only when it is complete. A tool call is
journaled before it starts and after it has finished, and runs exactly once where that matters.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from gofer.agent.context import CHARACTERS_PER_TOKEN
from gofer.agent.conversation import ConversationMessage, Delegations, Inbox, QuestionAnswer, Questions
from gofer.agent.interfaces import Context, Limits, Ran, Surroundings, Tools
from gofer.agent.limits import Go, Halt
from gofer.agent.loop_detection import call_sig, result_sig
from gofer.agent.model import (
    Attempted,
    Block,
    Delta,
    Model,
    ModelError,
    ModelRequest,
    Turn,
    Usage,
    with_unique_ids,
)
from gofer.agent.outcome import Asked, Delegated, Failed
from gofer.agent.state import Call, Recorder
from gofer.agent.tools.bash import Masker, Masking
from gofer.agent.transcript import OUTCOME_UNKNOWN, name, plain, quotes
from gofer.tool import NewTask, Question, Tier, ToolResult

SLOW_AFTER = 30.0
"""Seconds without a word of the model after which people are told that it takes long."""
LONG_PROMPT = 6000
"""Tokens from which on a prompt may be what a server does not like, whatever it says."""
SENTENCES = {
    "auth": "The model's provider refuses the key. Give me another (gofer secrets put), then send it again.",
    "unavailable": "The model cannot be reached now; I will try again.",
    "retryable": "The model failed several times; I will try again.",
    "context": "This is too long for the model, and I could not make it short enough.",
    "image": "The model refuses an image.",
    "invalid": "The model's provider refused the request as invalid.",
}
SERVICE_WAIT = "service.wait"
"""The reason of a run that waits until a service lets a tool go on."""
MAX_DELAYS = 10
"""Delays of one call, after which the model is told instead."""
WROTE_INSTEAD = "They did not answer the question itself, but wrote what follows."
NO_WORKERS = "Tasks cannot be delegated any more. Do it yourself."
NOBODY_ANSWERED = "Nobody answered in time. Go on without, or end with what you have."
Stop = Callable[[Halt], Awaitable[None]]


class ModelCall:
    """Calls the model and journals its answer."""

    def __init__(
        self, record: Recorder, model: Model, limits: Limits, context: Context, mask: Masker
    ) -> None:
        self._mask = mask
        self._record = record
        self._model = model
        self._limits = limits
        self._context = context
        self._heard = 0
        self._streaming = False
        self._spoke_at: float | None = None
        """When the first word of the answer came, by this process's clock."""

    async def think(self, go: Go, stop: Stop) -> Failed | None:
        """Call the model and journal what came of it."""
        try:
            turn = await self._stream(go)
        except ModelError as error:
            return await self._failed(error, stop)
        if turn.stop == "context_exceeded":
            too_long = ModelError("context", "The context is full.", usage=turn.usage, model=turn.model)
            return await self._failed(too_long, stop)
        await self._finished(turn)
        return None

    async def forgo(self) -> None:
        """Charge nothing: the call was announced and not made."""
        await self._charge_failure("paused", "", Usage(), self._model.name, again=False)

    async def abandon(self) -> None:
        """Charge what a call must have cost that was cancelled in the middle."""
        if not self._streaming:
            return
        self._streaming = False
        state = self._record.state
        usage = Usage(input=state.last_size, output=int(self._heard / CHARACTERS_PER_TOKEN))
        await self._charge_failure("stopped", "", usage, self._model.name, again=False)

    async def _stream(self, go: Go) -> Turn:
        self._heard, self._streaming, self._spoke_at = 0, True, None
        live = {kind: self._mask.stream() for kind in ("text", "thinking", "call")}
        request = await self._context.request(self._record.state, go)
        spoken = asyncio.Event()
        telling = asyncio.create_task(self._tell_slow(spoken))
        try:
            turn = await self._listen(request, live, spoken)
        finally:
            spoken.set()
            await asyncio.wait({telling})
        self._streaming = False
        if turn is None:
            raise ModelError("retryable", "The model's answer had no end.", model=self._model.name)
        return turn

    async def _tell_slow(self, spoken: asyncio.Event) -> None:
        """Tell people that the model takes long for its first word: local models may take minutes."""
        try:
            async with asyncio.timeout(SLOW_AFTER):
                await spoken.wait()
        except TimeoutError:
            # If this event cannot be written, neither can the next one, which reports it.
            with contextlib.suppress(Exception):
                await self._record(
                    "turn.slow", {"seconds": SLOW_AFTER}, self._record.state.rounds[-1].event_id
                )

    async def _listen(
        self, request: ModelRequest, live: Mapping[str, Masking], spoken: asyncio.Event
    ) -> Turn | None:
        turn: Turn | None = None
        async for event in self._model.stream(request):
            if isinstance(event, Delta):
                spoken.set()
                if self._spoke_at is None and event.kind == "text":
                    self._spoke_at = time.monotonic()
                self._heard += len(event.text)
                self._record.listen(f"{event.kind}.delta", {"text": live[event.kind].feed(event.text)})
            elif isinstance(event, Attempted):
                await self._charge_failure("attempt", event.reason, event.usage, event.model, again=True)
            else:
                turn = event
        return turn

    async def _finished(self, turn: Turn) -> None:
        cost = self._limits.cost(turn.model, turn.usage)
        await self._limits.settle(self._record.state, cost, turn.model)
        known = {call.id for round_ in self._record.state.rounds for call in round_.calls}
        content, malformed = with_unique_ids(turn.content, turn.malformed, known)
        data = {
            "turn": self._record.state.turns + 1,
            "content": sayable(content),
            "stop": turn.stop,
            "malformed": malformed,
            "cut_call": turn.cut_call,
            "usage": turn.usage.json(),
            "cost": cost,
            "model": turn.model,
            "message_id": turn.message_id,
            "diagnostics": turn.diagnostics,
            "detail": turn.detail,
            # How long ago the first word for people came; None when the model only called tools.
            "word_ms": None if self._spoke_at is None else int((time.monotonic() - self._spoke_at) * 1000),
        }
        await self._record("turn.finished", data, self._record.state.rounds[-1].event_id)

    async def _failed(self, error: ModelError, stop: Stop) -> Failed | None:
        self._streaming = False
        kind = "context" if self._may_be_too_long(error) else error.kind
        await self._charge_failure(kind, str(error), error.usage, error.model, again=False)
        if kind in ("context", "image") and await self._make_room(kind):
            return None
        if error.kind in ("context", "image", "invalid"):
            await stop(Halt(f"model.{error.kind}", f"{SENTENCES[error.kind]} ({error})"))
            return None
        return Failed(
            f"model.{error.kind}",
            f"{SENTENCES[error.kind]} ({error})",
            self._record.state.included_to,
            error.retry_after,
            waiting=error.kind in ("unavailable", "auth"),
        )

    def _may_be_too_long(self, error: ModelError) -> bool:
        """Whether a long request was refused for an unknown reason: shortening it once may help."""
        state = self._record.state
        unknown = error.kind == "invalid" and error.status in (400, 422)
        return unknown and not state.refusals and state.last_size >= LONG_PROMPT

    async def _make_room(self, kind: str) -> bool:
        """Shorten once for a request that was refused; False when that was tried already or nothing can go."""
        if self._record.state.refusals > 1:
            return False
        if kind == "image":
            await self._record("context.cleared", {"call_ids": [], "images": True})
            return True
        points = await self._context.shrink(self._record.state, force=True)
        for point in points:
            await self._record(point.kind, point.data)
        return bool(points)

    async def _charge_failure(
        self, reason: str, detail: str, usage: Usage, model: str, *, again: bool
    ) -> None:
        cost = self._limits.cost(model, usage)
        if not again:
            await self._limits.settle(self._record.state, cost, model)
        data = {"reason": reason, "detail": detail, "usage": usage.json(), "cost": cost, "model": model}
        await self._record("turn.failed", {**data, "again": again}, self._record.state.rounds[-1].event_id)


def sayable(content: list[Block]) -> list[Block]:
    """An answer as it may be sent back: no empty text, and not thinking alone."""
    kept = [block for block in content if block["type"] != "text" or block["text"].strip()]
    thinking_only = all(block["type"] in ("thinking", "redacted_thinking") for block in kept)
    return [] if thinking_only else kept


@dataclass(eq=False)
class ToolCalls:
    """Runs the tool calls that the model asked for."""

    record: Recorder
    tools: Tools
    limits: Limits
    inbox: Inbox
    questions: Questions
    delegations: Delegations | None = None

    def __post_init__(self) -> None:
        self.stopping = asyncio.Event()

    async def act(self) -> Asked | Delegated | Failed | None:
        """Give every pending call its result; or say that one of them waits: for a person, for tasks, for a service."""
        for group in self._groups(self.record.state.pending):
            waiting = [one for one in await asyncio.gather(*map(self._one, group)) if one is not None]
            if waiting:
                # A person may answer at any time; a service says when to come back.
                asked = [one for one in waiting if isinstance(one, Asked | Delegated)]
                return asked[0] if asked else waiting[-1]
        return None

    def _groups(self, calls: list[Call]) -> Iterator[list[Call]]:
        """Groups of calls in the order asked: neighbours that may run side by side together, every other call alone."""
        for parallel, group in groupby(calls, self.tools.parallel):
            together = list(group)
            yield from [together] if parallel else [[call] for call in together]

    async def _one(self, call: Call) -> Asked | Delegated | Failed | None:
        if call.asked is not None:
            return await self._answer(call)
        if call.delegated is not None:
            return await self._results(call)
        if call.started and call.tier != Tier.READ:
            # Before any refusal: its tool may be gone by now, and what it did is as unknown as ever.
            await self._finish(call, await self.tools.recover(call, self._surroundings()) or _unknown(), 0)
            return None
        refusal = self.tools.refusal(call, narrowed=self.record.state.narrowed)
        if refusal is None:
            return await self._run(call)
        await self._finish(call, refusal, 0)
        return None

    async def _run(self, call: Call) -> Asked | Delegated | Failed | None:
        parent = self.record.state.rounds[-1].event_id
        if not call.started:
            started = {"call_id": call.id, "name": call.name, "tier": self.tools.tier(call)}
            await self.record("tool.started", started, parent)
        begin = time.monotonic()
        ran = await self.tools.run(call, self._surroundings())
        if ran.retry_after is not None and call.delays < MAX_DELAYS:
            return await self._delayed(call, ran.result.content, ran.retry_after)
        if ran.result.delegation:
            tasks = [{"kind": one.kind, "title": one.title, "instructions": one.instructions}
                     for one in ran.result.delegation]  # fmt: skip
            await self.record(
                "run.delegated", {"call_id": call.id, "count": len(tasks), "tasks": tasks}, parent
            )
            return await self._results(call)
        question = ran.result.question
        if question is None:
            await self._finish(call, ran, int((time.monotonic() - begin) * 1000))
            return None
        data = {"call_id": call.id, "text": question.text, "choices": list(question.choices)}
        await self.record("run.asked", {**data, "expires_after": question.expires_after}, parent)
        return self._wait_for_answer(call)

    async def _results(self, call: Call) -> Delegated | None:
        """The results of a call's tasks; or that they are not over."""
        assert call.delegated is not None
        found = await self.delegations.results(call.id) if self.delegations is not None else None
        state = self.record.state
        if found is None and self.delegations is not None:
            tasks = tuple(NewTask(**one) for one in call.delegated["tasks"])
            return Delegated(
                call.id, tasks, state.included_to, state.trust, state.narrowed, state.background,
                self.limits.money_left(state),
            )  # fmt: skip
        result = ToolResult(NO_WORKERS, is_error=True)
        if found is not None:
            result = ToolResult(
                found.text, is_error=found.failed, untrusted=found.untrusted, progress=not found.failed,
                cost=found.cost, details=dict(found.details),
            )  # fmt: skip
        await self._finish(call, Ran(result, "error" if result.is_error else "ok"), 0)
        return None

    async def _delayed(self, call: Call, detail: str, after: float) -> Failed:
        data = {"call_id": call.id, "name": call.name[:200], "after": after, "detail": detail}
        await self.record("tool.delayed", data, self.record.state.rounds[-1].event_id)
        return Failed(SERVICE_WAIT, detail, self.record.state.included_to, after, waiting=True)

    def _surroundings(self) -> Surroundings:
        state = self.record.state
        return Surroundings(
            narrowed=state.narrowed,
            plan=state.plan,
            seconds_left=self.limits.time_left(state),
            stopping=self._wait_stop,
            on_output=lambda call_id, text: self.record.listen(
                "tool.delta", {"call_id": call_id, "text": text}
            ),
        )

    async def _wait_stop(self) -> None:
        await self.stopping.wait()

    def _wait_for_answer(self, call: Call, seen: Sequence[ConversationMessage] = ()) -> Asked:
        assert call.asked is not None
        question = Question(call.asked["text"], tuple(call.asked["choices"]), call.asked["expires_after"])
        state = self.record.state
        seen_to = seen[-1].seq if seen else state.included_to
        return Asked(call.id, question, state.included_to, seen_to, state.narrowed)

    async def _answer(self, call: Call) -> Asked | None:
        state = self.record.state
        answer = await self.questions.answer(call.id)
        if answer is None:
            unread = await self.inbox.unread(state.included_to)
            heard = [said for said in unread if not said.background and not quotes(said.trust, state.trust)]
            if not heard:
                return self._wait_for_answer(call, unread)
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
            "images": await self.tools.pictures(result),
            "details": dict(result.details),
            "is_error": result.is_error,
            "exit_code": result.exit_code,
            "timed_out": result.timed_out,
            "truncated": result.truncated,
            "more": result.more,
            "pieces": list(result.pieces),
            "untrusted": result.untrusted,
            "progress": result.progress,
            "polling": self.tools.polling(call),
            "asked": call.asked is not None,
            "call_sig": call_sig(call.name, call.input),
            "result_sig": result_sig(result),
            "took_ms": took_ms,
            "cost": result.cost,
            "ends": result.ends,
        }
        await self.record("tool.finished", data, self.record.state.rounds[-1].event_id)


def _typed(call: Call, said: ConversationMessage) -> QuestionAnswer | None:
    """What somebody wrote, if it answers the question: any text for an open question, else one of its choices."""
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
