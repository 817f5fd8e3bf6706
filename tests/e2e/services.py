"""A strict stand-in for a service that can only be sent to and edited, like Telegram: no key, no search."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gofer_standins.hello import Fault
from gofer_standins.loopback import hang_up, serve


@dataclass
class Sent:
    """A message as people see it."""

    room: str
    to: str
    text: str
    key: str = ""
    """Which reply it has become; empty while it is only an opening."""
    edits: int = 0


@dataclass
class EditService:
    """Keeps every message it was sent, and every edit."""

    rooms: set[str] = field(default_factory=set)
    messages: list[Sent] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    faults: deque[Fault] = field(default_factory=deque)
    url: str = ""

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[EditService]:
        app = Starlette(
            routes=[
                Route("/messages", self._send, methods=["POST"]),
                Route("/messages/{number:int}", self._edit, methods=["PUT"]),
            ]
        )
        async with serve(app) as base:
            self.url = f"{base}/messages"
            yield self

    async def _send(self, request: Request) -> Response:
        body = await request.json()
        if set(body) != {"room", "text", "to"} or body["room"] not in self.rooms or not body["text"]:
            return self._refuse(f"not a message: {body}")
        fault = self.faults.popleft() if self.faults else None
        if (failed := await _failed(fault)) is not None:
            return failed
        self.messages.append(Sent(**body))
        number = len(self.messages)
        if fault is not None and fault.kind == "dropped":
            hang_up(request)
        return JSONResponse({"id": number}, 201)

    async def _edit(self, request: Request) -> Response:
        number = request.path_params["number"]
        if not 1 <= number <= len(self.messages):
            return self._refuse(f"no message {number}")
        body = await request.json()
        message = self.messages[number - 1]
        if message.key not in ("", body["key"]):
            return self._refuse(f"{body['key']} would overwrite {message.key}")
        message.text, message.key = body["text"], body["key"]
        message.edits += 1
        return JSONResponse({"id": number})

    def _refuse(self, why: str) -> Response:
        self.refused.append(why)
        return JSONResponse({"error": why}, 422)


async def _failed(fault: Fault | None) -> Response | None:
    """The answer of a service that is not well; None when it takes the message all the same."""
    if fault is None:
        return None
    if fault.kind == "busy":
        return JSONResponse({"error": "busy"}, 429, {"retry-after": f"{fault.seconds:g}"})
    if fault.kind == "broken":
        return JSONResponse({"error": "broken"}, 500)
    if fault.kind == "stalled":
        await asyncio.sleep(fault.seconds)
    return None
