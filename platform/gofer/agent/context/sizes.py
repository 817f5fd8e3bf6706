"""Rough sizes in tokens, for deciding before the provider has counted. They lean to the high side."""

from __future__ import annotations

import json
from collections.abc import Iterable

from gofer.agent.model import Block, ModelMessage
from gofer.agent.models.documents import document_tokens
from gofer.agent.state import Call, Round, State

CHARACTERS_PER_TOKEN = 3.5
BYTES_PER_TOKEN = 2.5
"""Of characters beyond ASCII."""
BLOCK = 1024
DENSE_BELOW = 0.45
"""The share of small letters and white space: about nine tenths in prose, seven in code, four in base64 and hex."""
DENSE_FROM = 64
"""Characters below which a share says nothing."""
_COMMON = b"abcdefghijklmnopqrstuvwxyz \n\t"
_HIGH = bytes(range(128, 256))
IMAGE_TOKENS = 1600


def estimate(messages: Iterable[ModelMessage]) -> int:
    return sum(block_size(block) for message in messages for block in message["content"])


def run_size(state: State) -> int:
    """Of the run's own rounds. Each is counted once, so that a turn does not cost more the longer the run is."""
    return sum(round_size(round_, state) for round_ in state.rounds[state.kept_from :])


def round_size(round_: Round, state: State) -> int:
    if round_.size is None:
        said = sum(block_size(block) for block in (*round_.input, *(round_.answer or ())))
        round_.size = said + sum(result_size(call, state) for call in round_.calls)
    return round_.size


def result_size(call: Call, state: State) -> int:
    if call.result is None or call.id in state.cleared:
        return 40
    return 10 + text_size(call.result["content"]) + IMAGE_TOKENS * len(call.result["images"])


def block_size(block: Block) -> int:
    kind = block["type"]
    if kind == "text":
        return text_size(block["text"])
    if kind == "image":
        return IMAGE_TOKENS
    if kind == "document":
        return document_tokens(int(block.get("size", 0)))
    if kind == "tool_result":
        return 10 + sum(block_size(inner) for inner in block["content"])
    return text_size(json.dumps(block, ensure_ascii=False))


def text_size(text: str) -> int:
    # Scripts other than Latin take up to a token a character; bytes follow that better than characters do.
    return int(len(text.encode("utf-8", "replace")) / CHARACTERS_PER_TOKEN) + 4


def dense_extra(text: str) -> int:
    """Tokens that a text may have beyond its size: what is dense, such as base64, hex or columns of numbers, takes up
    to a token a byte. Money is set aside for that; what fits is decided by the size alone."""
    data = text.encode("utf-8", "replace")
    return int(sum(_block_extra(data[start : start + BLOCK]) for start in range(0, len(data), BLOCK)))


def _block_extra(block: bytes) -> float:
    plain = block.translate(None, _HIGH)
    common = len(plain) - len(plain.translate(None, _COMMON))
    dense = len(plain) >= DENSE_FROM and common < DENSE_BELOW * len(plain)
    foreign = len(block) - len(plain)
    usual = len(block) / CHARACTERS_PER_TOKEN
    return (len(plain) if dense else len(plain) / CHARACTERS_PER_TOKEN) + foreign / BYTES_PER_TOKEN - usual


def block_extra(block: Block) -> int:
    """The same of a block."""
    if block["type"] == "tool_result":
        return sum(block_extra(inner) for inner in block["content"])
    if block["type"] in ("image", "document"):
        return 0
    return dense_extra(block["text"] if block["type"] == "text" else json.dumps(block, ensure_ascii=False))


def result_extra(call: Call, state: State) -> int:
    """The same of a call's result."""
    return 0 if call.result is None or call.id in state.cleared else dense_extra(call.result["content"])
