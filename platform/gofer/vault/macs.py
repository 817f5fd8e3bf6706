"""Keys for MACs: one root per database, wrapped by the master key; each purpose has a key of its own.

The root is a row of the table of secrets, under an owner that no person can write to. So rotating the master key wraps
it anew like every other secret, in this release and in the one before, and what it has signed stays signed.
"""

from __future__ import annotations

import base64
import hmac
import os
import struct
from typing import NoReturn

from sqlalchemy import Connection, select

from gofer.secrets.key_check import sealing_key
from gofer.secrets.secret_store import PLATFORM, get_secret, write_secret
from gofer.store.tables import secrets, workspaces
from gofer.vault.envelope import Vault
from gofer.vault.secret import Secret

ROOT = "mac_root"
_ROOT_BYTES = 32
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


def load_mac_keys(connection: Connection, vault: Vault) -> bool:
    """Make `vault.mac_key` usable; the first time, make the root. True when it was made."""
    root = _stored(connection, vault)
    made = root is None
    if root is None:
        # Another process may start in the same instant; the first one's root stays.
        sealing_key(connection, vault, alone=True)
        root = _stored(connection, vault)
        made = root is None
    if root is None:
        root = os.urandom(_ROOT_BYTES)
        first = connection.execute(
            select(workspaces.c.id).order_by(workspaces.c.created_at).limit(1)
        ).scalar_one()
        value = Secret(base64.b64encode(root).decode())
        write_secret(connection, vault, workspace_id=first, owner=PLATFORM, name=ROOT, value=value)
    vault.mac_keys = MacKeys(root)
    return made


def _stored(connection: Connection, vault: Vault) -> bytes | None:
    ours = secrets.c.owner == PLATFORM, secrets.c.name == ROOT
    found = connection.execute(select(secrets.c.workspace_id).where(*ours)).scalar()
    if found is None:
        return None
    value = get_secret(connection, vault, workspace_id=found, owner=PLATFORM, name=ROOT)
    return base64.b64decode(value.reveal())


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
