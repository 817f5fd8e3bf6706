"""Keys for MACs: one root per database, the same for every process and after each rotation."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection, select, update

from gofer.errors import Malformed, NotFound
from gofer.secrets.key_check import check_canary
from gofer.secrets.mac_root import ROOT, load_mac_keys
from gofer.secrets.rotation import rotate_master_key
from gofer.secrets.secret_store import PLATFORM, all_secrets, delete_secret, list_secrets, put_secret
from gofer.store.database import Database
from gofer.store.tables import secrets
from gofer.vault.envelope import MacKey, Vault
from gofer.vault.errors import Tampered
from gofer.vault.keyring import open_ring
from gofer.vault.redaction import Secret

WORKSPACE = "ws_test"


@pytest.fixture
async def loaded(database: Database, vault: Vault) -> Vault:
    await database.write(partial(check_canary, vault=vault))
    assert await database.write(partial(load_mac_keys, vault=vault))
    return vault


async def test_another_process_signs_alike_and_so_does_one_after_rotation(
    database: Database, loaded: Vault, data_dir: Path
) -> None:
    signed = loaded.mac_key("row").mac("member", "mem_1", "owner")
    retired = (await rotate_master_key(database, loaded)).retired
    assert retired

    after = Vault(open_ring(data_dir, ciphertext_exists=True))
    assert not await database.write(partial(load_mac_keys, vault=after))
    assert after.mac_key("row").fits(signed, "member", "mem_1", "owner")


async def test_a_key_is_bound_to_its_purpose(loaded: Vault) -> None:
    assert loaded.mac_key("row").mac("a") != loaded.mac_key("mark").mac("a")


async def test_people_neither_see_nor_change_the_root(database: Database, loaded: Vault) -> None:
    def tried(connection: Connection) -> None:
        assert list_secrets(connection, workspace_id=WORKSPACE) == []
        assert all_secrets(connection, loaded) == {}
        with pytest.raises(NotFound):
            delete_secret(connection, workspace_id=WORKSPACE, owner=PLATFORM, name=ROOT)
        with pytest.raises(Malformed):
            put_secret(
                connection,
                loaded,
                workspace_id=WORKSPACE,
                owner=PLATFORM,
                name=ROOT,
                value=Secret("of my own"),
            )

    await database.write(tried)


async def test_a_secret_put_in_its_place_is_noticed(database: Database, loaded: Vault) -> None:
    def exchange(connection: Connection) -> None:
        put_secret(connection, loaded, workspace_id=WORKSPACE, name="mine", value=Secret("QUJD"))
        mine = connection.execute(select(secrets).where(secrets.c.name == "mine")).one()
        theirs = secrets.c.owner == PLATFORM
        connection.execute(update(secrets).where(theirs).values(data_key=mine.data_key, sealed=mine.sealed))
        load_mac_keys(connection, loaded)

    with pytest.raises(Tampered):
        await database.write(exchange)


def test_no_two_lists_of_parts_look_alike() -> None:
    key = MacKey(b"k" * 32)
    lists = [(), ("",), ("a", "b"), ("ab",), ("a", "", "b"), (b"a", "b"), ("1",), (1,), (b"1",)]
    assert len({key.mac(*parts) for parts in lists}) == len(lists)
    assert not key.fits(None, "a")
    assert not key.fits(key.mac("a")[:16], "a")


def test_a_key_shows_itself_nowhere() -> None:
    key = MacKey(b"very secret material")
    assert "secret" not in repr(key)
    with pytest.raises(TypeError):
        pickle.dumps(key)
