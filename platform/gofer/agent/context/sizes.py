"""Rough sizes in tokens, for deciding before the provider has counted. They lean to the high side."""

from __future__ import annotations

import json
from collections.abc import Iterable

from gofer.agent.model import Block, Message
from gofer.agent.state import Call, Round, State

CHARACTERS_PER_TOKEN = 3.5
IMAGE_TOKENS = 1600


def estimate(messages: Iterable[Message]) -> int:
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
    if kind == "tool_result":
        return 10 + sum(block_size(inner) for inner in block["content"])
    return text_size(json.dumps(block, ensure_ascii=False))


def text_size(text: str) -> int:
    # Scripts other than Latin take up to a token a character; bytes follow that better than characters do.
    return int(len(text.encode("utf-8", "replace")) / CHARACTERS_PER_TOKEN) + 4
