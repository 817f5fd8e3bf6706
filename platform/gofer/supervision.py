"""What a process does when `gofer up` runs it: it takes the supervisor's socket, gives signs of life, and writes down
what the supervisor saw.

The supervisor has no way to the store. It leaves each event as a numbered file in its home, and the processes of the
release put them into the event log in order, each once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from sqlalchemy import Connection, select

from gofer.errors import GoferError
from gofer.jobs.notifications import JOBS
from gofer.jobs.queue import lock_lane
from gofer.store import events as log_of_events
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.database import Database
from gofer.store.tables import SUPERVISED, events
from gofer.vault.envelope import Vault
from gofer.vault.redaction import Redactor
from gofer_supervisor.home import Home

if TYPE_CHECKING:
    from gofer.app import Platform

log = structlog.get_logger()

FIRST_PASSED = 3
"""The descriptor of the first socket that systemd, or the supervisor, passes on."""
EVERY = 2.0
MAX_EVENT = 64 * 1024
SIGNS_PER_WATCHDOG = 3
SAME_DEPLOYMENT = 20
"""Events of one kind among which one of the same deployment is looked for."""


def passed_socket() -> socket.socket | None:
    """The listening socket that systemd or the supervisor has passed to this process; None when there is none."""
    meant_for, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    if meant_for != str(os.getpid()) or count in ("", "0"):
        return None
    os.set_inheritable(FIRST_PASSED, False)
    passed = socket.socket(fileno=FIRST_PASSED)
    passed.setblocking(False)
    return passed


def notify(state: str) -> None:
    """Tell systemd or the supervisor how this process is, if one of them wants to know."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
        notifier.connect("\0" + address[1:] if address.startswith("@") else address)
        notifier.send(state.encode())


async def give_signs_of_life() -> None:
    """Say again and again that the event loop runs, as often as whoever watches asks for."""
    asked = os.environ.get("WATCHDOG_USEC", "")
    if not asked.isdigit() or int(asked) == 0:
        return
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(int(asked) / 1_000_000 / SIGNS_PER_WATCHDOG)


async def keep_record(platform: Platform) -> None:
    """Put what the supervisor saw into the event log as it happens, and ask about releases that wait for a word."""
    from gofer.releases.approval import ask_about_waiting  # only who is supervised needs them
    from gofer.releases.stage import waiting_releases

    home = Home(str(platform.settings.home_path.absolute()))
    spool = platform.settings.home_path / "events"
    while True:
        try:
            await record_spooled(platform.database, platform.vault, platform.redactor, spool)
            if await asyncio.to_thread(waiting_releases, home):
                made = await platform.database.write(
                    partial(ask_about_waiting, vault=platform.vault, home=home)
                )
                if made:
                    platform.signals.wake(JOBS)
        except GoferError as error:
            log.warning("supervisor.events_kept", error=str(error))
        except Exception:
            log.exception("supervisor.events_kept")
        await asyncio.sleep(EVERY)


async def record_spooled(database: Database, vault: Vault, redactor: Redactor, spool: Path) -> None:
    """Record every event that waits, the oldest first. A file goes when its event is in the log."""
    for number, place in await asyncio.to_thread(lambda: sorted(_waiting(spool))):
        event = await asyncio.to_thread(_read, place)
        if event is not None:
            masked = redactor.redact_value(event)  # last lines may hold anything
            await database.write(partial(_record, vault=vault, number=number, event=masked))
        await asyncio.to_thread(partial(place.unlink, missing_ok=True))


def _waiting(spool: Path) -> Iterator[tuple[int, Path]]:
    with contextlib.suppress(OSError):
        for place in spool.glob("*.json"):
            if place.stem.isdigit():
                yield int(place.stem), place


def _read(place: Path) -> dict[str, Any] | None:
    """An event; None for what is no event of the supervisor's, which is not kept."""
    try:
        with place.open("rb") as file:
            found = json.loads(file.read(MAX_EVENT))
        kind, data, at = str(found["kind"]), dict(found["data"]), float(found["at"])
    except FileNotFoundError:  # another process was quicker
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.error("supervisor.event_unreadable", file=place.name, error=str(error))
        return None
    return {"kind": kind, "data": {**data, "happened_at": at}} if kind in SUPERVISED else None


def _record(connection: Connection, vault: Vault, number: int, event: dict[str, Any]) -> None:
    from gofer.releases.approval import tell_owners

    lock_lane(connection, "supervisor.events")
    last = connection.execute(_LAST).scalar()
    if (last is None or number > int(last.get("number", 0))) and not _is_known(connection, event):
        log_of_events.record(
            connection, event["kind"], FIRST_WORKSPACE, data={**event["data"], "number": number}
        )
        tell_owners(connection, vault, number, event["kind"], event["data"])


def _is_known(connection: Connection, event: dict[str, Any]) -> bool:
    """Whether this was said of the same deployment before, by a supervisor that was killed right after."""
    deployment = event["data"].get("deployment")
    query = select(events.c.data).where(events.c.kind == event["kind"]).order_by(events.c.id.desc())
    last = connection.execute(query.limit(SAME_DEPLOYMENT)).scalars()
    return bool(deployment) and any(one.get("deployment") == deployment for one in last)


_OF_SUPERVISOR = events.c.kind.in_(SUPERVISED)
_LAST = select(events.c.data).where(_OF_SUPERVISOR).order_by(events.c.id.desc()).limit(1)


def supervised_events(connection: Connection, *, limit: int) -> list[dict[str, Any]]:
    """What the supervisor saw, the newest first."""
    query = select(events.c.kind, events.c.data).where(_OF_SUPERVISOR).order_by(events.c.id.desc())
    return [{"kind": row.kind, **row.data} for row in connection.execute(query.limit(limit))]


def say_event(event: dict[str, Any]) -> str:
    """What happened, in words for people."""
    match event["kind"]:
        case "worker.spawned":
            return f"{event.get('name')} was started"
        case "worker.exited" if event.get("asked"):
            return f"{event.get('name')} ended, as it was asked to, after {event.get('seconds', 0):g} seconds"
        case "worker.exited":
            return f"{event.get('name')} ended by itself (code {event.get('code', 'unknown')})"
        case "worker.unhealthy":
            return f"{event.get('name')} was ended: {event.get('reason')}"
        case "worker.crash_loop":
            return f"It ended again and again. {event.get('reason')}"
        case "revision.started":
            return f"On probation, by {event.get('by')}"
        case "revision.promoted":
            return "Has proved itself"
        case _:
            return f"Taken back; {event.get('to')} runs again. {event.get('reason', '')}"
