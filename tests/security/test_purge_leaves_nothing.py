"""Somebody with the database after a purge: no word is left, and no hash with which to find out by guessing."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import partial
from typing import Any

from sqlalchemy import Connection, select, update
from sqlmodel import SQLModel

from gofer.purge import purge_conversation
from gofer.store.blobs import put_blob, read_blob
from gofer.store.encryption import body_digest
from gofer.store.tables import deliveries, events
from support.web_server import House
from support.world import World

WORD = "the combination is 4711"


def everything(connection: Connection) -> str:
    """Every value of every table, as text and in hex."""
    found = []
    for table in SQLModel.metadata.sorted_tables:
        for row in connection.execute(select(table)):
            for value in row:
                found.append(value.hex() if isinstance(value, bytes) else str(value))
    return "\n".join(found)


def hashes_of(*texts: bytes) -> list[str]:
    return [
        made(text).hexdigest()[:16] for text in texts for made in (hashlib.sha256, hashlib.sha1, hashlib.md5)
    ]


def test_no_hash_of_what_was_said_is_left(house: House) -> None:
    api = house.api(house.token(house.owner(), "admin"))
    new = {"integration": "hello", "name": "purged", "settings": {"reply_url": "http://127.0.0.1:9/"}}
    made = api.post("/connections", json={**new, "secrets": {"signing_key": "k" * 40}}).json()
    body = json.dumps({"id": "p1", "room": "purged", "from": "ann", "text": WORD}).encode()
    given = {"body": base64.b64encode(body).decode()}
    keyed = {"idempotency-key": "once"}
    taken = api.post(f"/connections/{made['connection']['id']}/replay", json=given, headers=keyed).json()
    conversation = taken["conversation_id"]
    house.write(
        partial(
            put_blob,
            vault=house.platform.vault,
            conversation_id=conversation,
            data=WORD.encode(),
            media_type="text/plain",
        )
    )
    api.post(
        f"/conversations/{conversation}/messages", json={"text": WORD}, headers={"idempotency-key": "twice"}
    )
    assert api.post(f"/conversations/{conversation}/purge").status_code == 200
    left = house.read(everything)
    assert WORD not in left
    sent = json.dumps({"text": WORD}).encode()
    for mark in hashes_of(body, WORD.encode(), sent, json.dumps(given).encode()):
        assert mark not in left


async def test_hashes_of_an_older_release_go_with_the_purge(world: World) -> None:
    taken = await world.say(WORD)
    plain = hashlib.sha256(WORD.encode()).hexdigest()

    def as_before(c: Connection) -> None:
        c.execute(update(deliveries).values(body_hash=plain))
        claim = {
            "kind": "tool.finished",
            "data": {"call_sig": plain[:16], "result_sig": plain[:16], "name": "bash"},
        }
        row = c.execute(select(events).limit(1)).one()
        c.execute(
            update(events).where(events.c.id == row.id).values(**claim, conversation_id=taken.conversation_id)
        )

    await world.run(as_before)
    assert plain in await world.database.read(everything)
    await world.run(
        partial(purge_conversation, vault=world.vault, conversation_id=str(taken.conversation_id), by="test")
    )
    left = await world.database.read(everything)
    assert plain[:16] not in left
    (row,) = await world.rows(select(deliveries.c.body_hash))
    assert row.body_hash == body_digest(world.vault, WORD.encode()), "a repeat is still known for one"


async def test_a_file_is_found_again_by_what_it_is_called(world: World) -> None:
    taken = await world.say("hello")

    def kept(c: Connection) -> Any:
        here: dict[str, Any] = {"vault": world.vault, "conversation_id": str(taken.conversation_id)}
        first = put_blob(c, data=b"bytes", media_type="text/plain", **here)
        assert put_blob(c, data=b"bytes", media_type="text/plain", **here) == first
        return read_blob(c, digest=first, **here)

    assert await world.run(kept) == b"bytes"
