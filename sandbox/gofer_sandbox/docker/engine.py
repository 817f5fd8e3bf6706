"""The few calls of Docker's Engine API that sandboxes need, over its socket or TCP, without an SDK.

Written from the API's documentation (v1.43) and tried against a strict stand-in of it; it has not run against
a real engine yet.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gofer_sandbox.errors import InvalidInput, SandboxError

if TYPE_CHECKING:
    import httpx2

DEFAULT = "unix:///var/run/docker.sock"

_PREFERRED = (1, 43)
_TIMEOUT = 60.0
_PULL_TIMEOUT = 1800.0


class EngineError(SandboxError):
    """Docker's engine refused or could not be reached."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Engine:
    """One engine. Connections are made for each call: calls are rare, and nothing has to be closed."""

    def __init__(self, address: str = DEFAULT) -> None:
        """`address` is `unix:///path` or `tcp://host:port`, of this machine."""
        parts = urlsplit(address)
        if parts.scheme not in ("unix", "tcp") or not (parts.path if parts.scheme == "unix" else parts.port):
            raise InvalidInput(f"{address!r} is not an engine's address: unix:///path or tcp://host:port")
        self.address = address
        self._socket = parts.path if parts.scheme == "unix" else None
        self._base = "http://docker" if self._socket else f"http://{parts.netloc}"
        self._version: str | None = None

    @asynccontextmanager
    async def _client(self, timeout: float) -> AsyncIterator[httpx2.AsyncClient]:
        import httpx2  # here, because only users of this provider should pay for it

        transport = httpx2.AsyncHTTPTransport(uds=self._socket, verify=False)
        bound = httpx2.Timeout(timeout, connect=10)
        async with httpx2.AsyncClient(transport=transport, base_url=self._base, timeout=bound) as client:
            try:
                yield client
            except httpx2.TransportError as error:
                why = f"cannot reach Docker's engine at {self.address}: {error or type(error).__name__}"
                fix = "is the engine running, and may this user open its socket (group docker)?"
                raise EngineError(f"{why}; {fix}") from error

    async def _call(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: object = None
    ) -> Any:
        """One call under the negotiated version: the answer's JSON, or EngineError in the engine's words."""
        version = await self._negotiated()
        async with self._client(_TIMEOUT) as client:
            answer = await client.request(method, f"/v{version}{path}", params=query, json=body)
        if answer.status_code >= 400:
            raise EngineError(_message(answer.status_code, answer.content), answer.status_code)
        return answer.json() if answer.content else None

    async def _negotiated(self) -> str:
        """The version we were written for, if the engine has it, else the nearest one it does have."""
        if self._version is None:
            async with self._client(_TIMEOUT) as client:
                answer = await client.get("/version")  # the one path that needs none
            try:
                known = answer.json()
                newest, oldest = _number(known["ApiVersion"]), _number(known["MinAPIVersion"])
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise EngineError(f"what answers at {self.address} is not Docker's engine") from error
            major, minor = min(max(_PREFERRED, oldest), newest)
            self._version = f"{major}.{minor}"
        return self._version

    async def info(self) -> dict[str, Any]:
        """What the engine's machine can do."""
        return dict(await self._call("GET", "/info"))

    async def _found(self, path: str) -> dict[str, Any] | None:
        try:
            return dict(await self._call("GET", path))
        except EngineError as error:
            if error.status == 404:
                return None
            raise

    async def has_image(self, image: str) -> bool:
        """Whether the image is there without pulling."""
        return await self._found(f"/images/{image}/json") is not None

    async def pull(self, image: str) -> None:
        """Fetch an image. The engine answers 200 at once and tells of errors in the stream."""
        name, tag = _split_tag(image)
        version = await self._negotiated()
        query = {"fromImage": name, "tag": tag}
        async with (
            self._client(_PULL_TIMEOUT) as client,
            client.stream("POST", f"/v{version}/images/create", params=query) as answer,
        ):
            if answer.status_code >= 400:
                raise EngineError(_message(answer.status_code, await answer.aread()), answer.status_code)
            async for line in answer.aiter_lines():
                if line.strip() and "error" in (said := json.loads(line)):
                    raise EngineError(f"pulling {image}: {said['error']}")

    async def create(self, name: str, container: Mapping[str, Any]) -> str:
        """Make a container and answer its id."""
        answer = await self._call("POST", "/containers/create", query={"name": name}, body=container)
        return str(answer["Id"])

    async def start(self, container: str) -> None:
        """Start its command."""
        await self._call("POST", f"/containers/{container}/start")

    async def inspect(self, container: str) -> dict[str, Any] | None:
        """All that is known of a container; None when there is none."""
        return await self._found(f"/containers/{container}/json")

    async def remove(self, container: str) -> None:
        """Kill and remove a container; nothing when it is already gone or going."""
        try:
            await self._call("DELETE", f"/containers/{container}", query={"force": "true", "v": "true"})
        except EngineError as error:
            if error.status not in (404, 409):
                raise


def _number(version: str) -> tuple[int, int]:
    major, _, minor = version.partition(".")
    return int(major), int(minor)


def _message(status: int, content: bytes) -> str:
    try:
        return f"Docker: {json.loads(content)['message']}"
    except (ValueError, KeyError, TypeError):
        return f"Docker answered {status}"


def _split_tag(image: str) -> tuple[str, str]:
    """Name and tag; without a tag all tags would be pulled. A digest stands where a tag would."""
    name, at, digest = image.partition("@")
    if at:
        return name, digest
    head, colon, tag = image.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (image, "latest")
