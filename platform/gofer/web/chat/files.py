"""Files both ways: put into a room's blobs, and shown so that nothing in them acts in the browser."""

from __future__ import annotations

import re
from functools import partial
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, func, select
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gofer.errors import Malformed, NotFound
from gofer.platform import Platform
from gofer.store.blobs import put_blob, read_blob
from gofer.store.tables import blobs
from gofer.web.body import read_form
from gofer.web.chat.rooms import Room
from gofer.web.chat.saying import MOST_FILES

LARGEST = 20 * 1024 * 1024
MOST_BODY = LARGEST + 64 * 1024
MOST_IN_ROOM = 500 * 1024 * 1024
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


async def upload(request: Request, platform: Platform, room: Room) -> Response:
    """Put files into the room; they are part of it once a message names them."""
    form = await read_form(request, max_files=MOST_FILES, max_fields=10)
    try:
        given = [part for part in form.getlist("file") if isinstance(part, UploadFile)]
        if not given:
            raise Malformed("Send at least one file, as multipart/form-data in the field file.")
        kept = [await _keep(platform, room, part) for part in given]
    finally:
        await form.close()
    return JSONResponse({"files": kept})


async def _keep(platform: Platform, room: Room, part: UploadFile) -> dict[str, Any]:
    name = clean_name(part.filename or "")
    content = await part.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise Malformed(f"{name} is larger than {LARGEST // 1024**2} MB.")
    if not content:
        raise Malformed(f"{name} is empty.")
    media_type = media_type_of(content, part.content_type or "")
    digest = await platform.database.write(
        partial(_put, platform=platform, room=room, content=content, media_type=media_type)
    )
    return {"hash": digest, "name": name, "media_type": media_type, "size": len(content)}


def _put(connection: Connection, platform: Platform, room: Room, content: bytes, media_type: str) -> str:
    used = select(func.coalesce(func.sum(blobs.c.size), 0)).where(blobs.c.conversation_id == room.id)
    if int(connection.execute(used).scalar_one()) + len(content) > MOST_IN_ROOM:
        raise Malformed(
            f"This conversation holds {MOST_IN_ROOM // 1024**2} MB of files already. Begin a new one."
        )
    return put_blob(connection, platform.vault, room.id, content, media_type)


async def download(request: Request, platform: Platform, room: Room) -> Response:
    """A file of the room: pictures to look at, everything else to keep."""
    digest = request.path_params["hash"]
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise NotFound("There is no such file.")
    media_type, content = await platform.database.read(
        partial(_get, platform=platform, room=room, digest=digest)
    )
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
    """What it is: pictures and PDFs by their first bytes, else as its sender says, unless that makes no sense."""
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
