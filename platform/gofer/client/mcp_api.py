"""The API as the tools of our MCP server ask it: in this process, or over HTTP, in the name of one caller."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2

IDEMPOTENCY_KEY = "idempotency-key"


class Problem(Exception):
    """The API said no."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class OperationCall:
    """One request to the API."""

    method: str
    path: str
    """Below `/api/v1`."""
    query: Mapping[str, Any]
    body: Any
    headers: Mapping[str, str]


class CallerApi(ABC):
    """The API in the name of one caller."""

    async def __call__(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        key: str = "",
    ) -> Any:
        """The JSON of an answer; raises Problem."""
        given = {name: value for name, value in (query or {}).items() if value != ""}
        headers = {IDEMPOTENCY_KEY: key} if key else {}
        status, answer = await self.send(OperationCall(method, path, given, body, headers))
        try:
            value = json.loads(answer or b"{}")
        except ValueError:
            raise Problem(502, "unreadable", f"The server answered {status}, not JSON.") from None
        if status >= 400:
            told = value if isinstance(value, dict) else {}
            raise Problem(status, str(told.get("code", "")), str(told.get("detail", "")))
        return value

    @abstractmethod
    async def send(self, request: OperationCall) -> tuple[int, bytes]:
        """The status and the body of an answer; raises Problem when none came."""

    @abstractmethod
    async def me(self) -> Mapping[str, Any]:
        """Who calls, as `GET /me` says it: `role`, `scopes` and `agent` are looked at."""


class RemoteApi(CallerApi):
    """The API of a server that runs."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def send(self, request: OperationCall) -> tuple[int, bytes]:
        """Send it over HTTP."""
        import httpx2

        try:
            response = await self._client.request(
                request.method, request.path, params=request.query, json=request.body, headers=request.headers
            )
        except httpx2.TransportError as error:
            unknown = " Whether it was done is not known: look, or repeat it with the same key."
            lost = f"The server went away before it answered ({type(error).__name__})."
            raise Problem(503, "unreachable", lost + (unknown if request.method != "GET" else "")) from None
        return response.status_code, response.content

    async def me(self) -> Mapping[str, Any]:
        """Who calls."""
        found: Mapping[str, Any] = await self("GET", "/me")
        return found
