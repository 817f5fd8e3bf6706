"""A secret header that is added on the way out and never shown."""

from __future__ import annotations

import base64
from typing import NoReturn

from gofer_sandbox.encodings import encodings
from gofer_sandbox.errors import InvalidInput


class Credential:
    """A header with a secret value. It prints as stars and cannot be pickled or copied into a log."""

    __slots__ = ("_value", "header", "secrets")

    def __init__(self, header: str, value: str, *secrets: str) -> None:
        """`secrets` are the parts of the value that must never come back, if it is more than one secret. Neither
        do the forms in which they are usually written down."""
        if not value or not value.isascii() or not value.isprintable():
            raise InvalidInput("a credential must be printable ASCII and not empty")
        if not header.replace("-", "").isalnum() or not header.isascii():
            raise InvalidInput(f"{header!r} is not a header's name")
        self.header = header
        self._value = value
        parts = [part for part in secrets if part] or [value]
        self.secrets = _shortest([value, *parts, *(form for part in parts for form in encodings(part))])
        """What must be masked wherever it comes back."""

    @classmethod
    def bearer(cls, token: str) -> Credential:
        """`Authorization: Bearer …`"""
        return cls("Authorization", f"Bearer {token}", token)

    @classmethod
    def basic(cls, user: str, password: str) -> Credential:
        """`Authorization: Basic …`, as git over HTTP wants it."""
        packed = base64.b64encode(f"{user}:{password}".encode()).decode()
        return cls("Authorization", f"Basic {packed}", packed, password)

    def reveal(self) -> bytes:
        """The header's value; for the request to the upstream alone."""
        return self._value.encode()

    def __repr__(self) -> str:
        return f"Credential({self.header}: ***)"

    __str__ = __repr__

    def __reduce__(self) -> NoReturn:
        raise TypeError("a credential is not written down")


def _shortest(forms: list[str]) -> tuple[bytes, ...]:
    """The forms of which none contains another: what is looked for is looked for once."""
    found: list[bytes] = []
    for form in sorted({form.encode("utf-8", "surrogatepass") for form in forms}, key=len):
        if not any(shorter in form for shorter in found):
            found.append(form)
    return tuple(found)


class Mask:
    """Replaces secrets in a stream by as many stars, also when one is split between pieces."""

    def __init__(self, secrets: tuple[bytes, ...]) -> None:
        self._secrets = sorted(secrets, key=len, reverse=True)
        self._keep = max((len(secret) for secret in secrets), default=1) - 1
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What can be passed on; up to a secret's length is held back until more is known."""
        data = self.masked(self._held + data)
        cut = max(0, len(data) - self._keep)
        self._held = data[cut:]
        return data[:cut]

    def rest(self) -> bytes:
        """What was held back."""
        rest, self._held = self._held, b""
        return rest

    def masked(self, data: bytes) -> bytes:
        """The same for what is no part of the stream."""
        for secret in self._secrets:
            data = data.replace(secret, b"*" * len(secret))
        return data
