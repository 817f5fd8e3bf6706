"""Webhooks over HTTP, acknowledged when they are durable, beside a route that does nothing on the same server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import hmac
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from benchmarks import intake, ours
from benchmarks.measure import percentile
from benchmarks.report import Row
from gofer.app import Platform
from gofer.web.app import public_app
from gofer.web.server import make_server

GROUP = "webhook"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load generator saw."""

    rate: float
    taken: list[float]


async def main(quick: bool) -> list[Row]:
    """Run them."""
    seconds, rounds = (1.5, 1) if quick else (4.0, 3)
    idle: list[Loaded] = []
    busy: list[Loaded] = []
    alone: list[Loaded] = []
    async with ours.platform() as platform:
        platform.intake.gate.max_waiting = 10**9  # nothing works the jobs off here
        connection_id = await intake.connect(platform)
        key = (await platform.accounts.get(connection_id)).account.secret("signing_key").encode()
        async with serving(_nothing()) as bare, serving(public_app(platform)) as real:
            path = f"/hooks/{connection_id}"
            # Once for the rooms: chats exist when messages come.
            first = await _load(real, path, key, "first", seconds / 2, connections=40)
            gc.collect()
            gc.freeze()  # as in `gofer serve`
            for number in range(rounds):
                idle.append(await _load(bare, path, key, f"n{number}", seconds, connections=40))
                busy.append(await _load(real, path, key, f"b{number}", seconds, connections=40))
                alone.append(await _load(real, path, key, f"a{number}", seconds, connections=1))
        await _check(platform, [first, *busy, *alone])
    return _rows(idle, busy, alone)


def _rows(idle: list[Loaded], busy: list[Loaded], alone: list[Loaded]) -> list[Row]:
    rate, none = max(loaded.rate for loaded in busy), max(loaded.rate for loaded in idle)
    slow = min(percentile(loaded.taken, 99) for loaded in busy)
    single = min(percentile(loaded.taken, 99) for loaded in alone)
    return [
        Row(GROUP, "acknowledged, 40 connections", rate, "requests/s", "a no-op route", none, at_least=0.14),
        Row(GROUP, "40 connections p99", slow, "ms", at_most=50),
        Row(GROUP, "1 connection p99", single, "ms", at_most=10),
        Row(GROUP, "1 connection p50", min(percentile(loaded.taken, 50) for loaded in alone), "ms"),
    ]


def _nothing() -> Starlette:
    async def nothing(request: Request) -> Response:
        await request.body()
        return JSONResponse({"result": "accepted"})

    return Starlette(routes=[Route("/hooks/{connection}", nothing, methods=["POST"])])


@contextlib.asynccontextmanager
async def serving(app: Any) -> AsyncIterator[int]:
    server = make_server(app, host="127.0.0.1", port=0)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield server.port
    finally:
        server.should_exit = True
        await serving


def signed_request(path: str, key: bytes, name: str, room: str, text: str = ours.PAYLOAD) -> str:
    """A message of the example integration."""
    body = json.dumps({"id": name, "room": room, "from": "ann", "text": text}).encode()
    signature = hmac.new(key, body, hashlib.sha256).hexdigest()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nx-hello-signature: {signature}\r\n\r\n"
    )
    return head + body.decode()


async def _load(port: int, path: str, key: bytes, prefix: str, seconds: float, connections: int) -> Loaded:
    """Load a server from another process, each connection with rooms of its own."""
    each = int(8000 * seconds) // connections + 50
    requests = [
        [
            signed_request(path, key, f"{prefix}-{connections}-{client}-{number}", f"{client}-{number % 5}")
            for number in range(each)
        ]
        for client in range(connections)
    ]
    return await load(port, requests, seconds)


async def load(port: int, requests: list[list[str]], seconds: float) -> Loaded:
    """Send each connection's requests one after the other, for as long as there is time."""
    task = {"host": "127.0.0.1", "port": port, "seconds": seconds, "requests": requests}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).parent / "load.py"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate(json.dumps(task).encode())
    found = json.loads(out)
    if found["refused"]:
        raise RuntimeError(f"{found['refused']} requests were refused")
    return Loaded(found["rate"], found["taken"])


async def _check(platform: Platform, loads: list[Loaded]) -> None:
    """Every acknowledged request is in the database."""
    kept = await platform.database.read(
        lambda connection: connection.exec_driver_sql("SELECT count(*) FROM delivery").scalar()
    )
    acknowledged = sum(len(loaded.taken) for loaded in loads)
    if kept != acknowledged:
        raise RuntimeError(f"{acknowledged} requests were acknowledged and {kept} kept")
