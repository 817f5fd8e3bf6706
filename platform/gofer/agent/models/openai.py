"""Chat completions, as OpenAI and every compatible server speak it: llama.cpp, Ollama, vLLM, LM Studio, OpenRouter.

The API is one request and a stream of small objects, so it is spoken here directly. Servers differ in what they call
the token limit and in which extras they take: what one refuses by name is left out from then on.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any, TypeVar

import httpx2

from gofer.agent.context import estimate, text_size
from gofer.agent.model import (
    Block,
    Delta,
    Features,
    ModelError,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    Stop,
    Turn,
    Usage,
    call_block,
    code,
    new_id,
)
from gofer.agent.models.errors import body_of, classify, refusal
from gofer.agent.models.providers import FIRST_TOKEN, STALL, ModelSettings
from gofer.agent.models.server_facts import ModelServer, ServerFacts
from gofer.agent.state import texts

T = TypeVar("T")

STOPS: dict[str, Stop] = {
    "stop": "end",
    "eos": "end",
    "end_turn": "end",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}
OPENAI_URL = "https://api.openai.com/v1"
DEFAULT_WINDOW = 128_000
ASK_AGAIN_AFTER = 300.0
"""Seconds until a server that did not answer is asked again what its model takes."""
MAX_ERROR_BYTES = 65_536
REASONING = ("reasoning_content", "reasoning")
"""What servers call the model's thinking: DeepSeek and llama.cpp, OpenRouter and Ollama."""
OPTIONAL = ("stream_options", "reasoning_effort", "strict", *REASONING)
"""What a request can do without."""
OTHER_NAME = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
EFFORTS = {"low": "low", "medium": "medium", "high": "high", "max": "high"}


class OpenAI:
    """A model behind a chat completions API."""

    def __init__(
        self,
        model: str,
        key: str = "",
        *,
        base_url: str | None = None,
        http: httpx2.AsyncClient | None = None,
        provider: str = "openai",
        settings: ModelSettings | None = None,
        effort: str = "",
    ) -> None:
        self.name = f"{provider}/{model}"
        self._model = model
        self._base_url = (base_url or OPENAI_URL).rstrip("/")
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = http
        self._settings = settings or ModelSettings()
        self._effort = EFFORTS.get(effort, "")
        self._facts = ServerFacts()
        self._learnt: int | None = None
        self._ask_at = 0.0
        self._asking = asyncio.Lock()
        ours = self._base_url == OPENAI_URL
        self._limit_name: str = self._settings.max_tokens_name or (
            "max_completion_tokens" if ours else "max_tokens"
        )
        self._official = ours
        self._left_out: set[str] = set()
        """What the server has refused by name."""

    @property
    def context_window(self) -> int:
        known = self._settings.window or self._facts.window or DEFAULT_WINDOW
        return min(known, self._learnt) if self._learnt else known

    @property
    def features(self) -> Features:
        given, told = self._settings, self._facts
        images = told.images if given.images is None else given.images
        pdfs = told.pdfs if given.pdfs is None else given.pdfs
        return Features(
            images is not False, self._official if pdfs is None else pdfs, self._settings.output_tokens
        )

    async def prepare(self) -> None:
        """Ask the server what its model takes, once it answers. The model can be called in any case."""
        if self._official or self._settings.window or time.monotonic() < self._ask_at:
            return
        async with self._asking:
            if time.monotonic() < self._ask_at:
                return
            server = ModelServer(self._client(), self._base_url, self._headers, self._model)
            facts = await server.facts(self._first_token())
            self._facts = facts or self._facts
            self._ask_at = time.monotonic() + ASK_AGAIN_AFTER if not self._facts.window else float("inf")

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        answer = _Answer(self.name, request)
        try:
            async for chunk in self._chunks(request):
                for delta in answer.take(chunk):
                    yield delta
            turn = answer.turn()
        except Exception as error:
            classified = classify(error, self.name, answer.usage)
            if isinstance(classified, ModelError) and classified.window:
                self._learnt = classified.window
            raise classified from error
        yield turn

    async def _chunks(self, request: ModelRequest) -> AsyncIterator[dict[str, Any]]:
        """The objects of the stream. A request that is refused for a parameter is made again without it."""
        for _ in range(len(OPTIONAL) + 2):
            response = await self._send(request)
            try:
                if response.is_success:
                    async for chunk in self._read(response):
                        yield chunk
                    return
                error = refusal(response.status_code, await _error_body(response), response.headers)
            finally:
                await response.aclose()
            if not self._without(error):
                raise error
        raise error

    async def _send(self, request: ModelRequest) -> httpx2.Response:
        client = self._client()
        wait = self._first_token()
        sent = client.build_request(
            "POST",
            f"{self._base_url}/chat/completions",
            content=json.dumps(self._body(request), ensure_ascii=False).encode(),
            headers={**self._headers, "content-type": "application/json", "accept": "text/event-stream"},
            timeout=httpx2.Timeout(None, connect=10, write=wait, pool=wait),
        )
        return await self._within(client.send(sent, stream=True), wait)

    async def _read(self, response: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
        if "json" in response.headers.get("content-type", ""):  # a server that does not stream
            yield _whole(body_of(await self._within(response.aread(), self._first_token())))
            return
        events = _data(response)
        wait = self._first_token()
        while (data := await self._within(anext(events, None), wait)) is not None:
            chunk = json.loads(data)
            if not isinstance(chunk, dict):
                raise ValueError("an event of the stream is no object")
            if chunk.get("error"):
                raise _midstream(chunk)
            if _says_something(chunk):
                wait = self._settings.stall_timeout or STALL
            yield chunk

    async def _within(self, work: Awaitable[T], seconds: float) -> T:
        """The result of a wait. A server that is silent for too long is given up, with another error than one that is
        gone."""
        try:
            return await asyncio.wait_for(work, seconds)
        except TimeoutError as error:
            why = (
                f"No answer within {seconds:g} s. If the machine is that slow, set first_token_timeout of the model "
                "in models.toml."
            )
            raise ModelError("retryable", why, model=self.name) from error

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [
                {"role": "system", "content": request.system},
                *translated(request.messages, self.name, self._left_out),
            ],
            self._limit_name: request.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._effort:
            body["reasoning_effort"] = self._effort
        if request.tools:
            body["tools"] = [self._tool(tool) for tool in request.tools]
            body["tool_choice"] = "auto" if request.use_tools else "none"
        return {key: value for key, value in body.items() if key not in self._left_out}

    def _tool(self, tool: Any) -> dict[str, Any]:
        function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
        if tool.strict and "strict" not in self._left_out:
            function["strict"] = True
        return {"type": "function", "function": function}

    def _without(self, error: ModelError) -> bool:
        """Whether the request was refused for a parameter that it can leave out or rename."""
        if error.kind not in ("invalid", "image") or error.status not in (400, 422):
            return False
        text = str(error)
        if (
            self._limit_name in text
            and self._settings.max_tokens_name is None
            and "renamed" not in self._left_out
        ):
            self._limit_name = OTHER_NAME[self._limit_name]
            self._left_out.add("renamed")
            return True
        named = [name for name in OPTIONAL if name in text and name not in self._left_out]
        self._left_out.update(named)
        return bool(named)

    def _first_token(self) -> float:
        return self._settings.first_token_timeout or FIRST_TOKEN

    def _client(self) -> httpx2.AsyncClient:
        if self._http is None:
            self._http = httpx2.AsyncClient()
        return self._http


async def _error_body(response: httpx2.Response) -> object:
    raw = bytearray()
    async for piece in response.aiter_bytes():
        raw += piece
        if len(raw) > MAX_ERROR_BYTES:
            break
    return body_of(bytes(raw[:MAX_ERROR_BYTES]))


async def _data(response: httpx2.Response) -> AsyncIterator[str]:
    """The data of each event, up to the one that says that there are no more."""
    lines: list[str] = []
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            lines.append(line[5:].removeprefix(" "))
        elif not line.strip() and lines:
            data, lines = "\n".join(lines), []
            if data.strip() == "[DONE]":
                return
            yield data
    if lines and lines != ["[DONE]"]:
        yield "\n".join(lines)


def _midstream(chunk: dict[str, Any]) -> ModelError:
    """An error that came instead of the rest of an answer; its code may be the status it would have had."""
    told = chunk["error"].get("code") if isinstance(chunk["error"], dict) else None
    return refusal(told if isinstance(told, int) and 400 <= told < 600 else 200, chunk)


def _says_something(chunk: dict[str, Any]) -> bool:
    return any(
        (choice.get("delta") or {}).get(key)
        for choice in chunk.get("choices") or ()
        for key in ("content", "tool_calls", *REASONING)
    )


def _whole(answer: object) -> dict[str, Any]:
    """A complete answer, as if it had come in one piece."""
    if not isinstance(answer, dict):
        raise ValueError("the answer is no object")
    if answer.get("error"):
        raise _midstream(answer)
    choices = [{**choice, "delta": choice.get("message") or {}} for choice in answer.get("choices") or ()]
    return {**answer, "choices": choices}


def translated(
    messages: tuple[ModelMessage, ...], model: str = "", left_out: set[str] | frozenset[str] = frozenset()
) -> list[dict[str, Any]]:
    """The transcript in OpenAI's shape."""
    return [entry for message in messages for entry in _entries(message, model, left_out)]


def _entries(
    message: ModelMessage, model: str, left_out: set[str] | frozenset[str]
) -> Iterator[dict[str, Any]]:
    if message["role"] == "assistant":
        own = message.get("by", model) == model
        yield _assistant(message, frozenset(REASONING) - left_out if own else frozenset())
        return
    for block in message["content"]:
        if block["type"] == "tool_result":
            text = "\n".join(texts(block["content"]))
            yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": text}
    shown = [block for block in message["content"] if block["type"] in ("text", "image", "document")]
    shown += [
        inner
        for block in message["content"]
        if block["type"] == "tool_result"
        for inner in block["content"]
        if inner["type"] in ("image", "document")
    ]
    if shown:
        parts = [_part(block) for block in shown]
        plain = all(part["type"] == "text" for part in parts)
        # Some templates of local models take a string and nothing else.
        yield {"role": "user", "content": "\n\n".join(part["text"] for part in parts) if plain else parts}


def _part(block: Block) -> dict[str, Any]:
    if block["type"] == "text":
        return {"type": "text", "text": block["text"]}
    source = block["source"]
    url = f"data:{source['media_type']};base64,{source['data']}"
    if block["type"] == "document":
        return {"type": "file", "file": {"filename": block.get("title") or "document.pdf", "file_data": url}}
    return {"type": "image_url", "image_url": {"url": url}}


def _assistant(message: ModelMessage, reasoning: frozenset[str]) -> dict[str, Any]:
    calls = [
        {
            "id": block["id"],
            "type": "function",
            "function": {"name": block["name"], "arguments": json.dumps(block["input"], ensure_ascii=False)},
        }
        for block in message["content"]
        if block["type"] == "tool_use"
    ]
    entry: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts(message["content"])) or None}
    for block in message["content"]:
        if block["type"] == "thinking" and block.get("field") in reasoning:
            entry[block["field"]] = block["thinking"]
    return {**entry, "tool_calls": calls} if calls else entry


class _Answer:
    """Collects a stream, object by object."""

    def __init__(self, name: str, request: ModelRequest) -> None:
        self._name = name
        self._request = request
        self._text = _Text()
        self._reasoning: list[str] = []
        self._field = ""
        self._calls: list[dict[str, str]] = []
        self._at: dict[int, int] = {}
        """Which of the calls each of the server's numbers stands for now."""
        self._stop: str | None = None
        self._id: str | None = None
        self._counted = Usage()
        self._begun = False

    @property
    def usage(self) -> Usage:
        """The usage as the server counted it. Without a count, or after a break, it is estimated: budgets must hold
        there, too."""
        if self._counted.total or not self._begun:
            return self._counted
        tools = sum(text_size(json.dumps(tool.schema)) for tool in self._request.tools)
        asked = estimate(self._request.messages) + text_size(self._request.system) + tools
        said = "".join(
            [
                *self._reasoning,
                *self._text.thought,
                *self._text.said,
                *(call["arguments"] for call in self._calls),
            ]
        )
        return Usage(input=asked, output=text_size(said))

    def take(self, chunk: dict[str, Any]) -> list[Delta]:
        self._begun = True
        self._id = chunk.get("id") or self._id
        counted = chunk.get("usage") or (chunk.get("x_groq") or {}).get("usage")
        if counted:
            self._counted = _usage(counted)
        deltas: list[Delta] = []
        for choice in chunk.get("choices") or []:
            self._stop = choice.get("finish_reason") or self._stop
            deltas += self._delta(choice.get("delta") or {})
        return deltas

    def _delta(self, delta: dict[str, Any]) -> list[Delta]:
        deltas = []
        for field in REASONING:
            if isinstance(delta.get(field), str) and delta[field] and self._field in ("", field):
                self._field = field
                self._reasoning.append(delta[field])
                deltas.append(Delta("thinking", delta[field]))
        if isinstance(delta.get("content"), str):
            deltas += self._text.feed(delta["content"])
        for piece in delta.get("tool_calls") or []:
            function = piece.get("function") or {}
            arguments = function.get("arguments") or ""
            arguments = arguments if isinstance(arguments, str) else json.dumps(arguments)
            call = self._call_of(piece, function)
            call["name"] += function.get("name") or ""
            call["arguments"] += arguments
            deltas.append(Delta("call", arguments))
        return deltas

    def _call_of(self, piece: dict[str, Any], function: dict[str, Any]) -> dict[str, str]:
        """The call a piece belongs to. Some servers give no number, others the same one to every call: there a name
        together with another id begins the next."""
        number, id_ = piece.get("index"), str(piece.get("id") or "")
        number = number if isinstance(number, int) else None
        place = self._at.get(number) if number is not None else len(self._calls) - 1
        known = self._calls[place] if place is not None and 0 <= place < len(self._calls) else None
        another = known is not None and bool(function.get("name")) and bool(known["name"])
        if number is not None:
            another = another and bool(id_) and known is not None and id_ != known["id"]
        if known is None or another:
            known = {"id": id_, "name": "", "arguments": ""}
            self._calls.append(known)
            if number is not None:
                self._at[number] = len(self._calls) - 1
        return known

    def turn(self) -> Turn:
        if self._stop is None:
            raise ModelError(
                "retryable", "The stream of the answer broke off.", usage=self.usage, model=self._name
            )
        stop = STOPS.get(self._stop, "unknown")
        said, thought = self._text.end()
        content: list[Block] = self._thinking(thought)
        content += [{"type": "text", "text": said}] if said else []
        malformed: dict[str, str] = {}
        # Some servers say "stop" although there are calls; all of them say "length" when one was cut.
        if self._calls and stop == "end":
            stop = "tool_use"
        if stop == "tool_use":
            # Ids of our own: some servers begin to count anew in every answer, and ids must be unique in a transcript.
            content += [
                call_block(new_id(), call["name"], call["arguments"] or "{}", malformed)
                for call in self._calls
            ]
        cut = bool(self._calls) and stop != "tool_use"
        if stop == "tool_use" and not self._calls:
            stop = "end"
        detail = code(self._stop) if stop == "unknown" else ""
        return Turn(content, stop, self.usage, self._name, self._id, malformed, cut, detail=detail)

    def _thinking(self, thought: str) -> list[Block]:
        """What the model thought, with the name it came by, so that it goes back by the same."""
        text = "".join(self._reasoning) or thought
        if not text.strip():
            return []
        return [{"type": "thinking", "thinking": text, "signature": "", "field": self._field}]


class _Text:
    """The words of an answer; what stands between <think> and </think> at its beginning is thought, not said."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.thought: list[str] = []
        self._held = ""
        self._mode = "begin"

    def feed(self, piece: str) -> list[Delta]:
        if not piece:
            return []
        if self._mode == "said":
            self.said.append(piece)
            return [Delta("text", piece)]
        self._held += piece
        if self._mode == "begin":
            start = self._held.lstrip()
            if start.startswith("<think>"):
                self._mode, self._held = "thought", start.removeprefix("<think>")
            elif "<think>".startswith(start):
                return []
            else:
                return self._say()
        before, end, after = self._held.partition("</think>")
        if end:
            self._mode, self._held = "said", ""
            return [*self._think(before), *self.feed(after.lstrip("\n"))]
        keep = len("</think>") - 1
        self._held, ready = self._held[-keep:], self._held[:-keep]
        return self._think(ready)

    def _think(self, text: str) -> list[Delta]:
        if not text:
            return []
        self.thought.append(text)
        return [Delta("thinking", text)]

    def _say(self) -> list[Delta]:
        self._mode, piece, self._held = "said", self._held, ""
        self.said.append(piece)
        return [Delta("text", piece)] if piece else []

    def end(self) -> tuple[str, str]:
        """What was said and what was thought, all of it."""
        if self._held:
            (self.thought if self._mode == "thought" else self.said).append(self._held)
            self._held = ""
        return "".join(self.said), "".join(self.thought)


def _usage(counted: dict[str, Any]) -> Usage:
    details = counted.get("prompt_tokens_details") or {}
    cached = int(details.get("cached_tokens") or counted.get("prompt_cache_hit_tokens") or 0)
    written = int(details.get("cache_write_tokens") or 0)
    return Usage(
        input=max(0, int(counted.get("prompt_tokens") or 0) - cached - written),
        cache_read=cached,
        cache_write=written,
        output=int(counted.get("completion_tokens") or 0),
    )
