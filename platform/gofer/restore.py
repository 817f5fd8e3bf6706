"""Restoring a backup of the SQLite store, with or without its master key, while nobody has it open."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gofer.errors import ConfigError, Conflict, Malformed
from gofer.mac_upgrade import SEEN, forget_record
from gofer.secrets.mac_root import ROOT
from gofer.secrets.secret_store import PLATFORM
from gofer.settings import Settings, prepare_data_dir
from gofer.store import migrations
from gofer.store.backup import (
    has_secret,
    key_beside,
    key_needed,
    restore_database,
    restore_files,
    version_of,
)
from gofer.store.sqlite import held
from gofer.vault.keyring import KeyRing, ring_from_file, ring_from_value
from gofer.vault.redaction import Secret


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did."""

    database: str
    previous: str | None
    """Where the database that was there is kept now."""
    key_added: bool
    """Whether the backup's key was put in front of the key file."""
    unsigned: bool
    """Whether nothing in it is signed, so that the next start takes and signs every row as it is."""
    files: tuple[str, ...] = ()
    """What else was put back: agents, prices, models, shells."""


def restore(settings: Settings, backup: Path, *, with_key: bool) -> Restored:
    """Put a backup in the place of the database; refused before anything is touched when it could not be read."""
    path = settings.sqlite_path
    if path is None:
        raise Conflict(
            'The store is Postgres. Run: pg_restore --clean --if-exists --dbname="$GOFER_DATABASE_URL" gofer.dump'
        )
    if not backup.is_file():
        raise Malformed(f"{backup} is not a file.")
    if with_key and not key_beside(backup).is_file():
        raise Malformed(
            f"{key_beside(backup)} does not exist. Put the backup's key there, or leave --with-key."
        )
    if backup.resolve() == path.resolve():
        raise Malformed(f"{backup} is the database itself.")
    prepare_data_dir(settings)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with held(path):
        _check_version(backup)
        added = _see_to_the_key(settings, backup, with_key=with_key)
        unsigned = not has_secret(backup, PLATFORM, ROOT)
        previous = restore_database(backup, path)
        forget_record(settings)
        (settings.data_dir / SEEN).unlink(missing_ok=True)
        files = restore_files(backup, settings.data_dir)
    return Restored(str(path), str(previous) if previous else None, added, unsigned, tuple(files))


def _check_version(backup: Path) -> None:
    version = version_of(backup)
    if not (migrations.known(version) or migrations.runs_on(version)):
        raise ConfigError(
            f"The backup is at version {version}, which this release does not know: a newer one made it. "
            "Install that release first."
        )


def _see_to_the_key(settings: Settings, backup: Path, *, with_key: bool) -> bool:
    """Make sure the backup's master key is among ours; True when it had to be added."""
    needed = key_needed(backup)
    if needed is None:
        return False
    ring = _ring(settings)
    if ring is not None and needed in ring.ids:
        return False
    if not with_key:
        known = f"there is only {', '.join(ring.ids)}" if ring else "there is none here"
        raise ConfigError(
            f"The backup needs the master key {needed}, and {known}. Put its file at {settings.key_path} "
            "(chmod 600), or say --with-key if it lies beside the backup."
        )
    given = _given(backup)
    if needed not in given.ids:
        raise ConfigError(f"{key_beside(backup)} holds another key than {needed}, which the backup needs.")
    if settings.master_key:
        raise ConfigError("The master key comes from GOFER_MASTER_KEY. Put the backup's key in front there.")
    # In front of those that are there: until the database is exchanged, the old one can still be read, too.
    ring_from_file(settings.key_path, ciphertext_exists=False).put_in_front(given)
    return True


def _ring(settings: Settings) -> KeyRing | None:
    if settings.master_key:
        return ring_from_value(Secret(settings.master_key))
    if not settings.key_path.exists():
        return None
    return ring_from_file(settings.key_path, ciphertext_exists=True)


def _given(backup: Path) -> KeyRing:
    beside = key_beside(backup)
    try:
        return ring_from_value(Secret(beside.read_text(encoding="ascii")))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not base64"
        raise ConfigError(f"The backup's key {beside} cannot be read: {reason}.") from None
