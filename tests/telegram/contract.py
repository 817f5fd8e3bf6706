"""Telegram, as the contract suite tries it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx2

from contract.case import Case
from gofer.integration import ConnectionContext, Request
from gofer.vault.redaction import Secret
from gofer_standins.telegram import TOKEN, Chat, Telegram
from gofer_telegram import SECRET_HEADER, integration
from gofer_telegram.client import Settings
from telegram.captured import NAME, update

SECRET = "a-webhook-secret-of-the-tests"


def account(url: str = "http://127.0.0.1:1", http: httpx2.AsyncClient | None = None) -> ConnectionContext:
    settings = Settings(api_url=url, username=NAME).model_dump(mode="json")
    secrets = {"token": Secret(TOKEN), "webhook_secret": Secret(SECRET)}
    return ConnectionContext("telegram_1", "bot", settings, secrets, http=http)


def pushed(name: str) -> Request:
    headers = (("content-type", b"application/json"), (SECRET_HEADER, SECRET.encode()))
    return Request(json.dumps(update(name)).encode(), headers)


@dataclass
class Served:
    account: ConnectionContext
    telegram: Telegram
    chat: Chat
    conversation: str = field(init=False)

    def __post_init__(self) -> None:
        self.conversation = str(self.chat.id)

    def texts(self) -> list[str]:
        return self.telegram.said(self.chat)


@asynccontextmanager
async def serve() -> AsyncIterator[Served]:
    async with Telegram() as telegram, httpx2.AsyncClient() as http:
        chat = telegram.world.private(telegram.world.add_person("Ann"))
        yield Served(account(telegram.url, http), telegram, chat)


CASE = Case(
    integration=integration,
    account=account(),
    message=lambda: pushed("text"),
    ignored=lambda: pushed("joined"),
    serve=serve,
    signed_body=False,
)
