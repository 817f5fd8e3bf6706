"""Saying something: through the same intake as the web chat, in the name of the member who asks."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, select
from starlette.requests import Request
from starlette.responses import Response

from gofer import integration
from gofer.errors import Conflict
from gofer.intake.record import Taken
from gofer.jobs.conclude import ANSWER
from gofer.platform import Platform
from gofer.store.ids import new_id
from gofer.store.tables import bindings, connections, jobs
from gofer.web.access import Visitor, visitor_of
from gofer.web.access.members import digest, first_owner
from gofer.web.chat.rooms import connected
from gofer.web.control.asking import Question, answered, asked, platform_of
from gofer.web.control.conversations import _find
from gofer.web.control.repeating import HEADER

WEBCHAT = "webchat"


class New(Question):
    """Something to say."""

    text: str = Field(min_length=1, max_length=100_000, pattern=r"\S")


class First(New):
    """Something that begins a conversation."""

    agent: str = Field(
        default="", max_length=100, description="Who should answer; whoever listens when empty."
    )


async def begin(request: Request) -> Response:
    """Say something in a new conversation."""
    said = await asked(request, First)
    platform = platform_of(request)
    connection = await connected(platform)
    author = await _author(platform, visitor_of(request))
    # A repeated request begins the same conversation, not another. It is the member's own on the page, too.
    ref = f"{author['id']}:api-{digest(_delivery(request))[:24]}"
    return await _say(request, connection.account.id, ref, said.text, said.agent)


async def say(request: Request) -> Response:
    """Say something in a conversation of the web chat."""
    said = await asked(request, New)
    connection_id, ref = await platform_of(request).database.read(
        partial(_held, conversation_id=request.path_params["id"])
    )
    return await _say(request, connection_id, ref, said.text, "")


def _held(connection: Connection, conversation_id: str) -> tuple[str, str]:
    """Where a conversation of the web chat is held; raises NotFound, or Conflict for one held elsewhere."""
    found = _find(connection, conversation_id)
    query = (
        select(bindings.c.connection_id, bindings.c.ref)
        .join(connections, connections.c.id == bindings.c.connection_id)
        .where(bindings.c.conversation_id == conversation_id, connections.c.integration == WEBCHAT)
    )
    row = connection.execute(query).first()
    if row is None:
        where = found["connection_id"] or "nowhere any more"
        raise Conflict(f"This conversation is held at {where}; say it there.")
    return str(row.connection_id), str(row.ref)


def _delivery(request: Request) -> str:
    """Made from the Idempotency-Key if there is one, so that the intake itself knows a repeat."""
    key = request.headers.get(HEADER)
    if key is None:
        request.scope.setdefault("gofer.delivery", new_id("said"))
        return str(request.scope["gofer.delivery"])
    return f"api-{digest(f'{visitor_of(request).member_id}:{key}')[:40]}"


async def _say(request: Request, connection_id: str, ref: str, text: str, agent: str) -> Response:
    platform, visitor = platform_of(request), visitor_of(request)
    posted: dict[str, Any] = {
        "id": _delivery(request),
        "conversation": ref,
        "member": await _author(platform, visitor),
        "text": text,
    }
    if agent:
        posted["agent"] = agent
    with platform.intake.gate.passed():
        connected = await platform.accounts.get(connection_id)
        body = json.dumps(posted).encode()
        taken = await platform.intake.take(connected, integration.Request(body), "webhook")
    return await _taken(request, platform, taken)


async def _author(platform: Platform, visitor: Visitor) -> dict[str, str]:
    """The member; the command line speaks for the first owner."""
    if visitor.member_id:
        return {"id": visitor.member_id, "name": visitor.name, "role": visitor.role}
    owner = await platform.database.write(first_owner)
    return {"id": owner.id, "name": owner.name, "role": "owner"}


async def _taken(request: Request, platform: Platform, taken: Taken) -> Response:
    if taken.conversation_id is None:
        raise Conflict(f"It was not taken in: {taken.result}.")
    job_id = await platform.database.read(partial(_job, conversation_id=taken.conversation_id))
    said = {
        "conversation_id": taken.conversation_id,
        "seq": taken.seq,
        "job_id": job_id,
        "result": taken.result,
    }
    location = f"/jobs/{job_id}" if job_id is not None else f"/conversations/{taken.conversation_id}"
    return answered(request, said, 202, location=location)


def _job(connection: Connection, conversation_id: str) -> int | None:
    query = (
        select(jobs.c.id)
        .where(jobs.c.conversation_id == conversation_id, jobs.c.kind == ANSWER)
        .order_by(jobs.c.id.desc())
        .limit(1)
    )
    return connection.execute(query).scalar()
