"""Secrets: put in, listed by name, removed. A value never comes out."""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from starlette.requests import Request

from gofer.vault.redaction import Secret
from gofer.web.api.http import Id, RequestModel, platform_of
from gofer.web.auth import note
from gofer.web.queries.secrets import keep_secret, remove_secret, stored_secrets

NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")


def _usable(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError("up to 100 letters, digits, dots, dashes and underscores, and no dash in front")
    return name


class SecretName(RequestModel):
    """The name of a secret."""

    name: Annotated[str, AfterValidator(_usable)] = Field(json_schema_extra={"pattern": NAME.pattern})
    owner: Id = Field(default="", description="A connection's id, or empty for the workspace.")


class SecretValue(SecretName):
    """A secret with its value."""

    value: Secret = Field(json_schema_extra={"minLength": 1, "pattern": r"\S"})


async def index(request: Request) -> dict[str, Any]:
    """List the names of secrets, and when each was set and used."""
    found = await stored_secrets(platform_of(request))
    return {"secrets": [dataclasses.asdict(each) for each in found]}


async def put(request: Request, given: SecretValue) -> dict[str, Any]:
    """Set or replace a secret."""
    note(request, name=given.name, owner=given.owner)
    health = await keep_secret(platform_of(request), owner=given.owner, name=given.name, value=given.value)
    shown = dataclasses.asdict(health) if health is not None else None
    return {"name": given.name, "owner": given.owner, "health": shown}


async def remove(request: Request, named: SecretName) -> dict[str, Any]:
    """Delete a secret."""
    note(request, name=named.name, owner=named.owner)
    await remove_secret(platform_of(request), owner=named.owner, name=named.name)
    return {"name": named.name, "owner": named.owner}
