"""`POST /hooks/{connection}`: the door for webhooks."""

from __future__ import annotations

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gofer import integration
from gofer.errors import GoferError, NotFound, NotInstalled, Refused, TooBusy, Unset
from gofer.intake.receive import Intake, Refusals
from gofer.web.body import BodyError, ClientGone, read_body
from gofer.web.problems import problem, status_of

_ANSWERS = {
    result: JSONResponse({"result": result}).body for result in ("accepted", "repeat", "redriven", "noted")
}

UNVERIFIED = "The request could not be verified."
NOT_NOW = "It cannot be taken in now. Please send it again in a moment."
"""All that somebody we may not know is told of what is wrong on our side."""


PATH = "/hooks/"


class HooksFirst:
    """ASGI middleware: a webhook goes straight to its endpoint, past everything that is there for browsers."""

    def __init__(self, app: ASGIApp, hooks: Hooks) -> None:
        self._app = app
        self._hooks = hooks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take webhooks out of the stream of requests."""
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"].startswith(PATH):
            name = scope["path"][len(PATH) :]
            if name and "/" not in name:
                scope["path_params"] = {"connection": name}
                await self._hooks(scope, receive, send)
                return
        await self._app(scope, receive, send)


class Hooks:
    """Answers webhooks: 2xx only after the commit, and a reason for everything else."""

    def __init__(self, *, intake: Intake, refusals: Refusals, max_body: int, body_timeout: float) -> None:
        self._intake = intake
        self._refusals = refusals
        self._max_body = max_body
        self._body_timeout = body_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The endpoint, as an app of its own: the busiest door does without what pages need."""
        answer = await self._answer(Request(scope, receive))
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        connection_id: str = request.path_params["connection"]
        try:
            body = await read_body(request, at_most=self._max_body, within=self._body_timeout)
            headers = tuple((name.decode("latin-1"), value) for name, value in request.headers.raw)
            taken = await self._intake.receive(connection_id, integration.Request(body, headers))
        except ClientGone as gone:
            return problem(gone.status, str(gone))
        except BodyError as error:
            return self._refuse(request, connection_id, error.status, error, close=True)
        except (Unset, NotInstalled) as error:
            return self._refuse(request, connection_id, 503, error)
        except NotFound:
            # An unknown door looks the same as a known one with a wrong key.
            return self._refuse(request, connection_id, 401, Refused(UNVERIFIED))
        except GoferError as error:
            return self._refuse(request, connection_id, _status(error), error)
        # For the line that is logged when the request is answered.
        structlog.contextvars.bind_contextvars(delivery=taken.delivery_id, result=taken.result)
        return Response(_ANSWERS[taken.result], media_type="application/json")

    def _refuse(
        self, request: Request, connection_id: str, status: int, error: GoferError, *, close: bool = False
    ) -> Response:
        client = request.client.host if request.client else ""
        self._refusals.add(connection_id, status, str(error), client)
        structlog.contextvars.bind_contextvars(refused=str(error)[:200])
        if status == 503:
            code = error.code if isinstance(error, TooBusy) else "unavailable"
            return problem(503, NOT_NOW, code=code, retry_after=getattr(error, "retry_after", None) or 5)
        detail = UNVERIFIED if status == 401 else str(error)
        return problem(status, detail, code=error.code, close=close)


def _status(error: GoferError) -> int:
    """What is wrong with the request is the sender's to mend; for all else it is to be sent again."""
    status = status_of(error)
    return status if status in (400, 401) else 503
