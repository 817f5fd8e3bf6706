"""One entry of the API: what it is called, who may call it, what it takes and what it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gofer.web.api.http import MAX_BODY, RequestModel
from gofer.web.api.idempotency import once
from gofer.web.auth import Role, require

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Operation:
    """A row of the API's table; the routes and the OpenAPI document are made from it."""

    name: str
    """noun.verb; also what the audit log calls it."""
    method: str
    path: str
    endpoint: Endpoint
    answer: type[BaseModel]
    role: Role = "viewer"
    query: type[RequestModel] | None = None
    body: type[RequestModel] | None = None
    status: int = 200
    secret: bool = False
    """The answer holds a secret: it is told once, also to those who repeat the request."""
    versioned: bool = False
    """Answers carry an ETag; changes may name the one they mean with If-Match."""
    most_body: int = MAX_BODY
    stream: bool = False
    """The answer is a stream of server-sent events, each of which is one `answer`."""
    for_agents: bool = False
    """A token that is bound to an agent may call it: it then sees what is that agent's, and nothing else."""
    routine: bool = False
    """A program says it again and again, and no person wants it on record: the audit log has no entry for it."""
    fails: tuple[int, ...] = ()
    """Statuses beyond those that every operation of its kind may answer."""

    @property
    def noun(self) -> str:
        """What a token's scope for it is called."""
        noun = self.name.partition(".")[0]
        return "connections" if noun == "sign_ups" else noun

    def route(self) -> Route:
        """For an app. Who asks is checked first, then what."""

        async def run(request: Request) -> Response:
            request.scope["gofer.most_body"] = self.most_body
            if self.method == "POST":
                return await once(request, self.endpoint, secret=self.secret)
            return await self.endpoint(request)

        endpoint = require(self.role, self.noun, for_agents=self.for_agents, routine=self.routine)(run)
        return Route(self.path, endpoint, methods=[self.method], name=self.name)
