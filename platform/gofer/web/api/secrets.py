"""Secrets: put in, listed by name, removed. A value never comes out."""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from typing import Annotated

from pydantic import AfterValidator, Field
from starlette.requests import Request
from starlette.responses import Response

from gofer.connections.changes import find_connection
from gofer.connections.health import set_up
from gofer.secrets.secret_store import delete_secret, list_secrets, put_secret
from gofer.vault.secret import Secret
from gofer.web.api.http import WORKSPACE, Id, RequestModel, answered, asked, platform_of, queried
from gofer.web.auth import note
from gofer.web.auth.confirmation import check_confirmed

NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")


def _usable(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError("up to 100 letters, digits, dots, dashes and underscores, and no dash in front")
    return name


class SecretName(RequestModel):
    """Which secret."""

    name: Annotated[str, AfterValidator(_usable)] = Field(json_schema_extra={"pattern": NAME.pattern})
    owner: Id = Field(default="", description="A connection's id, or empty for the workspace.")


class SecretValue(SecretName):
    """A secret with its value."""

    value: Secret = Field(json_schema_extra={"minLength": 1, "pattern": r"\S"})


async def index(request: Request) -> Response:
    """List names and times."""
    platform = platform_of(request)
    await platform.uses.note()
    found = await platform.database.read(partial(list_secrets, workspace_id=WORKSPACE))
    return answered(request, {"secrets": [dataclasses.asdict(each) for each in found]})


async def put(request: Request) -> Response:
    """Keep a secret, replacing the one there."""
    check_confirmed(request)
    platform = platform_of(request)
    given = await asked(request, SecretValue)
    note(request, name=given.name, owner=given.owner)
    if given.owner:
        await platform.database.read(partial(find_connection, connection_id=given.owner))
    await platform.database.write(
        partial(
            put_secret,
            vault=platform.vault,
            workspace_id=WORKSPACE,
            owner=given.owner,
            name=given.name,
            value=given.value,
        )
    )
    await platform.secrets_changed()
    health = dataclasses.asdict(await set_up(platform, given.owner)) if given.owner else None
    return answered(request, {"name": given.name, "owner": given.owner, "health": health})


async def remove(request: Request) -> Response:
    """Delete a secret."""
    platform = platform_of(request)
    named = queried(request, SecretName)
    note(request, name=named.name, owner=named.owner)
    await platform.database.write(
        partial(delete_secret, workspace_id=WORKSPACE, owner=named.owner, name=named.name)
    )
    await platform.secrets_changed()
    return answered(request, {"name": named.name, "owner": named.owner})
