"""A tool call as a model wrote it, made safe to keep and to send back: strictly parsed, plainly named."""

from __future__ import annotations

import re
from typing import Any

from gofer.agent.model import Block
from gofer.errors import Malformed
from gofer.strict_json import load_json

MAX_ARGUMENTS = 1_000_000
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")


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
