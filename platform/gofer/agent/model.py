"""What the loop knows of a model: it takes a Request and streams events that end with one Turn.

Blocks have the shape of Anthropic's API, the richest of those we speak, so that what a model said is stored and
sent back verbatim. Other adapters translate. Tool calls are parsed strictly and get plain names and unique ids. A model
may say half a surrogate pair, which no service takes, not even its own provider: a conversation that keeps it could
never be sent again, so it is replaced.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NotRequired, Protocol, TypedDict
from uuid import uuid4

from gofer.errors import Malformed
from gofer.strict_json import load_json

Block = dict[str, Any]
"""A content block: text, image, thinking, redacted_thinking, tool_use or tool_result.

An image block of ours holds `blob` instead of data until the request is sent. The key `origin` on a text block
says which message it came from; no adapter sends it.
"""

Stop = Literal["end", "tool_use", "max_tokens", "pause", "refusal", "context_exceeded", "unknown"]


class ModelMessage(TypedDict):
    """One turn of the transcript."""

    role: Literal["user", "assistant"]
    content: list[Block]
    by: NotRequired[str]
    """Which provider and model said it; thinking of another model is not sent."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model is told of it."""

    name: str
    description: str
    schema: dict[str, Any]
    strict: bool = False
    """The model is held to the schema, where its provider can do that."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One call of a model."""

    system: str
    tools: tuple[ToolSpec, ...]
    messages: tuple[ModelMessage, ...]
    max_tokens: int
    use_tools: bool = True
    """False asks for words only; the tools stay listed, since the prefix must not change."""
    previous_message_id: str | None = None
    """The provider's id of the last answer, to learn why a cache missed."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the provider counted them."""

    input: int = 0
    """Neither read from nor written to the cache."""
    cache_read: int = 0
    cache_write: int = 0
    """For five minutes."""
    cache_write_1h: int = 0
    output: int = 0

    @property
    def total_input(self) -> int:
        return self.input + self.cache_read + self.cache_write + self.cache_write_1h

    @property
    def total(self) -> int:
        return self.total_input + self.output

    def json(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Turn:
    """What a model answered, complete and checked."""

    content: list[Block]
    stop: Stop
    usage: Usage
    model: str
    """Provider and model that answered, such as anthropic/claude-sonnet-5-5."""
    message_id: str | None = None
    malformed: dict[str, str] = field(default_factory=dict)
    """Calls whose arguments are no JSON object, by id: they are answered with the reason and never run."""
    cut_call: bool = False
    """A tool call was cut off by the token limit and is left out."""
    diagnostics: dict[str, Any] | None = None
    detail: str = ""
    """The provider's words on a refusal, or on a stop that is unknown here."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of the answer, for live listeners only."""

    kind: Literal["text", "thinking", "call"]
    text: str


@dataclass(frozen=True, slots=True)
class Attempted:
    """A try failed and is made again; what it cost is charged."""

    reason: str
    usage: Usage
    model: str


ModelEvent = Delta | Attempted | Turn

ErrorKind = Literal[
    "retryable",  # may work later
    "unavailable",  # a breaker is open, or asked to wait long
    "auth",  # the key is refused
    "context",  # the prompt is too long
    "image",  # an image is refused
    "invalid",  # anything else that never works
]


class ModelError(Exception):
    """A model call failed. The text is for people and holds no secret."""

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        retry_after: float | None = None,
        usage: Usage | None = None,
        model: str = "",
        status: int | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind
        self.retry_after = retry_after
        self.usage = usage or Usage()
        self.model = model
        self.status = status
        """Of the answer, where there was one."""
        self.window = window
        """Tokens the model takes, where the error says so."""


@dataclass(frozen=True, slots=True)
class Features:
    """What a model takes in beside text, and how much it gives."""

    images: bool = True
    pdfs: bool = False
    output_tokens: int | None = None
    """The most it answers in one go, where somebody said."""


class Model(Protocol):
    """A model behind an adapter."""

    name: str
    """Provider and model, such as anthropic/claude-sonnet-5-5."""

    @property
    def context_window(self) -> int:
        """Tokens it can take, as far as is known by now."""
        ...

    @property
    def features(self) -> Features: ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Yield Deltas and, last, exactly one Turn; raise ModelError otherwise."""
        ...


MAX_ARGUMENTS = 1_000_000
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_ID = re.compile(r"[a-zA-Z0-9_-]{1,128}")


def call_block(call_id: str, name: str, raw: str, malformed: dict[str, str]) -> Block:
    """The block of a call whose raw JSON is complete; what is wrong with it goes into `malformed`."""
    plain = _NOT_IN_A_NAME.sub("_", name)[:64] or "unnamed"
    block: Block = {"type": "tool_use", "id": call_id, "name": plain, "input": {}}
    try:
        block["input"] = strict_arguments(raw)
    except ValueError as error:
        malformed[call_id] = str(error)
    return block


def strict_arguments(raw: str) -> dict[str, Any]:
    """A call's arguments, whole and an object; raises ValueError that tells the model what is wrong."""
    if len(raw) > MAX_ARGUMENTS:
        raise ValueError(f"The arguments have {len(raw)} characters; at most {MAX_ARGUMENTS} are taken.")
    try:
        parsed = load_json(raw.encode("utf-8", "surrogatepass"))
    except Malformed as error:
        raise ValueError(str(error)) from error
    if not isinstance(parsed, dict):
        raise ValueError("The arguments must be one JSON object.")
    return parsed


def new_id() -> str:
    """An id for a call, when the model gave none that can be used."""
    return f"call_{uuid4().hex[:24]}"


def with_unique_ids(
    content: list[Block], malformed: dict[str, str], taken: Collection[str]
) -> tuple[list[Block], dict[str, str]]:
    """The same calls with ids that are unique in the transcript, and what is wrong with them, by those ids.

    A result belongs to a call by its id. Two calls with one id would share one result, and the second would run again
    and again.
    """
    seen, faults, kept = set(taken), {}, []
    for block in content:
        if block["type"] == "tool_use":
            given = block["id"]
            usable = isinstance(given, str) and _ID.fullmatch(given) and given not in seen
            block = block if usable else {**block, "id": new_id()}
            seen.add(block["id"])
            if given in malformed:
                faults[block["id"]] = malformed[given]
        kept.append(block)
    return kept, faults


def whole(text: str) -> str:
    """The text with halves of a pair joined, and with a replacement character for half of one."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def code(text: object) -> str:
    """A provider's name for something, as it can stand in a sentence."""
    return re.sub(r"[^a-zA-Z0-9_. -]", "?", str(text))[:80]


def sendable(event: ModelEvent) -> ModelEvent:
    """An event of a stream without half surrogate pairs. Arguments of calls need no change: such ones are refused as
    malformed."""
    match event:
        case Attempted():
            return event
        case Delta():
            return replace(event, text=whole(event.text))
        case turn:
            return replace(turn, content=[_whole(block) for block in turn.content])


def _whole(block: Block) -> Block:
    words: Block = {name: whole(block[name]) for name in ("text", "thinking") if name in block}
    return {**block, **words} if words else block
