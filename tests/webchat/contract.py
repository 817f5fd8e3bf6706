"""The web chat, as the contract suite tries it: a page of one's own at the other end."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from contract.case import Case
from gofer.integration import ConnectionContext, Request, sign_body
from gofer.vault.redaction import Secret
from gofer_standins import loopback
from gofer_webchat import SIGNATURE, integration

KEY = "a-signing-key-of-the-tests"


def account(url: str = "", http: httpx2.AsyncClient | None = None) -> ConnectionContext:
    return ConnectionContext(
        "webchat_1", "webchat", {"reply_url": url}, {"signing_key": Secret(KEY)}, http=http
    )


def posted(**values: Any) -> Request:
    member = {"id": "member_1", "name": "Ann", "role": "owner"}
    body = json.dumps({"id": "d1", "conversation": "c1", "member": member, **values}).encode()
    headers = (("content-type", b"application/json"), (SIGNATURE, sign_body(body, KEY, time.time()).encode()))
    return Request(body, headers)


@dataclass
class Page:
    """A page that keeps each reply under its key."""

    kept: dict[str, str] = field(default_factory=dict)

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/{key}", self.put, methods=["PUT"]),
                Route("/{key}", self.get, methods=["GET"]),
            ]
        )

    async def put(self, request: HttpRequest) -> Response:
        self.kept[request.path_params["key"]] = (await request.json())["text"]
        return JSONResponse({})

    async def get(self, request: HttpRequest) -> Response:
        return Response(status_code=200 if request.path_params["key"] in self.kept else 404)


@dataclass
class Served:
    account: ConnectionContext
    page: Page
    conversation: str = "c1"

    def texts(self) -> list[str]:
        return list(self.page.kept.values())


@asynccontextmanager
async def serve() -> AsyncIterator[Served]:
    page = Page()
    async with loopback.serve(page.app) as url, httpx2.AsyncClient() as http:
        yield Served(account(url, http), page)


CASE = Case(
    integration=integration,
    account=account(),
    message=lambda: posted(text="hello"),
    ignored=lambda: posted(id="d2", text="  "),
    serve=serve,
    finds=True,
)
