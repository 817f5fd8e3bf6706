"""Tokens that are known by their shape, whoever they belong to."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Long enough for a signed token; bounded, so that hostile text cannot make matching slow.
LONGEST_TOKEN = 1024
# An RSA key of 16384 bits takes about 13,000 characters.
LONGEST_BLOCK = 20_000
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
    tail = max(0, len(text) - LONGEST_TOKEN)
    words = text[tail:].split()
    position = len(text)
    if words and not text[-1].isspace():
        position -= len(words[-1])
    for pattern in (_LABELLED_OPEN, _BLOCK_OPEN):
        match = pattern.search(text, max(0, tail - 64))
        position = min(position, match.start()) if match else position
    return min([position, *(start for start, _, closed in _blocks(text) if not closed)])


def _blocks(text: str) -> Iterator[tuple[int, int, bool]]:
    """Private keys: start, end, and whether all of it is there; a cut one counts as far as it goes."""
    position = next_end = 0
    while (begin := _BLOCK_BEGIN.search(text, position)) is not None:
        limit = begin.end() + LONGEST_BLOCK
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
