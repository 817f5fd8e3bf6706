"""Keeps secrets out of sight. `Secret` is a string that does not show itself. `Redactor` masks known secrets in
whatever form they appear, and tokens that are known by their shape."""

from __future__ import annotations

import hmac
import re
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, NoReturn

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

SHAPE_MASK = "[redacted]"
SHORTEST = 8
"""Characters of the shortest text that can hold a secret."""
_HEAD = 6
_SHORT_TEXT = 4000
_MANY_FORMS = 2000
_DEEPEST = 200
_SMALL = range(10_000_000)  # fewer digits than the shortest secret
_LINE_BREAK = re.compile(r"[\r\n]")


class MaskedSpan(NamedTuple):
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

    def spans(self, text: str) -> list[MaskedSpan]:
        found = [MaskedSpan(start, end, SHAPE_MASK) for start, end in shaped(text)]
        if self._forms:
            found.extend(self._known(text))
        return found

    def settled(self, text: str) -> int:
        """How much of a growing text can be shown: no secret that began before this position is unfinished."""
        from_here = max(0, len(text) - self._longest * 2 - MAX_BLOCK)
        joined = Joined(text[from_here:])
        waiting = self._first_open(joined.text)
        position = len(text) if waiting is None else from_here + joined.position(waiting)
        return max(min(position, unfinished(text)), from_here)

    def _known(self, text: str) -> Iterator[MaskedSpan]:
        joined = Joined(text)
        # One pass for a short text, or for many forms; otherwise a search for each form is several times as fast.
        one_by_one = len(text) >= _SHORT_TEXT and len(self._forms) <= _MANY_FORMS
        for form in self._forms if one_by_one else self._begun_in(joined.text):
            start = joined.text.find(form)
            while start >= 0:
                last = joined.position(start + len(form) - 1)
                yield MaskedSpan(joined.position(start), last + 1, self._labels[form])
                start = joined.text.find(form, start + 1)

    def _begun_in(self, text: str) -> list[str]:
        """The forms whose heads are in a text. The cost does not grow with the number of secrets."""
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
    """A text without its line breaks, because encoders wrap what they print. `position` leads back to the original."""

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
            if hasattr(value, "_make"):  # a named tuple
                return value._make(items)
            return tuple(items) if isinstance(value, tuple) else items
        return self._redact_object(value, depth)

    def stream(self) -> RedactingStream:
        """A stream that masks text which comes in chunks."""
        return RedactingStream(self)

    def __call__(self, logger: object, method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
        """A structlog processor; it belongs after the one that formats exceptions."""
        masked: dict[str, Any] = self.redact_value(event)
        return masked

    def _redact_object(self, value: Any, depth: int) -> object:
        """Any other object is returned as it is, unless its text holds a secret. Then a dataclass is copied with masked
        fields, because they are read by name, and anything else becomes a masked text."""
        shown = value.decode("utf-8", "replace") if isinstance(value, bytes) else repr(value)
        masked = self.redact(shown)
        if masked == shown:
            return value
        if not is_dataclass(value) or isinstance(value, type):
            return masked
        hidden = copy(value)
        for each in fields(value):
            object.__setattr__(hidden, each.name, self.redact_value(getattr(value, each.name), depth + 1))
        return masked if self.finds(repr(hidden)) else hidden


class RedactingStream:
    """Masks a text as it arrives, holding back only an end that may be the beginning of a secret."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""
        # How much at the start of what is held belongs to a secret whose mask has been given out already.
        self._shown = 0
        # How much at the start of what is held has been given out as it is.
        self._given = 0

    def feed(self, chunk: str) -> str:
        text = self._held + chunk
        return self._release(text, self._redactor.patterns.settled(text))

    def end_of_line(self) -> str:
        """The last few characters of a line that has ended, though a secret may begin with them. The next line may be
        long in coming. If a secret does begin there, the rest of it is masked."""
        if self._shown or len(self._held) > _HEAD or not self._held.endswith("\n"):
            return ""
        line_end, self._given = self._held[self._given :], len(self._held)
        return line_end

    def flush(self) -> str:
        return self._release(self._held, len(self._held))

    def _release(self, text: str, until: int) -> str:
        spans = [
            span._replace(start=max(span.start, self._given)) for span in self._redactor.patterns.spans(text)
        ]
        if self._shown:
            spans.append(MaskedSpan(0, self._shown, ""))
        released, beyond = _masked(text, merged(spans), until)
        released = released[self._given :]
        self._held, self._shown, self._given = text[until:], beyond, max(0, self._given - until)
        return released


def merged(spans: Iterable[MaskedSpan]) -> list[MaskedSpan]:
    """Overlapping spans as one, under the label of the longest; a known secret's name goes before a shape."""
    result: list[MaskedSpan] = []
    best = (0, 0)
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        rank = (_rank(span.label), span.end - span.start)
        if result and span.start < result[-1].end:
            last = result[-1]
            label = span.label if rank > best else last.label
            result[-1] = MaskedSpan(last.start, max(last.end, span.end), label)
            best = max(best, rank)
        else:
            result.append(span)
            best = rank
    return result


def _rank(label: str) -> int:
    if not label:
        return 2
    return 0 if label == SHAPE_MASK else 1


def _masked(text: str, spans: Iterable[MaskedSpan], until: int) -> tuple[str, int]:
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
    """One expression for all heads. Shared beginnings are factored out, because a regular expression tries alternatives
    one by one."""
    groups: dict[str, list[str]] = {}
    for head in heads:
        groups.setdefault(head[:1], []).append(head[1:])
    options = [re.escape(first) + _alternatives(rests) for first, rests in groups.items() if first]
    return "(?:" + "|".join(options) + ")" if len(options) > 1 else "".join(options)


# Long enough for a signed token; bounded, so that hostile text cannot make matching slow.
MAX_TOKEN = 1024
# An RSA key of 16384 bits takes about 13,000 characters.
MAX_BLOCK = 20_000
# Headers of an encrypted key are shorter; a longer stretch of anything else is somebody writing about keys.
_NOT_A_KEY = 200

_LABEL = (
    r"(?i:authorization|x-api-key|aws_secret_access_key|aws_session_token)"
    r"""["'\\]{0,4}\s{0,4}[:=]\s{0,4}["'\\]{0,4}"""
)
_SCHEME = r"(?i:bearer|basic|token|bot)\s{1,4}"
_TOKEN68 = r"[A-Za-z0-9._~+/=-]"

# A regular expression runs only where its hint, in lower case, occurs.
_SHAPES: list[tuple[str, re.Pattern[str]]] = [
    ("sk-", re.compile(r"sk-ant-[A-Za-z0-9_-]{16,1024}|sk-[A-Za-z0-9_-]{32,1024}")),
    ("gh", re.compile(r"gh[pousr]_[A-Za-z0-9_.-]{19,1023}[A-Za-z0-9]")),
    ("github_pat_", re.compile(r"github_pat_[A-Za-z0-9_]{20,1024}")),
    ("akia", re.compile(r"AKIA[A-Z0-9]{16}(?![A-Z0-9])")),
    ("asia", re.compile(r"ASIA[A-Z0-9]{16}(?![A-Z0-9])")),
]
# Read from its colon: a search that begins with digits stops at every number there is.
_BOT_TOKEN_REST = re.compile(r":[A-Za-z0-9_-]{35,64}")
_BOT_ID = range(6, 17)
_LABELLED = re.compile(rf"{_LABEL}(?:{_SCHEME}({_TOKEN68}{{8,1024}})|({_TOKEN68}{{16,1024}}))")
_LABELLED_HINTS = ("authorization", "x-api-key", "aws_se")
# What may yet become a labelled value: the label, and as much of the rest as has come.
_LABELLED_OPEN = re.compile(
    r"(?i:authorization|x-api-key|aws_secret_access_key|aws_session_token)"
    r"""["'\\]{0,4}\s{0,4}(?:[:=]\s{0,4}["'\\]{0,4}(?i:[a-z]{0,6}\s{1,4})?\S{0,1024})?\Z"""
)
_BLOCK_BEGIN = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,16} ){0,4}PRIVATE KEY(?: BLOCK)?-----")
_BLOCK_END = re.compile(r"-----END (?:[A-Z0-9]{1,16} ){0,4}PRIVATE KEY(?: BLOCK)?-----")
_BLOCK_REST = re.compile(r"(?:\s|\\[nr]|[A-Za-z0-9+/=]{16,})*+")
_BLOCK_OPEN = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,16} ){0,4}[A-Z0-9]{0,16}-{0,5}\Z")


def shaped(text: str) -> Iterator[tuple[int, int]]:
    """Where tokens and private keys stand; of a header, its value alone."""
    lower = text.lower()
    for hint, pattern in _SHAPES:
        if hint in lower:
            yield from (match.span() for match in pattern.finditer(text))
    yield from _bot_tokens(text)
    if any(hint in lower for hint in _LABELLED_HINTS):
        yield from (match.span(match.lastindex or 0) for match in _LABELLED.finditer(text))
    yield from ((start, end) for start, end, _ in _blocks(text))


def _bot_tokens(text: str) -> Iterator[tuple[int, int]]:
    for rest in _BOT_TOKEN_REST.finditer(text):
        start = colon = rest.start()
        while start > 0 and colon - start < _BOT_ID.stop and text[start - 1].isdecimal():
            start -= 1
        if colon - start in _BOT_ID:
            yield start, rest.end()


def unfinished(text: str) -> int:
    """The position from which the end of `text` may be the beginning of such a token."""
    tail = max(0, len(text) - MAX_TOKEN)
    words = text[tail:].split()
    position = len(text)
    if words and not text[-1].isspace():
        position -= len(words[-1])
    for pattern in (_LABELLED_OPEN, _BLOCK_OPEN):
        match = pattern.search(text, max(0, tail - 64))
        position = min(position, match.start()) if match else position
    return min([position, *(start for start, _, closed in _blocks(text) if not closed)])


def _blocks(text: str) -> Iterator[tuple[int, int, bool]]:
    """The private keys in a text: start, end, and whether the key is complete. A truncated key counts as far as it
    goes."""
    position = next_end = 0
    while (begin := _BLOCK_BEGIN.search(text, position)) is not None:
        limit = begin.end() + MAX_BLOCK
        if 0 <= next_end < begin.end():
            next_end = text.find("-----END ", begin.end())
        end = _BLOCK_END.match(text, next_end) if 0 <= next_end < limit else None
        if end is not None:
            position = end.end()
            yield begin.start(), position, True
        else:
            rest = _BLOCK_REST.match(text, begin.end(), limit)
            position = rest.end() if rest else begin.end()
            yield begin.start(), position, len(text) - position > _NOT_A_KEY


MASK = "[secret]"


class Secret:
    """Holds a string that only `reveal` gives out: not printing, formatting, pickling or JSON."""

    __slots__ = ("_value",)
    _value: str

    def __init__(self, value: str | Secret) -> None:
        if isinstance(value, Secret):
            value = value._value
        if not isinstance(value, str):
            raise TypeError("a Secret holds a str")
        object.__setattr__(self, "_value", value)

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    def __str__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return MASK

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(_bytes(self._value), _bytes(other._value))

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a Secret cannot be changed")

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Secret cannot be pickled")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        held = core_schema.no_info_after_validator_function(cls, core_schema.str_schema(strict=True))
        return core_schema.json_or_python_schema(
            json_schema=held,
            python_schema=core_schema.union_schema([core_schema.is_instance_schema(cls), held]),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda _: MASK, return_schema=core_schema.str_schema(), when_used="json"
            ),
        )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
