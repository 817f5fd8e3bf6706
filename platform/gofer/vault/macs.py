"""Keys for MACs: derived from one root, a key for each purpose. `gofer.secrets.mac_root` keeps the root."""

from __future__ import annotations

import hmac
import struct
from typing import NoReturn

_SHA256 = "sha256"
_LENGTH = struct.Struct(">BI").pack

Part = str | int | bytes


class MacKey:
    """A key for one purpose. What is signed with it is a list of parts: no two lists look alike."""

    __slots__ = ("_material",)

    def __init__(self, material: bytes) -> None:
        self._material = material

    def mac(self, *parts: Part) -> bytes:
        """The MAC of these parts, 32 bytes."""
        return hmac.digest(self._material, _joined(parts), _SHA256)

    def fits(self, mac: bytes | None, *parts: Part) -> bool:
        """Whether `mac` is the MAC of these parts."""
        return mac is not None and hmac.compare_digest(mac, self.mac(*parts))

    def digest(self, *parts: Part) -> str:
        """The MAC as text: a keyed digest for a column, which says nothing to who has only the database."""
        return self.mac(*parts).hex()

    def __repr__(self) -> str:
        return "MacKey()"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a MacKey cannot be pickled")


class MacKeys:
    """The keys of all purposes, derived from one root."""

    __slots__ = ("_keys", "_root", "id")

    def __init__(self, root: bytes) -> None:
        self._root = root
        self._keys: dict[str, MacKey] = {}
        self.id = hmac.digest(root, b"gofer mac root id", _SHA256)[:8].hex()
        """Names the root and says nothing about it."""

    def key(self, purpose: str) -> MacKey:
        """The key of a purpose, such as `row`; the same for ever."""
        if purpose not in self._keys:
            derived = hmac.digest(self._root, b"gofer mac key\0" + purpose.encode(), _SHA256)
            self._keys[purpose] = MacKey(derived)
        return self._keys[purpose]


def _joined(parts: tuple[Part, ...]) -> bytes:
    joined = b""
    for part in parts:
        if isinstance(part, bytes):
            kind, encoded = 0, part
        elif isinstance(part, str):
            kind, encoded = 1, part.encode("utf-8", "surrogatepass")
        else:
            kind, encoded = 2, str(int(part)).encode()
        joined += _LENGTH(kind, len(encoded)) + encoded
    return joined
