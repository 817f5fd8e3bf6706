"""Anthropic's API through its SDK, which is imported only when first needed: it takes two seconds.

The SDK's own retries are off, since it sleeps as long as a server says. Its parsed arguments are not used either: a
call that was cut off looks like a valid one there. We keep the raw JSON of each call and parse it strictly.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import httpx2

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
)
from gofer.agent.models.errors import classify
from gofer.agent.models.providers import STALL, ModelSettings

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

STOPS: dict[str, Stop] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "tool_use",
    "max_tokens": "max_tokens",
    "pause_turn": "pause",
    "refusal": "refusal",
    "model_context_window_exceeded": "context_exceeded",
}
KNOWN_BLOCKS = {"text", "thinking", "redacted_thinking", "tool_use"}
MARK = {"cache_control": {"type": "ephemeral"}}


class Anthropic:
    """A model of Anthropic's."""

    def __init__(
        self,
        model: str,
        key: str,
        *,
        base_url: str | None = None,
        http: httpx2.AsyncClient | None = None,
        provider: str = "anthropic",
        settings: ModelSettings | None = None,
        effort: str = "",
    ) -> None:
        settings = settings or ModelSettings()
        self.name = f"{provider}/{model}"
        self.context_window = settings.window or 200_000
        self.features = Features(
            settings.images is not False, settings.pdfs is not False, settings.output_tokens
        )
        self._model = model
        self._key = key
        self._base_url = base_url
        self._http = http
        self._effort = effort
        self._wait = settings.first_token_timeout or settings.stall_timeout or STALL
        self._client: AsyncAnthropic | None = None

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        answer = StreamedAnswer(self.name)
        try:
            async for event in await self._open(request):
                for delta in answer.take(event.to_dict(warnings=False)):
                    yield delta
            turn = answer.turn()
        except Exception as error:
            raise classify(error, self.name, answer.usage) from error
        yield turn

    async def _open(self, request: ModelRequest) -> Any:
        params = parameters(request, self._model, effort=self._effort, name=self.name)
        if self._client is None:
            # In a thread: webhooks must not wait two seconds for the first message to a model.
            self._client = await asyncio.to_thread(self._connect)
        return await self._client.messages.create(stream=True, **params)

    def _connect(self) -> AsyncAnthropic:
        from anthropic import AsyncAnthropic

        return AsyncAnthropic(
            api_key=self._key,
            base_url=self._base_url or "https://api.anthropic.com",
            max_retries=0,
            timeout=httpx2.Timeout(self._wait, connect=10),
            http_client=self._http,
            open_telemetry=False,
        )


def load() -> None:
    """Import the SDK, all of it that a call needs."""
    Anthropic("none", "none")._connect()


def parameters(request: ModelRequest, model: str, *, effort: str = "", name: str = "") -> dict[str, Any]:
    """The body of a call. Its prefix depends on nothing that changes from turn to turn."""
    params: dict[str, Any] = {
        "model": model,
        "max_tokens": request.max_tokens,
        "system": [{"type": "text", "text": request.system, **MARK}],
        "messages": marked(sendable(request.messages, name or f"anthropic/{model}")),
        "diagnostics": {"previous_message_id": request.previous_message_id},
    }
    if request.tools:
        params["tools"] = [
            {
                "name": tool.name,
                "description": tool.description,
                "input_schema": tool.schema,
                **({"strict": True} if tool.strict else {}),
            }
            for tool in request.tools
        ]
        params["tools"][-1] |= MARK
        params["tool_choice"] = {"type": "auto" if request.use_tools else "none"}
    if effort:
        params["thinking"] = {"type": "adaptive"}
        params["output_config"] = {"effort": effort}
    return params


def sendable(messages: tuple[ModelMessage, ...], model: str) -> list[dict[str, Any]]:
    """Messages without our own marks, and without thinking that another model signed."""
    sent: list[dict[str, Any]] = []
    for message in messages:
        foreign = message["role"] == "assistant" and message.get("by", model) != model
        blocks = [
            {key: value for key, value in block.items() if key != "origin"}
            for block in message["content"]
            if not (foreign and block["type"] in ("thinking", "redacted_thinking"))
        ]
        if blocks:
            sent.append(_trimmed({"role": message["role"], "content": blocks}))
    return sent


def _trimmed(message: dict[str, Any]) -> dict[str, Any]:
    """Without white space after the last words of an answer, which the API refuses; always, for the prefix's sake."""
    *before, last = message["content"]
    if message["role"] != "assistant" or last["type"] != "text":
        return message
    return {**message, "content": [*before, {**last, "text": last["text"].rstrip()}]}


def marked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Two of the four cache marks: on the last message, and where the request before this one had its last.

    The second makes sure that the cache is found however many blocks a turn has added.
    """
    users = [index for index, message in enumerate(messages) if message["role"] == "user"]
    for index in users[-2:]:
        content = messages[index]["content"]
        messages[index] = {**messages[index], "content": [*content[:-1], {**content[-1], **MARK}]}
    return messages


class StreamedAnswer:
    """Collects a stream, block by block, from the raw events."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._blocks: dict[int, Block] = {}
        self._raw: dict[int, list[str]] = {}
        self._closed: set[int] = set()
        self._stop: str | None = None
        self._detail = ""
        self._message: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._ended = False

    @property
    def usage(self) -> Usage:
        counted = self._usage
        writes = counted.get("cache_creation") or {}
        hour = int(writes.get("ephemeral_1h_input_tokens") or 0)
        return Usage(
            input=int(counted.get("input_tokens") or 0),
            cache_read=int(counted.get("cache_read_input_tokens") or 0),
            cache_write=max(0, int(counted.get("cache_creation_input_tokens") or 0) - hour),
            cache_write_1h=hour,
            output=int(counted.get("output_tokens") or 0),
        )

    def take(self, event: dict[str, Any]) -> list[Delta]:
        kind = event.get("type")
        if kind == "message_start":
            self._message = event["message"]
            self._count(event["message"].get("usage"))
        elif kind == "content_block_start":
            self._blocks[event["index"]] = dict(event["content_block"])
        elif kind == "content_block_delta":
            return self._delta(event["index"], event["delta"])
        elif kind == "content_block_stop":
            self._closed.add(event["index"])
        elif kind == "message_delta":
            self._stop = event["delta"].get("stop_reason")
            self._detail = ((event["delta"].get("stop_details") or {}).get("explanation")) or ""
            self._count(event.get("usage"))
        elif kind == "message_stop":
            self._ended = True
        return []

    def _count(self, usage: dict[str, Any] | None) -> None:
        self._usage.update({key: value for key, value in (usage or {}).items() if value is not None})

    def _delta(self, index: int, delta: dict[str, Any]) -> list[Delta]:
        block = self._blocks.get(index, {})
        kind = delta.get("type")
        if kind == "text_delta" and block.get("type") == "text":
            block["text"] += delta["text"]
            return [Delta("text", delta["text"])]
        if kind == "thinking_delta" and block.get("type") == "thinking":
            block["thinking"] += delta["thinking"]
            return [Delta("thinking", delta["thinking"])]
        if kind == "signature_delta" and block.get("type") == "thinking":
            block["signature"] = block.get("signature", "") + delta["signature"]
        if kind == "input_json_delta":
            self._raw.setdefault(index, []).append(delta["partial_json"])
            return [Delta("call", delta["partial_json"])]
        return []

    def turn(self) -> Turn:
        """The complete answer. A stream that ended early is no answer."""
        if not self._ended or self._stop is None:
            text = "The stream of the answer broke off."
            raise ModelError("retryable", text, usage=self.usage, model=self._name)
        stop = STOPS.get(self._stop, "unknown")
        malformed: dict[str, str] = {}
        content = [block for index in sorted(self._blocks) for block in self._block(index, stop, malformed)]
        calls = any(block["type"] == "tool_use" for block in content)
        dropped_call = any(block.get("type") == "tool_use" for block in self._blocks.values()) and not calls
        if stop == "tool_use" and not calls:
            stop = "end"
        return Turn(
            content,
            stop,
            self.usage,
            self._name,
            message_id=self._message.get("id"),
            malformed=malformed,
            cut_call=dropped_call,
            diagnostics=self._message.get("diagnostics"),
            detail=self._detail if stop != "unknown" else code(self._stop),
        )

    def _block(self, index: int, stop: Stop, malformed: dict[str, str]) -> list[Block]:
        block = self._blocks[index]
        if block.get("type") not in KNOWN_BLOCKS or index not in self._closed:
            return []
        if block["type"] != "tool_use":
            return [{key: value for key, value in block.items() if value is not None}]
        if stop != "tool_use":
            return []
        raw = "".join(self._raw.get(index, [])) or json.dumps(block.get("input") or {})
        return [call_block(block["id"], block["name"], raw, malformed)]
