"""What a model says, made safe to keep, to show and to send back.

Tool calls are parsed strictly and get plain names and unique ids. A model may say half a surrogate pair, which no
service takes, not even the model's own provider: a conversation that keeps it could never be sent again.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any
from uuid import uuid4

from gofer.agent.model import Attempted, Block, Delta, ModelEvent
from gofer.errors import Malformed
from gofer.strict_json import load_json

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
