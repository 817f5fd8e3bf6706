"""Master keys: where they come from, what is refused, and how a file of them is rewritten.

A key file has one base64 key per line, the active one first. The file is never changed in place and keys
are only ever put in front, so at whatever instant a process dies, each key that is still needed is there.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import os
import re
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gofer.vault.errors import KeyMissing, KeyRefused
from gofer.vault.redaction import Secret

KEY_BYTES = 32
KEY_ID_BYTES = 8
FILE_NAME = "master.key"
_MAX_FILE_BYTES = 64 * 1024
_NEW_KEY = f"head -c {KEY_BYTES} /dev/urandom | base64"


class MasterKey:
    """One key of 32 bytes or more; its id is a fingerprint and says nothing about it."""

    __slots__ = ("_material", "cipher", "fingerprint", "id")

    def __init__(self, material: bytes) -> None:
        if len(material) < KEY_BYTES:
            raise KeyRefused(
                f"A master key has {len(material)} bytes, fewer than {KEY_BYTES}. Make one with: {_NEW_KEY}"
            )
        self._material = material
        self.fingerprint = hashlib.sha256(b"gofer master key id\0" + material).digest()[:KEY_ID_BYTES]
        self.id = self.fingerprint.hex()
        # Hashed whatever its length, so that longer keys count in full and there is one way.
        self.cipher = AESGCM(hashlib.sha256(b"gofer master key\0" + material).digest())

    @classmethod
    def new(cls) -> MasterKey:
        return cls(os.urandom(KEY_BYTES))

    @classmethod
    def parse(cls, text: str) -> MasterKey:
        compact = text.strip().replace("-", "+").replace("_", "/").rstrip("=")
        try:
            material = base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise KeyRefused(f"A master key is not base64. Make one with: {_NEW_KEY}") from None
        return cls(material)

    def export(self) -> Secret:
        return Secret(base64.b64encode(self._material).decode())

    def __repr__(self) -> str:
        return f"MasterKey({self.id})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a MasterKey cannot be pickled")


class KeyRing:
    """Keys in order: the first seals, all of them open. Safe to share between threads."""

    def __init__(self, keys: Sequence[MasterKey], path: Path | None = None) -> None:
        if not keys:
            raise KeyRefused(f"No master key was given. Make one with: {_NEW_KEY}")
        self.path = path
        self._lock = threading.Lock()
        self._keys = _by_fingerprint(keys)
        self._active = keys[0]

    @property
    def active(self) -> MasterKey:
        return self._active

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(key.id for key in self._keys.values())

    def find(self, fingerprint: bytes) -> MasterKey:
        """The key with this fingerprint. The file is read once more if it is missing, because another process may have
        rotated keys."""
        key = self._keys.get(fingerprint)
        if key is None and self.path is not None:
            self.reload()
            key = self._keys.get(fingerprint)
        if key is None:
            raise KeyMissing(fingerprint.hex())
        return key

    def reload(self) -> None:
        if self.path is not None:
            with self._lock:
                self._adopt(_read(self.path))

    def add_key(self) -> MasterKey:
        """Put a new active key in front, in the file first. The old ones stay readable."""
        path = self._file("add a key")
        with self._lock, _locked(path):
            keys = [MasterKey.new(), *_read(path)]
            _write(path, keys)
            self._adopt(keys)
        return keys[0]

    def put_in_front(self, other: KeyRing) -> None:
        """Take in another ring's keys, in the file first; a restored database is sealed with one of them."""
        path = self._file("add a key")
        with self._lock, _locked(path):
            keys = list(_by_fingerprint([*other._keys.values(), *_read(path)]).values())
            _write(path, keys)
            self._adopt(keys)

    def retire_behind(self, key_id: str) -> tuple[str, ...]:
        """Take the keys that come after `key_id` out of the file; call it once nothing stored needs them.

        This process still reads with them until it ends: it may hold rows it read before the rotation.
        """
        path = self._file("retire a key")
        with self._lock, _locked(path):
            keys = _read(path)
            ids = [key.id for key in keys]
            # Another process may have rotated past us and retired this very key; then nothing is left to do.
            keep = ids.index(key_id) + 1 if key_id in ids else len(keys)
            if keep < len(keys):
                _write(path, keys[:keep])
            self._adopt(keys[:keep])
        return tuple(ids[keep:])

    def _adopt(self, keys: Sequence[MasterKey]) -> None:
        self._keys = _by_fingerprint([*keys, *self._keys.values()])
        self._active = self._keys[keys[0].fingerprint]

    def _file(self, wish: str) -> Path:
        if self.path is None:
            raise KeyRefused(
                f"Gofer cannot {wish}: its master key comes from GOFER_MASTER_KEY, not from its key file. "
                "Put the new key in front there (NEW,OLD), restart, run `gofer key rotate`, drop the old one."
            )
        return self.path

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self.ids)})"


def ring_from_value(value: Secret) -> KeyRing:
    """A ring from base64 keys separated by commas or lines, the active one first."""
    return KeyRing(_parse(value.reveal()))


def ring_from_file(path: Path, *, ciphertext_exists: bool) -> KeyRing:
    """The ring of a key file, which is made on a first start and refused when it is not safe."""
    _check_parent(path)
    with _locked(path):
        try:
            return KeyRing(_read(path), path)
        except FileNotFoundError:
            pass
        if ciphertext_exists:
            raise KeyRefused(
                f"The key file {path} is missing, and the database holds secrets that only it can open. "
                f"Put it back from your backup (chmod 600), or give the key in GOFER_MASTER_KEY."
            )
        keys = [MasterKey.new()]
        _write(path, keys)
        return KeyRing(keys, path)


def open_ring(
    data_dir: Path, *, value: Secret | None = None, path: Path | None = None, ciphertext_exists: bool
) -> KeyRing:
    """The ring this instance runs with: a value from the environment, else a key file."""
    if value is not None:
        return ring_from_value(value)
    return ring_from_file(path or data_dir / FILE_NAME, ciphertext_exists=ciphertext_exists)


def _by_fingerprint(keys: Sequence[MasterKey]) -> dict[bytes, MasterKey]:
    found: dict[bytes, MasterKey] = {}
    for key in keys:
        found.setdefault(key.fingerprint, key)
    return found


def _parse(text: str) -> list[MasterKey]:
    entries = [entry.strip() for entry in re.split(r"[,\n]", text)]
    keys = [MasterKey.parse(entry) for entry in entries if entry and not entry.startswith("#")]
    if not keys:
        raise KeyRefused(f"The master key is empty. Make one with: {_NEW_KEY}")
    return keys


def _read(path: Path) -> list[MasterKey]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        if path.is_symlink():
            raise KeyRefused(
                f"The key file {path} is a symbolic link. "
                "Put the file itself there, or name it in GOFER_MASTER_KEY_FILE."
            ) from None
        raise KeyRefused(f"The key file {path} cannot be read ({error.strerror}). Check its owner.") from None
    with os.fdopen(descriptor, "rb") as file:
        # Checked on the open file, so it cannot be exchanged between the check and the read.
        _check_file(path, os.fstat(file.fileno()))
        content = file.read(_MAX_FILE_BYTES)
    try:
        return _parse(content.decode("ascii"))
    except UnicodeDecodeError:
        raise KeyRefused(f"The key file {path} is not base64. Put your key back from a backup.") from None


def _check_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KeyRefused(
            f"{path} is not a regular file. Put the key file there, or name one in GOFER_MASTER_KEY_FILE."
        )
    if status.st_uid != os.geteuid():
        raise KeyRefused(f"The key file {path} belongs to another user. Run: chown {os.geteuid()} {path}")
    if stat.S_IMODE(status.st_mode) & 0o177:
        mode = stat.S_IMODE(status.st_mode)
        raise KeyRefused(f"The key file {path} is open to others (mode {mode:04o}). Run: chmod 600 {path}")


def _check_parent(path: Path) -> None:
    parent = path.parent
    try:
        status = parent.stat()
    except OSError as error:
        raise KeyRefused(f"The folder {parent} of the key file cannot be used ({error.strerror}).") from None
    if not stat.S_ISDIR(status.st_mode):
        raise KeyRefused(f"{parent} is not a folder, so no key file can be kept there.")
    if status.st_uid not in (0, os.geteuid()):
        raise KeyRefused(f"The folder {parent} belongs to another user. Run: chown {os.geteuid()} {parent}")
    # In a sticky folder others can add files but not exchange ours.
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise KeyRefused(f"Others may write to the folder of the key file. Run: chmod go-w {parent}")


def _write(path: Path, keys: Sequence[MasterKey]) -> None:
    """Replace the file in one step; the caller holds the lock."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        os.fchmod(file.fileno(), 0o600)
        file.writelines(key.export().reveal() + "\n" for key in keys)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time reads, changes and writes the key file."""
    lock = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise KeyRefused(
            f"{lock}, beside the key file, cannot be opened ({error.strerror}). Check its owner."
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
