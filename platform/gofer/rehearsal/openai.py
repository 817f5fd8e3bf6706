"""A strict stand-in for a chat completions server, as OpenAI and most local servers speak it.

Like the one for Anthropic: it refuses what breaks the rules, streams what its script says, and can misbehave.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

Fault = Literal["", "cut", "length_in_call", "rate_limit", "server_error", "bad_gateway", "auth", "too_long"]


@dataclass(frozen=True, slots=True)
class Reply:
    """One scripted answer."""

    text: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    """Name and arguments; a string as arguments is sent as it is."""
    finish: str = ""
    fault: Fault = ""
    sparse: bool = False
    """Say neither which call a piece belongs to nor what it cost, like some servers."""


Script = Sequence[Reply] | Callable[[Mapping[str, Any]], Reply]


@dataclass
class OpenAI:
    """The service."""

    script: Script
    key: str = "rehearsal-key"
    """Empty for a server that lists its models to anybody."""
    models: tuple[str, ...] = ("rehearsal-large", "rehearsal-small")
    received: list[dict[str, Any]] = field(default_factory=list)
    refused: list[list[str]] = field(default_factory=list)

    @property
    def app(self) -> Starlette:
        complete = Route("/v1/chat/completions", self._complete, methods=["POST"])
        return Starlette(routes=[complete, Route("/v1/models", self._list, methods=["GET"])])

    async def _list(self, request: Request) -> Response:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return _error(401, "invalid_api_key", "Incorrect API key provided")
        return JSONResponse(
            {"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]}
        )

    async def _complete(self, request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {self.key}":
            return _error(401, "invalid_api_key", "Incorrect API key provided")
        body = json.loads(await request.body())
        if found := list(problems(body)):
            self.refused.append(found)
            return _error(400, "invalid_request_error", "; ".join(found))
        self.received.append(body)
        reply = self._next(body)
        return _early(reply.fault) or StreamingResponse(
            self._stream(body, reply), media_type="text/event-stream"
        )

    def _next(self, body: Mapping[str, Any]) -> Reply:
        if callable(self.script):
            return self.script(body)
        return self.script[len(self.received) - 1]

    async def _stream(self, body: Mapping[str, Any], reply: Reply) -> AsyncIterator[bytes]:
        for chunk in _chunks(body, reply, len(self.received)):
            for choice in chunk["choices"] if reply.sparse else ():
                for piece in choice["delta"].get("tool_calls", ()):
                    del piece["index"]
            yield f"data: {json.dumps(chunk)}\n\n".encode()
            await asyncio.sleep(0)
        if reply.fault != "cut":
            yield b"data: [DONE]\n\n"


def _chunks(body: Mapping[str, Any], reply: Reply, number: int) -> Iterator[dict[str, Any]]:
    base = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": body["model"],
    }

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    for piece in _pieces(reply.text):
        yield chunk({"content": piece})
    for index, (name, arguments) in enumerate(reply.calls):
        # Some servers begin to count anew in every answer; a client has to live with that.
        opening = {"index": index, "id": f"call_{index}", "type": "function"}
        yield chunk({"tool_calls": [{**opening, "function": {"name": name, "arguments": ""}}]})
        raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
        raw = raw[: len(raw) // 2] if reply.fault == "length_in_call" else raw
        for piece in _pieces(raw):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    if reply.fault == "cut":
        return
    finish = "length" if reply.fault == "length_in_call" else reply.finish
    yield chunk({}, finish or ("tool_calls" if reply.calls else "stop"))
    if reply.sparse:
        return
    size = len(json.dumps(body["messages"])) // 4
    usage = {"prompt_tokens": size, "completion_tokens": 7, "total_tokens": size + 7}
    yield {**base, "choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": size // 2}}}


def _pieces(text: str) -> list[str]:
    return [text[start : start + 11] for start in range(0, len(text), 11)]


@cache
def _messages() -> dict[str, TypeAdapter[Any]]:
    from openai.types import chat

    return {
        "system": TypeAdapter(chat.ChatCompletionSystemMessageParam),
        "user": TypeAdapter(chat.ChatCompletionUserMessageParam),
        "assistant": TypeAdapter(chat.ChatCompletionAssistantMessageParam),
        "tool": TypeAdapter(chat.ChatCompletionToolMessageParam),
    }


def problems(body: Mapping[str, Any]) -> Iterator[str]:
    """What a server would refuse."""
    waiting: list[str] = []
    asked: set[str] = set()
    for index, message in enumerate(body.get("messages") or [{}]):
        role = str(message.get("role"))
        if role not in _messages():
            yield f"messages.{index}: unknown role {role}"
            continue
        try:
            _messages()[role].validate_python(message)
        except ValidationError as error:
            yield f"messages.{index}: {error.errors()[0]['loc']} {error.errors()[0]['msg']}"
        if role == "tool":
            if message["tool_call_id"] not in waiting:
                yield f"messages.{index}: tool message without its call"
            waiting = [one for one in waiting if one != message["tool_call_id"]]
        elif waiting:
            yield f"messages.{index}: tool_call_ids did not have response messages: {waiting}"
            waiting = []
        if role == "assistant":
            waiting = [call["id"] for call in message.get("tool_calls") or []]
            if asked & set(waiting) or (not waiting and not message.get("content")):
                yield f"messages.{index}: an assistant message needs content, and calls need ids of their own"
            asked |= set(waiting)
    if waiting:
        yield f"tool_call_ids did not have response messages: {waiting}"


def _early(fault: Fault) -> Response | None:
    if fault == "bad_gateway":
        return HTMLResponse("<html><body>502</body></html>", 502)
    plain: dict[str, tuple[int, str, str]] = {
        "rate_limit": (429, "rate_limit_exceeded", "Rate limit reached"),
        "server_error": (500, "server_error", "The server had an error"),
        "auth": (401, "invalid_api_key", "Incorrect API key provided"),
        "too_long": (400, "context_length_exceeded", "This model's maximum context length is 8192 tokens"),
    }
    return _error(*plain[fault]) if fault in plain else None


def _error(status: int, code: str, message: str) -> Response:
    body = {"error": {"message": message, "type": "invalid_request_error", "code": code, "param": None}}
    return JSONResponse(body, status)
