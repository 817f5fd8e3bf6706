"""Every address of the web chat."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, func, select
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from gofer.app import Platform
from gofer.errors import Malformed, NotFound
from gofer.store.blobs import put_blob, read_blob
from gofer.store.events import Cursor
from gofer.store.ids import new_id
from gofer.store.tables import blobs
from gofer.strict_json import load_json
from gofer.web.auth import Visitor, require, visitor_of
from gofer.web.body import read_body, read_form
from gofer.web.chat import rooms
from gofer.web.chat.posts import MAX_FILES, MESSAGE_ID, parse_post, take
from gofer.web.chat.rooms import Room
from gofer.web.chat.socket import Sockets
from gofer.web.chat.timeline import Reader, Timeline
from gofer.web.dashboard.endpoints import query_number
from gofer.web.dashboard.render import platform_of, render_words

MAX_TEXT = 512 * 1024

InRoom = Callable[[Request, Platform, Room], Awaitable[Response]]


def routes(platform: Platform) -> list[BaseRoute]:
    """The routes of the web chat."""
    sockets = Sockets(platform)
    return [
        Route("/chat", enter, methods=["GET"]),
        Route("/chat", begin, methods=["POST"], name="chat.begin", max_body_size=MAX_TEXT),
        Route("/chat/{id}", show, methods=["GET"]),
        # One address, two ways: the browser asks to upgrade, or for an event stream.
        WebSocketRoute("/chat/{id}/live", sockets.socket),
        Route("/chat/{id}/live", require("operator")(sockets.events), methods=["GET"]),
        Route("/chat/{id}/say", say, methods=["POST"], name="chat.say", max_body_size=MAX_TEXT),
        Route("/chat/{id}/files", upload, methods=["POST"], name="chat.upload", max_body_size=MAX_BODY),
        Route("/chat/{id}/files/{hash}", download, methods=["GET"]),
    ]


@require("operator")
async def enter(request: Request) -> Response:
    """To the room used last; before there is one, or with an agent to try, a page for the first message of another."""
    platform, visitor = platform_of(request), visitor_of(request)
    found = await _rooms(platform, visitor)
    agent = request.query_params.get("agent", "")
    if found and not agent:
        return RedirectResponse(f"/chat/{found[0].id}", 303)
    if agent:
        await rooms.find_agent(platform, agent)
    return await _page(request, platform, found, wanted=agent)


@require("operator")
async def begin(request: Request) -> Response:
    """A new room: for a script its name, for a form with a first message the room with that in it."""
    platform, visitor = platform_of(request), visitor_of(request)
    value = await _form(request)
    connection = await rooms.web_connection(platform)
    made = await platform.database.write(
        rooms.open_room,
        vault=platform.vault,
        connection_id=connection.account.id,
        member_id=visitor.member_id,
        page=_page_id(value["id"]),
    )
    if "application/json" in request.headers.get("accept", ""):
        return JSONResponse({"room": made}, 201)
    if value["text"].strip():
        find = partial(rooms.find_room, conversation_id=made, member_id=visitor.member_id)
        await take(platform, visitor, await platform.database.read(find), parse_post(value))
    return RedirectResponse(f"/chat/{made}", 303)


def _page_id(given: str) -> str:
    """What a page calls itself; raises Malformed."""
    if given and not re.fullmatch(MESSAGE_ID, given):
        raise Malformed("id: must have 8 to 64 letters, digits and dashes.")
    return given


async def _rooms(platform: Platform, visitor: Visitor) -> list[rooms.Listed]:
    connection = await rooms.find_web_connection(platform)
    if connection is None:
        return []
    return await platform.database.read(
        rooms.list_rooms,
        vault=platform.vault,
        redactor=platform.redactor,
        connection_id=connection.account.id,
        member_id=visitor.member_id,
    )


def in_room(endpoint: InRoom) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint for a member's own room."""

    @require("operator")
    async def entered(request: Request) -> Response:
        platform = platform_of(request)
        room = await platform.database.read(
            rooms.find_room,
            conversation_id=request.path_params["id"],
            member_id=visitor_of(request).member_id,
        )
        return await endpoint(request, platform, room)

    return entered


@in_room
async def show(request: Request, platform: Platform, room: Room) -> Response:
    """The page."""
    before = query_number(request, "before")
    wanted = request.query_params.get("agent", "")
    if wanted:
        await rooms.find_agent(platform, wanted)
    timeline = await platform.database.read(_read, platform=platform, room=room, before=before)
    listed = await _rooms(platform, visitor_of(request))
    return await _page(request, platform, listed, room, timeline, wanted=wanted, older=before is not None)


async def _page(
    request: Request,
    platform: Platform,
    listed: list[rooms.Listed],
    room: Room | None = None,
    timeline: Timeline | None = None,
    *,
    wanted: str = "",
    older: bool = False,
) -> Response:
    """A room, or a page on which the first message makes one."""
    return await render_words(
        request,
        "chat/page.html",
        room=room.id if room is not None else "",
        agent=room.agent if room is not None else "",
        wanted=wanted,
        agents=await rooms.choosable(platform),
        rooms=[{"id": each.id, "title": each.title, "at": each.at} for each in listed],
        items=timeline.items if timeline is not None else [],
        cursor=str(timeline.cursor if timeline is not None else Cursor()),
        state=timeline.state if timeline is not None else "idle",
        earlier=timeline.earlier if timeline is not None else None,
        older=older,
        fresh=new_id("form").replace("_", "-"),
    )


def _read(connection: Connection, platform: Platform, room: Room, before: int | None) -> Timeline:
    return Reader(connection, platform.vault, platform.redactor, room.id).history(before)


@in_room
async def say(request: Request, platform: Platform, room: Room) -> Response:
    """The way to speak where no WebSocket passes, and for programs and browsers without scripts."""
    visitor = visitor_of(request)
    if request.headers.get("content-type", "").startswith("application/json"):
        body = await read_body(request, at_most=MAX_TEXT, within=platform.settings.body_timeout)
        taken = await take(platform, visitor, room, parse_post(load_json(body)))
        return JSONResponse({"seq": taken.seq, "result": taken.result}, 202)
    await take(platform, visitor, room, parse_post(await _form(request)))
    return RedirectResponse(f"/chat/{room.id}#end", 303)


async def _form(request: Request) -> dict[str, Any]:
    form = await read_form(request)
    value: dict[str, Any] = {name: str(form.get(name, "")) for name in ("id", "text", "agent")}
    if "stop" in form:
        value["stop"] = True
    question, _, choice = str(form.get("press", "")).rpartition(":")
    if question and re.fullmatch("[0-9]+", choice):
        value["press"] = {"question": question, "choice": int(choice[:3])}
    return value


@in_room
async def upload(request: Request, platform: Platform, room: Room) -> Response:
    """Put files into the room."""
    return await keep_file(request, platform, room)


@in_room
async def download(request: Request, platform: Platform, room: Room) -> Response:
    """A file of the room."""
    return await file_response(request, platform, room)


MAX_FILE = 20 * 1024 * 1024
MAX_BODY = MAX_FILE + 64 * 1024
MAX_IN_ROOM = 500 * 1024 * 1024
"""Bytes of all files of one room."""

SHOWN = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""What a browser may show by itself; everything else is downloaded, SVG and HTML above all."""
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_TYPE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,40}/[a-z0-9][a-z0-9.+-]{0,60}")
# Even opened by its own address, a file can do nothing: no script, no form, an origin of its own.
_HARMLESS = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"


async def keep_file(request: Request, platform: Platform, room: Room) -> Response:
    """Put files into the room; they are part of it once a message names them."""
    form = await read_form(request, max_files=MAX_FILES, max_fields=10)
    try:
        given = [part for part in form.getlist("file") if isinstance(part, UploadFile)]
        if not given:
            raise Malformed("Send at least one file, as multipart/form-data in the field file.")
        kept = [await _keep(platform, room, part) for part in given]
    finally:
        await form.close()
    return JSONResponse({"files": kept})


async def _keep(platform: Platform, room: Room, part: UploadFile) -> dict[str, Any]:
    content = await part.read(MAX_FILE + 1)
    return await keep_content(platform, room, part.filename or "", content, part.content_type or "")


async def keep_content(
    platform: Platform, room: Room, name: str, content: bytes, declared: str
) -> dict[str, Any]:
    """Put one file into the room; raises Malformed."""
    name = clean_name(name)
    if len(content) > MAX_FILE:
        raise Malformed(f"{name} is larger than {MAX_FILE // 1024**2} MB.")
    if not content:
        raise Malformed(f"{name} is empty.")
    media_type = media_type_of(content, declared)
    digest = await platform.database.write(
        _put, platform=platform, room=room, content=content, media_type=media_type
    )
    return {"hash": digest, "name": name, "media_type": media_type, "size": len(content)}


def _put(connection: Connection, platform: Platform, room: Room, content: bytes, media_type: str) -> str:
    used = select(func.coalesce(func.sum(blobs.c.size), 0)).where(blobs.c.conversation_id == room.id)
    if int(connection.execute(used).scalar_one()) + len(content) > MAX_IN_ROOM:
        raise Malformed(
            f"This conversation holds {MAX_IN_ROOM // 1024**2} MB of files already. Begin a new one."
        )
    return put_blob(connection, platform.vault, room.id, content, media_type)


async def file_response(request: Request, platform: Platform, room: Room) -> Response:
    """A file of the room: pictures to look at, everything else to keep."""
    digest = request.path_params["hash"]
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise NotFound("There is no such file.")
    media_type, content = await platform.database.read(_get, platform=platform, room=room, digest=digest)
    shown = media_type if media_type in SHOWN and picture_type(content) == media_type else ""
    how = "inline" if shown and "download" not in request.query_params else "attachment"
    name = clean_name(request.query_params.get("name", "")[:200])
    return Response(
        content,
        media_type=shown or "application/octet-stream",
        headers={
            "content-disposition": f"{how}; filename*=UTF-8''{quote(name, safe='')}",
            "content-security-policy": _HARMLESS,
            "x-content-type-options": "nosniff",
            "cache-control": "private, max-age=86400, immutable",
        },
    )


def _get(connection: Connection, platform: Platform, room: Room, digest: str) -> tuple[str, bytes]:
    query = select(blobs.c.media_type).where(blobs.c.conversation_id == room.id, blobs.c.hash == digest)
    media_type = connection.execute(query).scalar() or ""
    return media_type, read_blob(connection, platform.vault, room.id, digest)


def media_type_of(content: bytes, declared: str) -> str:
    """The media type: of pictures and PDFs by their first bytes, else the sender's, if it is valid."""
    found = picture_type(content) or ("application/pdf" if content.startswith(b"%PDF-") else "")
    declared = declared.partition(";")[0].strip().lower()
    if found:
        return found
    if not _TYPE.fullmatch(declared) or declared in SHOWN:
        return "application/octet-stream"
    return declared


def picture_type(content: bytes) -> str:
    """The kind of picture, by its first bytes; empty for anything else."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _SIGNATURES if content.startswith(start)), "")


def clean_name(name: str) -> str:
    """A file's name without a path and without characters that act or hide."""
    last = re.split(r"[\\/]", name)[-1]
    kept = "".join(char for char in last if char.isprintable()).strip(" .")
    return kept[-100:] or "file"
