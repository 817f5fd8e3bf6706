"""Secrets in the database: kept, replaced, listed without values, useless anywhere but in their own row."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection, select

from gofer.errors import Malformed, NotFound
from gofer.secrets.secret_store import (
    all_secrets,
    delete_secret,
    get_secret,
    list_secrets,
    mark_secret_used,
    put_secret,
    secrets_of,
)
from gofer.store.database import Database
from gofer.store.tables import secrets
from gofer.vault.envelope import Vault
from gofer.vault.errors import Tampered
from gofer.vault.redaction import Secret

WORKSPACE = "ws_test"


def put(connection: Connection, vault: Vault, name: str, value: str, owner: str = "con_1") -> None:
    put_secret(connection, vault, workspace_id=WORKSPACE, owner=owner, name=name, value=Secret(value))


def get(connection: Connection, vault: Vault, name: str, owner: str = "con_1") -> str:
    return get_secret(connection, vault, workspace_id=WORKSPACE, owner=owner, name=name).reveal()


async def test_what_was_put_is_got(database: Database, vault: Vault) -> None:
    for value in ("s3cret-value", "ключ 🗝\n", "a\x00b", "x" * 100_000):
        await database.write(partial(put, vault=vault, name="token", value=value))
        assert await database.read(partial(get, vault=vault, name="token")) == value


async def test_nothing_in_the_data_directory_shows_a_value(
    database: Database, vault: Vault, data_dir: Path
) -> None:
    await database.write(lambda connection: put(connection, vault, "token", "s3cret-value"))
    assert not [path for path in data_dir.iterdir() if path.is_file() and b"s3cret" in path.read_bytes()]


async def test_a_second_put_replaces_the_first(database: Database, vault: Vault) -> None:
    for value in ("first-value", "second-value"):
        await database.write(partial(put, vault=vault, name="token", value=value))
    assert await database.read(lambda connection: get(connection, vault, "token")) == "second-value"
    assert len(await database.read(lambda connection: list_secrets(connection, workspace_id=WORKSPACE))) == 1


async def test_lists_hold_names_and_times_alone(database: Database, vault: Vault) -> None:
    await database.write(lambda connection: put(connection, vault, "b", "s3cret-value"))
    await database.write(lambda connection: put(connection, vault, "a", "s3cret-value", owner=""))
    await database.write(
        lambda connection: mark_secret_used(connection, workspace_id=WORKSPACE, owner="con_1", name="b")
    )
    listed = await database.read(lambda connection: list_secrets(connection, workspace_id=WORKSPACE))
    assert [(one.owner, one.name) for one in listed] == [("", "a"), ("con_1", "b")]
    assert [one.used_at is None for one in listed] == [True, False]
    assert all(one.created_at > 0 for one in listed)
    assert "s3cret" not in repr(listed)
    assert await database.read(lambda connection: list_secrets(connection, workspace_id="ws_other")) == []


async def test_owners_are_apart(database: Database, vault: Vault) -> None:
    for owner in ("", "con_1", "con_2"):
        await database.write(partial(put, vault=vault, name="t", value=f"value-{owner}", owner=owner))
    found = await database.read(
        lambda connection: secrets_of(connection, vault, workspace_id=WORKSPACE, owner="con_1")
    )
    assert {name: secret.reveal() for name, secret in found.items()} == {"t": "value-con_1"}
    everything = await database.read(lambda connection: all_secrets(connection, vault))
    assert set(everything) == {"t", "con_1/t", "con_2/t"}


async def test_deleting_is_for_good_and_says_when_there_is_nothing(database: Database, vault: Vault) -> None:
    await database.write(lambda connection: put(connection, vault, "token", "s3cret-value"))

    def delete(connection: Connection) -> None:
        delete_secret(connection, workspace_id=WORKSPACE, owner="con_1", name="token")

    await database.write(delete)
    with pytest.raises(NotFound, match="gofer secrets list"):
        await database.write(delete)
    with pytest.raises(NotFound):
        await database.read(lambda connection: get(connection, vault, "token"))


async def test_odd_names_and_blank_values_are_refused(database: Database, vault: Vault) -> None:
    for name in ("", " ", "a b", "-x", "a\x00", "x" * 101, "näme", "../up"):
        with pytest.raises(Malformed, match="letters, digits"):
            await database.write(partial(put, vault=vault, name=name, value="s3cret-value"))
    for value in ("", " \n"):
        with pytest.raises(Malformed, match="empty"):
            await database.write(partial(put, vault=vault, name="token", value=value))


@pytest.mark.parametrize("columns", [("sealed",), ("data_key",), ("sealed", "data_key")])
async def test_columns_moved_to_another_row_are_an_error(
    database: Database, vault: Vault, columns: tuple[str, ...]
) -> None:
    await database.write(lambda connection: put(connection, vault, "mine", "my own value"))
    await database.write(lambda connection: put(connection, vault, "theirs", "their value"))

    def move(connection: Connection) -> None:
        theirs = connection.execute(select(secrets).where(secrets.c.name == "theirs")).one()._mapping
        moved = {column: theirs[column] for column in columns}
        connection.execute(secrets.update().where(secrets.c.name == "mine").values(**moved))

    await database.write(move)
    with pytest.raises(Tampered):
        await database.read(lambda connection: get(connection, vault, "mine"))


@pytest.mark.parametrize("change", [{"name": "other"}, {"owner": "con_2"}, {"id": "sec_other"}])
async def test_a_row_under_another_name_is_an_error(
    database: Database, vault: Vault, change: dict[str, str]
) -> None:
    await database.write(lambda connection: put(connection, vault, "token", "s3cret-value"))
    await database.write(lambda connection: connection.execute(secrets.update().values(**change)) and None)
    name, owner = change.get("name", "token"), change.get("owner", "con_1")
    with pytest.raises(Tampered):
        await database.read(lambda connection: get(connection, vault, name, owner))
