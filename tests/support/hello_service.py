"""The service that `gofer_hello` speaks with: a strict stand-in on loopback whose ledger is the truth."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit


class HelloService:
    """Takes replies by POST, once per key, and finds them by GET."""

    def __init__(self) -> None:
        self.replies: list[dict[str, Any]] = []
        """What people would see, in order."""
        self.calls: list[str] = []
        self.faults: list[tuple[int, dict[str, str]] | str] = []
        """Answers to give to the next posts instead of the right one: a status with headers; "drop" to accept and
        cut the line; "lose" to cut it without accepting."""
        self.before_answer: Callable[[], Any] | None = None
        self.url = ""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[HelloService]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/replies"
        try:
            yield self
        finally:
            server.close()

    @property
    def texts(self) -> list[str]:
        return [reply["text"] for reply in self.replies]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, target, _ = head[0].split(" ")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            answer = self._answer(method, target, body)
            if self.before_answer is not None:
                await self.before_answer()
            if answer is not None:
                writer.write(answer)
                await writer.drain()
        writer.close()

    def _answer(self, method: str, target: str, body: bytes) -> bytes | None:
        self.calls.append(method)
        if method == "GET":
            (key,) = parse_qs(urlsplit(target).query)["key"]
            found = [reply for reply in self.replies if reply["key"] == key]
            return _response(200, found[0]) if found else _response(404, {})
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, tuple):
            return _response(fault[0], {}, fault[1])
        if fault == "lose":
            return None
        reply = json.loads(body)
        assert set(reply) == {"key", "room", "text", "to"}
        self.replies.append({"id": f"r{len(self.replies) + 1}", **reply})
        return None if fault == "drop" else _response(200, self.replies[-1])


def _response(status: int, value: Any, headers: dict[str, str] | None = None) -> bytes:
    body = json.dumps(value).encode()
    more = "".join(f"{name}: {text}\r\n" for name, text in (headers or {}).items())
    head = f"HTTP/1.1 {status} -\r\ncontent-length: {len(body)}\r\nconnection: close\r\n{more}\r\n"
    return head.encode() + body
