"""Who may know something, and the keys that follow: each scope has a key that seals, and one for its index.

A conversation's memories are sealed with the conversation's own data key, so purging it takes them along. A person's
and an agent's have a key of their own among the platform's secrets, so rotating the master key, also by the release
before, wraps it anew like every secret. The key for the index is derived from the one that seals: both are destroyed
together.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, delete, exists, select, update

from gofer.errors import Malformed, NotFound
from gofer.memory.index import drop_index
from gofer.secrets.key_check import sealing_key
from gofer.secrets.secret_store import PLATFORM, get_secret, write_secret
from gofer.store.encryption import conversation_key, data_key
from gofer.store.tables import conversations, memories, secrets, workspaces
from gofer.vault.envelope import DataKey, MacKey, Vault
from gofer.vault.errors import Tampered, VaultError
from gofer.vault.redaction import Secret

CONVERSATION, PERSON, AGENT = "conversation", "person", "agent"
KEY_NAME = "memory."
"""What the names of scopes' keys begin with, among the platform's secrets."""
_KEY_BYTES = 32
_INDEX = "memory index"


class ScopeKeyLost(VaultError):
    """The key of these memories is lost, so they cannot be read. Put the database's backup back: gofer restore FILE."""

    code = "memory.key_lost"


@dataclass(frozen=True, slots=True)
class ScopeKeys:
    """The keys of one audience."""

    scope_id: str
    seal: DataKey

    def index(self, generation: int = 0) -> MacKey:
        """The key that index terms are made with. A new generation is a new key: what it indexes is indexed anew."""
        return self.seal.derive(f"{_INDEX} {generation}")


def conversation_scope(conversation_id: str) -> str:
    """Everybody in one conversation."""
    return f"{CONVERSATION}:{conversation_id}"


def person_scope(principal_id: str) -> str:
    """One Principal, in their private conversations."""
    return f"{PERSON}:{principal_id}"


def agent_scope(agent_id: str) -> str:
    """Everybody an agent talks to."""
    return f"{AGENT}:{agent_id}"


def split_scope(scope_id: str) -> tuple[str, str]:
    """A scope's kind and whose it is; raises Malformed for what is none."""
    kind, _, owner = scope_id.partition(":")
    if kind not in (CONVERSATION, PERSON, AGENT) or not owner:
        raise Malformed(f"{scope_id[:80]!r} is no audience: say conversation:ID, person:ID or agent:ID.")
    return kind, owner


def open_scope(connection: Connection, vault: Vault, scope_id: str, *, create: bool = False) -> ScopeKeys:
    """The keys of a scope. Raises NotFound when it is purged or has none yet, ScopeKeyLost when memories are there that
    no key opens: then none is made either, which would hide the loss."""
    kind, owner = split_scope(scope_id)
    try:
        if kind == CONVERSATION:
            return ScopeKeys(scope_id, conversation_key(connection, vault, owner))
        return ScopeKeys(scope_id, DataKey(_stored(connection, vault, scope_id, create)))
    except VaultError as error:
        raise ScopeKeyLost from error


def open_scopes(
    connection: Connection, vault: Vault, scopes: Collection[str]
) -> tuple[dict[str, ScopeKeys], dict[str, str]]:
    """The keys of many scopes, and why some are lost. Those that are purged, or have none yet, are left out."""
    rooms = {each: owner for each in scopes for kind, owner in [split_scope(each)] if kind == CONVERSATION}
    query = select(conversations.c.id, conversations.c.data_key).where(conversations.c.id.in_(rooms.values()))
    wrapped = dict(connection.execute(query).all()) if rooms else {}
    keys: dict[str, ScopeKeys] = {}
    lost: dict[str, str] = {}
    for scope_id in dict.fromkeys(scopes):
        try:
            if (room := rooms.get(scope_id)) is None:
                keys[scope_id] = open_scope(connection, vault, scope_id)
            else:
                keys[scope_id] = ScopeKeys(scope_id, data_key(vault, room, wrapped.get(room)))
        except NotFound:
            continue
        except VaultError:
            lost[scope_id] = str(ScopeKeyLost())
    return keys, lost


def destroy_scope(connection: Connection, scope_id: str) -> int:
    """Make everything that is sealed for a person or an agent unreadable for good; returns how many versions held
    something. A conversation's key goes with the conversation: `gofer.purge`."""
    kind, _ = split_scope(scope_id)
    if kind != CONVERSATION:
        connection.execute(
            delete(secrets).where(secrets.c.owner == PLATFORM, secrets.c.name == _name(scope_id))
        )
    return empty_scope(connection, scope_id)


def empty_scope(connection: Connection, scope_id: str) -> int:
    """Take the words out of every memory of a scope. Ids stay: each says that it is purged."""
    here = memories.c.scope_id == scope_id
    held = here & memories.c.sealed.is_not(None)
    count = connection.execute(update(memories).where(held).values(sealed=None)).rowcount
    drop_index(connection, scope_id)
    connection.execute(update(memories).where(here).values(gist=None, call_id=""))
    return count


def _stored(connection: Connection, vault: Vault, scope_id: str, create: bool) -> bytes:
    found = _key(connection, vault, scope_id)
    if found is not None:
        return found
    held = exists(memories.select().where(memories.c.scope_id == scope_id, memories.c.sealed.is_not(None)))
    if connection.execute(select(held)).scalar():
        raise ScopeKeyLost
    if not create:
        raise NotFound(f"Nothing is remembered for {scope_id}.")
    # Another process may make it in the same instant; the first one's key stays.
    sealing_key(connection, vault, alone=True)
    found = _key(connection, vault, scope_id)
    if found is None:
        found = os.urandom(_KEY_BYTES)
        value = Secret(base64.b64encode(found).decode())
        place = {"workspace_id": _workspace(connection), "owner": PLATFORM, "name": _name(scope_id)}
        write_secret(connection, vault, **place, value=value)
    return found


def _key(connection: Connection, vault: Vault, scope_id: str) -> bytes | None:
    place = {"workspace_id": _workspace(connection), "owner": PLATFORM, "name": _name(scope_id)}
    try:
        key = base64.b64decode(get_secret(connection, vault, **place).reveal(), validate=True)
    except NotFound:
        return None
    except ValueError:
        raise Tampered from None
    if len(key) != _KEY_BYTES:
        raise Tampered
    return key


def _name(scope_id: str) -> str:
    return KEY_NAME + scope_id


def _workspace(connection: Connection) -> str:
    first = select(workspaces.c.id).order_by(workspaces.c.created_at).limit(1)
    return str(connection.execute(first).scalar_one())
