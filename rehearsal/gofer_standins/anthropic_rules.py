"""What Anthropic's API demands of a request: the SDK's own types, and the rules of the transcript.

A request that breaks one of these would be refused for ever, and with it the session.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gofer_standins.strict_schemas import strict_problems

MAX_CACHE_MARKS = 4
NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
UNWANTED = {"temperature", "top_p", "top_k"}
IMAGE_MAGIC = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
    "application/pdf": (b"%PDF-",),
}


def problems(request: Mapping[str, Any], signatures: Mapping[str, str]) -> list[str]:
    """Everything wrong with a request; `signatures` are those of the thinking that was given out."""
    found = [*_params(request), *_types(request), *_marks(request)]
    if found:
        return found
    messages = request["messages"]
    return [*_order(messages), *_pairs(messages, bool(request.get("tools"))), *_blocks(messages, signatures)]


def _params(request: Mapping[str, Any]) -> Iterator[str]:
    from anthropic.types.message_create_params import MessageCreateParamsStreaming

    for name in sorted(set(request) - set(MessageCreateParamsStreaming.__annotations__)):
        yield f"{name}: unknown parameter"
    for name in ("model", "max_tokens", "messages"):
        if name not in request:
            yield f"{name}: required"
    for tool in request.get("tools", ()):
        if tool.get("strict"):
            yield from strict_problems(tool["input_schema"], f"tools.{tool['name']}.input_schema")
    if UNWANTED & set(request):
        yield "sampling parameters are not taken"
    if not isinstance(request.get("max_tokens", 1), int) or request.get("max_tokens", 1) < 1:
        yield "max_tokens: must be a positive number"


@cache
def _shapes() -> dict[str, Any]:
    from anthropic import types

    # Unions of all blocks would hide which one was meant; the block's own type says it.
    return {
        "text": types.TextBlockParam,
        "image": types.ImageBlockParam,
        "document": types.DocumentBlockParam,
        "tool_use": types.ToolUseBlockParam,
        "tool_result": types.ToolResultBlockParam,
        "thinking": types.ThinkingBlockParam,
        "redacted_thinking": types.RedactedThinkingBlockParam,
        "tool": types.ToolParam,
    }


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(_shapes()[name])


def _types(request: Mapping[str, Any]) -> Iterator[str]:
    for index, tool in enumerate(request.get("tools") or []):
        yield from _shape(tool, "tool", f"tools.{index}")
    system = request.get("system") or []
    for index, block in enumerate([] if isinstance(system, str) else system):
        yield from _shape(block, "text", f"system.{index}")
    for index, message in enumerate(request.get("messages") or []):
        if set(message) != {"role", "content"} or message["role"] not in ("user", "assistant"):
            yield f"messages.{index}: role and content, and nothing else"
            continue
        for number, block in enumerate(_content(message)):
            yield from _shape(block, str(block.get("type")), f"messages.{index}.content.{number}")


def _shape(block: Mapping[str, Any], name: str, place: str) -> Iterator[str]:
    if name not in _shapes():
        yield f"{place}: unknown type {name}"
        return
    for key in sorted(set(block) - set(_shapes()[name].__annotations__)):
        yield f"{place}.{key}: extra inputs are not permitted"
    try:
        _adapter(name).validate_python({**block, "content": []} if "content" in block else dict(block))
    except ValidationError as error:
        yield f"{place}: {error.errors()[0]['loc']} {error.errors()[0]['msg']}"
    if name == "tool_result" and isinstance(block.get("content"), list):
        for number, inner in enumerate(block["content"]):
            yield from _shape(inner, str(inner.get("type")), f"{place}.content.{number}")


def _content(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _marks(request: Mapping[str, Any]) -> Iterator[str]:
    system = request.get("system") or []
    blocks = [*(request.get("tools") or []), *([] if isinstance(system, str) else system)]
    blocks += [block for message in request.get("messages") or [] for block in _content(message)]
    count = sum("cache_control" in block for block in blocks)
    if count > MAX_CACHE_MARKS:
        yield f"A maximum of {MAX_CACHE_MARKS} blocks with cache_control may be provided. Found {count}."


def _order(messages: list[dict[str, Any]]) -> Iterator[str]:
    if not messages:
        yield "messages: at least one message is required"
        return
    if messages[0]["role"] != "user":
        yield "messages: first message must use the user role"
    if messages[-1]["role"] != "user":
        yield "This model does not support assistant message prefill."
    answers = [_content(message) for message in messages if message["role"] == "assistant"]
    if answers and answers[-1] and answers[-1][-1].get("text", "x")[-1:].isspace():
        yield "messages: final assistant content cannot end with trailing whitespace"
    for before, after in pairwise(messages):
        if before["role"] == after["role"]:
            yield f"messages: two {after['role']} messages in a row"
    for index, message in enumerate(messages):
        if not _content(message):
            yield f"messages.{index}: must have non-empty content"


def _pairs(messages: list[dict[str, Any]], has_tools: bool) -> Iterator[str]:
    asked: set[str] = set()
    waiting: list[str] = []
    for index, message in enumerate(messages):
        blocks = _content(message)
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if message["role"] == "user":
            yield from _results(index, blocks, results, waiting)
            waiting = []
            continue
        waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if results:
            yield f"messages.{index}: tool_result in an assistant message"
        if asked & set(waiting) or len(set(waiting)) < len(waiting):
            yield f"messages.{index}: `tool_use` ids must be unique"
        asked |= set(waiting)
    if waiting:
        yield f"`tool_use` ids were found without `tool_result` blocks: {waiting}"
    if asked and not has_tools:
        yield "tools: required when messages contain tool_use blocks"


def _results(
    index: int, blocks: list[dict[str, Any]], results: list[str], waiting: list[str]
) -> Iterator[str]:
    if missing := set(waiting) - set(results):
        yield f"messages.{index}: `tool_use` ids were found without `tool_result` blocks: {sorted(missing)}"
    if extra := set(results) - set(waiting):
        yield f"messages.{index}: unexpected `tool_use_id` found in `tool_result` blocks: {sorted(extra)}"
    if len(set(results)) < len(results):
        yield f"messages.{index}: each tool_use must have a single result"
    if any(block["type"] == "tool_use" for block in blocks):
        yield f"messages.{index}: tool_use in a user message"
    first_other = next((i for i, block in enumerate(blocks) if block["type"] != "tool_result"), len(blocks))
    if any(block["type"] == "tool_result" for block in blocks[first_other:]):
        yield f"messages.{index}: tool_result blocks must come first"


def _blocks(messages: list[dict[str, Any]], signatures: Mapping[str, str]) -> Iterator[str]:
    for index, message in enumerate(messages):
        blocks = _content(message)
        for number, block in enumerate(blocks):
            place = f"messages.{index}.content.{number}"
            yield from _block(block, place, signatures)
            for inner in block.get("content", []) if isinstance(block.get("content"), list) else []:
                yield from _block(inner, place, signatures)
        if (
            message["role"] == "assistant"
            and blocks
            and blocks[-1]["type"] in ("thinking", "redacted_thinking")
        ):
            yield f"messages.{index}: The final block in an assistant message cannot be `thinking`."


def _block(block: Mapping[str, Any], place: str, signatures: Mapping[str, str]) -> Iterator[str]:
    if block["type"] == "text" and not block["text"].strip():
        yield f"{place}: text content blocks must be non-empty"
    if block["type"] == "tool_use" and not NAME.fullmatch(block["name"]):
        yield f"{place}.tool_use.name: String should match pattern '{NAME.pattern}'"
    if block["type"] == "tool_use" and not NAME.fullmatch(block["id"]):
        yield f"{place}.tool_use.id: String should match pattern '{NAME.pattern}'"
    if block["type"] in ("image", "document") and block["source"]["type"] == "base64":
        yield from _image(block["source"], place)
    if block["type"] == "thinking" and signatures.get(block["signature"]) != block["thinking"]:
        yield f"{place}: Invalid `signature` in `thinking` block"


def _image(source: Mapping[str, Any], place: str) -> Iterator[str]:
    try:
        data = base64.b64decode(source["data"], validate=True)
    except (binascii.Error, ValueError):
        yield f"{place}.image.source.base64: invalid base64 data"
        return
    if not data.startswith(IMAGE_MAGIC[source["media_type"]]):
        yield f"{place}.image.source.base64.data: Could not process image"
