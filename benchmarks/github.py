"""GitHub's webhooks, verified and read, beside the least that any receiver must do: check the HMAC, parse the JSON."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.report import Row
from gofer.integration import Account, Request
from gofer.vault.secret import Secret
from gofer_github import integration

GROUP = "github"
SECRET = "a-secret-of-the-benchmark"
FIXTURES = Path(__file__).parents[1] / "tests" / "github" / "fixtures"


async def main(quick: bool) -> list[Row]:
    """Run them in turns, and keep the best of each."""
    account = Account("bench", "bench", {}, {"webhook_secret": Secret(SECRET)})
    requests = [_signed(path) for path in sorted(FIXTURES.glob("*.json"))]

    def ours(request: Request) -> None:
        integration.verify(request, account)
        integration.parse(request, account)

    seconds, rounds = (0.5, 2) if quick else (2.0, 4)
    pairs = [(_rate(ours, requests, seconds), _rate(_floor, requests, seconds)) for _ in range(rounds)]
    best, floor = max(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
    return [Row(GROUP, "captured payloads verified and routed", best, "requests/s", "HMAC and json", floor)]


def _signed(path: Path) -> Request:
    body = path.read_bytes()
    signature = "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    kind = path.stem.partition("__")[0]
    headers = {"x-github-event": kind, "x-github-delivery": path.stem, "x-hub-signature-256": signature}
    return Request(body, tuple((name, value.encode()) for name, value in headers.items()))


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
