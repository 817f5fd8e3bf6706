"""Live events: how long after it was written an event reaches those who watch, with 200 of them and 50 runs at work.

The watchers read in a process of their own; the clocks are the same machine's.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.measure import percentile
from benchmarks.report import Row
from gofer.app import Platform, open_app
from gofer.serve import _listen
from gofer.settings import Settings
from gofer.web.app import public_app
from gofer.web.auth.members import first_owner
from gofer.web.auth.sessions import new_token
from gofer.web.server import listening

GROUP = "watching"
WATCHERS, RUNS = 200, 50


async def main(quick: bool) -> list[Row]:
    """Run it."""
    watchers, runs = (40, 10) if quick else (WATCHERS, RUNS)
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder) / "data", port=0, sandbox="off", slots=runs)
        door = _listen(settings)
        try:
            async with (
                open_app(settings, roles=frozenset({"web", "worker"})) as platform,
                listening(public_app(platform), door) as server,
            ):
                found = await _watched(platform, f"http://127.0.0.1:{server.port}", watchers, runs)
        finally:
            door.close()
    delays = sorted(found)
    note = f"{len(delays)} events seen by {watchers} watchers of {runs} runs"
    return [
        Row(GROUP, "an event to a watcher p50", percentile(delays, 50) * 1000, "ms", note=note),
        Row(GROUP, "an event to a watcher p99", percentile(delays, 99) * 1000, "ms", at_most=1000),
    ]


async def _watched(platform: Platform, url: str, watchers: int, runs: int) -> list[float]:
    token = await platform.database.write(_token)
    headers = {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(base_url=f"{url}/api/v1", headers=headers, timeout=60) as api:
        first = [await _say(api, "/messages") for _ in range(runs)]
        await _quiet(api)
        rooms = [each["conversation_id"] for each in first]
        reader = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.watching", url, token, str(watchers), *rooms,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        while platform.follower.watching < watchers:
            await asyncio.sleep(0.05)
        await asyncio.gather(*(_say(api, f"/conversations/{room}/messages") for room in rooms))
        await _quiet(api)
        await asyncio.sleep(1)
    await platform.follower.close()
    output, _ = await reader.communicate()
    return [float(line) for line in output.split()]


def _token(connection: Any) -> str:
    return new_token(connection, first_owner(connection).id, name="bench", scope="admin")[1]


async def _say(api: httpx2.AsyncClient, path: str) -> dict[str, Any]:
    answer = await api.post(path, json={"text": "hello"})
    assert answer.status_code == 202, answer.text
    said: dict[str, Any] = answer.json()
    return said


async def _quiet(api: httpx2.AsyncClient) -> None:
    """Wait until nothing is at work."""
    while (await api.get("/jobs", params={"state": "ready,running,scheduled", "limit": 1})).json()["jobs"]:
        await asyncio.sleep(0.1)


async def read(url: str, token: str, watchers: int, rooms: list[str]) -> list[float]:
    """The other process: watch, and note how old each event is when it comes."""
    host, _, port = url.removeprefix("http://").partition(":")
    delays: list[float] = []

    async def watch(room: str) -> None:
        source, sink = await asyncio.open_connection(host, int(port))
        sink.write(
            f"GET /api/v1/events?conversation={room} HTTP/1.1\r\nhost: {host}\r\n"
            f"connection: close\r\nauthorization: Bearer {token}\r\n\r\n".encode()
        )
        async for line in source:
            if line.startswith(b"data: "):
                came = time.time()
                delays.append(came - json.loads(line[6:])["at"])
        sink.close()

    await asyncio.gather(*(watch(rooms[number % len(rooms)]) for number in range(watchers)))
    return delays


if __name__ == "__main__":
    at, key, count, *named = sys.argv[1:]
    print("\n".join(str(delay) for delay in asyncio.run(read(at, key, int(count), named))))
