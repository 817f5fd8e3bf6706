"""A strict stand-in for a chat completions server, as OpenAI and most local servers speak it.

Like the one for Anthropic: it refuses what breaks the rules, streams what its script says, and can misbehave.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from gofer_standins.strict_schemas import strict_problems

Fault = Literal[
    "", "cut", "length_in_call", "rate_limit", "server_error", "bad_gateway", "auth", "too_long", "silent",
]  # fmt: skip
Dialect = Literal["", "llama.cpp", "ollama", "vllm", "lm studio", "openrouter"]
"""Whose manners the server has: how it lists its models, and where it tells how many tokens they take."""


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
    same_index: bool = False
    """Give each call whole, by the same number, like Ollama."""
    reasoning: str = ""
    reasoning_field: str = "reasoning_content"
    error: tuple[int, str] | None = None
    """Refuse with this status and this body."""
    error_midstream: dict[str, Any] | None = None
    """An error object after the text."""
    whole: bool = False
    """Answer in one piece although a stream was asked for."""


Script = Sequence[Reply] | Callable[[Mapping[str, Any]], Reply]


@dataclass
class OpenAI:
    """The service."""

    script: Script
    key: str = "rehearsal-key"
    """Empty for a server that lists its models to anybody."""
    models: tuple[str, ...] = ("rehearsal-large", "rehearsal-small")
    dialect: Dialect = ""
    window: int = 0
    """Tokens the model takes; longer requests are refused in the dialect's words. 0 for no end."""
    refuses: tuple[str, ...] = ()
    """Parameters that it does not know."""
    asked_for: list[str] = field(default_factory=list)
    """Paths of the requests for facts."""
    loaded: bool = False
    received: list[dict[str, Any]] = field(default_factory=list)
    refused: list[list[str]] = field(default_factory=list)
    overflows: list[int] = field(default_factory=list)
    """Sizes of the requests that were too long."""

    @property
    def app(self) -> Starlette:
        complete = Route("/v1/chat/completions", self._complete, methods=["POST"])
        listed = Route("/v1/models", self._list, methods=["GET"])
        other = Route("/{path:path}", self._fact, methods=["GET", "POST"])
        return Starlette(routes=[complete, listed, other])

    async def _list(self, request: Request) -> Response:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return _error(401, "invalid_api_key", "Incorrect API key provided")
        self.asked_for.append("/v1/models")
        facts: dict[str, dict[str, Any]] = {
            "llama.cpp": {"owned_by": "llamacpp", "meta": {"n_ctx": self.window * 4, "n_ctx_train": 999_999}},
            "vllm": {"owned_by": "vllm", "max_model_len": self.window},
            "openrouter": {
                "context_length": self.window,
                "architecture": {"input_modalities": ["text", "image", "file"]},
            },
        }
        more = facts.get(self.dialect, {})
        return JSONResponse(
            {"object": "list", "data": [{"id": name, "object": "model", **more} for name in self.models]}
        )

    async def _fact(self, request: Request) -> Response:
        """What only some servers tell, each at a place of its own."""
        path = request.url.path
        self.asked_for.append(path)
        told = self._facts(path)
        if path == "/api/generate" and self.dialect == "ollama":
            self.loaded = True
        return PlainTextResponse("404 page not found", 404) if told is None else JSONResponse(told)

    def _facts(self, path: str) -> dict[str, Any] | None:
        match self.dialect, path:
            case "llama.cpp", "/props":
                settings = {"n_ctx": self.window, "params": {}}
                return {"default_generation_settings": settings, "modalities": {"vision": False}}
            case "ollama", "/api/show":
                info = {"llama.context_length": 131_072, "general.architecture": "llama"}
                return {"model_info": info, "capabilities": ["completion", "tools"], "parameters": ""}
            case "ollama", "/api/ps":
                running = [{"name": self.models[0], "model": self.models[0], "context_length": self.window}]
                return {"models": running if self.loaded else []}
            case "ollama", "/api/generate":
                return {"done": True}
            case "lm studio", "/api/v0/models":
                sizes = {"max_context_length": 131_072, "loaded_context_length": self.window}
                return {"data": [{"id": self.models[0], "type": "llm", "state": "loaded", **sizes}]}
        return None

    async def _complete(self, request: Request) -> Response:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return _error(401, "invalid_api_key", "Incorrect API key provided")
        body = json.loads(await request.body())
        if unknown := [name for name in self.refuses if name in json.dumps(body)]:
            return _error(400, "unsupported_parameter", f"Unsupported parameter: '{unknown[0]}'")
        if found := list(problems(body)):
            self.refused.append(found)
            return _error(400, "invalid_request_error", "; ".join(found))
        if self.window and (size := len(json.dumps(body)) // 4) > self.window:
            self.overflows.append(size)
            return Response(*_too_long(self.dialect, size, self.window))
        self.received.append(body)
        reply = self._next(body)
        if reply.error is not None:
            return Response(reply.error[1], reply.error[0])
        if reply.fault == "silent":
            return StreamingResponse(self._silence(), media_type="text/event-stream")
        if reply.whole:
            return JSONResponse(_whole(list(_chunks(body, reply, len(self.received)))))
        return _early(reply.fault) or StreamingResponse(
            self._stream(body, reply), media_type="text/event-stream"
        )

    async def _silence(self) -> AsyncIterator[bytes]:
        """Signs of life, and never a word."""
        while True:
            yield b": working\n\n"
            await asyncio.sleep(0.02)

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
        if reply.error_midstream is not None:
            yield f"data: {json.dumps({'error': reply.error_midstream})}\n\n".encode()
        elif reply.fault != "cut":
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
    for piece in _pieces(reply.reasoning):
        yield chunk({reply.reasoning_field: piece})
    for piece in _pieces(reply.text):
        yield chunk({"content": piece})
    if reply.error_midstream is not None:
        return
    for index, (name, arguments) in enumerate(reply.calls):
        # Some servers begin to count anew in every answer; a client has to live with that.
        raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
        raw = raw[: len(raw) // 2] if reply.fault == "length_in_call" else raw
        if reply.same_index:
            call = {"index": 0, "id": f"call_{index}", "function": {"name": name, "arguments": raw}}
            yield chunk({"tool_calls": [call]})
            continue
        opening = {"index": index, "id": f"call_{index}", "type": "function"}
        yield chunk({"tool_calls": [{**opening, "function": {"name": name, "arguments": ""}}]})
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


def _whole(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The same answer in one piece."""
    said = "".join(choice["delta"].get("content") or "" for one in chunks for choice in one["choices"])
    choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
    return {**chunks[-1], "object": "chat.completion", "choices": [choice]}


def _too_long(dialect: Dialect, size: int, window: int) -> tuple[str, int]:
    """In the words of each server."""
    match dialect:
        case "llama.cpp":
            text = f"request ({size} tokens) exceeds the available context size ({window} tokens), try increasing it"
            error = {"code": 400, "message": text, "type": "exceed_context_size_error"}
            return json.dumps({"error": {**error, "n_prompt_tokens": size, "n_ctx": window}}), 400
        case "vllm":
            text = (
                f"This model's maximum context length is {window} tokens. However, you requested {size} tokens in "
                "the messages, Please reduce the length of the messages."
            )
            return json.dumps(
                {"object": "error", "message": text, "type": "BadRequestError", "code": 400}
            ), 400
        case "lm studio":
            text = (
                "The number of tokens to keep from the initial prompt is greater than the context length. Try to "
                "load the model with a larger context length, or provide a shorter input"
            )
            return json.dumps({"error": text}), 400
        case "ollama":
            return json.dumps({"error": "input length exceeds the context length"}), 400
        case "openrouter":
            text = f"This endpoint's maximum context length is {window} tokens. However, you requested about {size}"
            return json.dumps({"error": {"message": text, "code": 400}}), 400
    return "Something is not right with this.", 400


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
    for tool in body.get("tools") or ():
        if tool["function"].get("strict"):
            yield from strict_problems(tool["function"]["parameters"], tool["function"]["name"])
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


@dataclass
class Embedder:
    """An embeddings endpoint: texts that share a word, or a word of the same meaning, have near vectors."""

    model: str = "rehearsal-embeddings"
    key: str = "rehearsal-key"
    dimensions: int = 64
    meanings: dict[str, str] = field(default_factory=dict)
    """Words that count as another."""
    unwanted: str = ""
    """A word that no text may have: all texts of its request are refused."""
    fault: Literal["", "slow", "server_error", "garbage", "too_few", "not_finite"] = ""
    received: list[list[str]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/embeddings", self._embeddings, methods=["POST"])])

    async def _embeddings(self, request: Request) -> Response:
        body = json.loads(await request.body())
        if (wrong := self._wrong(request, body)) is not None:
            self.refused.append(wrong)
            return JSONResponse({"error": {"message": wrong}}, 401 if "key" in wrong else 400)
        self.received.append(body["input"])
        if self.fault == "slow":
            await asyncio.sleep(3600)
        if self.fault == "server_error":
            return JSONResponse({"error": {"message": "overloaded"}}, 500)
        if self.fault == "garbage":
            return PlainTextResponse("<html>")
        vectors = [self._vector(text) for text in body["input"]][: -1 if self.fault == "too_few" else None]
        data = [
            {"object": "embedding", "index": number, "embedding": vector}
            for number, vector in enumerate(vectors)
        ]
        answer = json.dumps({"object": "list", "model": self.model, "data": data[::-1]})
        return Response(answer.replace("0.5", "NaN") if self.fault == "not_finite" else answer)

    def _wrong(self, request: Request, body: Mapping[str, Any]) -> str | None:
        if request.headers.get("authorization") != f"Bearer {self.key}":
            return "wrong key"
        if set(body) - {"model", "input", "encoding_format", "dimensions", "user"}:
            return f"unknown fields in {sorted(body)}"
        texts = body.get("input")
        if body.get("model") != self.model or not isinstance(texts, list) or not 0 < len(texts) <= 2048:
            return "wrong model or input"
        if not all(isinstance(text, str) and text for text in texts):
            return "an input is empty"
        if self.unwanted and any(self.unwanted in text for text in texts):
            return "an input is not wanted"
        return None

    def _vector(self, text: str) -> list[float]:
        vector = [0.0] * self.dimensions
        for word in text.casefold().replace("?", " ").replace(".", " ").split():
            meaning = self.meanings.get(word, word)
            vector[zlib.crc32(meaning.encode()) % self.dimensions] += 0.5
        return vector
