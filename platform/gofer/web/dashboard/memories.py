"""The Memory page: search, timeline, where a memory comes from, its versions, and what can be done with it."""

from __future__ import annotations

import json
from functools import partial

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from gofer.errors import Malformed
from gofer.web.auth import record_order, record_reading, visitor_of
from gofer.web.dashboard.endpoints import form_of, page, text_of
from gofer.web.dashboard.render import platform_of, redirect, render
from gofer.web.queries import agent_names, memories, read_for, write_for

MAX_LISTED = 100


@page("viewer")
async def index(request: Request) -> Response:
    """A search or the timeline, and a form for another note."""
    platform, asked = platform_of(request), request.query_params
    found = await memories.find(
        platform,
        visitor_of(request),
        query=asked.get("query", "")[:2000],
        scope_id=asked.get("scope", "")[:200],
        kind=asked.get("kind", "") if asked.get("kind", "") in ("", "turn", *memories.KINDS) else "",
        limit=MAX_LISTED,
    )
    await record_reading(request, None, "memories")
    names = await platform.database.read(agent_names)
    shown = platform.redactor.redact_value(found["memories"])
    return render(
        request,
        "memories.html",
        memories=shown,
        problems=found["problems"],
        by_words_alone=platform.recall.embeddings.problem if platform.recall.embeddings is not None else "",
        query=asked.get("query", ""),
        scope=asked.get("scope", ""),
        kinds=("turn", *memories.KINDS),
        kind=asked.get("kind", ""),
        agents=sorted(names.values()),
    )


@page("viewer")
async def show(request: Request) -> Response:
    """One memory with its versions."""
    platform = platform_of(request)
    found = await read_for(request, memories.show, memory_id=request.path_params["id"])
    await record_order(request, found["conversation_id"], found["id"])
    return render(request, "memory.html", memory=platform.redactor.redact_value(found))


@page("operator", form=index)
async def add(request: Request) -> Response:
    """Note something."""
    platform, form = platform_of(request), await form_of(request)
    made = await platform.database.write(
        memories.add,
        platform=platform,
        visitor=visitor_of(request),
        scope_id=text_of(form, "scope").strip(),
        text=platform.redactor.redact(text_of(form, "text")),
    )
    return redirect(f"/memory/{made['id']}", "Remembered.")


@page("operator", form=index)
async def take_in(request: Request) -> Response:
    """Import what an export or another agent's MEMORY.md says."""
    platform, form = platform_of(request), await form_of(request)
    publish = text_of(form, "publish", "0").strip() or "0"
    if not publish.isascii() or not publish.isdigit() or len(publish) > 6:
        raise Malformed("Private memories to import: must be a number.")
    done = await memories.take_in(
        platform,
        visitor_of(request),
        scope_id=text_of(form, "import_scope").strip(),
        form="",
        text=platform.redactor.redact(text_of(form, "lines")),
        publish=int(publish),
        place=_places(text_of(form, "place")),
        leave_out=text_of(form, "leave_out") == "on",
    )
    forgotten = f" {done['forgotten']} more were forgotten here and stay so." if done["forgotten"] else ""
    left = f" {done['left_out']} are left out." if done["left_out"] else ""
    return redirect("/memory", f"{done['imported']} memories are kept.{forgotten}{left}")


def _places(text: str) -> dict[str, str]:
    """A line for each audience of a file: its scope there, an equals sign, and the scope here."""
    pairs = [line.partition("=") for line in text.splitlines() if line.strip()]
    if any(not there.strip() or not here.strip() for there, _, here in pairs):
        raise Malformed("Whom an audience means here: write one on each line, as person:ID=person:ID.")
    return {there.strip(): here.strip() for there, _, here in pairs}


@page("owner")
async def reindex(request: Request) -> Response:
    """Rebuild the index of one audience or of all, under new keys."""
    scope_id = text_of(await form_of(request), "scope").strip()
    begun = await memories.begin_reindex(platform_of(request), visitor_of(request), scope_id)
    still = f" {len(begun['degraded'])} audiences still cannot be read." if begun["degraded"] else ""
    return redirect("/memory", f"{begun['scopes']} indexes are being rebuilt.{still}")


@page("operator")
async def change(request: Request) -> Response:
    """Other words, a pin, another audience, forgotten or restored."""
    form, memory_id = await form_of(request), request.path_params["id"]
    change_it = partial(write_for, request, memories.change, memory_id=memory_id)
    match request.path_params["verb"]:
        case "edit":
            text = platform_of(request).redactor.redact(text_of(form, "text"))
            await change_it(text=text, pinned=None, scope_id=None)
            told = "Changed. The old words stay as a version."
        case "pin":
            pinned = text_of(form, "pinned") == "on"
            await change_it(text=None, pinned=pinned, scope_id=None)
            told = "Pinned." if pinned else "Not pinned any more."
        case "audience":
            scope = text_of(form, "scope").strip()
            made = await change_it(text=None, pinned=None, scope_id=scope)
            memory_id, told = made["id"], "Kept for its new audience."
        case "forget":
            await write_for(request, memories.forget, memory_id=memory_id)
            told = "Forgotten. It can be restored."
        case "restore":
            await write_for(request, memories.restore, memory_id=memory_id)
            told = "Restored."
        case _:
            raise Malformed("A memory can be edited, pinned, forgotten or restored.")
    return redirect(f"/memory/{memory_id}", told)


@page("viewer")
async def export(request: Request) -> Response:
    """What was noted, as JSON lines to download."""
    platform = platform_of(request)
    scope_id = request.query_params.get("scope", "")[:200]
    found = await read_for(request, memories.export, scope_id=scope_id)
    await record_reading(request, None, "memories")
    lines = "".join(json.dumps(platform.redactor.redact_value(each)) + "\n" for each in found)
    headers = {"content-disposition": 'attachment; filename="memories.jsonl"'}
    return PlainTextResponse(lines, headers=headers)
