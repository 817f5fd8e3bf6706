"""Why a call failed: what may be tried again and when, what is too long, and what never works.

Providers say the same thing in many words. What they say is matched against all of them, since a server behind one
address often passes on another's words.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import httpx2

from gofer.agent.model import ErrorKind, ModelError, Usage

MAX_WAIT = 86_400.0
MAX_WORDS = 300
RETRYABLE_STATUS = {408, 409, 425, 429}
RETRYABLE_TYPES = {"overloaded_error", "api_error", "rate_limit_error", "timeout_error", "server_error"}
_TOO_LONG = re.compile(
    "|".join(
        [
            r"prompt is too long",  # Anthropic
            r"request_too_large|request entity too large",
            r"context[_ ]length[_ ]exceeded|context_window_exceeded|exceed_context_size",  # codes of OpenAI, llama.cpp
            r"input is too long",  # Bedrock
            r"input token count.*exceeds the maximum",  # Gemini
            r"maximum prompt length is \d+",  # xAI
            r"reduce the length of the (?:messages|prompt|input)|reduce your prompt",  # Groq, older OpenAI
            r"maximum context length|max(?:imum)? model length",  # OpenAI, OpenRouter, vLLM
            r"longer than the (?:model's |maximum )?(?:context|model) (?:length|window)",  # vLLM, SGLang
            r"context length is only \d+",  # vLLM
            r"(?:prompt|input) token count.*exceeds the limit of \d+",  # Copilot
            r"exceeds the available context size",  # llama.cpp
            r"context size has been exceeded",  # llama.cpp, in the middle of an answer
            r"input length.{0,40}exceeds the maximum allowed",  # SGLang
            r"`inputs` (?:tokens \+ `max_new_tokens` must be|must have less than)",  # TGI
            r"greater than the context length",  # LM Studio
            r"(?:trying to keep|configured context size).*context|context size is [\d,]+ tokens",  # LM Studio, MLX
            r"exceed(?:s|ed)? (?:the |max(?:imum)? )?(?:model'?s? )?(?:maximum )?(?:context|input) "
            r"(?:length|window|size)",
            r"context window exceeds limit|exceeded model token limit|token limit exceeded",  # MiniMax, Kimi
            r"tokens in request more than max tokens allowed",
            r"range of input length should be",  # Qwen
            r"too many (?:input )?tokens",
        ]
    ),
    re.I | re.S,
)
_TOO_FAST = re.compile(r"throttl|rate.?limit|too many requests|per (?:minute|hour|day)|please wait", re.I)
_WINDOW = re.compile(
    r"(?:context (?:length|size|window)|(?:prompt|input|model) length)(?: is| of|:)?(?: only)?"
    r"\s*\(?([\d,]{3,9})"
    r"|([\d,]{3,9})\s*(?:tokens )?(?:maximum|max)\b"
    r"|exceeds the (?:limit of|maximum \D{0,40}\()\s*([\d,]{3,9})",
    re.I,
)
_IMAGE = re.compile(r"\b(?:images?|image_url|pdfs?|document)\b", re.I)
_NO_IMAGES = re.compile(
    r"(?:image|vision|pdf|file|multimodal)\w*\b.{0,60}\b(?:not (?:supported|enabled|available)|unsupported)"
    r"|(?:not support|no endpoints found that support)\w*\b.{0,40}\b(?:image|vision|pdf|file|multimodal)",
    re.I,
)
_NO_SUCH_PATH = re.compile(r"unexpected endpoint or method", re.I)  # LM Studio's 404, with status 200
_FLAGGED = re.compile(r"\bflagged\b|moderation|content.?polic", re.I)
_NO_MONEY = re.compile(r"insufficient_quota|insufficient (?:credits?|balance|funds)|billing", re.I)
_SECRET = re.compile(r"(?:sk-|key-|Bearer\s+)[\w.-]{6,}", re.I)


def classify(error: Exception, model: str, usage: Usage | None = None) -> Exception:
    """The error as a ModelError. Errors that are not the provider's are returned unchanged."""
    if isinstance(error, ModelError):
        error.usage, error.model = error.usage if error.usage.total else usage or Usage(), model
        return error
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        headers = getattr(getattr(error, "response", None), "headers", {})
        words = getattr(error, "api_message", None) or getattr(error, "message", "")
        body = {"error": {"type": getattr(error, "type", None), "message": words}}
        return refusal(status, body, headers, model=model, usage=usage)
    if isinstance(error, UnicodeEncodeError):  # ours, before anything was sent: it would fail each time
        return ModelError("invalid", "The request cannot be written as UTF-8.", usage=usage, model=model)
    if isinstance(error, (httpx2.InvalidURL, httpx2.UnsupportedProtocol)):
        return ModelError("invalid", f"The address is wrong: {error}", usage=usage, model=model)
    if isinstance(error, httpx2.TransportError) or _name(error) in ("APIConnectionError", "APITimeoutError"):
        return ModelError("retryable", f"The connection failed ({_name(error)}).", usage=usage, model=model)
    if isinstance(error, (KeyError, TypeError, ValueError)) or _name(error) == "APIResponseValidationError":
        return ModelError("retryable", "The answer could not be read.", usage=usage, model=model)
    if hasattr(error, "body"):  # the SDK's own base class
        return ModelError("retryable", f"The call failed ({_name(error)}).", usage=usage, model=model)
    return error


def refusal(
    status: int,
    body: object,
    headers: Mapping[str, str] | None = None,
    *,
    model: str = "",
    usage: Usage | None = None,
) -> ModelError:
    """The error that an answer with this status and body means: JSON of whatever shape, or plain text."""
    fault = _fault(body)
    kind = str(fault.get("type") or fault.get("code") or "")
    text = _words(fault)
    known = f"{fault.get('type')} {fault.get('code')} {text}"
    return ModelError(
        _kind(status, kind, known),
        f"{status}{' ' + kind if kind and kind != str(status) else ''}: {text}",
        retry_after=_retry_after(headers or {}),
        usage=usage,
        model=model,
        status=status,
        window=_window(fault, known),
    )


def body_of(raw: bytes) -> object:
    """The body of an answer: parsed JSON, or else its text."""
    text = raw.decode("utf-8", "replace").strip()
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _fault(body: object) -> dict[str, Any]:
    """What a body says of an error, whoever wrote it."""
    if isinstance(body, list) and body:  # Gemini
        body = body[0]
    if not isinstance(body, dict):
        return {"message": body if isinstance(body, str) else ""}
    inner = body.get("error", body.get("detail", body))
    if isinstance(inner, list) and inner:  # FastAPI: what is wrong with each field
        return {"message": "; ".join(_field_error(one) for one in inner[:3])}
    if not isinstance(inner, dict):  # Ollama, xAI: {"error": "..."}
        return {"message": str(inner or body.get("message") or ""), "code": body.get("code")}
    nested = (inner.get("metadata") or {}).get("raw") if isinstance(inner.get("metadata"), dict) else None
    said = inner.get("message") or inner.get("msg") or inner.get("detail") or ""
    # OpenRouter says "Provider returned error" and keeps the provider's words beside it.
    return {**inner, "message": f"{said}: {nested}" if nested else said}


def _field_error(one: object) -> str:
    if not isinstance(one, dict):
        return str(one)
    place = ".".join(str(part) for part in one.get("loc") or ())
    return f"{place}: {one.get('msg')}" if place else str(one.get("msg"))


def _kind(status: int, kind: str, text: str) -> ErrorKind:
    too_long = bool(_TOO_LONG.search(text)) and not _TOO_FAST.search(text)
    # An overload in mid-stream arrives with status 200: the type decides then.
    if status < 400:
        if too_long:
            return "context"
        if _NO_SUCH_PATH.search(text):
            return "invalid"
        return "retryable" if not kind or kind in RETRYABLE_TYPES else "invalid"
    if status == 413 or (status in (400, 422, 500) and too_long):
        return "context"
    if status in (401, 402) or (status == 429 and _NO_MONEY.search(text)):
        return "auth"
    if status == 403:
        return "invalid" if _FLAGGED.search(text) else "auth"
    if status in (404, 500) and _NO_IMAGES.search(text):
        return "image"
    if status in RETRYABLE_STATUS or status >= 500:
        return "retryable"
    if status in (400, 422) and _IMAGE.search(text):
        return "image"
    return "invalid"


def _window(fault: Mapping[str, Any], text: str) -> int | None:
    """How many tokens the model takes, where the error says so."""
    told = fault.get("n_ctx")
    if isinstance(told, int) and told > 0:
        return told
    found = _WINDOW.search(text)
    if found is None or not _TOO_LONG.search(text):
        return None
    return int(next(group for group in found.groups() if group).replace(",", "")) or None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    try:
        if "retry-after-ms" in headers:
            return _wait(float(headers["retry-after-ms"]) / 1000)
        return _wait(float(headers["retry-after"])) if "retry-after" in headers else None
    except ValueError:
        return None


def _wait(seconds: float) -> float | None:
    """The pause that the provider asks for, a day at most."""
    return min(max(0.0, seconds), MAX_WAIT) if math.isfinite(seconds) else None


def _words(fault: Mapping[str, Any]) -> str:
    """The provider's own sentence, short, on one line, without anything that looks like a key or a page."""
    text = str(fault.get("message") or "") or "no reason given"
    if "<html" in text.lower() or "<!doctype" in text.lower():
        text = "the server answered with a web page"
    return _SECRET.sub("[masked]", " ".join(text.split()))[:MAX_WORDS]


def _name(error: Exception) -> str:
    return type(error).__name__
