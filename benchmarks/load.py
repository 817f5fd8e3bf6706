"""A small HTTP/1.1 load generator for a process of its own: reads its task from stdin, prints what it saw."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any


async def _client(host: str, port: int, requests: list[bytes], until: float, taken: list[float]) -> int:
    """Send one request after another over one connection; returns how many were refused."""
    reader, writer = await asyncio.open_connection(host, port)
    refused = 0
    for request in requests:
        began = time.perf_counter()
        if began > until:
            break
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        await reader.readexactly(length)
        taken.append((time.perf_counter() - began) * 1000)
        refused += not head.startswith(b"HTTP/1.1 200")
    writer.close()
    return refused


async def _main(task: dict[str, Any]) -> None:
    taken: list[float] = []
    began = time.perf_counter()
    until = began + task["seconds"]
    clients = [
        _client(task["host"], task["port"], [item.encode("latin-1") for item in share], until, taken)
        for share in task["requests"]
    ]
    refused = sum(await asyncio.gather(*clients))
    elapsed = time.perf_counter() - began
    print(json.dumps({"rate": len(taken) / elapsed, "taken": taken, "refused": refused}))


if __name__ == "__main__":
    asyncio.run(_main(json.load(sys.stdin)))
