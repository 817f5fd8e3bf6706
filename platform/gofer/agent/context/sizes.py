"""Rough sizes in tokens, for deciding before the provider has counted. They lean to the high side."""

from __future__ import annotations

import json
from collections.abc import Iterable

from gofer.agent.model import Block, Message

CHARACTERS_PER_TOKEN = 3.5
IMAGE_TOKENS = 1600


def estimate(messages: Iterable[Message]) -> int:
    return sum(block_size(block) for message in messages for block in message["content"])


def block_size(block: Block) -> int:
    kind = block["type"]
    if kind == "text":
        return text_size(block["text"])
    if kind == "image":
        return IMAGE_TOKENS
    if kind == "tool_result":
        return 10 + sum(block_size(inner) for inner in block["content"])
    return text_size(json.dumps(block, ensure_ascii=False))


def text_size(text: str) -> int:
    # Scripts other than Latin take up to a token a character; bytes follow that better than characters do.
    return int(len(text.encode("utf-8", "replace")) / CHARACTERS_PER_TOKEN) + 4
