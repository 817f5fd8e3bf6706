"""Fits output to a model: cleans it, masks it, and cuts it in the middle, with counts and a way to the rest."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from gofer.sanitize import clean
from gofer.tool import Blobs, ToolResult

MAX_CHARACTERS = 24_000
MAX_LINE = 2_000
MAX_BLOB = 10_000_000
MUCH = 100_000
"""Characters from which on a thread does the work, so that others need not wait."""
OVERLAP = 50_000
"""Characters; more than the longest secret has in its longest encoding."""
_LONG_LINE = re.compile(rf"^[^\n]{{{MAX_LINE + 1},}}", re.M)


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


class Glimpse:
    """Shows watchers what a call prints, masked, and no more a second than can be masked beside other work.

    What is left out comes with the result. The masker still sees the end of it, so that a secret that begins there is
    not shown either.
    """

    def __init__(self, mask: Masker, clock: Callable[[], float] = time.monotonic) -> None:
        self._mask = mask
        self._stream = mask.stream()
        self._clock = clock
        self._since = clock()
        self._shown = 0
        self._missed = ""

    def feed(self, text: str) -> str:
        if (now := self._clock()) - self._since >= 1:
            self._since, self._shown = now, 0
        if self._shown >= MUCH:
            self._missed = (self._missed + text[-OVERLAP:])[-OVERLAP:]
            return ""
        self._shown += len(text)
        if not self._missed:
            return self._stream.feed(text)
        self._stream = self._mask.stream()
        self._stream.feed(self._missed)
        self._missed = ""
        return f"\n[…]\n{self._stream.feed(text)}"


async def fit(
    result: ToolResult, mask: Masker, blobs: Blobs | None, most: int = MAX_CHARACTERS
) -> ToolResult:
    """The result as model and journal get it. What does not fit is kept as a blob, masked as well."""
    if result.pieces:  # fitted when it was remembered, and to be given back as it was
        return replace(result, content=mask.redact(result.content))
    if len(result.content) > MUCH:
        text, short = await asyncio.to_thread(_fitted, result.content, mask, most)
    else:
        text, short = _fitted(result.content, mask, most)
    result = replace(result, details=_masked(dict(result.details), mask))
    if short == text:
        return replace(result, content=text)
    more = result.more
    if blobs is not None and not more:
        ref = await blobs.put(text.encode()[:MAX_BLOB], "text/plain")
        more = f'The whole is kept: read it in parts with read(path="output:{ref}", offset=1).'
    return replace(result, content=f"{short}\n[{more}]" if more else short, truncated=True, more=more)


def _fitted(content: str, mask: Masker, most: int) -> tuple[str, str]:
    text = mask.redact(clean(content))
    return text, shorten(text, most)


def _masked(value: Any, mask: Masker) -> Any:
    if isinstance(value, str):
        return mask.redact(value)
    if isinstance(value, dict):
        return {key: _masked(inner, mask) for key, inner in value.items()}
    return [_masked(inner, mask) for inner in value] if isinstance(value, list | tuple) else value


def shorten(text: str, most: int = MAX_CHARACTERS) -> str:
    """Head and tail, and no endless lines."""
    text = _LONG_LINE.sub(lambda line: _short_line(line[0]), text)
    if len(text) <= most:
        return text
    head, tail = _cut_back(text[: most // 2]), _cut_forward(text[-most // 2 :])
    missing = text[len(head) : len(text) - len(tail)]
    lines_missing = missing.count("\n")
    return f"{head}\n[… {len(missing)} characters, {lines_missing} lines left out …]\n{tail}"


def _short_line(line: str) -> str:
    return (
        f"{line[: MAX_LINE - 200]} [… {len(line) - MAX_LINE + 100} characters of this line …] {line[-100:]}"
    )


def _cut_back(text: str) -> str:
    end = text.rfind("\n")
    return text[:end] if end > len(text) // 2 else text


def _cut_forward(text: str) -> str:
    start = text.find("\n")
    return text[start + 1 :] if 0 <= start < len(text) // 2 else text
