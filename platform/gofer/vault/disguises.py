"""The forms a secret takes when a program prints, encodes or quotes it."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator
from unicodedata import normalize
from urllib.parse import quote, quote_plus

SHORTEST = 8
_LINE_BREAKS = re.compile(r"[\r\n]+")
_PERCENT = re.compile(r"%[0-9A-F]{2}")
# Python, form encoders, JavaScript's encodeURIComponent and encodeURI leave different characters alone.
_UNQUOTED = ("", "/", "!'()*", "!'()*;,/?:@&=+$#")
_LEADING_SHARED = (0, 2, 3)


def disguises(secret: str) -> set[str]:
    """Each form of eight characters or more that stands for this secret, without line breaks."""
    if len(secret) < SHORTEST:
        return set()
    # A key file is kept with the line break at its end and printed without it.
    spellings = {secret, secret.strip()}
    spellings |= {normalize("NFC", text) for text in spellings}
    spellings |= {normalize("NFD", text) for text in spellings}
    forms = {form for spelling in spellings for form in _encodings(spelling)} | set(_lines(secret))
    without_breaks = {_LINE_BREAKS.sub("", form) for form in forms}
    return {form for form in without_breaks if len(form) >= SHORTEST}


def _encodings(text: str) -> Iterator[str]:
    data = text.encode("utf-8", "surrogatepass")
    yield text
    yield data.hex()
    yield data.hex().upper()
    yield from _base64_forms(data)
    yield from _url_forms(text)
    yield from _json_forms(text)
    yield html.escape(text)
    yield html.escape(text, quote=False)
    yield repr(text)[1:-1]


def _base64_forms(data: bytes) -> Iterator[str]:
    """What is certain of its base64, whatever stands before and after it: one form for each alignment."""
    for shift in range(3):
        encoded = base64.b64encode(bytes(shift) + data).decode().rstrip("=")
        shared_with_next = 1 if (shift + len(data)) % 3 else 0
        certain = encoded[_LEADING_SHARED[shift] : len(encoded) - shared_with_next]
        yield certain
        yield certain.translate({ord("+"): "-", ord("/"): "_"})


def _url_forms(text: str) -> Iterator[str]:
    for untouched in _UNQUOTED:
        for encoder in (quote, quote_plus):
            encoded = encoder(text, safe=untouched, errors="surrogatepass")
            yield encoded
            yield _PERCENT.sub(lambda match: match[0].lower(), encoded)


def _json_forms(text: str, depth: int = 2) -> Iterator[str]:
    for ascii_only in (True, False):
        escaped = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        for form in {escaped, escaped.replace("/", "\\/")}:
            yield form
            yield re.sub(r"\\u[0-9a-f]{4}", lambda match: "\\u" + match[0][2:].upper(), form)
            # JSON inside JSON: an event that holds a tool's output that holds a document.
            if depth > 1 and form != text:
                yield from _json_forms(form, depth - 1)


def _lines(secret: str) -> Iterator[str]:
    """The long lines of a key file, which tools print one by one."""
    lines = [line.strip() for line in secret.splitlines()]
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= 16 and " " not in line and "-----" not in line)
