"""`POST /hooks/{connection}`: the door for webhooks."""

from __future__ import annotations

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from gofer import integration
from gofer.errors import GoferError, NotFound, NotInstalled, Refused, StoreError, Unset
from gofer.intake.receive import Intake, Refusals
from gofer.vault.errors import VaultError
from gofer.web.body import BodyError, read_body
from gofer.web.problems import problem, status_of

_ANSWERS = {
    result: JSONResponse({"result": result}).body for result in ("accepted", "repeat", "redriven", "noted")
}


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
        except BodyError as error:
            return self._refuse(request, connection_id, error.status, error, close=True)
        except (Unset, NotInstalled) as error:
            return self._refuse(request, connection_id, 503, error)
        except NotFound:
            # An unknown door looks the same as a known one with a wrong key.
            return self._refuse(request, connection_id, 401, Refused("The request could not be verified."))
        except GoferError as error:
            return self._refuse(request, connection_id, status_of(error), error)
        # For the line that is logged when the request is answered.
        structlog.contextvars.bind_contextvars(delivery=taken.delivery_id, result=taken.result)
        return Response(_ANSWERS[taken.result], media_type="application/json")

    def _refuse(
        self, request: Request, connection_id: str, status: int, error: GoferError, *, close: bool = False
    ) -> Response:
        client = request.client.host if request.client else ""
        self._refusals.add(connection_id, status, str(error), client)
        retry_after = getattr(error, "retry_after", None) or (5 if status == 503 else None)
        return problem(status, _told(status, error), code=error.code, retry_after=retry_after, close=close)


def _told(status: int, error: GoferError) -> str:
    """What anybody at all may know; why it is so, `gofer status --refusals` tells the owner."""
    if status == 401:
        return "The request could not be verified."
    if isinstance(error, StoreError | VaultError | NotInstalled):
        return "It cannot be taken in now. Try again later."
    return str(error)
