"""Conversations: listing them, reading one, saying something, purging one."""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic import Field
from sqlalchemy import Connection
from starlette.requests import Request

from gofer.integration import Incoming
from gofer.memory.notes import MAX_NOTE
from gofer.memory.recall import advice
from gofer.memory.records import Memory, turn_id
from gofer.memory.scopes import conversation_scope
from gofer.web.api.http import MAX_ROWS, Number, Paged, RequestModel, next_cursor, platform_of
from gofer.web.auth import actor, no_conversation, record_reading, visitor_of
from gofer.web.queries import conversations, memories
from gofer.web.queries.conversations import find_conversation, list_conversations, read_messages, read_notes
from gofer.web.titles import with_titles


class ConversationFilter(RequestModel):
    """Which conversations to list, newest first."""

    connection: str = ""
    cursor: str = Field(default="", max_length=200, description="`next` of the page before.")
    limit: int = Field(default=50, ge=1, le=MAX_ROWS)


class MessageFilter(Paged):
    """Which messages to read: newest first, or from a number on."""

    after: Number | None = Field(
        default=None,
        description="Only those after this number, oldest first. `next` is then the next `after`.",
    )


async def index(request: Request, query: ConversationFilter) -> dict[str, Any]:
    """List conversations with where they are held."""
    platform = platform_of(request)
    found = await platform.database.read(
        list_conversations,
        connection_id=query.connection,
        cursor=query.cursor,
        limit=query.limit,
        visitor=visitor_of(request),
    )
    found = await with_titles(platform, found, visitor_of(request), by="id")
    return {"conversations": found, "next": next_cursor(found, query.limit)}


async def show(request: Request) -> dict[str, Any]:
    """Show a conversation."""
    conversation_id, visitor = request.path_params["id"], visitor_of(request)
    found = await platform_of(request).database.read(
        find_conversation, conversation_id=conversation_id, visitor=visitor
    )
    (titled,) = await with_titles(platform_of(request), [found], visitor, by="id")
    return titled


async def read(request: Request, query: MessageFilter) -> dict[str, Any]:
    """Read the messages of a conversation, newest first or after a number."""
    platform = platform_of(request)
    conversation_id, visitor = request.path_params["id"], visitor_of(request)

    def messages(connection: Connection) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        conversation = find_conversation(connection, conversation_id, visitor)
        found = read_messages(
            connection,
            platform.vault,
            conversation,
            before=query.before,
            limit=query.limit,
            after=query.after,
        )
        said = [_describe(row, content) for row, content in found]
        first, last = _span(query, [each["seq"] for each in said])
        notes = read_notes(
            connection, platform.vault, conversation, first=first, last=last, limit=query.limit
        )
        return said, [{**_NOTE, **note} for note in notes]

    found, notes = await platform.database.read(messages)
    await record_reading(request, conversation_id)
    listed = sorted(
        [*found, *notes],
        key=lambda each: (each["seq"], each["reply"] or 0),
        reverse=query.after is None,
    )
    return {"messages": listed, "next": next_cursor(found, query.limit, "seq")}


def _span(query: MessageFilter, numbers: list[int]) -> tuple[int, int | None]:
    """The first and the last message whose notes belong to a page, so that each note is on one page of a list."""
    full = len(numbers) == query.limit
    if query.after is not None:
        return query.after, numbers[-1] - 1 if full else None
    return numbers[-1] if full else 0, None if query.before is None else query.before - 1


_NOTE: dict[str, Any] = {
    "memory_id": "",
    "author": "gofer",
    "name": "Gofer",
    "trust": "member",
    "event": "note",
    "addressed": False,
    "attachments": [],
}
"""What Gofer itself says is no message of anybody, and nothing recalls it."""


def _describe(row: Any, content: Incoming | None) -> dict[str, Any]:
    return {
        "seq": row.seq,
        "reply": None,
        "memory_id": turn_id(row.conversation_id, row.seq),
        "author": row.author,
        "name": content.author.name if content is not None else "",
        "trust": row.trust,
        "event": row.event,
        "addressed": row.addressed,
        "text": content.text if content is not None else None,
        "attachments": [each.name for each in content.attachments] if content is not None else [],
        "created_at": row.created_at,
    }


async def rules(request: Request) -> dict[str, Any]:
    """List the standing rules of a conversation, which every run there reads word for word."""
    platform, conversation_id = platform_of(request), request.path_params["id"]
    found = await platform.database.read(
        conversations.list_rules, vault=platform.vault, conversation_id=conversation_id
    )
    await record_reading(request, conversation_id)
    return {"rules": found}


async def revoke_rule(request: Request) -> dict[str, Any]:
    """Take a standing rule back: runs do not read it any more. It can be restored."""
    return await _change_rule(request, revoke=True)


async def restore_rule(request: Request) -> dict[str, Any]:
    """Bring back a standing rule that was revoked."""
    return await _change_rule(request, revoke=False)


async def _change_rule(request: Request, *, revoke: bool) -> dict[str, Any]:
    platform = platform_of(request)
    found = await platform.database.write(
        conversations.change_rule,
        vault=platform.vault,
        conversation_id=request.path_params["id"],
        memory_id=request.path_params["memory"],
        revoke=revoke,
        by=visitor_of(request).name,
    )
    return {"rules": found}


class MemoryQuery(RequestModel):
    """What to recall."""

    query: str = Field(min_length=1, max_length=1000)
    limit: int = Field(default=10, ge=1, le=50)


class ConversationNote(RequestModel):
    """Something to remember."""

    text: str = Field(min_length=1, max_length=MAX_NOTE, pattern=r"\S")


async def recall(request: Request, query: MemoryQuery) -> dict[str, Any]:
    """Recall what fits a query from a conversation, best first. Other conversations are not searched."""
    platform = platform_of(request)
    conversation_id, scope_id = _memories_of(request)
    memories.check_memory_on(platform)
    await platform.database.read(_check_memories, request=request)
    found = await platform.recall.search([scope_id], query.query, query.limit)
    await record_reading(request, conversation_id)
    problems = [advice(*each) for each in sorted(found.degraded.items())]
    return {"memories": [_remembered(each.memory) for each in found.found], "problems": problems}


async def remember(request: Request, given: ConversationNote) -> dict[str, Any]:
    """Have something remembered in one. What a token of an agent notes is a program's word, and kept as untrusted."""
    platform = platform_of(request)

    def keep(connection: Connection) -> Memory:
        _check_memories(connection, request)
        return memories.note(
            connection,
            platform,
            visitor_of(request),
            scope_id=_memories_of(request)[1],
            text=platform.redactor.redact(given.text),
            author=actor(request),
        )

    kept = await platform.database.write(keep)
    return _remembered(kept)


def _memories_of(request: Request) -> tuple[str, str]:
    conversation_id = request.path_params["id"]
    return conversation_id, conversation_scope(conversation_id)


def _check_memories(connection: Connection, request: Request) -> None:
    """Whoever may not see what is remembered of one is told the same as for one that does not exist."""
    conversation_id, scope_id = _memories_of(request)
    find_conversation(connection, conversation_id, visitor_of(request))
    if not memories.may_see(connection, visitor_of(request), scope_id):
        raise no_conversation(conversation_id)


def _remembered(memory: Memory) -> dict[str, Any]:
    return {
        "id": memory.id,
        "kind": memory.kind,
        "text": memory.text,
        "trust": memory.trust,
        "untrusted": memory.untrusted,
        "at": memory.valid_from,
    }


async def purge(request: Request) -> dict[str, Any]:
    """Destroy what was said in one, everywhere."""
    purged = await conversations.purge(platform_of(request), request.path_params["id"], by=actor(request))
    return dataclasses.asdict(purged)
