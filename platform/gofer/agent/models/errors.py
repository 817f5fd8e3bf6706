"""Why a call failed, by what the provider's SDK raised: what may be tried again, when, and what never works."""

from __future__ import annotations

import math
import re
from typing import Any

import httpx2

from gofer.agent.model import ErrorKind, ModelError, Usage

LONGEST_WAIT = 86_400.0
RETRYABLE_STATUS = {408, 409, 429}
RETRYABLE_TYPES = {"overloaded_error", "api_error", "rate_limit_error", "timeout_error"}
_TOO_LONG = re.compile(
    r"prompt is too long|context (?:window|length)|maximum context|exceeds? the (?:model's )?context|too many tokens|"
    r"request_too_large|context_length_exceeded",
    re.I,
)
_IMAGE = re.compile(r"\bimage\b", re.I)
_SECRET = re.compile(r"(?:sk-|key-|Bearer\s+)[\w.-]{6,}", re.I)


def classify(error: Exception, model: str, usage: Usage | None = None) -> Exception:
    """The error as a ModelError; what is not the provider's doing comes back as it is."""
    if isinstance(error, ModelError):
        return error
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return _by_status(error, status, model, usage)
    if isinstance(error, UnicodeEncodeError):  # ours, before anything was sent: it would fail each time
        return ModelError("invalid", "The request cannot be written as UTF-8.", usage=usage, model=model)
    if isinstance(error, httpx2.TransportError) or _name(error) in ("APIConnectionError", "APITimeoutError"):
        return ModelError("retryable", f"The connection failed ({_name(error)}).", usage=usage, model=model)
    if isinstance(error, (KeyError, TypeError, ValueError)) or _name(error) == "APIResponseValidationError":
        return ModelError("retryable", "The answer could not be read.", usage=usage, model=model)
    if hasattr(error, "body"):  # the SDK's own base class
        return ModelError("retryable", f"The call failed ({_name(error)}).", usage=usage, model=model)
    return error


def _by_status(error: Any, status: int, model: str, usage: Usage | None) -> ModelError:
    kind = getattr(error, "type", None)
    text = _words(error)
    return ModelError(
        _kind(status, kind, text),
        f"{status}{' ' + str(kind) if kind else ''}: {text}",
        retry_after=_retry_after(error),
        usage=usage,
        model=model,
    )


def _kind(status: int, kind: str | None, text: str) -> ErrorKind:
    # An overload in mid-stream arrives with status 200: the type decides then.
    if status < 400:
        return "retryable" if kind is None or kind in RETRYABLE_TYPES else "invalid"
    if status == 413 or (status in (400, 422) and _TOO_LONG.search(text)):
        return "context"
    if status in (401, 403):
        return "auth"
    if status in RETRYABLE_STATUS or status >= 500:
        return "retryable"
    if status == 400 and _IMAGE.search(text):
        return "image"
    return "invalid"


def _retry_after(error: Any) -> float | None:
    headers = getattr(getattr(error, "response", None), "headers", {})
    try:
        if "retry-after-ms" in headers:
            return _wait(float(headers["retry-after-ms"]) / 1000)
        return _wait(float(headers["retry-after"])) if "retry-after" in headers else None
    except ValueError:
        return None


def _wait(seconds: float) -> float | None:
    """A pause that makes sense: whoever asks for more than a day is asked again after one."""
    return min(max(0.0, seconds), LONGEST_WAIT) if math.isfinite(seconds) else None


def _words(error: Any) -> str:
    """The provider's own sentence, short, on one line, without anything that looks like a key or a page."""
    text = str(getattr(error, "api_message", None) or getattr(error, "message", "") or "no reason given")
    if "<html" in text.lower() or "<!doctype" in text.lower():
        text = "the server answered with a web page"
    return _SECRET.sub("[masked]", " ".join(text.split()))[:300]


def _name(error: Exception) -> str:
    return type(error).__name__
