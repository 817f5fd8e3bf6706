"""Envelope encryption: master keys wrap data keys and secrets, data keys seal payloads. Keys for MACs are derived from
one root, a key for each purpose.

Formats, first byte first:
    wrapped  0x01 | key id (8) | nonce (12) | AES-256-GCM ciphertext and tag
    sealed   0x02 | nonce (12) | AES-256-GCM ciphertext and tag
The header and the place the value belongs to are authenticated, so neither can be exchanged.
"""

from __future__ import annotations

import hmac
import os
import struct
import threading
from collections import OrderedDict
from typing import NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gofer.vault.errors import Tampered
from gofer.vault.keyring import KEY_ID_BYTES, KeyRing, MasterKey

_WRAPPED = b"\x01"
_SEALED = b"\x02"
_NONCE = 12
_TAG = 16
_HEADER = 1 + KEY_ID_BYTES
_CACHED_KEYS = 1024
_LENGTH = struct.Struct(">I").pack
_TYPED_LENGTH = struct.Struct(">BI").pack
_SHA256 = "sha256"
Part = str | int | bytes


def aad(*parts: str | int) -> bytes:
    """Where a value belongs (workspace, table, row, column), joined so that no two places look alike."""
    place = b""
    for part in parts:
        encoded = str(part).encode("utf-8", "surrogatepass")
        place += _LENGTH(len(encoded)) + encoded
    return place


class DataKey:
    """A key for the payloads of one owner, such as a conversation; in the clear only in memory."""

    __slots__ = ("_cipher", "_derived", "_root")

    def __init__(self, material: bytes) -> None:
        self._cipher = AESGCM(material)
        self._root = hmac.digest(material, b"gofer data key derives", _SHA256)
        self._derived: dict[str, MacKey] = {}

    def derive(self, purpose: str) -> MacKey:
        """A key for MACs that lives and is destroyed with this one, such as for an index."""
        if purpose not in self._derived:
            self._derived[purpose] = MacKey(hmac.digest(self._root, purpose.encode(), _SHA256))
        return self._derived[purpose]

    def seal(self, plaintext: bytes, aad: bytes) -> bytes:
        nonce = os.urandom(_NONCE)
        return _SEALED + nonce + self._cipher.encrypt(nonce, plaintext, _SEALED + aad)

    def open(self, sealed: bytes, aad: bytes) -> bytes:
        if sealed[:1] != _SEALED:
            raise Tampered
        return _open(self._cipher, sealed, 1, _SEALED + aad)

    def __repr__(self) -> str:
        return "DataKey()"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a DataKey cannot be pickled")


class Vault:
    """Wraps and opens with the keys of a ring. Safe to share between threads."""

    def __init__(self, ring: KeyRing, cached_keys: int = _CACHED_KEYS) -> None:
        self.ring = ring
        self.mac_keys: MacKeys | None = None
        """Loaded once the database is open: `gofer.secrets.mac_root.load_mac_keys`."""
        self._room = cached_keys
        self._lock = threading.Lock()
        self._cache: OrderedDict[tuple[bytes, bytes], DataKey] = OrderedDict()

    def wrap(self, plaintext: bytes, aad: bytes, key: MasterKey | None = None) -> bytes:
        """Encrypt a short value with the active master key, or with another one of the ring."""
        key = key or self.ring.active
        header = _WRAPPED + key.fingerprint
        nonce = os.urandom(_NONCE)
        return header + nonce + key.cipher.encrypt(nonce, plaintext, header + aad)

    def open(self, wrapped: bytes, aad: bytes) -> bytes:
        """Decrypt what `wrap` made for the same place."""
        key = self.ring.find(key_id(wrapped))
        return _open(key.cipher, wrapped, _HEADER, wrapped[:_HEADER] + aad)

    def rewrap(self, wrapped: bytes, aad: bytes, key: MasterKey | None = None) -> bytes:
        """The same value under the active key; the very same bytes if it is under that key already."""
        key = key or self.ring.active
        if key_id(wrapped) == key.fingerprint:
            return wrapped
        return self.wrap(self.open(wrapped, aad), aad, key)

    def new_data_key(self, aad: bytes, key: MasterKey | None = None) -> bytes:
        """A fresh data key, wrapped: store it, and `unwrap` it for use."""
        return self.wrap(AESGCM.generate_key(256), aad, key)

    def unwrap(self, wrapped: bytes, aad: bytes) -> DataKey:
        place = (wrapped, aad)
        with self._lock:
            found = self._cache.get(place)
            if found is not None:
                self._cache.move_to_end(place)
                return found
        material = self.open(wrapped, aad)
        if len(material) != 32:
            raise Tampered
        return self._remember(place, DataKey(material))

    def mac_key(self, purpose: str) -> MacKey:
        """The key that signs for one purpose: wrapped by the master key, and the same after each rotation."""
        if self.mac_keys is None:
            raise RuntimeError("the keys for MACs are not loaded: call load_mac_keys first")
        return self.mac_keys.key(purpose)

    def forget(self, wrapped: bytes, aad: bytes) -> None:
        """Drop a data key from memory, once its row is purged."""
        with self._lock:
            self._cache.pop((wrapped, aad), None)

    def _remember(self, place: tuple[bytes, bytes], key: DataKey) -> DataKey:
        with self._lock:
            self._cache[place] = key
            if len(self._cache) > self._room:
                self._cache.popitem(last=False)
        return key


def key_id(wrapped: bytes) -> bytes:
    """The fingerprint of the master key that a wrapped value needs."""
    if wrapped[:1] != _WRAPPED or len(wrapped) < _HEADER + _NONCE + _TAG:
        raise Tampered
    return wrapped[1:_HEADER]


def _open(cipher: AESGCM, data: bytes, start: int, aad: bytes) -> bytes:
    nonce, body = data[start : start + _NONCE], memoryview(data)[start + _NONCE :]  # which may be large
    if len(nonce) < _NONCE or len(body) < _TAG:
        raise Tampered
    try:
        return cipher.decrypt(nonce, body, aad)
    except InvalidTag:
        raise Tampered from None


class MacKey:
    """A key for one purpose. What is signed with it is a list of parts: no two lists look alike."""

    __slots__ = ("_keyed",)

    def __init__(self, material: bytes) -> None:
        self._keyed = hmac.new(material, digestmod=_SHA256)

    def mac(self, *parts: Part) -> bytes:
        """The MAC of these parts, 32 bytes."""
        return self.mac_of(joined(*parts))

    def mac_of(self, message: bytes) -> bytes:
        """The MAC of parts that are `joined` already."""
        # Not `hmac.digest`: that releases the interpreter lock however short the text is, and then waits for it.
        keyed = self._keyed.copy()
        keyed.update(message)
        return keyed.digest()

    def fits(self, mac: bytes | None, *parts: Part) -> bool:
        """Whether `mac` is the MAC of these parts."""
        return mac is not None and hmac.compare_digest(mac, self.mac(*parts))

    def digest(self, *parts: Part) -> str:
        """The MAC as text: a keyed digest for a column. Whoever has the database alone learns nothing from it."""
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


def joined(*parts: Part) -> bytes:
    """Parts as one message, for those who sign it with many keys."""
    message = b""
    for part in parts:
        if isinstance(part, bytes):
            kind, encoded = 0, part
        elif isinstance(part, str):
            kind, encoded = 1, part.encode("utf-8", "surrogatepass")
        else:
            kind, encoded = 2, str(int(part)).encode()
        message += _TYPED_LENGTH(kind, len(encoded)) + encoded
    return message
