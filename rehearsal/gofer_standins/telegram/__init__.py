"""A stand-in for Telegram: a strict Bot API 10.3 server on loopback, with a user side to drive it.

It refuses what Telegram refuses, orders per chat, pushes and polls as the real server does, serves files, and fails
when asked to. Its histories and its list of calls are the ground truth of a test.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gofer_standins.loopback import serve
from gofer_standins.telegram.api import Methods, Upload
from gofer_standins.telegram.people import Phones
from gofer_standins.telegram.rules import ApiError, SendRates, bad
from gofer_standins.telegram.updates import Updates
from gofer_standins.telegram.world import ApiCall, Chat, Message, Person, TelegramWorld

__all__ = ["Chat", "Fault", "Message", "Person", "SendRates", "Telegram"]

TOKEN = "7000000001:AAH-a-token-for-rehearsals-only-00000"  # noqa: S105


@dataclass
class Fault:
    """Something to go wrong on purpose."""

    method: str
    times: int = 1
    status: int = 0
    """Answer with this instead of doing it …"""
    retry_after: int = 0
    description: str = ""
    drop: bool = False
    """… or do it, and cut the connection instead of answering …"""
    stall: float = 0
    """… or do it only after these seconds."""


class Telegram:
    """The stand-in. `async with Telegram() as telegram` serves it at `telegram.url`."""

    def __init__(
        self,
        *,
        token: str = TOKEN,
        username: str = "gofer_rehearsal_bot",
        limits: SendRates | None = None,
        first_retry: float = 2.0,
    ) -> None:
        self.token = token
        bot = Person(int(token.partition(":")[0]), "Gofer", username, is_bot=True)
        self.world = TelegramWorld(bot)
        self.updates = Updates(first_retry=first_retry)
        self.methods = Methods(self.world, self.updates, limits)
        self.phones = Phones(self.world, self.updates, self.methods)
        self.faults: list[Fault] = []
        self.url = ""
        self._stack = AsyncExitStack()
        self.app = Starlette(
            routes=[
                Route("/bot{token}/{method}", self._call, methods=["GET", "POST"]),
                Route("/file/bot{token}/{path:path}", self._download),
            ]
        )

    async def __aenter__(self) -> Telegram:
        self.url = await self._stack.enter_async_context(serve(self.app))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.updates.close()
        await self._stack.aclose()

    @property
    def bot(self) -> Person:
        """The account of the bot."""
        return self.world.bot

    def said(self, chat: Chat) -> list[str]:
        """What the bot's messages in a chat say now, in order."""
        return [str(one.get("text") or one.get("caption") or "") for one in chat.by_bot(self.world.bot.id)]

    def calls(self, method: str) -> list[ApiCall]:
        """The requests made to a method."""
        return [call for call in self.world.calls if call.method == method]

    def fail(self, method: str, **how: Any) -> None:
        """Let the next calls of a method go wrong; see `Fault`."""
        self.faults.append(Fault(method, **how))

    async def until(self, condition: Callable[[], Any], *, within: float = 60) -> Any:
        """Wait until a condition holds, and return its value; raises TimeoutError."""
        end = time.monotonic() + within
        while not (value := condition()):
            if time.monotonic() > end:
                raise TimeoutError("the stand-in waited in vain")
            await asyncio.sleep(0.01)
        return value

    async def _call(self, request: Request) -> Response:
        method = request.path_params["method"]
        parameters: dict[str, Any] = {}
        try:
            self._check_token(request)
            parameters = await _parameters(request)
            fault = self._fault(method)
            if fault is not None:
                await self._misbehave(fault)
            result = await self.methods.call(method, parameters)
        except ApiError as error:
            self._note(method, parameters, error.status, error.body())
            return JSONResponse(error.body(), error.status)
        self._note(method, parameters, 200, result)
        if fault is not None and fault.drop:
            return _CutOff()
        return JSONResponse({"ok": True, "result": result})

    def _check_token(self, request: Request) -> None:
        given = request.path_params["token"]
        if given == self.token:
            return
        number, colon, rest = given.partition(":")
        if not (number.isdigit() and colon and rest):
            raise ApiError(404, "Not Found")
        raise ApiError(401, "Unauthorized")

    def _fault(self, method: str) -> Fault | None:
        for fault in self.faults:
            if fault.method.lower() in (method.lower(), "*") and fault.times > 0:
                fault.times -= 1
                return fault
        return None

    async def _misbehave(self, fault: Fault) -> None:
        if fault.stall:
            await asyncio.sleep(fault.stall)
        if fault.status == 429:
            text = f"Too Many Requests: retry after {fault.retry_after}"
            raise ApiError(429, text, retry_after=fault.retry_after)
        if fault.status:
            raise ApiError(fault.status, fault.description or "Internal Server Error")

    def _note(self, method: str, parameters: dict[str, Any], status: int, answer: Any) -> None:
        shown = {
            name: f"<{len(value.content)} bytes>" if isinstance(value, Upload) else value
            for name, value in parameters.items()
        }
        copied = json.loads(json.dumps(answer))
        self.world.calls.append(ApiCall(method, shown, status, copied, time.time()))

    async def _download(self, request: Request) -> Response:
        try:
            self._check_token(request)
        except ApiError as error:
            return JSONResponse(error.body(), error.status)
        wanted = request.path_params["path"]
        for path, content in self.world.files.values():
            if path == wanted:
                return Response(content, media_type="application/octet-stream")
        return PlainTextResponse("Not Found", 404)


class _CutOff(Response):
    """Promises a body and hangs up: the caller cannot know that the work was done."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"1000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _parameters(request: Request) -> dict[str, Any]:
    """Parameters as Telegram takes them: the query, JSON, a form, or multipart with files."""
    given: dict[str, Any] = dict(request.query_params)
    kind = request.headers.get("content-type", "").partition(";")[0]
    if kind == "application/json":
        try:
            body = json.loads(await request.body() or b"{}")
        except ValueError:
            raise bad("can't parse JSON object") from None
        if not isinstance(body, dict):
            raise bad("expected a JSON object")
        given |= body
    elif kind in ("application/x-www-form-urlencoded", "multipart/form-data"):
        async with request.form() as form:
            for name, value in form.items():
                given[name] = await _form_value(value)
    return {name: value for name, value in given.items() if value is not None}


async def _form_value(value: UploadFile | str) -> Any:
    if isinstance(value, UploadFile):
        return Upload(value.filename or "file", await value.read())
    try:
        parsed = json.loads(value)
    except ValueError:
        return value
    return value if isinstance(parsed, str) else parsed
