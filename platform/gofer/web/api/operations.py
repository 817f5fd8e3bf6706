"""One entry of the API: what it is called, who may call it, what it takes and what it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_type_hints

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gofer.web.api.http import MAX_BODY, EmptyBody, RequestModel, json_response, parse_body, parse_query
from gofer.web.api.idempotency import once
from gofer.web.auth import Role, require
from gofer.web.auth.confirmation import check_confirmed

Endpoint = Callable[..., Awaitable[Any]]
"""Takes the request, and its body or query as a model where it declares one; returns what the API answers."""


@dataclass(frozen=True)
class Operation:
    """A row of the API's table; the routes and the OpenAPI document are made from it."""

    name: str
    """noun.verb; also what the audit log calls it."""
    method: str
    path: str
    endpoint: Endpoint
    answer: type[BaseModel]
    role: Role = "viewer"
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
    confirmed: bool = False
    """It makes a way in that outlives the session, so a browser's user has to have confirmed who they are."""

    @cached_property
    def _declared(self) -> type[RequestModel] | None:
        """The model that the endpoint takes beside the request."""
        hints = {name: hint for name, hint in get_type_hints(self.endpoint).items() if name != "return"}
        return next((hint for hint in hints.values() if issubclass(hint, RequestModel)), None)

    @property
    def body(self) -> type[RequestModel] | None:
        """What a change takes; without a model of its own it takes nothing."""
        return None if self.method in ("GET", "DELETE") else self._declared or EmptyBody

    @property
    def query(self) -> type[RequestModel] | None:
        """What the query string of any other operation may say."""
        return self._declared if self.method in ("GET", "DELETE") else None

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
                return await once(request, self._answer, secret=self.secret)
            return await self._answer(request)

        endpoint = require(self.role, self.noun, for_agents=self.for_agents, routine=self.routine)(run)
        return Route(self.path, endpoint, methods=[self.method], name=self.name)

    async def _answer(self, request: Request) -> Response:
        if self.confirmed:
            check_confirmed(request)
        given: list[RequestModel] = []
        if self.body is not None:
            given = [await parse_body(request, self.body)]
        elif self.query is not None:
            given = [parse_query(request, self.query)]
        told = await self.endpoint(request, *(given if self._declared else ()))
        return told if isinstance(told, Response) else json_response(request, told, self.status)
