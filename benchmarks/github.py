"""GitHub's webhooks: verified and routed, and acknowledged over HTTP, on the payloads captured from GitHub.

The peer is Probot with a trivial handler for each event: it keeps nothing, while Gofer answers after its commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import ours
from benchmarks.node_peers import NODE, NotInstalled, install
from benchmarks.report import Row
from benchmarks.webhook import Loaded, load, serving
from gofer.connections.changes import add_connection
from gofer.integration import ConnectionContext, Request
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.vault.redaction import Secret
from gofer.web.app import public_app
from gofer_github import integration
from gofer_standins.github.apps import new_key

GROUP = "github"
SECRET = "a-secret-of-the-benchmark"
HERE = Path(__file__).parent
FIXTURES = HERE.parent / "tests" / "github" / "fixtures"
CONNECTIONS = 20

Payload = tuple[str, dict[str, Any]]
"""Kind and body."""


async def main(quick: bool) -> list[Row]:
    """Run them in turns, and keep the best of each."""
    place = await _peers()
    payloads = _captured(place)
    seconds, rounds = (1.0, 1) if quick else (3.0, 3)
    probot: list[Loaded] = []
    gofer: list[Loaded] = []
    async with _gofer() as (port, path):
        for number in range(rounds):
            gofer.append(await load(port, _requests(path, payloads, f"g{number}", seconds), seconds))
            if place is not None:
                async with _probot(place) as other:
                    requests = _requests("/hooks", payloads, f"p{number}", seconds)
                    probot.append(await load(other, requests, seconds))
    theirs = max((one.rate for one in probot), default=None)
    rate = max(one.rate for one in gofer)
    return [
        *_routing([_signed(kind, json.dumps(body).encode(), "x") for kind, body in payloads], quick),
        Row(
            GROUP, f"acknowledged over HTTP, {CONNECTIONS} connections", rate, "requests/s", "Probot", theirs
        ),
    ]


def _routing(requests: list[Request], quick: bool) -> list[Row]:
    account = ConnectionContext("bench", "bench", {}, {"webhook_secret": Secret(SECRET)})

    def ours(request: Request) -> None:
        integration.verify(request, account)
        integration.parse(request, account)

    seconds, rounds = (0.5, 2) if quick else (2.0, 4)
    pairs = [(_rate(ours, requests, seconds), _rate(_floor, requests, seconds)) for _ in range(rounds)]
    best, floor = max(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
    return [Row(GROUP, "captured payloads verified and routed", best, "requests/s", "HMAC and json", floor)]


async def _peers() -> Path | None:
    try:
        return await asyncio.to_thread(install)
    except NotInstalled as error:
        print(f"There is no Probot to compare with: {error}", file=sys.stderr)
        return None


def _captured(place: Path | None) -> list[Payload]:
    """All that were captured, or the few that are kept here."""
    if place is None:
        return [
            (path.stem.partition("__")[0], json.loads(path.read_bytes()))
            for path in sorted(FIXTURES.glob("*.json"))
        ]
    found = place / "node_modules" / "@octokit" / "webhooks-examples" / "api.github.com" / "index.json"
    return [(one["name"], body) for one in json.loads(found.read_bytes()) for body in one["examples"]]


def _signed(kind: str, body: bytes, delivery: str) -> Request:
    signature = "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    headers = {"x-github-event": kind, "x-github-delivery": delivery, "x-hub-signature-256": signature}
    return Request(body, tuple((name, value.encode()) for name, value in headers.items()))


def _requests(path: str, payloads: list[Payload], prefix: str, seconds: float) -> list[list[str]]:
    """For each connection its own; no two bodies are equal, for a repeat would cost next to nothing."""
    each = int(2500 * seconds) // CONNECTIONS
    made: list[list[str]] = []
    for client in range(CONNECTIONS):
        mine = []
        for number in range(each):
            kind, body = payloads[(client * each + number) % len(payloads)]
            name = f"{prefix}-{client}-{number}"
            signed = _signed(kind, json.dumps({**body, "number_in_bench": name}).encode(), name)
            head = "".join(f"{key}: {value.decode()}\r\n" for key, value in signed.headers)
            start = f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            mine.append(f"{start}content-length: {len(signed.body)}\r\n{head}\r\n{signed.body.decode()}")
        made.append(mine)
    return made


@contextlib.asynccontextmanager
async def _gofer() -> AsyncIterator[tuple[int, str]]:
    """Where ours listens, and at which path."""
    async with ours.platform() as platform:
        platform.intake.gate.max_waiting = 10**9  # nothing works the jobs off here
        connection_id = await platform.database.write(
            partial(
                add_connection,
                vault=platform.vault,
                workspace_id=FIRST_WORKSPACE,
                integration=platform.registry.get("github"),
                name="bench",
                settings={},
                secrets_given={"webhook_secret": Secret(SECRET)},
                by="bench",
            )
        )
        async with serving(public_app(platform)) as port:
            yield port, f"/hooks/{connection_id}"


@contextlib.asynccontextmanager
async def _probot(place: Path) -> AsyncIterator[int]:
    port = 20_000 + time.monotonic_ns() % 20_000
    key, _ = new_key()
    process = await asyncio.create_subprocess_exec(
        str(NODE), str(HERE / "node" / "probot.mjs"), str(place), str(port), SECRET, key,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stderr is not None
    try:
        while (line := await process.stderr.readline()) != b"ready\n":
            if not line:
                raise RuntimeError("Probot did not start")
        yield port
    finally:
        process.stdin.close()
        await process.wait()


def _floor(request: Request) -> None:
    hmac.new(SECRET.encode(), request.body, hashlib.sha256).hexdigest()
    json.loads(request.body)


def _rate(work: Callable[[Request], None], requests: list[Request], seconds: float) -> float:
    done, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        for request in requests:
            work(request)
        done += len(requests)
    return done / seconds
