"""Conversations: the list by last activity, one with what was said, and purging it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from sqlalchemy import Connection, func, select
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from gofer.agent.prices import MICROS
from gofer.errors import NotFound
from gofer.jobs.kinds import ANSWER
from gofer.purge import purge_conversation, remove_shell_files
from gofer.store.content import open_message
from gofer.store.encryption import conversation_key
from gofer.store.tables import bindings, blobs, conversations, jobs, messages, spends
from gofer.vault.envelope import DataKey, Vault
from gofer.vault.redaction import Redactor
from gofer.web.auth import words_read
from gofer.web.dashboard.endpoints import (
    PER_PAGE,
    agent_names,
    by,
    connection_names,
    form_of,
    number_of,
    page,
    rows,
    text_of,
)
from gofer.web.dashboard.render import go, platform_of, render, render_words
from gofer.web.titles import BEGUN, with_titles

MOST_MESSAGES = 100
MOST_SHOWN = 20_000
"""Characters of one message on the page; the whole is a link away, as plain text."""


@page("viewer")
async def index(request: Request) -> Response:
    """The list."""
    platform, wanted = platform_of(request), request.query_params.get("connection", "")
    found = await platform.database.read(
        partial(read_list, wanted=wanted, before=number_of(request, "before"))
    )
    listed = found["conversations"] = await with_titles(platform, found["conversations"], by="id")
    more = listed[-1]["last_job"] if len(listed) == PER_PAGE and listed[-1]["last_job"] else None
    return render(request, "conversations.html", **found, wanted=wanted, more=more)


def read_list(connection: Connection, wanted: str, before: int | None) -> dict[str, Any]:
    """Those with the newest work first; those that nobody ever worked on come last, on the first page only."""
    worked = _worked_on(connection, wanted, before)
    found = {row["id"]: row for row in _rows(connection, conversations.c.id.in_(worked))}
    listed = [{**found[each], "last_job": worked[each]} for each in worked if each in found]
    if before is None and len(listed) < PER_PAGE:
        listed += [{**row, "last_job": None} for row in _never_worked_on(connection, wanted)]
    return {"conversations": listed[:PER_PAGE], "connections": connection_names(connection)}


def _worked_on(connection: Connection, wanted: str, before: int | None) -> dict[str, int]:
    last = func.max(jobs.c.id)
    query = (
        select(jobs.c.conversation_id, last)
        .where(jobs.c.conversation_id.is_not(None))
        .group_by(jobs.c.conversation_id)
        .order_by(last.desc())
        .limit(PER_PAGE)
    )
    if wanted:
        query = query.join(bindings, bindings.c.conversation_id == jobs.c.conversation_id)
        query = query.where(bindings.c.connection_id == wanted)
    if before is not None:
        query = query.having(last < before)
    return {conversation: int(job) for conversation, job in connection.execute(query)}


def _never_worked_on(connection: Connection, wanted: str) -> list[dict[str, Any]]:
    without = ~select(jobs.c.id).where(jobs.c.conversation_id == conversations.c.id).exists()
    without &= BEGUN
    return _rows(connection, without & (bindings.c.connection_id == wanted) if wanted else without)


def _rows(connection: Connection, condition: Any) -> list[dict[str, Any]]:
    query = (
        select(
            conversations.c.id, conversations.c.kind, conversations.c.title, conversations.c.last_seq,
            conversations.c.created_at, conversations.c.purged_at, bindings.c.connection_id, bindings.c.ref,
            messages.c.created_at.label("said_at"),
        )
        .select_from(conversations)
        .outerjoin(bindings, bindings.c.conversation_id == conversations.c.id)
        .outerjoin(
            messages,
            (messages.c.conversation_id == conversations.c.id) & (messages.c.seq == conversations.c.last_seq),
        )
        .where(condition)
        .order_by(conversations.c.created_at.desc())
        .limit(PER_PAGE)
    )  # fmt: skip
    return rows(connection, query)


@page("viewer")
async def show(request: Request) -> Response:
    """One, with what was said."""
    platform = platform_of(request)
    found = await platform.database.read(
        partial(
            read_one,
            vault=platform.vault,
            redactor=platform.redactor,
            conversation_id=request.path_params["id"],
            before=number_of(request, "before"),
        )
    )
    await words_read(request, request.path_params["id"])
    (found["conversation"],) = await with_titles(platform, [found["conversation"]], by="id")
    return await render_words(request, "conversation.html", **found)


def read_one(
    connection: Connection, vault: Vault, redactor: Redactor, conversation_id: str, before: int | None
) -> dict[str, Any]:
    """Everything on the page."""
    row = connection.execute(select(conversations).where(conversations.c.id == conversation_id)).one_or_none()
    if row is None:
        raise NotFound(f"There is no conversation {conversation_id!r}.")
    agents = agent_names(connection)
    query = select(messages).where(messages.c.conversation_id == conversation_id)
    if before is not None:
        query = query.where(messages.c.seq < before)
    found = connection.execute(query.order_by(messages.c.seq.desc()).limit(MOST_MESSAGES)).all()[::-1]
    key = None if row.data_key is None else conversation_key(connection, vault, conversation_id)
    of_it = bindings.c.conversation_id == conversation_id
    places = select(bindings.c.connection_id, bindings.c.ref).where(of_it)
    return {
        "conversation": {name: value for name, value in row._mapping.items() if name != "data_key"},
        "messages": [_told(key, message, agents, redactor) for message in found],
        "earlier": found[0].seq if found and found[0].seq > 1 else None,
        "places": rows(connection, places),
        "runs": _runs(connection, conversation_id),
        "agents": agents,
        "connections": connection_names(connection),
        "spent": _sum(connection, spends.c.micros, spends.c.conversation_id == conversation_id) / MICROS,
        "files": _sum(connection, blobs.c.size, blobs.c.conversation_id == conversation_id),
    }


def _told(key: DataKey | None, row: Any, agents: dict[str, str], redactor: Redactor) -> dict[str, Any]:
    told = {name: getattr(row, name) for name in ("seq", "trust", "event", "addressed", "created_at")}
    ours = row.author.startswith("agent:")
    told |= {"ours": ours, "author": agents.get(row.author.removeprefix("agent:"), row.author), "files": []}
    if row.sealed is None or key is None:
        return {**told, "text": None, "cut_from": 0}
    content = open_message(key, row.conversation_id, row.seq, row.sealed)
    files = [{"name": each.name or "a file", "media_type": each.media_type} for each in content.attachments]
    name = told["author"] if ours else content.author.name or content.author.id
    # Masked before it is cut: half a secret would not be known for one.
    text = redactor.redact(content.text)
    length = len(text) if len(text) > MOST_SHOWN else 0
    return {**told, "text": text[:MOST_SHOWN], "cut_from": length, "author": name, "files": files}


@page("viewer")
async def whole(request: Request) -> Response:
    """One message in full, as plain text."""
    platform = platform_of(request)
    text = await platform.database.read(partial(_read_whole, vault=platform.vault, **request.path_params))
    await words_read(request, request.path_params["id"])
    return PlainTextResponse(platform.redactor.redact(text))


def _read_whole(connection: Connection, vault: Vault, id: str, seq: int) -> str:
    query = select(messages.c.sealed).where(messages.c.conversation_id == id, messages.c.seq == seq)
    sealed = connection.execute(query).scalar()
    if sealed is None:
        raise NotFound("There is no such message. It may have been purged.")
    return open_message(conversation_key(connection, vault, id), id, seq, sealed).text


def _runs(connection: Connection, conversation_id: str) -> list[dict[str, Any]]:
    query = (
        select(jobs.c.id, jobs.c.state, jobs.c.reason, jobs.c.agent_id, jobs.c.created_at)
        .where(jobs.c.conversation_id == conversation_id, jobs.c.kind == ANSWER)
        .order_by(jobs.c.id.desc())
        .limit(10)
    )
    return rows(connection, query)


def _sum(connection: Connection, column: Any, condition: Any) -> int:
    return int(connection.execute(select(func.coalesce(func.sum(column), 0)).where(condition)).scalar_one())


@page("owner")
async def purge(request: Request) -> Response:
    """Destroy what was said in one, everywhere."""
    platform, conversation_id = platform_of(request), request.path_params["id"]
    form = await form_of(request)
    if text_of(form, "sure") != "yes":
        return go(f"/conversations/{conversation_id}", "Nothing was purged: tick the box first.", "warn")
    purged = await platform.database.write(
        partial(purge_conversation, vault=platform.vault, conversation_id=conversation_id, by=by(request))
    )
    await asyncio.to_thread(remove_shell_files, platform.settings.data_dir / "shells", conversation_id)
    said = f"Purged: {purged.messages} messages, {purged.deliveries} deliveries, {purged.blobs} files."
    return go(f"/conversations/{conversation_id}", said)
