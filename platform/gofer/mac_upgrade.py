"""From when on a database's rows are signed: what is there is signed once, and that it was is recorded outside of it.

The record is a file of the data directory that names each database and the key its rows are signed with. Without it,
somebody who can write to the database could take the key out, change what they like and have it signed by the next
start. Where a machine has no record yet, the database decides: with a key in it, rows are signed already and nothing
is signed again; without one, what is there is signed as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog
from sqlalchemy import Connection, exists, select

from gofer.errors import ConfigError
from gofer.secrets.mac_root import load_mac_keys
from gofer.settings import Settings
from gofer.store import audit, row_macs
from gofer.store.database import Database
from gofer.store.encryption import data_key, key_body_digests
from gofer.store.messages import open_message, seal_message
from gofer.store.tables import Trust, conversations, messages
from gofer.vault.envelope import Vault
from gofer.vault.errors import Tampered

log = structlog.get_logger()

RECORD = "rows-signed.json"
SEEN = "audit-head.json"
"""The file with the last head of the audit log that this machine has seen."""


async def begin_signing(settings: Settings, database: Database, vault: Vault) -> None:
    """Load the key, sign what is there if nobody ever has, and record it. Raises ConfigError where the database has
    another key than the one on record, or none."""
    path, place = settings.data_dir / RECORD, place_of(settings)
    kept = _read(path).get(place, {}).get("key")
    recorded = settings.rows_key or kept
    count = await database.write(start, vault=vault, recorded=recorded, record=path)
    assert vault.mac_keys is not None
    if kept is None:
        entry = {"key": vault.mac_keys.id, "since": round(time.time())}
        _replace(path, {**_read(path), place: entry})
    if count:
        log.warning("rows.signed", rows=count, record=str(path))


def start(connection: Connection, vault: Vault, *, recorded: str | None, record: Path | None = None) -> int:
    """Make the database's key the one its rows are signed with; returns how many rows were signed for the first
    time."""
    try:
        made = load_mac_keys(connection, vault)
    except Tampered:
        raise ConfigError(
            "The key that rows are signed with was changed in the database. Put its backup back: gofer restore FILE."
        ) from None
    assert vault.mac_keys is not None
    row_macs.signing_of(connection).use(vault.mac_keys, vault)
    if made:
        audit.begin_chain(connection)
        key_body_digests(connection, vault)
    if recorded is None:
        return row_macs.sign_everything(connection) + _bind_trust(connection, vault) if made else 0
    if vault.mac_keys.id == recorded or (made and not _has_rows(connection)):
        return 0
    lost = "has lost the key that its rows are signed with"
    raise ConfigError(
        f"The database {lost if made else 'has another key to sign rows with than this machine knows it to have'}: "
        "somebody changed it, or it is another database. Put its backup back: gofer restore FILE. If it is meant to be "
        f"like this, remove {record} and GOFER_ROWS_KEY; the next start then takes what is there as it is."
    )


def _bind_trust(connection: Connection, vault: Vault) -> int:
    """Seal the trust and the connection of every message into it, as the rows say; returns how many there were."""
    count = 0
    known = select(conversations.c.id, conversations.c.data_key).where(conversations.c.data_key.is_not(None))
    for conversation in connection.execute(known).all():
        key = data_key(vault, conversation.id, conversation.data_key)
        said = select(messages).where(
            messages.c.conversation_id == conversation.id, messages.c.sealed.is_not(None)
        )
        for row in connection.execute(said).all():
            with contextlib.suppress(Tampered):
                message = open_message(key, row.conversation_id, row.seq, row.sealed)
                trust, came_by = Trust(row.trust), row.connection_id
                sealed = seal_message(key, row.conversation_id, row.seq, message, trust, came_by=came_by)
                here = (messages.c.conversation_id == conversation.id) & (messages.c.seq == row.seq)
                connection.execute(messages.update().where(here), {"sealed": sealed})
                count += 1
    return count


def forget_record(settings: Settings) -> None:
    """The database is exchanged on purpose: the next start goes by what it finds in it."""
    path = settings.data_dir / RECORD
    known = _read(path)
    if known.pop(place_of(settings), None) is not None:
        _replace(path, known)


def place_of(settings: Settings) -> str:
    """What a database is called in the record: never a password, and the same after the data directory has moved."""
    path = settings.sqlite_path
    if path is not None:
        inside = path.is_relative_to(settings.data_dir)
        return f"sqlite:{path.relative_to(settings.data_dir) if inside else path}"
    url = urlsplit(settings.database_url)
    return f"postgres:{url.hostname or ''}:{url.port or ''}{url.path}"


def _has_rows(connection: Connection) -> bool:
    return any(connection.execute(select(exists(select(table)))).scalar() for table in row_macs.TABLES)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}). It says which databases are signed: put it back from a backup, or "
            "remove it if you trust what is in the database."
        ) from None
    return found if isinstance(found, dict) else {}


def _replace(path: Path, known: dict[str, Any]) -> None:
    fresh = path.with_name(path.name + ".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(known, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
