"""`POST /hooks/{connection}`: receives webhooks."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from gofer import integration
from gofer.errors import GoferError, NotFound, NotInstalled, Refused, TooBusy, Unset
from gofer.intake.arrival import Taken
from gofer.intake.receive import Intake, Refusals
from gofer.web.body import (
    BODIES_AT_ONCE,
    BodyError,
    BodyRoom,
    ClientGone,
    has_whole_body,
    receive_body,
)
from gofer.web.problems import crash, problem, status_of

UNVERIFIED = "The request could not be verified."
NOT_NOW = "It cannot be taken in now. Please send it again in a moment."
"""The only sentence that a sender gets about a fault on our side."""


PATH = "/hooks/"


def is_hook(scope: Scope) -> bool:
    """Whether a request is a webhook: POST to a path with one more part, which names the connection."""
    if scope["type"] != "http" or scope["method"] != "POST":
        return False
    path: str = scope["path"]
    return path.startswith(PATH) and len(path) > len(PATH) and "/" not in path[len(PATH) :]


def _messages(result: str) -> tuple[Message, Message]:
    """An answer as ASGI messages. They are constants, shared by all webhooks."""
    answer = JSONResponse({"result": result})
    return (
        {"type": "http.response.start", "status": 200, "headers": answer.raw_headers},
        {"type": "http.response.body", "body": answer.body},
    )


_ANSWERS = {result: _messages(result) for result in ("accepted", "repeat", "redriven", "noted")}


class Hooks:
    """Answers webhooks: 2xx only after the commit, and a reason for everything else."""

    def __init__(self, *, intake: Intake, refusals: Refusals, max_body: int, body_timeout: float) -> None:
        self._intake = intake
        self._refusals = refusals
        self._max_body = max_body
        self._body_timeout = body_timeout
        self._room = BodyRoom(BODIES_AT_ONCE * max_body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The endpoint as an ASGI app of its own: webhooks skip everything that only pages need."""
        connection_id: str = scope["path"][len(PATH) :]
        whole = has_whole_body(scope)
        try:
            if whole:
                taken = await self._take(scope, receive, connection_id)
            else:
                await self._intake.expect(connection_id)
                with self._room.counted() as count:
                    taken = await self._take(scope, receive, connection_id, count)
        except Exception as error:  # noqa: BLE001 - no page of errors stands around this
            answer = self._refused(scope, connection_id, error, close=not whole)
            await answer(scope, receive, send)
            return
        # For the line that is logged when the request is answered.
        structlog.contextvars.bind_contextvars(delivery=taken.delivery_id, result=taken.result)
        start, end = _ANSWERS[taken.result]
        await send(start)
        await send(end)

    async def _take(
        self,
        scope: Scope,
        receive: Receive,
        connection_id: str,
        count: Callable[[int], None] = lambda _: None,
    ) -> Taken:
        body = await receive_body(
            scope, receive, at_most=self._max_body, within=self._body_timeout, count=count
        )
        headers = tuple((name.decode("latin-1"), value) for name, value in scope["headers"])
        return await self._intake.receive(connection_id, integration.Request(body, headers))

    def _refused(self, scope: Scope, connection_id: str, error: Exception, *, close: bool) -> Response:
        match error:
            case ClientGone():
                return problem(error.status, str(error))
            case BodyError():
                return self._refuse(scope, connection_id, error.status, error, close=True)
            case Unset() | NotInstalled():
                return self._refuse(scope, connection_id, 503, error)
            case NotFound():
                # An unknown door looks the same as a known one with a wrong key, which has read the body by now.
                return self._refuse(scope, connection_id, 401, Refused(UNVERIFIED), close=close)
            case GoferError():
                return self._refuse(scope, connection_id, _status(error), error, close=close)
        return crash(scope["path"], error)

    def _refuse(
        self, scope: Scope, connection_id: str, status: int, error: GoferError, *, close: bool = False
    ) -> Response:
        client = scope["client"][0] if scope.get("client") else ""
        self._refusals.add(connection_id, status, str(error), client)
        structlog.contextvars.bind_contextvars(refused=str(error)[:200])
        if status == 503:
            code = error.code if isinstance(error, TooBusy) else "unavailable"
            later = getattr(error, "retry_after", None) or 5
            return problem(503, NOT_NOW, code=code, retry_after=later, close=close)
        detail = UNVERIFIED if status == 401 else str(error)
        return problem(status, detail, code=error.code, close=close)


def _status(error: GoferError) -> int:
    """The status of a refusal. A 4xx says that the sender has to fix the request, everything else that it is to be sent
    again."""
    status = status_of(error)
    return status if status in (400, 401) else 503
