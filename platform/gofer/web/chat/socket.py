"""The two ways to follow a room: a WebSocket, over which one also speaks, and server-sent events where none passes.

Each connection has a task and a patience of its own: one that floods or does not read is cut off, and nobody else
waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from gofer.app import Platform
from gofer.errors import GoferError, Malformed, NotFound, TooBusy
from gofer.store.events import Cursor
from gofer.strict_json import load_json
from gofer.web.auth import NotSignedIn, Visitor, check_still, visitor_of, watch_over
from gofer.web.chat.follow import follow
from gofer.web.chat.posts import parse_post, take
from gofer.web.chat.rooms import Room, find_room
from gofer.web.chat.timeline import Timeline
from gofer.web.dashboard.render import Renderer
from gofer.web.event_source import Stream

log = structlog.get_logger()

BURST, PER_SECOND = 30.0, 5.0
"""Frames a connection may send at once, and on average."""
PATIENCE = 10.0
"""Seconds a reader may take for one frame."""
MAX_CONNECTIONS = 20
"""Of one member, on this process."""
HEARTBEAT = 20.0

NOT_ALLOWED, FLOODED, TOO_SLOW, TOO_MANY = 4403, 4429, 4408, 4409


class Allowance:
    """A bucket of frames that fills with time."""

    def __init__(self) -> None:
        self._left, self._at = BURST, time.monotonic()

    def spend(self) -> bool:
        """Whether one more may come now."""
        now = time.monotonic()
        self._left = min(BURST, self._left + (now - self._at) * PER_SECOND)
        self._at = now
        self._left -= 1
        return self._left >= 0


class Sockets:
    """The live connections of this process."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._open: Counter[str] = Counter()

    async def socket(self, websocket: WebSocket) -> None:
        """The endpoint for WebSockets."""
        try:
            visitor, room = await self._entered(websocket)
            cursor = _cursor(websocket.query_params.get("after", ""))
        except GoferError:
            await websocket.close(NOT_ALLOWED)
            return
        try:
            with self._counted(visitor):
                await websocket.accept()
                await self._converse(websocket, visitor, room, cursor)
        except TooBusy:
            await websocket.accept()
            await websocket.close(TOO_MANY, "Too many pages are open.")

    async def _entered(self, connection: WebSocket | Request) -> tuple[Visitor, Room]:
        visitor = visitor_of(connection)
        if not visitor.may("operator"):
            raise NotSignedIn("This needs the role operator.")
        conversation_id = connection.path_params["id"]
        room = await self._platform.database.read(
            partial(find_room, conversation_id=conversation_id, member_id=visitor.member_id)
        )
        return visitor, room

    @contextlib.contextmanager
    def _counted(self, visitor: Visitor) -> Iterator[None]:
        if self._open[visitor.member_id] >= MAX_CONNECTIONS:
            raise TooBusy("Too many pages are open.")
        self._open[visitor.member_id] += 1
        try:
            yield
        finally:
            self._open[visitor.member_id] -= 1

    async def _converse(self, websocket: WebSocket, visitor: Visitor, room: Room, cursor: Cursor) -> None:
        """Speak and listen until either ends; a crash of one side ends the other."""
        sending = asyncio.Lock()
        tasks = [
            asyncio.create_task(self._tell(websocket, room, cursor, sending)),
            asyncio.create_task(self._hear(websocket, visitor, room, sending)),
            asyncio.create_task(watch_over(self._platform, websocket, "operator")),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except (WebSocketDisconnect, RuntimeError):
            pass  # it went away
        except TimeoutError:
            await _close(websocket, TOO_SLOW, "You read too slowly.")
        except _Flooded:
            await _close(websocket, FLOODED, "Too many messages at once.")
        except NotFound:
            await _close(websocket, NOT_ALLOWED, "The conversation is gone.")
        except NotSignedIn:
            await _close(websocket, NOT_ALLOWED, "You are signed out.")
        except Exception:
            log.exception("chat.socket_failed")
            await _close(websocket, 1011, "")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _tell(self, websocket: WebSocket, room: Room, cursor: Cursor, sending: asyncio.Lock) -> None:
        async for frame in self._frames(websocket.app.state.renderer, room, cursor):
            await _send(websocket, frame, sending)

    async def _frames(self, renderer: Renderer, room: Room, cursor: Cursor) -> AsyncIterator[dict[str, Any]]:
        async for news in follow(self._platform, room.id, cursor):
            yield await news_frame(renderer, news, room.id) if isinstance(news, Timeline) else news

    async def _hear(self, websocket: WebSocket, visitor: Visitor, room: Room, sending: asyncio.Lock) -> None:
        allowance = Allowance()
        while True:
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect
            if not allowance.spend():
                raise _Flooded
            await check_still(self._platform, websocket, "operator")
            frame = await self._taken(visitor, room, message)
            await _send(websocket, frame, sending)

    async def _taken(self, visitor: Visitor, room: Room, message: Any) -> dict[str, Any]:
        """What to answer to one thing the page sent: taken, or why not."""
        id_ = ""
        try:
            value = load_json((message.get("text") or "").encode("utf-8", "surrogatepass"))
            id_ = str(value.get("id", ""))[:64] if isinstance(value, dict) else ""
            given = parse_post(value)
            # Asked anew each time: a room may be purged, and its agent is known from the first message on.
            now = await self._platform.database.read(
                partial(find_room, conversation_id=room.id, member_id=visitor.member_id)
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
            self._open,
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


class _Flooded(Exception):
    """More came than was allowed."""


async def _send(websocket: WebSocket, frame: dict[str, Any], sending: asyncio.Lock) -> None:
    async with sending, asyncio.timeout(PATIENCE):
        await websocket.send_text(json.dumps(frame))


async def _close(websocket: WebSocket, code: int, reason: str) -> None:
    if websocket.application_state is not WebSocketState.DISCONNECTED:
        with contextlib.suppress(RuntimeError, TimeoutError):
            async with asyncio.timeout(1):
                await websocket.close(code, reason)


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
