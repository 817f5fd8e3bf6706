"""The example integration, as the contract suite tries it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2

from contract.case import Case
from gofer.integration import ConnectionContext, Request, sign_body
from gofer.vault.redaction import Secret
from gofer_hello import SIGNATURE, integration
from support.hello_service import HelloService

KEY = "a-signing-key-of-the-tests"


def account(url: str = "http://127.0.0.1:1/", http: httpx2.AsyncClient | None = None) -> ConnectionContext:
    return ConnectionContext("hello_1", "hello", {"reply_url": url}, {"signing_key": Secret(KEY)}, http=http)


def signed(value: object) -> Request:
    body = json.dumps(value).encode()
    signature = sign_body(body, KEY, time.time()).encode()
    return Request(body, (("content-type", b"application/json"), (SIGNATURE, signature)))


@dataclass
class Served:
    account: ConnectionContext
    service: HelloService
    conversation: str = "kitchen"

    def texts(self) -> list[str]:
        return self.service.texts


@asynccontextmanager
async def serve() -> AsyncIterator[Served]:
    async with HelloService().serving() as service, httpx2.AsyncClient() as http:
        yield Served(account(service.url, http), service)


CASE = Case(
    integration=integration,
    account=account(),
    message=lambda: signed({"id": "d1", "room": "kitchen", "from": "ann", "text": "hello"}),
    ignored=lambda: signed({"id": "d2", "ping": True}),
    serve=serve,
    finds=True,
)
