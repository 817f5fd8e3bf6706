"""Devices, with which programs connect over the gateway protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field
from sqlalchemy import Connection
from starlette.requests import Request

from gofer.devices import pair_device, remove_device
from gofer.jobs.notifications import JOBS
from gofer.web.api.http import ApiAnswer, RequestModel, platform_of
from gofer.web.auth import note, visitor_of
from gofer.web.auth.devices import add_device, list_devices, new_device_token
from gofer.web.auth.members import find_member, first_owner

GatewayScope = Literal[
    "operator.read", "operator.write", "operator.admin", "operator.approvals", "operator.pairing"
]


class NewDevice(RequestModel):
    """A device to pair."""

    name: str = Field(min_length=1, max_length=100, description="What it is.")
    public_key: str = Field(
        pattern="^[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048]$",
        description="Its Ed25519 key, raw, in base64 for addresses.",
    )
    scopes: list[GatewayScope] = Field(
        default=["operator.read", "operator.write"],
        max_length=5,
        description="What its token may do at most, beside what its member may.",
    )
    member: str = Field(default="", max_length=200, description="Whose it is; the first owner's when empty.")


async def index(request: Request) -> dict[str, Any]:
    """List devices, also those that wait to be paired."""
    return {"devices": await platform_of(request).database.read(list_devices)}


async def add(request: Request, new: NewDevice) -> ApiAnswer:
    """Pair a device by its key. Its token is shown this once."""
    note(request, name=new.name, scopes=" ".join(new.scopes))
    return ApiAnswer(await platform_of(request).database.write(_add, new=new), masked=False)


def _add(connection: Connection, new: NewDevice) -> dict[str, Any]:
    member = find_member(connection, new.member) if new.member else first_owner(connection)
    id_ = add_device(
        connection, member.id, public_key=new.public_key, name=new.name, scopes=new.scopes, paired=True
    )
    return {"id": id_, "token": new_device_token(connection, id_), "scopes": new.scopes}


async def pair(request: Request) -> dict[str, Any]:
    """Pair a device that waits for it."""
    id_ = request.path_params["id"]
    await _decide(request, pair_device)
    return {"id": id_}


async def remove(request: Request) -> dict[str, Any]:
    """Forget a device and its token, at once."""
    id_ = request.path_params["id"]
    await _decide(request, remove_device)
    return {"id": id_}


async def _decide(request: Request, verb: Callable[..., Any]) -> None:
    platform = platform_of(request)
    decided = {"id_": request.path_params["id"], "by": visitor_of(request).name}
    await platform.database.write(verb, vault=platform.vault, **decided)
    platform.signals.wake(JOBS)
