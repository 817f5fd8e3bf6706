"""The conversations a member has on the page: each is theirs alone, with the one agent they chose."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from gofer.app import Platform
from gofer.connections.changes import add_connection
from gofer.connections.context import LoadedConnection
from gofer.errors import Conflict, NotFound
from gofer.runs.agent_files import AgentFiles, AgentSpec, in_force
from gofer.runs.agent_files import choosable as agents_there
from gofer.secrets.rotation import new_conversation_key
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.db_time import now
from gofer.store.ids import new_id
from gofer.store.messages import binding_at
from gofer.store.tables import (
    CANARY,
    agents,
    bindings,
    connections,
    conversations,
    members,
    messages,
    workspaces,
)
from gofer.vault.envelope import Vault
from gofer.vault.redaction import Redactor
from gofer.web.titles import UNTITLED, WEB, titles_of

INTEGRATION = "webchat"
MAX_ROOMS = 50


@dataclass(frozen=True, slots=True)
class Room:
    """One conversation on the page."""

    id: str
    ref: str
    """What the integration calls it; begins with the member's id."""
    connection_id: str
    agent: str
    """The agent that was chosen for it; empty while the routes and defaults decide."""
    last_seq: int = 0


@dataclass(frozen=True, slots=True)
class Listed:
    """A room in the list."""

    id: str
    title: str
    at: float
    ref: str
    """What the integration calls it; begins with the member's id."""


async def web_connection(platform: Platform) -> LoadedConnection:
    """The page's own connection, made when something is said first; raises Conflict while it is switched off."""
    there = await find_web_connection(platform)
    if there is not None:
        return there
    integration = platform.registry.get(INTEGRATION)
    made = await platform.database.write(_ensure_connection, vault=platform.vault, integration=integration)
    await platform.secrets_changed()
    return await platform.accounts.get(made)


async def find_web_connection(platform: Platform) -> LoadedConnection | None:
    """The page's own connection, if there is one yet; raises Conflict while it is switched off."""
    there = await platform.database.read(_connection)
    return await switched_on(platform, there) if there is not None else None


async def switched_on(platform: Platform, connection_id: str) -> LoadedConnection:
    """A connection of the web chat; raises Conflict while it is switched off."""
    there = await platform.accounts.get(connection_id)
    if not there.enabled:
        raise Conflict(f"The web chat is switched off. Run: gofer connections enable {connection_id}")
    return there


def _connection(connection: Connection) -> str | None:
    """The oldest connection whose replies are shown here. Replies of other connections go to pages of their own, and
    those to a new release that talks to itself are gone in a moment."""
    query = select(connections.c.id, connections.c.settings).where(
        connections.c.integration == INTEGRATION, ~connections.c.id.startswith(f"{CANARY}_", autoescape=True)
    )
    rows = connection.execute(query.order_by(connections.c.created_at)).all()
    return next((str(row.id) for row in rows if not row.settings.get("reply_url")), None)


def _ensure_connection(connection: Connection, vault: Vault, integration: Any) -> str:
    # Two processes may be asked at once: the workspace's row lets one of them make it.
    connection.execute(select(workspaces.c.id).with_for_update())
    return _connection(connection) or add_connection(
        connection,
        vault,
        workspace_id=FIRST_WORKSPACE,
        integration=integration,
        name=INTEGRATION,
        settings={},
        secrets_given={},
        by="web chat",
    )


async def choosable(platform: Platform) -> list[str]:
    """The agents a person may choose from, the default one first."""
    return await asyncio.to_thread(agents_there, AgentFiles.of(platform.settings))


async def find_agent(platform: Platform, name: str) -> AgentSpec:
    """An agent that a person may choose; raises NotFound."""
    found = await asyncio.to_thread(AgentFiles.of(platform.settings).look)
    spec = next((each for each in in_force(found) if each.name == name), None)
    if spec is None:
        raise NotFound(f"There is no agent called {name[:40]!r}. The page Agents shows them.")
    return spec


def choose(connection: Connection, conversation_id: str, name: str) -> None:
    """Have one agent answer a room from now on; `/agent` changes it."""
    chosen = select(agents.c.id).where(agents.c.name == name).scalar_subquery()
    here = (conversations.c.id == conversation_id) & conversations.c.agent_id.is_(None)
    connection.execute(update(conversations).where(here).values(agent_id=chosen))


def open_room(
    connection: Connection, vault: Vault, connection_id: str, member_id: str, page: str = "", agent: str = ""
) -> str:
    """A conversation in which nothing was said yet, for one page: asked again, the same; another page has another. With
    an agent, that one answers there."""
    ref = f"{member_id}:{page or new_id('room')}"
    # A page may ask twice at once: the connection's row lets one of them make it.
    connection.execute(select(connections.c.id).where(connections.c.id == connection_id).with_for_update())
    if (found := binding_at(connection, connection_id, ref)) is not None:
        return str(found.conversation_id)
    conversation_id = new_id("conv")
    connection.execute(
        insert(conversations).values(
            id=conversation_id,
            workspace_id=FIRST_WORKSPACE,
            kind=WEB,
            title=_name(connection, member_id),
            data_key=new_conversation_key(connection, vault, conversation_id),
            last_seq=0,
            agent_id=select(agents.c.id).where(agents.c.name == agent).scalar_subquery() if agent else None,
            private=True,
            created_at=now(),
        )
    )
    connection.execute(
        insert(bindings).values(
            id=new_id("bind"), conversation_id=conversation_id, connection_id=connection_id, ref=ref
        )
    )
    return conversation_id


async def make_room(platform: Platform, member_id: str, page: str, agent: str) -> None:
    """Make a member's room for one page, with an agent, unless it is there."""
    connection = await web_connection(platform)
    await platform.database.write(
        open_room,
        vault=platform.vault,
        connection_id=connection.account.id,
        member_id=member_id,
        page=page,
        agent=agent,
    )


def room_at(connection: Connection, connection_id: str, ref: str) -> Room | None:
    """The room that the web chat calls by this name; it begins with its member's id."""
    found = binding_at(connection, connection_id, ref)
    if found is None:
        return None
    return find_room(connection, found.conversation_id, ref.partition(":")[0])


def _name(connection: Connection, member_id: str) -> str:
    """What the store calls it: its first words, which pages show, are sealed."""
    name = connection.execute(select(members.c.name).where(members.c.id == member_id)).scalar()
    return f"chat with {name}" if name else "chat"


def find_room(connection: Connection, conversation_id: str, member_id: str) -> Room:
    """A member's own room; raises NotFound for another's as for none."""
    query = (
        select(
            bindings.c.ref, bindings.c.connection_id, conversations.c.last_seq, agents.c.name.label("agent")
        )
        .join(connections, connections.c.id == bindings.c.connection_id)
        .join(conversations, conversations.c.id == bindings.c.conversation_id)
        .outerjoin(agents, agents.c.id == conversations.c.agent_id)
        .where(bindings.c.conversation_id == conversation_id, connections.c.integration == INTEGRATION)
        .where(conversations.c.purged_at.is_(None))
    )
    row = connection.execute(query).first()
    if row is None or not row.ref.startswith(f"{member_id}:"):
        raise NotFound("There is no such conversation. It may have been purged.")
    return Room(conversation_id, row.ref, row.connection_id, row.agent or "", row.last_seq)


def list_rooms(
    connection: Connection, vault: Vault, redactor: Redactor, connection_id: str, member_id: str
) -> list[Listed]:
    """A member's rooms in which something was said, the last used first."""
    used = _mine(connection_id, member_id).where(conversations.c.last_seq > 0)
    rows = connection.execute(used.add_columns(bindings.c.ref).limit(MAX_ROOMS)).all()
    titles = titles_of(connection, vault, redactor, [row.id for row in rows])
    return [Listed(row.id, titles.get(row.id, UNTITLED), row.at, row.ref) for row in rows]


@dataclass(frozen=True, slots=True)
class LastRoom:
    """The room that was used last of those whose reference begins in the same way."""

    id: str
    ref: str
    at: float
    messages: int


def last_room(connection: Connection, connection_id: str, prefix: str) -> LastRoom | None:
    """The room used last among a member's rooms of one kind."""
    begins = bindings.c.ref.startswith(prefix, autoescape=True)
    query = _mine(connection_id, prefix.partition(":")[0]).where(begins, conversations.c.last_seq > 0)
    row = connection.execute(query.add_columns(bindings.c.ref, conversations.c.last_seq).limit(1)).first()
    return None if row is None else LastRoom(row.id, row.ref, row.at, row.last_seq)


def _mine(connection_id: str, member_id: str) -> Any:
    last = (
        select(func.max(messages.c.created_at))
        .where(messages.c.conversation_id == conversations.c.id, messages.c.seq == conversations.c.last_seq)
        .scalar_subquery()
    )
    at = func.coalesce(last, conversations.c.created_at)
    return (
        select(conversations.c.id, at.label("at"))
        .join(bindings, bindings.c.conversation_id == conversations.c.id)
        .where(
            bindings.c.connection_id == connection_id,
            bindings.c.ref.startswith(f"{member_id}:", autoescape=True),
        )
        .where(conversations.c.purged_at.is_(None))
        .order_by(at.desc())
    )
