"""The forms a secret takes when a program prints, encodes or quotes it.

No list is complete: whoever runs a program can spell a secret in a way of their own. It is the last line behind
rules that keep secrets out of reach.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable, Iterator, Sequence
from unicodedata import normalize
from urllib.parse import quote, quote_plus

SHORTEST = 8
"""A shorter piece may be part of anything, and what is masked by mistake is spoilt."""
MAX_SPELLED_OUT = 4096
"""Bytes up to which a secret is also looked for in the rarer forms, some of which are six times as long as it."""
_LINE_BREAKS = re.compile(r"[\r\n]+")
_PERCENT = re.compile(r"%[0-9A-F]{2}")
# Python, form encoders, JavaScript's encodeURIComponent and encodeURI leave different characters alone.
_UNQUOTED = ("", "/", "!'()*", "!'()*;,/?:@&=+$#")
_BASE64_LEADING = (0, 2, 3)
_BASE32_LEADING = (0, 2, 4, 5, 7)
# `xxd -p -c1`, `openssl`, `od -tx1`, JavaScript, C and Python write bytes with these in front or in between.
_HEX_SEPARATORS = (":", " ", "-", ".", ",", ", ", ", 0x", ",0x", " 0x", "\\x")


def encodings(secret: str) -> set[str]:
    """Each form of eight characters or more that stands for this secret, without line breaks."""
    if len(secret) < SHORTEST:
        return set()
    # A key file is kept with the line break at its end and printed without it.
    spellings = {secret, secret.strip()}
    spellings |= {normalize("NFC", text) for text in spellings}
    spellings |= {normalize("NFD", text) for text in spellings}
    forms = {form for spelling in spellings for form in _common(spelling)} | set(_lines(secret))
    if len(stripped := secret.strip()) >= SHORTEST and len(secret) <= MAX_SPELLED_OUT:
        forms |= set(_rare(stripped))
    without_breaks = {_LINE_BREAKS.sub("", form) for form in forms}
    return {form for form in without_breaks if len(form) >= SHORTEST}


def _common(text: str) -> Iterator[str]:
    """What programs write by themselves."""
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


def _rare(text: str) -> Iterator[str]:
    """What somebody writes who wants it to get by."""
    data = text.encode("utf-8", "surrogatepass")
    units = text.encode("utf-16-be", "surrogatepass").hex()
    yield text[::-1]
    for piece in _certain(data, base64.b32encode, 5, _BASE32_LEADING):
        yield piece
        yield piece.lower()
    for once in _base64_forms(data):
        yield from _base64_forms(once.encode())
    for each in ("02x", "02X"):
        pairs = [format(byte, each) for byte in data]
        yield from (separator.join(pairs) for separator in _HEX_SEPARATORS)
        yield "%" + "%".join(pairs)
        yield " ".join("".join(pairs[at : at + 2]) for at in range(0, len(pairs), 2))
    yield "".join(f"\\{byte:03o}" for byte in data)
    for form in (units, units.upper()):
        yield "".join(f"\\u{form[at : at + 4]}" for at in range(0, len(form), 4))
    for number in ("&#{};", "&#x{:x};", "&#x{:X};"):
        yield "".join(number.format(ord(character)) for character in text)


def _base64_forms(data: bytes) -> Iterator[str]:
    for form in _certain(data, base64.b64encode, 3, _BASE64_LEADING):
        yield form
        if (other := form.translate({ord("+"): "-", ord("/"): "_"})) != form:
            yield other


def _certain(
    data: bytes, encode: Callable[[bytes], bytes], group: int, leading: Sequence[int]
) -> Iterator[str]:
    """What is certain of its encoding, whatever stands before and after it: one form for each alignment in a group of
    bytes."""
    for shift in range(group):
        encoded = encode(bytes(shift) + data).decode().rstrip("=")
        shared_with_next = 1 if (shift + len(data)) % group else 0
        yield encoded[leading[shift] : len(encoded) - shared_with_next]


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
