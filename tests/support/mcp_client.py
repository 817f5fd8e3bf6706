"""The library's own MCP client, at the door of a test's server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from support.patience import patience
from support.web_server import House

T = TypeVar("T")


@asynccontextmanager
async def connected(house: House, token: str, **options: Any) -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=patience(30)) as http:
        transport = streamable_http_client(f"{house.url}/mcp", http_client=http)
        async with Client(transport, **options) as client:
            yield client


def with_client(house: House, token: str, do: Callable[[Client], Awaitable[T]], **options: Any) -> T:
    async def work() -> T:
        async with connected(house, token, **options) as client:
            return await do(client)

    return asyncio.run(work())


def called(house: House, token: str, name: str, **arguments: Any) -> Any:
    """The structured result of one call."""

    async def call(client: Client) -> Any:
        return (await client.call_tool(name, arguments)).structured_content

    return with_client(house, token, call)
