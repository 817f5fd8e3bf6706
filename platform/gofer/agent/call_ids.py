"""Ids of tool calls, by which results find their calls: plain, and each once, whatever a model gives."""

from __future__ import annotations

import re
from collections.abc import Collection
from uuid import uuid4

from gofer.agent.model import Block

_ID = re.compile(r"[a-zA-Z0-9_-]{1,128}")


def new_id() -> str:
    """An id for a call, when the model gave none that can be used."""
    return f"call_{uuid4().hex[:24]}"


def told_apart(
    content: list[Block], malformed: dict[str, str], taken: Collection[str]
) -> tuple[list[Block], dict[str, str]]:
    """The same calls with ids that nothing else in the transcript has, and what is wrong with them by those ids.

    A result belongs to a call by its id: two calls with one id would have one result between them, and the second
    would be run again and again, waiting for its own.
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
