"""A strict stand-in for Anthropic's Messages API.

It refuses what the real one refuses, streams what its script says, counts cache reads from the marks, and can do
every fault the real one is known for. Its ledger of what it received is the ground truth of a test.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gofer_standins.anthropic_rules import problems

Fault = Literal[
    "",
    "cut",  # the stream ends, cleanly, before message_stop
    "cut_in_call",  # the same, in the middle of a call's JSON
    "reset",  # the connection drops in mid-stream
    "overloaded_midstream",  # an error event after some text
    "max_tokens_in_call",  # stop_reason max_tokens with half a call
    "malformed_call",  # a complete call whose JSON is not valid
    "stall",  # the stream goes silent
    "unknown_block",  # a block type nobody knows
    "rate_limit",  # 429 with retry-after
    "overloaded",  # 529
    "timeout",  # 408
    "conflict",  # 409
    "server_error",  # 500
    "bad_gateway",  # 502 with a web page
    "auth",  # 401
    "forbidden",  # 403
    "not_found",  # 404
    "unprocessable",  # 422
    "too_long",  # 400 "prompt is too long"
    "too_large",  # 413
    "bad_image",  # 400 "Could not process image"
    "invalid",  # 400, some other reason
]
CHARACTERS_PER_TOKEN = 4
LOOKBACK = 20


@dataclass(frozen=True, slots=True)
class Reply:
    """One scripted answer."""

    blocks: tuple[dict[str, Any], ...] = ()
    stop_reason: str = ""
    """By default tool_use when there are calls, end_turn otherwise."""
    fault: Fault = ""
    retry_after: float | None = None
    delay: float = 0
    """Seconds between two events of the stream."""


def say(text: str, *blocks: dict[str, Any], **more: Any) -> Reply:
    """An answer in words, with calls behind it if given."""
    return Reply(({"type": "text", "text": text}, *blocks), **more)


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    """A tool call; its id is made up when it is sent."""
    return {"type": "tool_use", "name": name, "input": arguments}


def think(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text}


def calls(*blocks: dict[str, Any], **more: Any) -> Reply:
    return Reply(tuple(blocks), **more)


def fault(kind: Fault, *blocks: dict[str, Any], **more: Any) -> Reply:
    return Reply(tuple(blocks), fault=kind, **more)


Script = Sequence[Reply] | Callable[[Mapping[str, Any]], Reply]


@dataclass
class Anthropic:
    """The service. `script` is a list of replies, or a function of the request."""

    script: Script
    key: str = "rehearsal-key"
    received: list[dict[str, Any]] = field(default_factory=list)
    """Every request that passed the rules, in order."""
    refused: list[list[str]] = field(default_factory=list)
    """What was wrong with those that did not."""
    usage: list[dict[str, int]] = field(default_factory=list)
    tokens_of: Callable[[str], int] = lambda text: len(text) // CHARACTERS_PER_TOKEN
    open_streams: int = 0
    _signatures: dict[str, str] = field(default_factory=dict)
    _cached: set[str] = field(default_factory=set)
    _answered: int = 0

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/messages", self._messages, methods=["POST"])])

    @property
    def cache_read_share(self) -> float:
        """Of all input tokens so far, how many were read from the cache."""
        read = sum(one["cache_read_input_tokens"] for one in self.usage)
        total = sum(read_ + one["input_tokens"] + one["cache_creation_input_tokens"]
                    for one in self.usage for read_ in [one["cache_read_input_tokens"]])  # fmt: skip
        return read / total if total else 0.0

    async def _messages(self, request: Request) -> Response:
        if (error := self._unauthorised(request)) is not None:
            return error
        body = json.loads(await request.body())
        if found := self.check(body):
            return _error(400, "invalid_request_error", "; ".join(found))
        reply = self.next(body)
        if (early := _early(reply)) is not None:
            return early
        stream = self._stream(body, reply)
        return StreamingResponse(
            stream, media_type="text/event-stream", headers={"request-id": "req_rehearsal"}
        )

    def check(self, body: dict[str, Any]) -> list[str]:
        """What is wrong with a request; it goes into one ledger or the other."""
        found = problems(body, self._signatures)
        if found:
            self.refused.append(found)
        else:
            self.received.append(body)
        return found

    def _unauthorised(self, request: Request) -> Response | None:
        sent = request.headers.get("authorization", "").removeprefix("Bearer ") or request.headers.get(
            "x-api-key"
        )
        if sent != self.key:
            return _error(401, "authentication_error", "invalid x-api-key")
        if "anthropic-version" not in request.headers:
            return _error(400, "invalid_request_error", "anthropic-version: header is required")
        return None

    def next(self, body: Mapping[str, Any]) -> Reply:
        """What the script says to a request."""
        self._answered += 1
        if callable(self.script):
            return self.script(body)
        if self._answered > len(self.script):
            return fault("invalid")
        return self.script[self._answered - 1]

    async def _stream(self, body: Mapping[str, Any], reply: Reply) -> AsyncIterator[bytes]:
        self.open_streams += 1
        try:
            for event in self.events(body, reply):
                if event == "reset":
                    raise ConnectionResetError
                if event == "stall":
                    await asyncio.sleep(3600)
                yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
                await asyncio.sleep(reply.delay)
        finally:
            self.open_streams -= 1

    def events(self, body: Mapping[str, Any], reply: Reply) -> Iterator[Any]:
        """The stream of one answer, event by event."""
        usage = self._count(body)
        message = {
            "id": f"msg_{self._answered:06}", "type": "message", "role": "assistant", "model": body["model"],
            "content": [], "stop_reason": None, "stop_sequence": None, "usage": {**usage, "output_tokens": 1},
        }  # fmt: skip
        yield {"type": "message_start", "message": message}
        yield {"type": "ping"}
        blocks = [self._finished(block, number) for number, block in enumerate(reply.blocks)]
        for index, block in enumerate(blocks):
            yield from _block_events(index, block, reply.fault)
            if reply.fault in ("cut_in_call", "max_tokens_in_call") and block["type"] == "tool_use":
                break
        yield from _fault_events(reply.fault, len(blocks))
        if reply.fault in ("cut", "cut_in_call"):
            return
        output = 1 + self.tokens_of("".join(json.dumps(block) for block in blocks))
        self.usage.append({**usage, "output_tokens": output})
        stop = "max_tokens" if reply.fault == "max_tokens_in_call" else reply.stop_reason or _stop(blocks)
        delta = {"stop_reason": stop, "stop_sequence": None}
        yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": output}}
        yield {"type": "message_stop"}

    def _finished(self, block: dict[str, Any], number: int) -> dict[str, Any]:
        if block["type"] == "tool_use":
            return {"id": f"toolu_{self._answered:06}_{number}", **block}
        if block["type"] == "thinking":
            signature = hashlib.sha256(f"{self._answered}:{block['thinking']}".encode()).hexdigest()
            self._signatures[signature] = block["thinking"]
            return {**block, "signature": signature}
        return block

    def _count(self, body: Mapping[str, Any]) -> dict[str, int]:
        """Input tokens by the marks: read up to the longest prefix seen before, written up to the last mark."""
        prefixes, marks, sizes = _prefixes(body, self.tokens_of)
        reach = {i for mark in marks for i in range(max(0, mark - LOOKBACK), mark + 1)}
        read = max((i for i in reach if prefixes[i] in self._cached), default=-1)
        last = max(marks, default=-1)
        self._cached.update(prefixes[mark] for mark in marks)
        upto = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        total, read_tokens = upto[-1], upto[read] if read >= 0 else 0
        written = max(0, upto[last] - read_tokens) if last >= 0 else 0
        return {
            "input_tokens": total - read_tokens - written,
            "cache_read_input_tokens": read_tokens,
            "cache_creation_input_tokens": written,
        }


def _prefixes(
    body: Mapping[str, Any], tokens_of: Callable[[str], int]
) -> tuple[list[str], list[int], list[int]]:
    """A hash of everything up to each block, which blocks are marked, and how big each is."""
    settings = {key: body.get(key) for key in ("model", "thinking", "tool_choice")}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    hashes, marks, sizes = [], [], []
    system = body.get("system") or []
    parts: list[tuple[str, Any]] = [("tool", tool) for tool in body.get("tools") or []]
    parts += [("system", block) for block in ([{"text": system}] if isinstance(system, str) else system)]
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        parts += [(message["role"], block) for block in blocks]
    for index, (role, block) in enumerate(parts):
        text = json.dumps([role, {key: value for key, value in block.items() if key != "cache_control"}])
        digest.update(text.encode())
        hashes.append(digest.hexdigest())
        sizes.append(max(1, tokens_of(text)))
        if "cache_control" in block:
            marks.append(index)
    return hashes, marks, sizes


def _stop(blocks: list[dict[str, Any]]) -> str:
    return "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"


def _fault_events(kind: Fault, index: int) -> Iterator[Any]:
    if kind in ("reset", "stall"):
        yield kind
    if kind == "overloaded_midstream":
        yield {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    if kind == "unknown_block":
        yield {
            "type": "content_block_start",
            "index": index,
            "content_block": {"type": "hologram", "rays": 7},
        }
        delta = {"type": "ray_delta", "ray": "x"}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}


def _block_events(index: int, block: dict[str, Any], kind: Fault) -> Iterator[dict[str, Any]]:
    for number, delta in enumerate(_deltas(block, kind)):
        if number == 0:
            yield {"type": "content_block_start", "index": index, "content_block": delta}
        else:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
    if not (kind == "cut_in_call" and block["type"] == "tool_use"):
        yield {"type": "content_block_stop", "index": index}


def _deltas(block: dict[str, Any], kind: Fault) -> Iterator[dict[str, Any]]:
    """The opening of a block, then its pieces."""
    if block["type"] == "text":
        yield {"type": "text", "text": ""}
        yield from ({"type": "text_delta", "text": piece} for piece in _pieces(block["text"]))
    elif block["type"] == "thinking":
        yield {"type": "thinking", "thinking": "", "signature": ""}
        yield {"type": "thinking_delta", "thinking": block["thinking"]}
        yield {"type": "signature_delta", "signature": block["signature"]}
    elif block["type"] == "tool_use":
        yield {**block, "input": {}}
        raw = json.dumps(block["input"])
        if kind in ("cut_in_call", "max_tokens_in_call"):
            raw = raw[: len(raw) * 3 // 4]
        if kind == "malformed_call":
            raw = raw[:-1] + ', "again": }'
        yield from ({"type": "input_json_delta", "partial_json": piece} for piece in _pieces(raw))
    else:
        yield block


def _pieces(text: str) -> list[str]:
    size = max(1, len(text) // 4 + 1)
    return [text[start : start + size] for start in range(0, len(text), size)]


def _early(reply: Reply) -> Response | None:
    """Faults that come instead of a stream."""
    headers = {} if reply.retry_after is None else {"retry-after": f"{reply.retry_after:g}"}
    if reply.fault == "bad_gateway":
        return HTMLResponse("<html><body><h1>502 Bad Gateway</h1></body></html>", 502)
    plain: dict[str, tuple[int, str, str]] = {
        "rate_limit": (429, "rate_limit_error", "Number of requests has exceeded your rate limit"),
        "overloaded": (529, "overloaded_error", "Overloaded"),
        "timeout": (408, "timeout_error", "The request took too long"),
        "conflict": (409, "conflict_error", "The request is in conflict with another"),
        "server_error": (500, "api_error", "Internal server error"),
        "auth": (401, "authentication_error", "invalid x-api-key"),
        "forbidden": (403, "permission_error", "Your key may not use this model"),
        "not_found": (404, "not_found_error", "model: there is none of that name"),
        "unprocessable": (422, "invalid_request_error", "The request could not be processed"),
        "too_long": (400, "invalid_request_error", "prompt is too long: 214315 tokens > 200000 maximum"),
        "too_large": (413, "request_too_large", "Request exceeds the maximum size"),
        "bad_image": (400, "invalid_request_error", "messages.0.content.1.image: Could not process image"),
        "invalid": (400, "invalid_request_error", "The script has no further reply"),
    }
    return _error(*plain[reply.fault], headers=headers) if reply.fault in plain else None


def _error(status: int, kind: str, message: str, headers: dict[str, str] | None = None) -> Response:
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_rehearsal"}
    return JSONResponse(body, status, headers)
