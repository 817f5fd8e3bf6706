"""A strict stand-in for the service that `gofer_hello` speaks with. Its ledger is the ground truth."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gofer.integration import sign_body
from gofer_standins.loopback import hang_up, serve


class Reply(BaseModel):
    """A reply as the service accepts it; anything else is refused."""

    model_config = ConfigDict(extra="forbid", strict=True)
    key: str = Field(min_length=1, max_length=200)
    room: str = Field(min_length=1)
    text: str = Field(min_length=1, max_length=4096)
    to: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong with the next request."""

    kind: Literal["busy", "broken", "dropped", "stalled"]
    """busy: 429. broken: 500. dropped: accepted but never answered. stalled: answered late."""
    seconds: float = 1
    """For `retry-after`, or how long to stall."""


@dataclass
class HelloService:
    """Sends signed messages and records every reply, repeats included: it dedupes nothing."""

    signing_key: str
    ledger: list[Reply] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Why it refused requests; empty with a correct client."""
    faults: deque[Fault] = field(default_factory=deque)
    rooms: set[str] = field(default_factory=set)
    url: str = ""
    _arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[HelloService]:
        """Listen on loopback."""
        app = Starlette(
            routes=[
                Route("/replies", self._post, methods=["POST"]),
                Route("/replies", self._get, methods=["GET"]),
            ]
        )
        async with serve(app) as base:
            self.url = f"{base}/replies"
            yield self

    def message(self, id: str, room: str, text: str, sender: str = "ada") -> bytes:
        """The body of a webhook."""
        self.rooms.add(room)
        return json.dumps({"id": id, "room": room, "from": sender, "text": text}).encode()

    def signed(self, body: bytes) -> dict[str, str]:
        """The headers it sends a body with."""
        signature = sign_body(body, self.signing_key, time.time())
        return {"content-type": "application/json", "x-hello-signature": signature}

    async def wait_for(self, enough: Callable[[list[Reply]], bool], timeout: float = 20) -> bool:
        """Wait until the ledger satisfies a condition; False when it does not in time."""
        try:
            async with asyncio.timeout(timeout), self._arrived:
                await self._arrived.wait_for(lambda: enough(self.ledger))
        except TimeoutError:
            return False
        return True

    async def _post(self, request: Request) -> Response:
        body = await request.body()
        fault = self.faults.popleft() if self.faults else None
        if fault is not None and fault.kind == "busy":
            return JSONResponse({"error": "busy"}, 429, {"retry-after": f"{fault.seconds:g}"})
        if fault is not None and fault.kind == "broken":
            return JSONResponse({"error": "broken"}, 500)
        if fault is not None and fault.kind == "stalled":
            await asyncio.sleep(fault.seconds)
        try:
            reply = self._checked(body, request.headers.get("content-type", ""))
        except ValueError as error:
            self.refused.append(str(error))
            return JSONResponse({"error": str(error)}, 422)
        self.ledger.append(reply)
        number = len(self.ledger)
        async with self._arrived:
            self._arrived.notify_all()
        if fault is not None and fault.kind == "dropped":
            hang_up(request)
        return JSONResponse({"id": str(number)}, 201)

    def _checked(self, body: bytes, content_type: str) -> Reply:
        if content_type.partition(";")[0].strip() != "application/json":
            raise ValueError(f"content-type is {content_type!r}")
        try:
            reply = Reply.model_validate_json(body)
        except ValidationError as error:
            first: Any = error.errors(include_input=False)[0]
            raise ValueError(f"{first['loc']}: {first['msg']}") from None
        if reply.room not in self.rooms:
            raise ValueError(f"there is no room {reply.room!r}")
        return reply

    async def _get(self, request: Request) -> Response:
        key = request.query_params.get("key", "")
        for number, reply in enumerate(self.ledger, 1):
            if reply.key == key:
                return JSONResponse({"id": str(number), "text": reply.text})
        return JSONResponse({"error": "not found"}, 404)
