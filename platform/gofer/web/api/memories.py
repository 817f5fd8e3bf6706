"""Memories: searching, reading, noting, changing, forgetting and moving them in and out."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request

from gofer.memory.notes import MAX_NOTE
from gofer.memory.transfer import MAX_ENTRIES
from gofer.web.api.http import ApiAnswer, RequestModel, platform_of
from gofer.web.auth import record_order, record_reading, visitor_of
from gofer.web.queries import memories, read_for, write_for

MAX_IMPORT = 8 * 1024 * 1024
_SCOPE = "conversation:ID, person:ID (or person:me) or agent:NAME."


# For the description of the API alone: what is no scope is refused with a sentence that says what one is.
_ONE_SCOPE: Any = {"pattern": "^(conversation|person|agent):.+$"}
_ANY_SCOPE: Any = {"pattern": "^$|^(conversation|person|agent):.+$"}


class MemoryFilter(RequestModel):
    """Which memories to list: those that fit some words, or what was noted, newest first."""

    query: str = Field(default="", max_length=2000, description="Words, any of which may fit.")
    scope: str = Field(
        default="", max_length=200, description=f"Only those of {_SCOPE}", json_schema_extra=_ANY_SCOPE
    )
    kind: Literal["", "turn", "result", "plan", "summary", "note", "rule"] = ""
    limit: int = Field(default=50, ge=1, le=200)


class NewNote(RequestModel):
    """Something to remember."""

    scope: str = Field(
        min_length=1,
        max_length=200,
        description=f"Who may hear of it: {_SCOPE}",
        json_schema_extra=_ONE_SCOPE,
    )
    text: str = Field(min_length=1, max_length=MAX_NOTE)


class MemoryChange(RequestModel):
    """Other words, a pin, or another audience."""

    text: str | None = Field(default=None, max_length=MAX_NOTE)
    pinned: bool | None = Field(
        default=None, description="Whether it is a standing rule of its conversation."
    )
    scope: str | None = Field(
        default=None,
        max_length=200,
        description=f"Who may hear of it: {_SCOPE}",
        json_schema_extra=_ONE_SCOPE,
    )


class MemoryImport(RequestModel):
    """A file to import."""

    scope: str = Field(
        default="",
        max_length=200,
        description=f"Who may hear of it: {_SCOPE} Without one, each line says it itself, as an export does.",
        json_schema_extra=_ANY_SCOPE,
    )
    publish: int = Field(
        default=0,
        ge=0,
        le=MAX_ENTRIES,
        description="How many memories of a person or a conversation may be imported for that scope.",
    )
    place: dict[str, str] = Field(
        default_factory=dict,
        max_length=1000,
        description="Whom audiences of the file mean here: the scope there, and one of here. Takes an owner.",
    )
    leave_out: bool = Field(default=False, description="Leave out what is for audiences that are not here.")
    format: Literal["", "jsonl", "markdown"] = Field(
        default="jsonl",
        description="jsonl also reads NDJSON archive indexes; markdown reads MEMORY.md files. Empty: by its beginning.",
    )
    text: str = Field(min_length=1, max_length=MAX_IMPORT)


class ScopeName(RequestModel):
    """One scope, or all."""

    scope: str = Field(default="", max_length=200, description=_SCOPE, json_schema_extra=_ANY_SCOPE)


async def index(request: Request, query: MemoryFilter) -> dict[str, Any]:
    """Search memories, or list what was noted."""
    platform = platform_of(request)
    found = await memories.find(
        platform,
        visitor_of(request),
        query=query.query,
        scope_id=query.scope,
        kind=query.kind,
        limit=query.limit,
    )
    await record_reading(request, None, "memories")
    return found


async def show(request: Request) -> dict[str, Any]:
    """Show a memory with its versions."""
    found = await read_for(request, memories.show, memory_id=request.path_params["id"])
    await record_order(request, found["conversation_id"], found["id"])
    return found


async def add(request: Request, given: NewNote) -> ApiAnswer:
    """Remember something."""
    platform = platform_of(request)
    made = await platform.database.write(
        memories.add,
        platform=platform,
        visitor=visitor_of(request),
        scope_id=given.scope,
        text=platform.redactor.redact(given.text),
    )
    return ApiAnswer(made, location=f"/memories/{made['id']}")


async def change(request: Request, given: MemoryChange) -> dict[str, Any]:
    """Change a memory. What is not given stays as it is."""
    text = platform_of(request).redactor.redact(given.text) if given.text is not None else None
    changes = {"text": text, "pinned": given.pinned, "scope_id": given.scope}
    return await write_for(request, memories.change, memory_id=request.path_params["id"], **changes)


async def forget(request: Request) -> dict[str, Any]:
    """Forget a memory. It can be restored."""
    return await write_for(request, memories.forget, memory_id=request.path_params["id"])


async def restore(request: Request) -> dict[str, Any]:
    """Restore a memory that was forgotten."""
    return await write_for(request, memories.restore, memory_id=request.path_params["id"])


async def export(request: Request, query: ScopeName) -> dict[str, Any]:
    """Export everything that was noted, oldest first."""
    found = await read_for(request, memories.export, scope_id=query.scope)
    await record_reading(request, None, "memories")
    return {"memories": found}


async def take_in(request: Request, given: MemoryImport) -> dict[str, Any]:
    """Import a file. A file with something wrong in it changes nothing."""
    platform = platform_of(request)
    return await memories.take_in(
        platform,
        visitor_of(request),
        scope_id=given.scope,
        form=given.format,
        text=platform.redactor.redact(given.text),
        publish=given.publish,
        place=given.place,
        leave_out=given.leave_out,
    )


async def reindex(request: Request, given: ScopeName) -> dict[str, Any]:
    """Rebuild an index, under a new key."""
    return await memories.begin_reindex(platform_of(request), visitor_of(request), given.scope)
