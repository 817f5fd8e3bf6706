"""Changing the master key: everything readable before, during and after, whatever dies when."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection, func, select
from sqlalchemy.util import await_only

from gofer.errors import NotFound
from gofer.secrets.key_check import check_canary, ciphertext_exists
from gofer.secrets.rotation import (
    connection_key,
    destroy_conversation_key,
    new_conversation_key,
    rotate,
    rotate_master_key,
)
from gofer.secrets.secret_store import get_secret, put_secret
from gofer.store.database import Database
from gofer.store.encryption import conversation_key, conversation_place, seal, unseal
from gofer.store.tables import connections, conversations, events, master_keys, secrets
from gofer.vault.envelope import Vault, key_id
from gofer.vault.errors import KeyMissing, KeyRefused
from gofer.vault.keyring import KeyRing, MasterKey, open_ring, ring_from_value
from gofer.vault.redaction import Secret

WORKSPACE = "ws_test"
SECRETS, CONVERSATIONS = 3, 4


def fill(connection: Connection, vault: Vault) -> None:
    for number in range(SECRETS):
        put_secret(
            connection, vault, workspace_id=WORKSPACE, name=f"s{number}", value=Secret(f"value {number}")
        )
    for number in range(CONVERSATIONS):
        add_conversation(connection, vault, f"conv_{number}")
    row = {"workspace_id": WORKSPACE, "integration": "hello", "name": "h", "settings": {}, "created_at": 0}
    connection.execute(connections.insert().values(id="hello_1", **row))
    connection_key(connection, vault, "hello_1")


def add_conversation(connection: Connection, vault: Vault, id_: str) -> None:
    wrapped = new_conversation_key(connection, vault, id_)
    connection.execute(
        conversations.insert().values(
            id=id_, workspace_id=WORKSPACE, kind="chat", title="", last_seq=0, created_at=0, data_key=wrapped
        )
    )


def words(connection: Connection, vault: Vault, id_: str) -> bytes:
    return seal(conversation_key(connection, vault, id_), {"text": "hello"}, "message", id_, 1)


def readable(connection: Connection, vault: Vault) -> bool:
    for number in range(SECRETS):
        secret = get_secret(connection, vault, workspace_id=WORKSPACE, name=f"s{number}")
        assert secret.reveal() == f"value {number}"
    for id_ in connection.execute(select(conversations.c.id)).scalars():
        conversation_key(connection, vault, id_)
    for id_ in connection.execute(select(connections.c.id)).scalars():
        connection_key(connection, vault, id_)
    return True


def keys_in_use(connection: Connection) -> set[str]:
    wrapped = [
        row[0]
        for table in (secrets, conversations, connections)
        for row in connection.execute(select(table.c.data_key))
    ]
    return {key_id(one).hex() for one in wrapped if one is not None}


def fresh(data_dir: Path) -> Vault:
    return Vault(open_ring(data_dir, ciphertext_exists=True))


async def test_rotation_wraps_everything_anew_and_retires_the_old_key(
    database: Database, vault: Vault, data_dir: Path
) -> None:
    await database.write(lambda connection: fill(connection, vault))
    sealed = await database.read(lambda connection: words(connection, vault, "conv_1"))
    old = vault.ring.active.id

    done = await rotate_master_key(database, vault)

    assert (done.secrets, done.conversations, done.connections) == (SECRETS, CONVERSATIONS, 1)
    assert done.retired == (old,)
    assert await database.read(keys_in_use) == {done.key_id} != {old}
    after = fresh(data_dir)
    assert after.ring.ids == (done.key_id,)
    assert not await database.write(lambda connection: check_canary(connection, after))
    assert await database.read(lambda connection: readable(connection, after))
    key = await database.read(lambda connection: conversation_key(connection, after, "conv_1"))
    assert unseal(key, sealed, "message", "conv_1", 1) == {"text": "hello"}


async def test_rotation_is_an_event_and_doing_it_again_changes_nothing(
    database: Database, vault: Vault
) -> None:
    await database.write(lambda connection: fill(connection, vault))
    await rotate_master_key(database, vault)
    again = await database.write(lambda connection: rotate(connection, vault))
    assert (again.secrets, again.conversations, again.connections) == (0, 0, 0)
    logged = await database.read(
        lambda connection: connection.execute(
            select(events.c.data).where(events.c.kind == "key.rotated")
        ).all()
    )
    assert [row.data["secrets"] for row in logged] == [SECRETS]


async def test_more_than_one_page_is_rewrapped(database: Database, vault: Vault) -> None:
    def many(connection: Connection) -> None:
        add_conversation(connection, vault, "conv_first")
        row = connection.execute(select(conversations)).one()._mapping
        ids = [f"conv_{number}" for number in range(500)]
        rows = [{**row, "id": id_, "data_key": vault.new_data_key(conversation_place(id_))} for id_ in ids]
        connection.execute(conversations.insert(), rows)

    await database.write(many)
    done = await rotate_master_key(database, vault)
    assert done.conversations == 501
    assert await database.read(keys_in_use) == {done.key_id}


async def test_keys_from_the_environment_rotate_in_three_steps(database: Database) -> None:
    old, new = (MasterKey.new().export().reveal() for _ in range(2))
    before = Vault(ring_from_value(Secret(old)))
    await database.write(lambda connection: fill(connection, before))

    both = Vault(ring_from_value(Secret(f"{new},{old}")))
    assert await database.write(lambda connection: check_canary(connection, both))
    await database.write(lambda connection: add_conversation(connection, both, "conv_new"))
    # Until it rotates, the new key may be taken away again: nothing depends on it.
    assert await database.read(lambda connection: readable(connection, before))
    done = await rotate_master_key(database, both)
    assert (done.secrets, done.retired) == (SECRETS, ())

    after = Vault(ring_from_value(Secret(new)))
    assert not await database.write(lambda connection: check_canary(connection, after))
    assert await database.read(lambda connection: readable(connection, after))


async def test_a_process_that_missed_a_rotation_wraps_with_the_new_key(
    database: Database, vault: Vault, data_dir: Path
) -> None:
    await database.write(lambda connection: fill(connection, vault))
    unaware = fresh(data_dir)
    done = await rotate_master_key(database, vault)
    await database.write(lambda connection: add_conversation(connection, unaware, "conv_late"))
    assert await database.read(keys_in_use) == {done.key_id}
    assert await database.read(lambda connection: readable(connection, fresh(data_dir)))


async def test_another_key_is_refused_at_start(database: Database, vault: Vault) -> None:
    await database.write(lambda connection: check_canary(connection, vault))
    wrong = Vault(KeyRing([MasterKey.new()]))
    with pytest.raises(KeyRefused, match=rf"{vault.ring.active.id}.*{wrong.ring.active.id}.*backup"):
        await database.write(lambda connection: check_canary(connection, wrong))
    with pytest.raises(KeyMissing):
        await database.write(lambda connection: fill(connection, wrong))


async def test_a_database_without_its_record_is_refused(database: Database, vault: Vault) -> None:
    await database.write(lambda connection: fill(connection, vault))
    await database.write(lambda connection: connection.execute(master_keys.delete()) and None)
    with pytest.raises(KeyRefused, match="not whole"):
        await database.write(lambda connection: check_canary(connection, vault))


async def test_the_first_start_records_the_key(database: Database, vault: Vault) -> None:
    assert not await database.read(ciphertext_exists)
    assert not await database.write(lambda connection: check_canary(connection, vault))
    assert not await database.write(lambda connection: check_canary(connection, vault))
    assert await database.read(ciphertext_exists)
    count = select(func.count()).select_from(master_keys)
    assert await database.read(lambda connection: connection.execute(count).scalar_one()) == 1


async def test_a_purged_conversation_cannot_be_read_even_with_the_master_key(
    database: Database, vault: Vault
) -> None:
    await database.write(lambda connection: fill(connection, vault))
    assert await database.write(lambda connection: destroy_conversation_key(connection, vault, "conv_1"))
    assert not await database.write(lambda connection: destroy_conversation_key(connection, vault, "conv_1"))
    with pytest.raises(NotFound, match="purged"):
        await database.read(lambda connection: words(connection, vault, "conv_1"))
    done = await rotate_master_key(database, vault)
    assert done.conversations == CONVERSATIONS - 1
    gone = await database.read(
        lambda connection: connection.execute(
            select(conversations.c.data_key, conversations.c.purged_at).where(conversations.c.id == "conv_1")
        ).one()
    )
    assert gone.data_key is None
    assert gone.purged_at > 0


async def test_rotations_and_writers_at_once_leave_everything_readable(
    database: Database, vault: Vault, data_dir: Path
) -> None:
    """Several processes, each with a ring of its own; on Postgres their transactions truly interleave."""
    await database.write(lambda connection: fill(connection, vault))

    async def write(process: int) -> None:
        own = fresh(data_dir)
        for number in range(6):
            await database.write(partial(add_conversation, vault=own, id_=f"conv_{process}_{number}"))
            value = Secret(f"value {process}")
            await database.write(
                partial(put_secret, vault=own, workspace_id=WORKSPACE, name=f"s{process}", value=value)
            )

    async def rotate_often() -> None:
        own = fresh(data_dir)
        for _ in range(4):
            await rotate_master_key(database, own)

    await asyncio.gather(write(0), write(1), rotate_often(), rotate_often())
    after = fresh(data_dir)
    assert await database.read(keys_in_use) == {after.ring.active.id}
    assert await database.read(lambda connection: readable(connection, after))


async def test_a_purge_during_a_rotation_is_not_undone(database: Database, vault: Vault) -> None:
    await database.write(lambda connection: fill(connection, vault))
    destroy = partial(destroy_conversation_key, vault=vault, conversation_id="conv_2")
    await asyncio.gather(*(rotate_master_key(database, vault) for _ in range(2)), database.write(destroy))
    left = select(conversations.c.data_key).where(conversations.c.id == "conv_2")
    assert await database.read(lambda connection: connection.execute(left).scalar_one()) is None


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
async def test_a_rotation_waits_for_whoever_is_wrapping(
    database: Database, vault: Vault, data_dir: Path
) -> None:
    await database.write(lambda connection: fill(connection, vault))
    wrapped, go_on = asyncio.Event(), asyncio.Event()

    def wrap_slowly(connection: Connection) -> None:
        add_conversation(connection, vault, "conv_slow")
        wrapped.set()
        await_only(go_on.wait())

    writer = asyncio.create_task(database.write(wrap_slowly))
    await wrapped.wait()
    rotation = asyncio.create_task(rotate_master_key(database, fresh(data_dir)))
    done, _ = await asyncio.wait({rotation}, timeout=0.3)
    go_on.set()
    await writer
    key_id_after = (await rotation).key_id
    assert not done
    assert await database.read(keys_in_use) == {key_id_after}
    assert await database.read(lambda connection: readable(connection, fresh(data_dir)))
