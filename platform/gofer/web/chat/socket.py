"""The two ways to follow a room: a WebSocket, over which one also speaks, and server-sent events where none passes.

Each connection has bounds of its own, which `web/client_socket.py` keeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from gofer.app import Platform
from gofer.errors import GoferError, Malformed, NotFound, TooBusy
from gofer.store.events import Cursor
from gofer.strict_json import load_json
from gofer.web.auth import NotSignedIn, Visitor, check_still, visitor_of, watch_over
from gofer.web.chat.follow import follow
from gofer.web.chat.posts import parse_post, take
from gofer.web.chat.rooms import Room, find_room
from gofer.web.chat.timeline import Timeline
from gofer.web.client_socket import ClientSocket, ClientSockets
from gofer.web.dashboard.render import Renderer
from gofer.web.event_source import Stream
from gofer.web.problems import error_response

MAX_CONNECTIONS = 20
"""Of one member, on this process."""
HEARTBEAT = 20.0

TOO_MANY = 4409


class Sockets:
    """The live connections of this process."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._sockets = ClientSockets(partial(check_still, platform, role="operator"))

    async def socket(self, websocket: WebSocket) -> None:
        """The endpoint for WebSockets."""
        try:
            visitor, room = await self._entered(websocket)
            cursor = _cursor(websocket.query_params.get("after", ""))
        except GoferError as error:
            await websocket.send_denial_response(error_response(error))
            return
        socket = ClientSocket(websocket)
        try:
            with self._sockets.entered(socket, visitor.member_id, most=MAX_CONNECTIONS):
                await websocket.accept()
                async with socket.closing("chat.socket_failed"):
                    await socket.run(
                        self._tell(socket, room, cursor), self._read_frames(socket, visitor, room)
                    )
        except TooBusy:
            await websocket.accept()
            await socket.close(TOO_MANY, "Too many pages are open.")

    async def _entered(self, connection: WebSocket | Request) -> tuple[Visitor, Room]:
        visitor = visitor_of(connection)
        if not visitor.may("operator"):
            raise NotSignedIn("This needs the role operator.")
        conversation_id = connection.path_params["id"]
        room = await self._platform.database.read(
            find_room, conversation_id=conversation_id, member_id=visitor.member_id
        )
        return visitor, room

    async def _tell(self, socket: ClientSocket, room: Room, cursor: Cursor) -> None:
        async for frame in self._frames(socket.websocket.app.state.renderer, room, cursor):
            await socket.send(json.dumps(frame))

    async def _frames(self, renderer: Renderer, room: Room, cursor: Cursor) -> AsyncIterator[dict[str, Any]]:
        async for news in follow(self._platform, room.id, cursor):
            yield await news_frame(renderer, news, room.id) if isinstance(news, Timeline) else news

    async def _read_frames(self, socket: ClientSocket, visitor: Visitor, room: Room) -> None:
        while True:
            message = await socket.receive()
            await check_still(self._platform, socket.websocket, "operator")
            await socket.send(json.dumps(await self._taken(visitor, room, message)))

    async def _taken(self, visitor: Visitor, room: Room, message: Any) -> dict[str, Any]:
        """What to answer to one thing the page sent: taken, or why not."""
        id_ = ""
        try:
            value = load_json((message.get("text") or "").encode("utf-8", "surrogatepass"))
            id_ = str(value.get("id", ""))[:64] if isinstance(value, dict) else ""
            given = parse_post(value)
            # Asked anew each time: a room may be purged, and its agent is known from the first message on.
            now = await self._platform.database.read(
                find_room, conversation_id=room.id, member_id=visitor.member_id
            )
            taken = await take(self._platform, visitor, now, given)
        except GoferError as error:
            final = isinstance(error, Malformed | NotFound)
            return {"type": "refused", "id": id_, "detail": str(error), "final": final}
        return {"type": "taken", "id": id_, "seq": taken.seq}

    async def events(self, request: Request) -> Response:
        """The endpoint for server-sent events; one speaks by POST beside it."""
        visitor, room = await self._entered(request)
        given = request.headers.get("last-event-id") or request.query_params.get("after", "")
        cursor = _cursor(given)
        return Stream(
            self._stream(request, room, cursor),
            self._sockets.open,
            visitor.member_id,
            most=MAX_CONNECTIONS,
            refusal=partial(watch_over, self._platform, request, "operator"),
        )

    async def _stream(self, request: Request, room: Room, cursor: Cursor) -> AsyncIterator[bytes]:
        with contextlib.suppress(NotFound):
            frames = self._frames(request.app.state.renderer, room, cursor)
            waiting: asyncio.Task[dict[str, Any]] | None = None
            try:
                while True:
                    waiting = waiting or asyncio.ensure_future(anext(frames))
                    done, _ = await asyncio.wait({waiting}, timeout=HEARTBEAT)
                    if not done:
                        yield b": still here\n\n"
                        continue
                    frame, waiting = waiting.result(), None
                    place = f"id: {frame['cursor']}\n" if "cursor" in frame else ""
                    yield f"{place}data: {json.dumps(frame)}\n\n".encode()
            finally:
                if waiting is not None:
                    waiting.cancel()
                    await asyncio.gather(waiting, return_exceptions=True)


def _cursor(given: str) -> Cursor:
    try:
        return Cursor.parse(given)
    except ValueError:
        raise Malformed("That is no place in the log.") from None


async def news_frame(renderer: Renderer, timeline: Timeline, conversation_id: str) -> dict[str, Any]:
    """Items that are new or have changed, the place after them, and what the agent is at."""
    # Colouring code takes its time; others should not wait for it.
    items = await asyncio.to_thread(_rendered, renderer, timeline.items, conversation_id)
    return {"type": "news", "items": items, "cursor": str(timeline.cursor), "state": timeline.state}


def _rendered(renderer: Renderer, items: list[dict[str, Any]], conversation_id: str) -> list[dict[str, Any]]:
    return [
        {
            "id": item["id"],
            "place": item["place"],
            "html": renderer.html("chat/item.html", item=item, room=conversation_id),
        }
        for item in items
    ]
