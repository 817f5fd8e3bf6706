"""What a model says, as text that can be kept, shown and sent back.

A model may say half a surrogate pair. No service takes that, not even the model's own provider: a conversation that
keeps it could never be sent again.
"""

from __future__ import annotations

import re
from dataclasses import replace

from gofer.agent.model import Attempted, Block, Delta, ModelEvent


def whole(text: str) -> str:
    """The text with halves of a pair joined, and with a replacement character for half of one."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def code(text: object) -> str:
    """A provider's name for something, as it can stand in a sentence."""
    return re.sub(r"[^a-zA-Z0-9_. -]", "?", str(text))[:80]


def sendable(event: ModelEvent) -> ModelEvent:
    """An event of a stream whose words are whole. Arguments of calls are: what is not is refused as malformed."""
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
