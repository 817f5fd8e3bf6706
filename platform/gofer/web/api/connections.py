"""Connections: the configured accounts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, select
from starlette.requests import Request

from gofer.app import Platform
from gofer.connections.changes import (
    add_connection,
    change_settings,
    choose_connection_agent,
    find_connection,
    invite,
    switch_connection,
)
from gofer.connections.health import disconnect, health_of
from gofer.connections.setup_flow import begin_setup, finish_setup
from gofer.integration import Role
from gofer.store.tables import connections
from gofer.vault.redaction import Secret
from gofer.web.api.http import WORKSPACE, ApiAnswer, RequestModel, check_match, etag_of, platform_of
from gofer.web.auth import actor, note
from gofer.web.auth.confirmation import check_confirmed
from gofer.web.queries.connections import (
    agents_to_choose,
    apply_change,
    hook_url,
    list_connections,
    read_connection,
)


class NewConnection(RequestModel):
    """A connection to make."""

    integration: str = Field(max_length=100)
    name: str = Field(default="", max_length=200)
    settings: dict[str, Any] = Field(default_factory=dict)
    secrets: dict[str, Secret] = Field(default_factory=dict)


class Begin(RequestModel):
    """What to create an account with at a service."""

    integration: str
    name: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)
    owner: str = ""
    back_url: str


class Finish(RequestModel):
    """What the service sent back after it made the account."""

    state: str
    code: str


class Pair(RequestModel):
    """Which role to pair a person with."""

    role: Role = "owner"


class ConnectionChange(RequestModel):
    """What to change of a connection."""

    settings: dict[str, Any] | None = None
    enabled: bool | None = None
    agent: str | None = Field(
        default=None,
        max_length=40,
        description="The agent that answers what no route fits; empty for the instance's default agent.",
    )


async def index(request: Request) -> dict[str, Any]:
    """List connections."""
    platform = platform_of(request)
    found = await platform.database.read(list_connections)
    return {"connections": [_with_hook(platform, each) for each in found]}


def _with_hook(platform: Platform, connection: dict[str, Any]) -> dict[str, Any]:
    connection_id = connection["id"]
    hooks = {"hook_path": f"/hooks/{connection_id}", "hook_url": hook_url(platform, connection_id)}
    return {**connection, **hooks}


async def show(request: Request) -> ApiAnswer:
    """Show a connection, with the names of its secrets and when it last received something."""
    platform = platform_of(request)
    found = await platform.database.read(read_connection, connection_id=request.path_params["id"])
    shown = {**found, "connection": _with_hook(platform, found["connection"])}
    return ApiAnswer(shown, etag=_version(found["connection"]))


def _version(row: Any) -> str:
    return etag_of(row["name"], row["enabled"], row["settings"], row["max_running"], row["agent"])


async def add(request: Request, new: NewConnection) -> ApiAnswer:
    """Make a connection, and prepare its service."""
    platform = platform_of(request)
    integration = platform.registry.get(new.integration)
    connection_id = await platform.database.write(
        add_connection,
        vault=platform.vault,
        workspace_id=WORKSPACE,
        integration=integration,
        name=new.name,
        settings=new.settings,
        secrets_given=new.secrets,
        by=actor(request),
    )
    return await _changed(request, connection_id, 201)


async def begin_sign_up(request: Request, body: Begin) -> dict[str, Any]:
    """Give the form with which a browser creates an account at a service."""
    begun = begin_setup(platform_of(request), **body.model_dump())
    return dataclasses.asdict(begun)


async def finish_sign_up(request: Request, body: Finish) -> ApiAnswer:
    """Make the connection of an account that was just made."""
    made = await finish_setup(platform_of(request), state=body.state, code=body.code, by=actor(request))
    return await _changed(request, made, 201)


async def pair(request: Request, body: Pair) -> dict[str, Any]:
    """Make a pairing code, with which a person becomes an owner or a member."""
    platform = platform_of(request)
    connection_id = (await _found(request)).id
    words = await invite(platform.database, platform.accounts, connection_id, body.role)
    return {"id": connection_id, "invitation": words}


async def change(request: Request, body: ConnectionChange) -> ApiAnswer:
    """Change a connection's settings, or switch it on or off."""
    platform = platform_of(request)
    if body.settings is not None:
        check_confirmed(request)  # who is a member, and where its secrets are sent
    row = await _found(request)
    connection_id = row.id
    common = {"connection_id": connection_id, "by": actor(request)}
    changes: list[Callable[[Connection], None]] = []
    if body.settings is not None:
        integration = platform.registry.get(row.integration)
        changes.append(partial(change_settings, integration=integration, settings=body.settings, **common))
    if body.enabled is not None:
        changes.append(partial(switch_connection, enabled=body.enabled, **common))
    if body.agent is not None:
        there = await agents_to_choose(platform)
        changes.append(partial(choose_connection_agent, agent=body.agent, there=there, **common))
    note(request, fields=sorted(body.model_fields_set), settings=sorted(body.settings or ()))
    await platform.database.write(_change, request=request, connection_id=connection_id, changes=changes)
    if body.agent is not None:
        await platform.agents_changed()
    return await _changed(request, connection_id)


async def _found(request: Request) -> Any:
    """The row of the connection that the path names, by id or name."""
    named = request.path_params["id"]
    return await platform_of(request).database.read(find_connection, connection_id=named)


def _change(
    connection: Connection,
    request: Request,
    connection_id: str,
    changes: Iterable[Callable[[Connection], None]],
) -> None:
    """Within one transaction: nobody else's change falls between the look and the change."""
    row = connection.execute(
        select(connections).where(connections.c.id == connection_id).with_for_update()
    ).one_or_none()
    if row is not None:
        check_match(request, _version(row._mapping))
    for change_it in changes:
        change_it(connection)


async def _changed(request: Request, connection_id: str, status: int = 200) -> ApiAnswer:
    platform = platform_of(request)
    health = dataclasses.asdict(await apply_change(platform, connection_id))
    found = await platform.database.read(read_connection, connection_id=connection_id)
    shown = _with_hook(platform, found["connection"])
    answer = {**found, "connection": shown, "health": health, "invitation": ""}
    if status == 201 and health["ok"]:
        answer["invitation"] = await invite(platform.database, platform.accounts, connection_id)
    location = f"/connections/{connection_id}" if status == 201 else ""
    return ApiAnswer(answer, location=location, etag=_version(found["connection"]))


async def remove(request: Request) -> dict[str, Any]:
    """Remove a connection that has no conversations."""
    platform, connection_id = platform_of(request), (await _found(request)).id
    await disconnect(platform, connection_id, by=actor(request))
    return {"id": connection_id}


async def test(request: Request) -> dict[str, Any]:
    """Ask the service how the connection is doing."""
    platform = platform_of(request)
    connection_id = (await _found(request)).id
    health = dataclasses.asdict(await health_of(platform, connection_id))
    return {"id": connection_id, "health": health}
