"""The state of a run, folded from its events.

The loop applies each event it writes to the same fold, so a run that goes on and one that was resumed after a
crash cannot differ.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gofer.agent.conversation import Summary, Tombstone, Trust
from gofer.agent.journal import KINDS, Journal, JournalEvent
from gofer.agent.model import Block, Usage

MAX_NAMED = 20
"""Results that a summary names one by one."""


@dataclass(slots=True)
class Call:
    """One tool call the model asked for."""

    id: str
    name: str
    input: dict[str, Any]
    malformed: str = ""
    started: bool = False
    tier: str = ""
    result: dict[str, Any] | None = None
    """The data of its `tool.finished`."""
    asked: dict[str, Any] | None = None
    """The data of its `run.asked`."""
    delegated: dict[str, Any] | None = None
    """The data of its `run.delegated`."""
    delays: int = 0
    """How often its service made us wait."""


@dataclass(slots=True)
class Round:
    """What the model was newly told, what it answered, and what its calls gave."""

    input: list[Block] = field(default_factory=list)
    answer: list[Block] | None = None
    by: str = ""
    stop: str = ""
    """Why the model stopped; empty until it has."""
    detail: str = ""
    """The provider's word for that, where it has one."""
    calls: list[Call] = field(default_factory=list)
    event_id: int | None = None
    size: int | None = field(default=None, compare=False)
    """Its estimated tokens, once somebody has counted them."""


@dataclass(slots=True)
class Step:
    """The calls of one turn, as the progress rules see them."""

    pairs: list[tuple[str, str]] = field(default_factory=list)
    """Signatures of call and result."""
    errors: int = 0
    malformed: int = 0
    polling: bool = False
    progress: bool = False


@dataclass(slots=True)
class State:
    """Everything a run knows about itself."""

    begun: bool = False
    trust: Trust = "unknown"
    asker: str = ""
    """The identity of whoever asked it last: what it asks, they may answer."""
    background: bool = False
    """Nobody waits for it: the smaller budget applies."""
    history_after: int = 0
    history_to: int = 0
    summary: Summary | None = None
    included_to: int = 0
    rounds: list[Round] = field(default_factory=list)
    kept_from: int = 0
    """Rounds before this one are in the summary."""
    cleared: dict[str, Tombstone | None] = field(default_factory=dict)
    """Calls whose results were evicted, with what stands in their place; None where memory was off."""
    images_dropped_before: int = 0
    """Rounds whose images were replaced by a stub."""
    steps: list[Step] = field(default_factory=list)
    quiet_turns: int = 0
    """Turns in a row with neither a tool call nor a delivery."""
    partial: str = ""
    """An answer that was cut by the token limit and goes on."""
    narrowed: bool = False
    plan: list[dict[str, str]] = field(default_factory=list)
    given: set[str] = field(default_factory=set)
    """Codes of nudges and warnings that were given."""
    warning: str = ""
    """What the user was warned of."""
    calls: int = 0
    """Model calls begun."""
    turns: int = 0
    """Model calls answered."""
    compactions: int = 0
    tokens: int = 0
    spent: int = 0
    """Millionths of a dollar."""
    reserved: int = 0
    """Of a turn that has begun; a crash leaves it charged."""
    tries_cost: int = 0
    """What failed tries of the present call have cost."""
    active_ms: int = 0
    last_input: int = 0
    """Input tokens of the last answer."""
    last_size: int = 0
    """Estimated tokens of the request that gave `last_input`."""
    message_id: str | None = None
    wrapping_up: dict[str, str] | None = None
    """Code and sentence of the limit that asked for a last answer."""
    refusals: int = 0
    """Calls in a row that the model refused as too long, or for an image."""
    cut_call: bool = False
    """The last answer ended inside a tool call, which is left out."""
    end: JournalEvent | None = None

    @property
    def pending(self) -> list[Call]:
        """Calls without a result."""
        return [call for call in self.rounds[-1].calls if call.result is None] if self.rounds else []

    def call(self, call_id: str) -> Call | None:
        return (
            next((call for call in self.rounds[-1].calls if call.id == call_id), None)
            if self.rounds
            else None
        )


def fold(events: Iterable[JournalEvent]) -> State:
    """The state after these events. Events of other kinds, such as the engine's, are passed over."""
    state = State()
    for event in events:
        apply(state, event)
    return state


def apply(state: State, event: JournalEvent) -> None:
    """Add one event to the state."""
    if event.kind not in KINDS:
        return
    state.active_ms += int(event.data.get("ms", 0))
    _APPLY[event.kind](state, event)
    if state.rounds:
        state.rounds[-1].size = None


def _run_started(state: State, event: JournalEvent) -> None:
    data = event.data
    state.begun = True
    state.trust = data["trust"]
    state.asker = data.get("asker", "")
    state.background = data.get("background", False)
    state.history_after, state.history_to = data["history_after"], data["history_to"]
    state.included_to = data["history_to"]


def recalled_block(words: str) -> Block:
    """What was recalled for a run, as the model reads it."""
    return {"type": "text", "text": words}


def _turn_started(state: State, event: JournalEvent) -> None:
    data = event.data
    _settle(state, state.reserved)
    state.calls += 1
    state.tries_cost = 0
    if not state.rounds or state.rounds[-1].answer is not None:
        state.rounds.append(Round())
    state.rounds[-1].input.extend(data["input"])
    if data.get("content"):
        state.rounds[-1].input.append(recalled_block(data["content"]))
    state.rounds[-1].event_id, state.rounds[-1].stop = event.id, ""
    state.included_to = data["included_to"]
    state.asker = data.get("asker", state.asker)
    state.reserved = data["reserved"]
    state.last_size = data["size"]
    state.given.update(data["notes"])
    state.narrowed = state.narrowed or data["narrowed"]
    # Once a person has joined in, somebody waits.
    state.background = state.background and not data.get("awaited", True)
    state.wrapping_up = data["wrap_up"]


def _turn_failed(state: State, event: JournalEvent) -> None:
    state.tokens += Usage(**event.data["usage"]).total
    reserved = state.reserved if event.data["again"] else 0
    _settle(state, event.data["cost"])
    state.reserved = reserved
    state.tries_cost += event.data["cost"]
    state.refusals += event.data["reason"] in ("context", "image")


def _turn_finished(state: State, event: JournalEvent) -> None:
    data = event.data
    usage = Usage(**data["usage"])
    _settle(state, data["cost"])
    state.turns += 1
    state.tokens += usage.total
    state.last_input = usage.total_input
    state.message_id = data["message_id"]
    current = state.rounds[-1]
    current.answer, current.by, current.stop = data["content"] or None, data["model"], data["stop"]
    current.detail = data.get("detail", "")
    state.refusals, state.cut_call = 0, data["cut_call"]
    current.calls = [
        Call(block["id"], block["name"], block["input"], data["malformed"].get(block["id"], ""))
        for block in data["content"]
        if block["type"] == "tool_use"
    ]
    if current.calls:
        state.steps.append(Step())
        state.quiet_turns, state.partial = 0, ""
    else:
        state.quiet_turns += 1
        state.partial += "".join(texts(data["content"])) if data["stop"] in ("max_tokens", "pause") else ""


def _settle(state: State, cost: int) -> None:
    state.spent += cost
    state.reserved = 0


def _tool_started(state: State, event: JournalEvent) -> None:
    call = state.call(event.data["call_id"])
    if call is not None:
        call.started, call.tier = True, event.data["tier"]


def _question_asked(state: State, event: JournalEvent) -> None:
    call = state.call(event.data["call_id"])
    if call is not None:
        call.asked = event.data


def _delegated(state: State, event: JournalEvent) -> None:
    call = state.call(event.data["call_id"])
    if call is not None:
        call.delegated = event.data


def _tool_delayed(state: State, event: JournalEvent) -> None:
    call = state.call(event.data["call_id"])
    if call is not None:
        call.started, call.delays = False, call.delays + 1


def _tool_finished(state: State, event: JournalEvent) -> None:
    data = event.data
    call = state.call(data["call_id"])
    if call is None or call.result is not None:
        return
    call.result = data
    step = state.steps[-1]
    step.pairs.append((data["call_sig"], data["result_sig"]))
    step.errors += bool(data["is_error"])
    step.malformed += data["status"] == "malformed"
    step.polling = step.polling or data["polling"]
    step.progress = step.progress or data["progress"]
    state.narrowed = state.narrowed or data["untrusted"]
    state.spent += data.get("cost", 0)
    state.plan = data["details"].get("plan", state.plan)


def _cleared(state: State, event: JournalEvent) -> None:
    state.cleared.update(dict.fromkeys(event.data["call_ids"]))
    _evicted(state, event.data)
    for round_ in state.rounds:
        round_.size = None
    if event.data.get("images"):
        state.images_dropped_before = len(state.rounds)


def _evicted(state: State, data: dict[str, Any]) -> None:
    for each in data.get("evicted", ()):
        state.cleared[each["call_id"]] = Tombstone(each["id"], each["gist"])


def _checkpoint(state: State, event: JournalEvent) -> None:
    data = event.data
    _evicted(state, data)
    state.summary = Summary(
        data["summary"],
        tuple(data["rules"]),
        data["covers_to"],
        data["narrowed"],
        tuple(data.get("asked", ())),
        data.get("id", ""),
        *_named(data),
    )
    state.history_after = max(state.history_after, data["history_after"])
    state.kept_from = data["kept_from"]
    state.narrowed = state.narrowed or data["narrowed"]
    state.compactions += 1
    state.message_id, state.last_input = None, 0
    state.tokens += Usage(**data["usage"]).total
    state.spent += data["cost"]


def named_covers(data: dict[str, Any]) -> tuple[list[dict[str, str]], int]:
    """What a summary names of what it covers (the messages, the summary before and the newest results), and how much
    it does not."""
    covers = list(data.get("covers", ()))
    named = covers[:2] + covers[2:][-MAX_NAMED:]
    return named, len(covers) - len(named)


def _named(data: dict[str, Any]) -> tuple[tuple[Tombstone, ...], int]:
    named, more = named_covers(data)
    return tuple(Tombstone(**each) for each in named), more


def _warned(state: State, event: JournalEvent) -> None:
    state.given.add(event.data["code"])
    state.warning = event.data["sentence"]


def _ended(state: State, event: JournalEvent) -> None:
    state.end = event


def _nothing(state: State, event: JournalEvent) -> None:
    """Changes nothing: the event is for people."""


_APPLY: dict[str, Callable[[State, JournalEvent], None]] = {
    "run.started": _run_started,
    "turn.started": _turn_started,
    "turn.slow": _nothing,
    "turn.failed": _turn_failed,
    "turn.finished": _turn_finished,
    "tool.started": _tool_started,
    "tool.finished": _tool_finished,
    "tool.delayed": _tool_delayed,
    "run.asked": _question_asked,
    "run.delegated": _delegated,
    "context.cleared": _cleared,
    "context.checkpoint": _checkpoint,
    "run.warned": _warned,
    "run.answered": _ended,
    "run.stopped": _ended,
}


def texts(content: Iterable[Block]) -> Iterator[str]:
    """The words of a list of blocks."""
    return (block["text"] for block in content if block["type"] == "text")


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
            apply(self.state, JournalEvent(event_id, kind, data, parent_id, KINDS[kind].version))
        self.listen(kind, data)
