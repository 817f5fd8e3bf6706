"""The stand-in is strict: each rule of the API has a request that breaks it and is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from gofer_standins.anthropic_rules import problems

USE = {"type": "tool_use", "id": "t1", "name": "ls", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "x"}]}
VALID: dict[str, Any] = {
    "model": "m",
    "max_tokens": 5,
    "system": [{"type": "text", "text": "s"}],
    "tools": [{"name": "ls", "description": "d", "input_schema": {"type": "object"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "so"}, USE]},
        {"role": "user", "content": [RESULT]},
    ],
}

Break = Callable[[dict[str, Any]], Any]
BREAKS: dict[str, Break] = {
    "no messages": lambda r: r["messages"].clear(),
    "assistant first": lambda r: r["messages"].pop(0),
    "assistant last": lambda r: r["messages"].pop(),
    "result missing": lambda r: r["messages"].__setitem__(2, r["messages"][0]),
    "result for nothing": lambda r: r["messages"][1]["content"].pop(),
    "result twice": lambda r: r["messages"][2]["content"].append(RESULT),
    "result after text": lambda r: r["messages"][2]["content"].insert(0, {"type": "text", "text": "x"}),
    "white space at the end": lambda r: (
        r["messages"][1].update(content=[{"type": "text", "text": "so "}])
        or r["messages"][2].update(content=[{"type": "text", "text": "go"}])
    ),
    "same role twice": lambda r: r["messages"].insert(0, r["messages"][0]),
    "empty text": lambda r: r["messages"][0]["content"][0].update(text="  "),
    "empty text in a result": lambda r: r["messages"][2]["content"][0]["content"][0].update(text=""),
    "empty content": lambda r: r["messages"][0].update(content=[]),
    "our own key": lambda r: r["messages"][0]["content"][0].update(origin={}),
    "unknown block": lambda r: r["messages"][0]["content"].append({"type": "hologram"}),
    "unknown parameter": lambda r: r.update(frobnicate=1),
    "temperature": lambda r: r.update(temperature=1),
    "wrong type": lambda r: r["messages"][1]["content"][1].update(input="ls"),
    "bad name": lambda r: r["messages"][1]["content"][1].update(name="l s"),
    "no tools": lambda r: r.pop("tools"),
    "same id twice": lambda r: r["messages"][1]["content"].append(USE),
    "thinking last": lambda r: r["messages"][1].update(
        content=[{"type": "thinking", "thinking": "h", "signature": "s"}]
    ),
    "forged thinking": lambda r: r["messages"][1]["content"].insert(
        0, {"type": "thinking", "thinking": "h", "signature": "s"}
    ),
    "no image": lambda r: r["messages"][0]["content"].append(
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}
    ),
    "five marks": lambda r: r["messages"][0].update(
        content=[{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}] * 5
    ),
    "no room": lambda r: r.update(max_tokens=0),
}


def test_a_valid_request_passes() -> None:
    assert problems(VALID, {}) == []


@pytest.mark.parametrize("name", BREAKS)
def test_what_breaks_a_rule_is_refused(name: str) -> None:
    request = copy.deepcopy(VALID)
    BREAKS[name](request)
    assert problems(request, {}) != []
