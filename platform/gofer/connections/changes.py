"""Adds, changes and removes connections: the verbs behind the command line and the dashboard."""

from __future__ import annotations

import secrets as chance
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection, delete, select

from gofer.connections.context import LoadedConnections
from gofer.connections.inflow import fetch_now
from gofer.errors import ConfigError, Conflict, NotFound
from gofer.identity import new_code
from gofer.integration import Health, Integration, Role
from gofer.secrets.secret_store import put_secret
from gofer.store import events as log
from gofer.store import row_macs
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.ids import new_id
from gofer.store.tables import bindings, connections, deliveries, pairings, routes, secrets, strangers
from gofer.validation import first_error
from gofer.vault.envelope import Vault
from gofer.vault.redaction import Secret


def checked_settings(integration: Integration, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as the integration understands them; raises ConfigError naming the one that is wrong."""
    try:
        return integration.settings.model_validate(dict(given)).model_dump(mode="json")
    except ValidationError as error:
        raise ConfigError(f"{integration.name}: {first_error(error)}.") from None


def checked_secrets(integration: Integration, given: Mapping[str, Secret]) -> dict[str, Secret]:
    """The secrets of a new connection, given and generated; raises ConfigError for a missing one."""
    known = {field.name: field for field in integration.secrets}
    for name in given:
        if name not in known:
            raise ConfigError(
                f"{integration.name} has no secret {name!r}. It has: {', '.join(known) or 'none'}."
            )
    values = dict(given)
    for name, field in known.items():
        if name not in values and not field.optional:
            if not field.generated:
                raise ConfigError(f"{integration.name} needs the secret {name}: {field.help}")
            values[name] = Secret(chance.token_urlsafe(32))
    return values


def add_connection(
    connection: Connection,
    vault: Vault,
    *,
    workspace_id: str,
    integration: Integration,
    name: str,
    settings: Mapping[str, Any],
    secrets_given: Mapping[str, Secret],
    by: str,
    connection_id: str = "",
) -> str:
    """Make a connection with everything it needs, in one transaction. Returns its id."""
    checked = checked_settings(integration, settings)
    values = checked_secrets(integration, secrets_given)
    connection_id = connection_id or new_id(integration.name.replace("_", ""))
    row = {
        "id": connection_id,
        "workspace_id": workspace_id,
        "integration": integration.name,
        "name": name or integration.name,
        "enabled": True,
        "settings": checked,
        "created_at": now(),
    }
    row_macs.insert(connection, connections, row)
    for secret_name, value in values.items():
        put_secret(
            connection, vault, workspace_id=workspace_id, owner=connection_id, name=secret_name, value=value
        )
    _changed(connection, workspace_id, connection_id, "added", by)
    return connection_id


def change_settings(
    connection: Connection,
    *,
    connection_id: str,
    integration: Integration,
    settings: Mapping[str, Any],
    by: str,
) -> None:
    """Change some of a connection's settings; raises ConfigError."""
    row = find_connection(connection, connection_id)
    connection_id = row.id
    checked = checked_settings(integration, {**row.settings, **settings})
    row_macs.update(connection, connections, connections.c.id == connection_id, {"settings": checked})
    _changed(connection, row.workspace_id, connection_id, "changed", by)


def switch_connection(connection: Connection, *, connection_id: str, enabled: bool, by: str) -> None:
    """Switch a connection on or off, without asking its integration, which may be what is broken."""
    row = find_connection(connection, connection_id)
    connection_id = row.id
    row_macs.update(connection, connections, connections.c.id == connection_id, {"enabled": enabled})
    fetch_now(connection, connection_id)  # a job that waits for its next try sees at once that it is off
    _changed(connection, row.workspace_id, connection_id, "changed", by)


def choose_connection_agent(
    connection: Connection, *, connection_id: str, agent: str, there: Collection[str], by: str
) -> None:
    """Choose the agent that answers what no route fits; empty for the instance's default. Raises ConfigError."""
    if agent and agent not in there:
        raise ConfigError(f"There is no agent {agent[:40]!r}. There are: {', '.join(there)}.")
    row = find_connection(connection, connection_id)
    row_macs.update(connection, connections, connections.c.id == connection_id, {"agent": agent or None})
    _changed(connection, row.workspace_id, connection_id, "changed", by)


async def set_up_connection(database: Database, accounts: LoadedConnections, connection_id: str) -> Health:
    """Have the integration prepare its service, and keep what it learned."""
    connected = await accounts.get(connection_id)
    health = await connected.integration.set_up(connected.account)
    new = {
        name: value for name, value in health.learned.items() if connected.account.settings.get(name) != value
    }
    if new:
        await database.write(
            change_settings,
            connection_id=connection_id,
            integration=connected.integration,
            settings=new,
            by="set-up",
        )
        accounts.forget()
    return health


async def invite(
    database: Database, accounts: LoadedConnections, connection_id: str, role: Role = "owner"
) -> str:
    """A fresh pairing code in words for whoever is to use it; empty where people are not paired."""
    connected = await accounts.get(connection_id)
    if not connected.integration.invitation("", connected.account):
        return ""
    code = await database.write(
        new_code, workspace_id=connected.workspace_id, connection_id=connection_id, role=role
    )
    words = connected.integration.invitation(code, connected.account)
    return f"{words.strip()} The code is valid for an hour, once, and makes you its {role}."


def remove_connection(connection: Connection, *, connection_id: str, by: str) -> None:
    """Remove a connection that nothing refers to any more; one with a history is switched off instead."""
    row = find_connection(connection, connection_id)
    connection_id = row.id
    used = connection.execute(
        select(bindings.c.id).where(bindings.c.connection_id == connection_id).limit(1)
    ).first()
    if used is not None:
        raise Conflict(
            f"{connection_id} has conversations. Switch it off (gofer connections disable {connection_id}), "
            "or purge them first."
        )
    connection.execute(delete(deliveries).where(deliveries.c.connection_id == connection_id))
    connection.execute(delete(routes).where(routes.c.connection_id == connection_id))
    connection.execute(delete(pairings).where(pairings.c.connection_id == connection_id))
    connection.execute(delete(strangers).where(strangers.c.connection_id == connection_id))
    connection.execute(delete(secrets).where(secrets.c.owner == connection_id))
    connection.execute(delete(connections).where(connections.c.id == connection_id))
    _changed(connection, row.workspace_id, connection_id, "removed", by)


def find_connection(connection: Connection, connection_id: str) -> Any:
    """The row of a connection, by its id or by a name that only one has; raises NotFound or Conflict."""
    named = (connections.c.id == connection_id) | (connections.c.name == connection_id)
    rows = connection.execute(select(connections).where(named)).all()
    found = [row for row in rows if row.id == connection_id] or rows
    if not found:
        raise NotFound(
            f"There is no connection {connection_id!r}. `gofer connections list` shows those there are."
        )
    if len(found) > 1:
        ids = ", ".join(row.id for row in found)
        raise Conflict(f"Several connections are called {connection_id!r}. Say which by its id: {ids}.")
    return found[0]


def _changed(connection: Connection, workspace_id: str, connection_id: str, what: str, by: str) -> None:
    log.record(
        connection,
        "connection.changed",
        workspace_id,
        data={"connection": connection_id, "what": what, "by": by},
    )
