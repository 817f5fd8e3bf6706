"""Backup and restore of the SQLite store, safe while serving: SQLite's own online copy, then checked."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from gofer.errors import ConfigError, StoreError

if TYPE_CHECKING:
    import tarfile


def copy_database(source: Path, target: Path, key_of: Callable[[str], str] | None = None) -> int:
    """Copy a database that may be in use to a new file, whole or not at all; returns its size in bytes.

    With `key_of`, which knows master keys by their fingerprint, the key that opens this very copy is put beside it
    first: another one may be in use by the time the copy is made.
    """
    for path in (target, *([key_beside(target)] if key_of else [])):
        _check_free(path)
    if not target.parent.is_dir():
        raise ConfigError(
            f"{target} cannot be written: there is no directory {target.parent}. Make it first."
        )
    try:
        descriptor, name = tempfile.mkstemp(".partial", f"{target.name}.", target.parent)
        os.close(descriptor)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}.") from error
    partial = Path(name)
    try:
        _fill(partial, source)
        with _with_key(partial, target, key_of):
            _name(partial, target)
        _sync(target.parent)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"The copy to {target} failed: {error}.") from error
    finally:
        partial.unlink(missing_ok=True)
    return target.stat().st_size


def _check_free(path: Path) -> None:
    if path.exists():
        raise ConfigError(f"{path} exists already. Give a name that is free.")


def _fill(partial: Path, source: Path) -> None:
    with closing(_reading(source)) as reader, closing(sqlite3.connect(partial)) as writer:
        reader.backup(writer)
        # A copy needs no write-ahead log beside it.
        writer.execute("PRAGMA journal_mode=DELETE")
    check_database(partial)
    _sync(partial)


def _name(partial: Path, target: Path) -> None:
    """Rename a finished copy to its target, unless the target exists by now."""
    try:
        os.link(partial, target)
    except FileExistsError:
        _check_free(target)
        raise
    except OSError:  # a file system without links, as on many a stick
        _check_free(target)
        partial.rename(target)


@contextlib.contextmanager
def _with_key(copy: Path, target: Path, key_of: Callable[[str], str] | None) -> Iterator[None]:
    """Write the key of a copy beside its target, for this user alone. If the copy fails, the key is removed as well."""
    needed = key_needed(copy)
    if key_of is None or needed is None:
        yield
        return
    beside = key_beside(target)
    _check_free(beside)
    descriptor = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(key_of(needed) + "\n")
            file.flush()
            os.fsync(file.fileno())
        yield
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


CONFIGURATION = ("agents", "prices.toml", "models.toml")
"""Files of a data directory, beside the database, that decide what Gofer does."""
SHELLS = "shells"


def copy_files(data_dir: Path, backup: Path, *, with_shells: bool) -> Path | None:
    """Put the files that belong to a backup beside it, whole or not at all; None when there are none.

    With the shells go the files of their workspaces; what is no file, such as a socket, is left out.
    """
    import tarfile

    names = [
        name for name in (*CONFIGURATION, *([SHELLS] if with_shells else [])) if (data_dir / name).exists()
    ]
    if not names:
        return None
    target = files_beside(backup)
    _check_free(target)
    partial = target.with_name(f"{target.name}.partial")
    try:
        descriptor = os.open(partial, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=3) as archive:
                for name in names:
                    archive.add(data_dir / name, name, filter=_files_only)
            file.flush()
            os.fsync(file.fileno())
        _name(partial, target)
    except (OSError, tarfile.TarError) as error:
        raise StoreError(f"The copy to {target} failed: {error}.") from error
    finally:
        partial.unlink(missing_ok=True)
    return target


def _files_only(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return member if member.isfile() or member.isdir() or member.issym() or member.islnk() else None


def files_beside(backup: Path) -> Path:
    """Where the files of a backup are: agents, prices and models, and the workspaces of shells if asked for."""
    return backup.with_name(backup.name + ".files.tgz")


def restore_files(backup: Path, data_dir: Path) -> list[str]:
    """Restore the files beside a backup; replaced ones are kept under another name. Returns what was restored."""
    import tarfile

    source = files_beside(backup)
    if not source.is_file():
        return []
    known = {*CONFIGURATION, SHELLS}
    with tempfile.TemporaryDirectory(dir=data_dir, prefix=".restoring-") as name:
        fresh = Path(name)
        try:
            with tarfile.open(source) as archive:
                # Never outside of the directory, whatever a name or a link in it says.
                archive.extractall(fresh, filter="tar")
        except (OSError, tarfile.TarError, EOFError) as error:
            raise ConfigError(f"{source} cannot be unpacked: {error}.") from error
        put = sorted(path.name for path in fresh.iterdir() if path.name in known)
        for each in put:
            if (data_dir / each).exists():
                (data_dir / each).rename(_free_name(data_dir / each))
            (fresh / each).rename(data_dir / each)
    return put


def check_database(path: Path) -> None:
    """Refuse a file that is damaged or is no database of Gofer."""
    try:
        with closing(_reading(path)) as connection:
            verdict = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            # Other programs have an alembic_version, too.
            connection.execute("SELECT version_num, (SELECT max(id) FROM master_key) FROM alembic_version")
    except sqlite3.Error as error:
        raise ConfigError(f"{path} is not a Gofer backup: {error}.") from error
    if verdict != "ok":
        raise ConfigError(f"{path} is damaged: {verdict}.")


def key_beside(backup: Path) -> Path:
    """Where the master key of a backup is, if it was asked for."""
    return backup.with_name(backup.name + ".key")


def version_of(backup: Path) -> str:
    """The version of the tables in a backup."""
    check_database(backup)
    with closing(_reading(backup)) as connection:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return str(row[0]) if row else ""


def key_needed(backup: Path) -> str | None:
    """The fingerprint of the master key that opens a backup; None when it holds nothing sealed."""
    with closing(_reading(backup)) as connection:
        row = connection.execute("SELECT id FROM master_key WHERE active").fetchone()
    return str(row[0]) if row else None


def has_secret(backup: Path, owner: str, name: str) -> bool:
    """Whether a backup holds a secret."""
    query = "SELECT 1 FROM secret WHERE owner = ? AND name = ?"
    with closing(_reading(backup)) as connection:
        return connection.execute(query, (owner, name)).fetchone() is not None


def restore_database(backup: Path, target: Path) -> Path | None:
    """Put a backup in the place of the database, which nobody may have open. Returns where the old one went.

    The copy is whole before the old file is touched, so a full disk or a kill leaves one or the other.
    """
    fresh = target.with_name(target.name + ".restoring")
    fresh.unlink(missing_ok=True)
    copy_database(backup, fresh)
    aside = None
    if target.exists():
        _fold_in(target)
        aside = _free_name(target)
        os.link(target, aside)
        # The log of one that cannot be opened any more goes with it, and must not stay beside the new one.
        for suffix in ("-wal", "-shm"):
            part = target.with_name(target.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
    fresh.replace(target)
    _sync(target.parent)
    return aside


def _fold_in(path: Path) -> None:
    """Bring the write-ahead log into the file, so that a kill leaves no file without its newest transactions."""
    with contextlib.suppress(sqlite3.Error), closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")


def _free_name(path: Path) -> Path:
    number = 1
    while (candidate := path.with_name(f"{path.name}.replaced-{number}")).exists():
        number += 1
    return candidate


def _reading(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
