"""Masks known secrets, in whatever form they appear, and tokens that are known by their shape."""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

from gofer.vault.secret import MASK, Secret
from gofer.vault.shapes import LONGEST_BLOCK, shaped, unfinished

SHAPE_MASK = "[redacted]"
SHORTEST = 8
"""Characters of the shortest text that can hold a secret."""
_HEAD = 6
_SHORT_TEXT = 4000
_MANY_FORMS = 2000
_DEEPEST = 200
_SMALL = range(10_000_000)  # fewer digits than the shortest secret
_LINE_BREAK = re.compile(r"[\r\n]")


class Span(NamedTuple):
    start: int
    end: int
    label: str


class Patterns:
    """An immutable set of secrets, prepared for searching."""

    def __init__(self, secrets: Mapping[str, Secret]) -> None:
        names = {form: name for name in sorted(secrets) for form in _forms_of(secrets[name])}
        self._labels = {form: f"[secret:{name}]" for form, name in names.items()}
        self._forms = sorted(self._labels, key=len)
        self._longest = len(self._forms[-1]) if self._forms else 0
        self._by_head: dict[str, list[str]] = {}
        for form in self._forms:
            self._by_head.setdefault(form[:_HEAD], []).append(form)
        self._beginnings = {form[:length] for form in self._forms for length in range(1, _HEAD)}
        # Looks ahead without moving on, so that one head may begin within another.
        heads = f"(?=({_alternatives(sorted(self._by_head))}))"
        self._heads = re.compile(heads) if self._forms else None

    def spans(self, text: str) -> list[Span]:
        found = [Span(start, end, SHAPE_MASK) for start, end in shaped(text)]
        if self._forms:
            found.extend(self._known(text))
        return found

    def settled(self, text: str) -> int:
        """How much of a growing text can be let go: no secret that began before this is still open."""
        from_here = max(0, len(text) - self._longest * 2 - LONGEST_BLOCK)
        joined = Joined(text[from_here:])
        waiting = self._first_open(joined.text)
        position = len(text) if waiting is None else from_here + joined.position(waiting)
        return max(min(position, unfinished(text)), from_here)

    def _known(self, text: str) -> Iterator[Span]:
        joined = Joined(text)
        # One pass for a short text, or for many forms; otherwise a search for each form is several times as fast.
        one_by_one = len(text) >= _SHORT_TEXT and len(self._forms) <= _MANY_FORMS
        for form in self._forms if one_by_one else self._begun_in(joined.text):
            start = joined.text.find(form)
            while start >= 0:
                last = joined.position(start + len(form) - 1)
                yield Span(joined.position(start), last + 1, self._labels[form])
                start = joined.text.find(form, start + 1)

    def _begun_in(self, text: str) -> list[str]:
        """The forms whose heads are in a text: what it costs does not grow with the number of secrets."""
        heads = {found[1] for found in self._heads.finditer(text)} if self._heads else set()
        return [form for head in heads for form in self._by_head[head]]

    def _first_open(self, text: str) -> int | None:
        first = max(0, len(text) - self._longest + 1)
        for found in self._heads.finditer(text, first) if self._heads else ():
            rest = text[found.start() :]
            if any(form.startswith(rest) for form in self._by_head[found[1]]):
                return found.start()
        tail = range(max(first, len(text) - _HEAD + 1), len(text))
        return next((position for position in tail if text[position:] in self._beginnings), None)


class Joined:
    """A text without its line breaks, since encoders wrap what they print, and the way back."""

    def __init__(self, text: str) -> None:
        self._original = text
        self.text = text.replace("\n", "").replace("\r", "")
        self._breaks: list[int] | None = None

    def position(self, index: int) -> int:
        if len(self.text) == len(self._original):
            return index
        if self._breaks is None:
            breaks = (match.start() for match in _LINE_BREAK.finditer(self._original))
            self._breaks = [start - count for count, start in enumerate(breaks)]
        return index + bisect_right(self._breaks, index)


class Redactor:
    """Masks text and JSON-like values. The set of secrets may change while others use it."""

    def __init__(self, secrets: Mapping[str, Secret] | None = None) -> None:
        self._lock = threading.Lock()
        self._secrets: dict[str, Secret] = dict(secrets or {})
        self.patterns = Patterns(self._secrets)

    def replace(self, secrets: Mapping[str, Secret]) -> None:
        """Know these secrets and no others."""
        with self._lock:
            self._secrets = dict(secrets)
            self.patterns = Patterns(self._secrets)

    def add(self, name: str, secret: Secret) -> None:
        with self._lock:
            self._secrets = {**self._secrets, name: secret}
            self.patterns = Patterns(self._secrets)

    def discard(self, name: str) -> None:
        with self._lock:
            self._secrets = {other: secret for other, secret in self._secrets.items() if other != name}
            self.patterns = Patterns(self._secrets)

    def redact(self, text: str) -> str:
        if len(text) < SHORTEST:
            return text
        spans = self.patterns.spans(text)
        return _masked(text, merged(spans), len(text))[0] if spans else text

    def finds(self, text: str) -> bool:
        """Whether there is anything in it to mask."""
        return bool(self.patterns.spans(text))

    def redact_value(self, value: Any, depth: int = 0) -> Any:
        """The same value with each string in it masked, keys included."""
        if isinstance(value, str):
            return self.redact(value)
        if value is None or isinstance(value, bool | float) or (isinstance(value, int) and value in _SMALL):
            return value
        if isinstance(value, Secret):
            return MASK
        if depth > _DEEPEST:
            return "[nested too deep]"
        if isinstance(value, Mapping):
            return {
                self.redact_value(key, depth + 1): self.redact_value(item, depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple | set | frozenset):
            items = [self.redact_value(item, depth + 1) for item in value]
            return tuple(items) if isinstance(value, tuple) else items
        return self._redact_object(value)

    def stream(self) -> RedactingStream:
        """For text that comes in chunks."""
        return RedactingStream(self)

    def __call__(self, logger: object, method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
        """A structlog processor; it belongs after the one that formats exceptions."""
        masked: dict[str, Any] = self.redact_value(event)
        return masked

    def _redact_object(self, value: object) -> object:
        """Whatever else there is stays itself, unless what a renderer would show of it holds a secret."""
        shown = value.decode("utf-8", "replace") if isinstance(value, bytes) else repr(value)
        masked = self.redact(shown)
        return value if masked == shown else masked


class RedactingStream:
    """Masks a text as it arrives, holding back only an end that may be the beginning of a secret."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""
        # How much at the start of what is held belongs to a secret whose mask has been given out already.
        self._shown = 0

    def feed(self, chunk: str) -> str:
        text = self._held + chunk
        return self._release(text, self._redactor.patterns.settled(text))

    def flush(self) -> str:
        return self._release(self._held, len(self._held))

    def _release(self, text: str, until: int) -> str:
        spans = self._redactor.patterns.spans(text)
        if self._shown:
            spans.append(Span(0, self._shown, ""))
        released, beyond = _masked(text, merged(spans), until)
        self._held, self._shown = text[until:], beyond
        return released


def merged(spans: Iterable[Span]) -> list[Span]:
    """Overlapping spans as one, under the label of the longest; a known secret's name goes before a shape."""
    result: list[Span] = []
    best = (0, 0)
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        rank = (_rank(span.label), span.end - span.start)
        if result and span.start < result[-1].end:
            last = result[-1]
            label = span.label if rank > best else last.label
            result[-1] = Span(last.start, max(last.end, span.end), label)
            best = max(best, rank)
        else:
            result.append(span)
            best = rank
    return result


def _rank(label: str) -> int:
    if not label:
        return 2
    return 0 if label == SHAPE_MASK else 1


def _masked(text: str, spans: Iterable[Span], until: int) -> tuple[str, int]:
    """The text up to `until` with its spans masked, and how far the last of them reaches beyond."""
    pieces: list[str] = []
    position = 0
    for span in spans:
        if span.start >= until and span.label:
            break
        pieces += text[position : span.start], span.label
        position = span.end
    pieces.append(text[position:until])
    return "".join(pieces), max(0, position - until)


def _forms_of(secret: Secret) -> set[str]:
    # Loaded where there is a secret to look for: the library takes longer than most commands.
    from gofer_sandbox.encodings import encodings

    return encodings(secret.reveal())


def _alternatives(heads: list[str]) -> str:
    """One expression for all heads, shared beginnings taken together: alternatives are tried one by one."""
    groups: dict[str, list[str]] = {}
    for head in heads:
        groups.setdefault(head[:1], []).append(head[1:])
    options = [re.escape(first) + _alternatives(rests) for first, rests in groups.items() if first]
    return "(?:" + "|".join(options) + ")" if len(options) > 1 else "".join(options)
