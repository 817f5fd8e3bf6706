"""Conversations: the list by last activity, one with what was said, and purging it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, func, select
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from gofer.app import Platform
from gofer.errors import NotFound
from gofer.integration import Incoming
from gofer.jobs.kinds import ANSWER
from gofer.store.encryption import conversation_key
from gofer.store.messages import open_for_people
from gofer.store.tables import bindings, blobs, messages, spends
from gofer.vault.envelope import Vault
from gofer.vault.redaction import Redactor
from gofer.web.auth import actor, record_reading, visitor_of
from gofer.web.dashboard.endpoints import PER_PAGE, form_of, page, query_number, text_of
from gofer.web.dashboard.render import platform_of, redirect, render, render_words
from gofer.web.queries import agent_names, connection_names, conversations, rows
from gofer.web.queries.costs import total_cost
from gofer.web.queries.jobs import list_jobs
from gofer.web.titles import with_titles

MAX_MESSAGES = 100
MAX_SHOWN = 20_000
"""Characters of one message on the page; the whole is a link away, as plain text."""


@page("viewer")
async def index(request: Request) -> Response:
    """The list."""
    platform, wanted = platform_of(request), request.query_params.get("connection", "")
    before = query_number(request, "before")
    names = await platform.database.read(connection_names)
    visitor = visitor_of(request)
    listed = await platform.database.read(
        conversations.list_by_activity, visitor=visitor, connection_id=wanted, before=before, limit=PER_PAGE
    )
    listed = await with_titles(platform, listed, visitor, by="id")
    more = listed[-1]["last_job"] if len(listed) == PER_PAGE else None
    return render(
        request, "conversations.html", conversations=listed, connections=names, wanted=wanted, more=more
    )


@page("viewer")
async def show(request: Request) -> Response:
    """One, with what was said."""
    platform, conversation_id = platform_of(request), request.path_params["id"]
    found = await platform.database.read(
        _read, platform=platform, conversation_id=conversation_id, before=query_number(request, "before")
    )
    await record_reading(request, conversation_id)
    (found["conversation"],) = await with_titles(
        platform, [found["conversation"]], visitor_of(request), by="id"
    )
    return await render_words(request, "conversation.html", **found)


def _read(
    connection: Connection, platform: Platform, conversation_id: str, before: int | None
) -> dict[str, Any]:
    """Everything on the page."""
    conversation = conversations.find_conversation(connection, conversation_id)
    agents = agent_names(connection)
    found = conversations.read_messages(
        connection, platform.vault, conversation, before=before, limit=MAX_MESSAGES
    )[::-1]
    places = select(bindings.c.connection_id, bindings.c.ref)
    size = select(func.coalesce(func.sum(blobs.c.size), 0)).where(blobs.c.conversation_id == conversation_id)
    return {
        "conversation": conversation,
        "messages": [_describe(row, content, agents, platform.redactor) for row, content in found],
        "earlier": found[0][0].seq if found and found[0][0].seq > 1 else None,
        "places": rows(connection, places.where(bindings.c.conversation_id == conversation_id)),
        "runs": list_jobs(connection, kind=ANSWER, conversation_id=conversation_id, limit=10),
        "agents": agents,
        "connections": connection_names(connection),
        "spent": total_cost(connection, spends.c.conversation_id == conversation_id),
        "files": int(connection.execute(size).scalar_one()),
        "rules": _rules(connection, platform, conversation_id),
    }


def _rules(connection: Connection, platform: Platform, conversation_id: str) -> list[dict[str, Any]]:
    found = conversations.list_rules(connection, platform.vault, conversation_id)
    return [{**rule, "text": platform.redactor.redact(rule["text"])} for rule in found]


def _describe(
    row: Any, content: Incoming | None, agents: dict[str, str], redactor: Redactor
) -> dict[str, Any]:
    shown = {name: getattr(row, name) for name in ("seq", "trust", "event", "addressed", "created_at")}
    ours = row.author.startswith("agent:")
    shown |= {"ours": ours, "author": agents.get(row.author.removeprefix("agent:"), row.author), "files": []}
    if content is None:
        return {**shown, "text": None, "cut_from": 0}
    files = [{"name": each.name or "a file", "media_type": each.media_type} for each in content.attachments]
    name = shown["author"] if ours else content.author.name or content.author.id
    # Masked before it is cut: half a secret would not be known for one.
    text = redactor.redact(content.text)
    length = len(text) if len(text) > MAX_SHOWN else 0
    return {**shown, "text": text[:MAX_SHOWN], "cut_from": length, "author": name, "files": files}


@page("viewer")
async def whole(request: Request) -> Response:
    """One message in full, as plain text."""
    platform = platform_of(request)
    text = await platform.database.read(_read_whole, vault=platform.vault, **request.path_params)
    await record_reading(request, request.path_params["id"])
    return PlainTextResponse(platform.redactor.redact(text))


def _read_whole(connection: Connection, vault: Vault, id: str, seq: int) -> str:
    query = select(messages).where(messages.c.conversation_id == id, messages.c.seq == seq)
    row = connection.execute(query).first()
    if row is None or row.sealed is None:
        raise NotFound("There is no such message. It may have been purged.")
    return open_for_people(conversation_key(connection, vault, id), row).text


@page("owner")
async def change_rule(request: Request) -> Response:
    """Revoke a standing rule, or restore it."""
    platform, path = platform_of(request), request.path_params
    await form_of(request)
    revoke = path["verb"] == "revoke"
    if not revoke and path["verb"] != "restore":
        raise NotFound("A rule can be revoked or restored.")
    await platform.database.write(
        conversations.change_rule,
        vault=platform.vault,
        conversation_id=path["id"],
        memory_id=path["memory"],
        revoke=revoke,
        by=visitor_of(request).name,
    )
    said = "Revoked. Runs do not read it any more." if revoke else "Restored. Runs read it again."
    return redirect(f"/conversations/{path['id']}", said)


@page("owner")
async def purge(request: Request) -> Response:
    """Destroy what was said in one, everywhere."""
    conversation_id = request.path_params["id"]
    form = await form_of(request)
    if text_of(form, "sure") != "yes":
        return redirect(
            f"/conversations/{conversation_id}", "Nothing was purged: tick the box first.", "warn"
        )
    purged = await conversations.purge(platform_of(request), conversation_id, by=actor(request))
    said = f"Purged: {purged.messages} messages, {purged.deliveries} deliveries, {purged.blobs} files."
    return redirect(f"/conversations/{conversation_id}", said)
