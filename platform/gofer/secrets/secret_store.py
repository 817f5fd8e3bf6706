"""Secrets in the database: each sealed with a data key of its own, bound to its owner and name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, select

from gofer.errors import Malformed, NotFound
from gofer.secrets.key_check import sealing_key
from gofer.store.db_time import now
from gofer.store.ids import new_id
from gofer.store.tables import secrets
from gofer.vault.envelope import Vault, aad
from gofer.vault.keyring import MasterKey
from gofer.vault.redaction import Secret

PLATFORM = "gofer"
"""The owner of what the platform keeps for itself, which nobody can list, change or delete as a secret."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """What may be told about a secret."""

    owner: str
    name: str
    created_at: float
    used_at: float | None


def secret_place(workspace_id: str, secret_id: str) -> bytes:
    """What a secret's wrapped data key is bound to."""
    return aad(workspace_id, "secret", secret_id, "data_key")


def put_secret(
    connection: Connection, vault: Vault, *, workspace_id: str, owner: str = "", name: str, value: Secret
) -> None:
    """Keep a secret under an owner (a connection's id, or "" for the workspace), replacing the one there."""
    if not _NAME.fullmatch(name):
        raise Malformed(
            "A secret's name has 1 to 100 letters, digits, dots, dashes or underscores, "
            "and begins with a letter or digit."
        )
    if owner == PLATFORM:
        raise Malformed(f"{PLATFORM} is no connection, so no secret can be kept under it.")
    if not value.reveal().strip():
        raise Malformed(f"The secret {name} is empty. Give it a value, or delete it.")
    write_secret(connection, vault, workspace_id=workspace_id, owner=owner, name=name, value=value)


def write_secret(
    connection: Connection, vault: Vault, *, workspace_id: str, owner: str, name: str, value: Secret
) -> None:
    """Keep a secret whose owner and name are right, replacing the one there."""
    key = sealing_key(connection, vault, alone=True)
    here = _at(workspace_id, owner, name)
    found = connection.execute(select(secrets.c.id).where(here)).scalar_one_or_none()
    secret_id = found or new_id("sec")
    columns = {
        **_sealed(vault, key, workspace_id, owner, name, secret_id, value),
        "created_at": now(),
        "used_at": None,
    }
    if found:
        connection.execute(secrets.update().where(here).values(**columns))
    else:
        identity = {"id": secret_id, "workspace_id": workspace_id, "owner": owner, "name": name}
        connection.execute(secrets.insert().values(**identity, **columns))


def get_secret(
    connection: Connection, vault: Vault, *, workspace_id: str, owner: str = "", name: str
) -> Secret:
    """The value; raises NotFound when there is none."""
    row = connection.execute(select(secrets).where(_at(workspace_id, owner, name))).one_or_none()
    if row is None:
        raise _unknown(name)
    return _opened(vault, row)


def secrets_of(connection: Connection, vault: Vault, *, workspace_id: str, owner: str) -> dict[str, Secret]:
    """Every secret of one owner, by name."""
    where = and_(secrets.c.workspace_id == workspace_id, secrets.c.owner == owner)
    return {row.name: _opened(vault, row) for row in connection.execute(select(secrets).where(where))}


def all_secrets(connection: Connection, vault: Vault) -> dict[str, Secret]:
    """Every secret there is, under the label a redactor shows for it."""
    rows = connection.execute(select(secrets).where(secrets.c.owner != PLATFORM))
    return {f"{row.owner}/{row.name}" if row.owner else row.name: _opened(vault, row) for row in rows}


def list_secrets(connection: Connection, *, workspace_id: str) -> list[StoredSecret]:
    """Names and times; never values."""
    query = (
        select(secrets.c.owner, secrets.c.name, secrets.c.created_at, secrets.c.used_at)
        .where(secrets.c.workspace_id == workspace_id, secrets.c.owner != PLATFORM)
        .order_by(secrets.c.owner, secrets.c.name)
    )
    return [StoredSecret(*row) for row in connection.execute(query)]


def mark_secret_used(connection: Connection, *, workspace_id: str, owner: str = "", name: str) -> None:
    """Note that a secret was put to use just now."""
    connection.execute(secrets.update().where(_at(workspace_id, owner, name)).values(used_at=now()))


def delete_secret(connection: Connection, *, workspace_id: str, owner: str = "", name: str) -> None:
    """Remove a secret; raises NotFound when there is none."""
    if owner == PLATFORM:
        raise _unknown(name)
    if connection.execute(secrets.delete().where(_at(workspace_id, owner, name))).rowcount == 0:
        raise _unknown(name)


def _at(workspace_id: str, owner: str, name: str) -> ColumnElement[bool]:
    return and_(secrets.c.workspace_id == workspace_id, secrets.c.owner == owner, secrets.c.name == name)


def _unknown(name: str) -> NotFound:
    return NotFound(f"There is no secret {name}. `gofer secrets list` shows those there are.")


def _value_place(workspace_id: str, owner: str, name: str, secret_id: str) -> bytes:
    # Owner and name too, so that renaming a row does not hand its value to somebody else.
    return aad(workspace_id, "secret", secret_id, owner, name, "sealed")


def _sealed(
    vault: Vault, key: MasterKey, workspace_id: str, owner: str, name: str, secret_id: str, value: Secret
) -> dict[str, bytes]:
    place = secret_place(workspace_id, secret_id)
    wrapped = vault.new_data_key(place, key)
    plaintext = value.reveal().encode("utf-8", "surrogatepass")
    sealed = vault.unwrap(wrapped, place).seal(plaintext, _value_place(workspace_id, owner, name, secret_id))
    return {"data_key": wrapped, "sealed": sealed}


def _opened(vault: Vault, row: Row[*tuple[Any, ...]]) -> Secret:
    key = vault.unwrap(row.data_key, secret_place(row.workspace_id, row.id))
    plaintext = key.open(row.sealed, _value_place(row.workspace_id, row.owner, row.name, row.id))
    return Secret(plaintext.decode("utf-8", "surrogatepass"))
