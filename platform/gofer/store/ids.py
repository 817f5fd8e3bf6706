"""Names for rows: short, random, with a prefix that says what they name."""

from __future__ import annotations

import secrets

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"  # no look-alikes: people read these aloud


def new_id(prefix: str) -> str:
    """A fresh id such as `conv_k3v9…`, about 79 bits of chance."""
    return f"{prefix}_{''.join(secrets.choice(_ALPHABET) for _ in range(16))}"
