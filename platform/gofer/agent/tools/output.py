"""Fitting output to a model: cleaned, masked, cut in the middle with counts and a way to the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from gofer.agent.untrusted import clean
from gofer.tool import Blobs, ToolResult

MAX_CHARACTERS = 24_000
MAX_LINE = 2_000
MAX_BLOB = 10_000_000


class Masking(Protocol):
    """Masks a text that arrives in pieces, also where a secret is split between two."""

    def feed(self, chunk: str) -> str: ...

    def flush(self) -> str: ...


class Masker(Protocol):
    """Hides secrets."""

    def redact(self, text: str) -> str: ...

    def stream(self) -> Masking: ...


class NoMask:
    """For a run that knows no secrets."""

    def redact(self, text: str) -> str:
        return text

    def stream(self) -> Masking:
        return self

    def feed(self, chunk: str) -> str:
        return chunk

    def flush(self) -> str:
        return ""


async def fit(result: ToolResult, mask: Masker, blobs: Blobs | None) -> ToolResult:
    """The result as model and journal get it. What does not fit is kept as a blob, masked as well."""
    text = mask.redact(clean(result.content))
    short = shorten(text)
    result = replace(result, details=_masked(dict(result.details), mask))
    if short == text:
        return replace(result, content=text)
    more = result.more
    if blobs is not None and not more:
        ref = await blobs.put(text.encode()[:MAX_BLOB], "text/plain")
        more = f'The whole is kept: read it in parts with read(path="output:{ref}", offset=1).'
    return replace(result, content=f"{short}\n[{more}]" if more else short, truncated=True, more=more)


def _masked(value: Any, mask: Masker) -> Any:
    if isinstance(value, str):
        return mask.redact(value)
    if isinstance(value, dict):
        return {key: _masked(inner, mask) for key, inner in value.items()}
    return [_masked(inner, mask) for inner in value] if isinstance(value, list | tuple) else value


def shorten(text: str) -> str:
    """Head and tail, and no endless lines."""
    lines = [_short_line(line) for line in text.split("\n")] if len(text) > MAX_LINE else [text]
    text = "\n".join(lines)
    if len(text) <= MAX_CHARACTERS:
        return text
    head, tail = _cut_back(text[: MAX_CHARACTERS // 2]), _cut_forward(text[-MAX_CHARACTERS // 2 :])
    missing = text[len(head) : len(text) - len(tail)]
    lines_missing = missing.count("\n")
    return f"{head}\n[… {len(missing)} characters, {lines_missing} lines left out …]\n{tail}"


def _short_line(line: str) -> str:
    if len(line) <= MAX_LINE:
        return line
    return (
        f"{line[: MAX_LINE - 200]} [… {len(line) - MAX_LINE + 100} characters of this line …] {line[-100:]}"
    )


def _cut_back(text: str) -> str:
    end = text.rfind("\n")
    return text[:end] if end > len(text) // 2 else text


def _cut_forward(text: str) -> str:
    start = text.find("\n")
    return text[start + 1 :] if 0 <= start < len(text) // 2 else text
