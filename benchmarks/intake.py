"""Intake by eight writers at once, with and without telling workers of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from functools import partial

from benchmarks import ours
from benchmarks.report import Row
from gofer.app import Platform
from gofer.connections.changes import add_connection
from gofer.intake.arrival import Arrival
from gofer.intake.transaction import take_in
from gofer.integration import Author, Incoming, Parsed
from gofer.jobs.notifications import EVENTS, JOBS
from gofer.store.bootstrap import FIRST_WORKSPACE

WRITERS = 8


async def connect(platform: Platform, reply_url: str = "http://127.0.0.1:9/") -> str:
    """A connection of the example integration."""
    return await platform.database.write(
        partial(
            add_connection,
            vault=platform.vault,
            workspace_id=FIRST_WORKSPACE,
            integration=platform.registry.get("hello"),
            name="bench",
            settings={"reply_url": reply_url},
            secrets_given={},
            by="bench",
        )
    )


def arrival(connection_id: str, name: str, room: str) -> Arrival:
    """A message of 1 kB to one of many rooms."""
    body = json.dumps({"id": name, "room": room, "from": "ann", "text": ours.PAYLOAD}).encode()
    message = Incoming(
        conversation=room, author=Author(id="ann"), text=ours.PAYLOAD, addressed=True, external_id=name
    )
    return Arrival(
        workspace_id=FIRST_WORKSPACE,
        connection_id=connection_id,
        integration="hello",
        source="webhook",
        parsed=Parsed(delivery_id=name, event="message", message=message),
        body=body,
        body_hash=hashlib.sha256(body).hexdigest(),
    )


async def with_wake_ups(group: str, platform: Platform, deliveries: int) -> Row:
    """Deliveries per second with a wake-up after each commit, beside the same without any."""
    connection_id = await connect(platform)
    silent, telling = [], []
    for number in range(3):
        silent.append(await _rate(platform, connection_id, f"s{number}", deliveries, tell=False))
        telling.append(await _rate(platform, connection_id, f"t{number}", deliveries, tell=True))
    return Row(
        group, "intake, 8 writers", max(telling), "messages/s", "without wake-ups", max(silent), at_least=0.8
    )


async def _rate(platform: Platform, connection_id: str, prefix: str, deliveries: int, *, tell: bool) -> float:
    numbers = iter(range(deliveries))

    async def write() -> None:
        for number in numbers:
            given = arrival(connection_id, f"{prefix}-{number}", f"room{number % 100}")
            await platform.database.write(partial(take_in, vault=platform.vault, arrival=given))
            if tell:
                platform.signals.wake(JOBS)
                platform.signals.wake(EVENTS)

    began = time.perf_counter()
    await asyncio.gather(*(write() for _ in range(WRITERS)))
    return deliveries / (time.perf_counter() - began)
