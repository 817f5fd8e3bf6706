"""Ids of rows: short, random, with a prefix that names the kind of row."""

from __future__ import annotations

import os

_ALPHABET = b"abcdefghjkmnpqrstuvwxyz23456789"  # no look-alikes: people read these aloud
_LENGTH = 16
_FAIR = 256 - 256 % len(_ALPHABET)
_LETTERS = bytes(_ALPHABET[number % len(_ALPHABET)] for number in range(256))
_UNFAIR = bytes(range(_FAIR, 256))
"""Bytes that would make the first letters likelier than the others; they are dropped."""


def new_id(prefix: str) -> str:
    """A fresh id such as `conv_k3v9…`, about 79 bits of chance."""
    letters = b""
    while len(letters) < _LENGTH:
        letters = os.urandom(2 * _LENGTH).translate(_LETTERS, _UNFAIR)
    return f"{prefix}_{letters[:_LENGTH].decode()}"
