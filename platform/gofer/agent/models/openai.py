"""Chat completions, as OpenAI and most local servers speak them (Ollama, llama.cpp, vLLM, OpenRouter).

The SDK is an extra, `pip install -e '.[openai]'`, and imported only when first needed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import httpx2

from gofer.agent.call_ids import new_id
from gofer.agent.context.sizes import estimate, text_size
from gofer.agent.model import Block, Delta, Message, ModelError, ModelEvent, Request, Stop, Turn, Usage
from gofer.agent.models.calls import call_block
from gofer.agent.models.errors import classify
from gofer.agent.models.words import code
from gofer.agent.state import texts
from gofer.errors import ConfigError

if TYPE_CHECKING:
    from openai import AsyncOpenAI

STOPS: dict[str, Stop] = {
    "stop": "end",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}

OPENAI_URL = "https://api.openai.com/v1"
NEEDS_EXTRA = "This model needs an extra, in Gofer's folder: .venv/bin/pip install -e '.[openai]'"


class OpenAI:
    """A model behind a chat completions API."""

    def __init__(
        self,
        model: str,
        key: str,
        *,
        base_url: str | None = None,
        http: httpx2.AsyncClient | None = None,
        context_window: int = 128_000,
        provider: str = "openai",
        stall: float = 120,
    ) -> None:
        self.name = f"{provider}/{model}"
        self.context_window = context_window
        self._model = model
        self._key = key
        self._base_url = base_url
        self._http = http
        self._stall = stall
        self._client: AsyncOpenAI | None = None

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        answer = _Answer(self.name, request)
        try:
            async for chunk in await self._open(request):
                for delta in answer.take(chunk.to_dict(warnings=False)):
                    yield delta
            turn = answer.turn()
        except ConfigError:
            raise
        except Exception as error:
            raise classify(error, self.name, answer.usage) from error
        yield turn

    async def _open(self, request: Request) -> Any:
        params: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "system", "content": request.system}, *translated(request.messages)],
            "max_completion_tokens": request.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.tools:
            params["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.schema,
                    },
                }
                for tool in request.tools
            ]
            params["tool_choice"] = "auto" if request.use_tools else "none"
        if self._client is None:
            # In a thread: others must not wait while it is imported.
            self._client = await asyncio.to_thread(self._connect)
        return await self._client.chat.completions.create(**params)

    def _connect(self) -> AsyncOpenAI:
        try:
            from openai import AsyncOpenAI
        except ImportError as error:
            raise ConfigError(NEEDS_EXTRA) from error
        client = AsyncOpenAI(
            api_key=self._key or "none",
            base_url=self._base_url or OPENAI_URL,
            max_retries=0,
            timeout=httpx2.Timeout(self._stall, connect=10),
            http_client=self._http,
        )
        _ = client.chat.completions  # imports more
        return client


def load() -> None:
    """Import the SDK, all of it that a call needs; raises ConfigError when it is not installed."""
    OpenAI("none", "none")._connect()


def translated(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """The transcript in OpenAI's shape."""
    return [entry for message in messages for entry in _entries(message)]


def _entries(message: Message) -> Iterator[dict[str, Any]]:
    if message["role"] == "assistant":
        yield _assistant(message)
        return
    for block in message["content"]:
        if block["type"] == "tool_result":
            text = "\n".join(texts(block["content"]))
            yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": text}
    shown = [block for block in message["content"] if block["type"] in ("text", "image")]
    shown += [
        inner
        for block in message["content"]
        if block["type"] == "tool_result"
        for inner in block["content"]
        if inner["type"] == "image"
    ]
    if shown:
        yield {"role": "user", "content": [_part(block) for block in shown]}


def _part(block: Block) -> dict[str, Any]:
    if block["type"] == "text":
        return {"type": "text", "text": block["text"]}
    source = block["source"]
    return {"type": "image_url", "image_url": {"url": f"data:{source['media_type']};base64,{source['data']}"}}


def _assistant(message: Message) -> dict[str, Any]:
    calls = [
        {
            "id": block["id"],
            "type": "function",
            "function": {"name": block["name"], "arguments": json.dumps(block["input"])},
        }
        for block in message["content"]
        if block["type"] == "tool_use"
    ]
    entry: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts(message["content"])) or None}
    return {**entry, "tool_calls": calls} if calls else entry


class _Answer:
    def __init__(self, name: str, request: Request) -> None:
        self._name = name
        self._request = request
        self._text: list[str] = []
        self._calls: dict[int, dict[str, str]] = {}
        self._stop: str | None = None
        self._id: str | None = None
        self._counted = Usage()

    @property
    def usage(self) -> Usage:
        """As the server counted; estimated for one that does not, or broke off: a budget must hold there, too."""
        if self._counted.total or self._id is None:
            return self._counted
        tools = sum(text_size(json.dumps(tool.schema)) for tool in self._request.tools)
        asked = estimate(self._request.messages) + text_size(self._request.system) + tools
        said = "".join([*self._text, *(call["arguments"] for call in self._calls.values())])
        return Usage(input=asked, output=text_size(said))

    def take(self, chunk: dict[str, Any]) -> list[Delta]:
        self._id = chunk.get("id") or self._id
        if chunk.get("usage"):
            self._counted = _usage(chunk["usage"])
        deltas: list[Delta] = []
        for choice in chunk.get("choices") or []:
            self._stop = choice.get("finish_reason") or self._stop
            deltas += self._delta(choice.get("delta") or {})
        return deltas

    def _delta(self, delta: dict[str, Any]) -> list[Delta]:
        deltas = []
        if delta.get("content"):
            self._text.append(delta["content"])
            deltas.append(Delta("text", delta["content"]))
        for piece in delta.get("tool_calls") or []:
            function = piece.get("function") or {}
            call = self._calls.setdefault(self._number(piece, function), {"name": "", "arguments": ""})
            call["name"] += function.get("name") or ""
            call["arguments"] += function.get("arguments") or ""
            deltas.append(Delta("call", function.get("arguments") or ""))
        return deltas

    def _number(self, piece: dict[str, Any], function: dict[str, Any]) -> int:
        """Which call a piece belongs to. Some servers do not say: there a name begins the next."""
        number = piece.get("index")
        if isinstance(number, int):
            return number
        return len(self._calls) - (0 if function.get("name") or not self._calls else 1)

    def turn(self) -> Turn:
        if self._stop is None:
            raise ModelError(
                "retryable", "The stream of the answer broke off.", usage=self.usage, model=self._name
            )
        stop = STOPS.get(self._stop, "unknown")
        content: list[Block] = [{"type": "text", "text": "".join(self._text)}] if self._text else []
        malformed: dict[str, str] = {}
        # Some servers say "stop" although there are calls; all of them say "length" when one was cut.
        if self._calls and stop == "end":
            stop = "tool_use"
        if stop == "tool_use":
            content += [self._call(index, malformed) for index in sorted(self._calls)]
        cut = bool(self._calls) and stop != "tool_use"
        if stop == "tool_use" and not self._calls:
            stop = "end"
        detail = code(self._stop) if stop == "unknown" else ""
        return Turn(content, stop, self.usage, self._name, self._id, malformed, cut, detail=detail)

    def _call(self, index: int, malformed: dict[str, str]) -> Block:
        call = self._calls[index]
        # Ids of our own: some servers begin to count anew in every answer, and ids must be unique in a transcript.
        return call_block(new_id(), call["name"], call["arguments"] or "{}", malformed)


def _usage(counted: dict[str, Any]) -> Usage:
    cached = int((counted.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    return Usage(
        input=max(0, int(counted.get("prompt_tokens") or 0) - cached),
        cache_read=cached,
        output=int(counted.get("completion_tokens") or 0),
    )
