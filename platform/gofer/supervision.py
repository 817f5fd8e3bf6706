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
from gofer.jobs.control import withdraw
from gofer.jobs.notifications import JOBS
from gofer.jobs.queue import lock_lane
from gofer.secrets.key_check import open_canary
from gofer.store import audit
from gofer.store import events as log_of_events
from gofer.store.bootstrap import FIRST_WORKSPACE, database_for
from gofer.store.database import Database
from gofer.store.tables import SUPERVISED, audit_entries, events
from gofer.vault.envelope import Vault
from gofer.vault.errors import KeyRefused, VaultError
from gofer.vault.redaction import Redactor
from gofer_supervisor.home import Home
from gofer_supervisor.system import FIRST_PASSED, notify_systemd

if TYPE_CHECKING:
    from gofer.app import Platform

log = structlog.get_logger()

EVERY = 2.0
MAX_EVENT = 64 * 1024
SIGNS_PER_WATCHDOG = 3
READY_TIMEOUT = 15.0
"""Seconds in which the database has to answer: longer than a connection of the pool is waited for."""
SAME_DEPLOYMENT = 20
"""Events of one kind among which one of the same deployment is looked for."""
SAME_EVENT = 200
"""Events of all machines among which one is looked for that was recorded, and whose file was not removed yet."""
SAME_COMMAND = 20
"""Audit entries of one command among which the same one is looked for."""
MAX_WORD = 200


def passed_socket() -> socket.socket | None:
    """The listening socket that systemd or the supervisor has passed to this process; None when there is none."""
    meant_for, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    if meant_for != str(os.getpid()) or count in ("", "0"):
        return None
    os.set_inheritable(FIRST_PASSED, False)
    passed = socket.socket(fileno=FIRST_PASSED)
    passed.setblocking(False)
    return passed


async def give_signs_of_life(platform: Platform) -> None:
    """Say again and again that the event loop runs, as often as whoever watches asks for, and why this process cannot
    work where that is so."""
    asked = os.environ.get("WATCHDOG_USEC", "")
    if not asked.isdigit() or int(asked) == 0:
        return
    pause, readiness = int(asked) / 1_000_000 / SIGNS_PER_WATCHDOG, Readiness(platform)
    looking = asyncio.create_task(readiness.keep_looking(pause), name="readiness")
    try:
        while True:
            why = readiness.fault
            notify_systemd(f"WATCHDOG=1\nGOFER_UNREADY={why}" if why else "WATCHDOG=1")
            await asyncio.sleep(pause)
    finally:
        looking.cancel()


class Readiness:
    """Whether this process can work. It asks the store what /readyz asks."""

    def __init__(self, platform: Platform, *, within: float = READY_TIMEOUT) -> None:
        self._platform = platform
        self._within = within
        self._read: asyncio.Future[None] | None = None
        self.fault = ""
        """Why it cannot work although a new process could; empty while it can, and while starting it again would not
        help: then the database is away or the master key is missing, and it goes on when they are back."""

    async def keep_looking(self, every: float) -> None:
        """Look again and again."""
        while True:
            self.fault = await self.look()
            await asyncio.sleep(every)

    async def look(self) -> str:
        """Look once; returns the fault. A read that hangs is waited for again and not asked a second time."""
        platform = self._platform
        if self._read is None:
            self._read = asyncio.ensure_future(platform.database.read(open_canary, vault=platform.vault))
        done, _ = await asyncio.wait([self._read], timeout=self._within)
        if not done:
            fault = f"The database gave no answer in {self._within:g} seconds."
        else:
            error, self._read = self._read.exception(), None
            if error is None or isinstance(error, KeyRefused | VaultError):
                return ""
            fault = " ".join(str(error).split()) or type(error).__name__
        return "" if await self._is_away() else fault

    async def _is_away(self) -> bool:
        """Whether a new process could not open the database either."""
        settings = self._platform.settings
        if settings.sqlite_path is not None:
            return not settings.sqlite_path.exists()
        fresh = database_for(settings)
        try:
            async with asyncio.timeout(self._within):
                await fresh.start()
        except (GoferError, TimeoutError):
            return True
        finally:
            await fresh.close()
        return False


async def keep_record(platform: Platform) -> None:
    """Put what the supervisor saw into the event log as it happens, and what commands did to its home into the audit
    log; ask about releases that wait for a word, and close questions that were answered by a command."""
    from gofer.releases.approval import (  # only who is supervised needs them
        ask_about_waiting,
        decided_questions,
    )
    from gofer.releases.lifecycle import open_home, waiting_releases

    home = open_home(platform.settings)
    spool = platform.settings.home_path / "events"
    database, vault = platform.database, platform.vault
    while True:
        try:
            await record_spooled(database, vault, platform.redactor, spool)
            await record_commands(database, platform.settings.home_path)
            decided = await database.read(decided_questions, home=home)
            for question_id, why in decided:
                await database.write(withdraw, vault=vault, question_id=question_id, why=why)
            made = 0
            if await asyncio.to_thread(waiting_releases, home):
                made = await database.write(ask_about_waiting, vault=vault, home=home)
            if decided or made:
                platform.signals.wake(JOBS)
        except GoferError as error:
            log.warning("supervisor.events_kept", error=str(error))
        except Exception:
            log.exception("supervisor.events_kept")
        await asyncio.sleep(EVERY)


async def record_spooled(database: Database, vault: Vault, redactor: Redactor, spool: Path) -> None:
    """Record every event that waits, the oldest first. A file goes when its event is in the log."""
    from gofer.releases.lifecycle import home_id

    for number, place in await asyncio.to_thread(lambda: sorted(_waiting(spool))):
        event = await asyncio.to_thread(_read, place)
        if event is not None:
            masked = redactor.redact_value(event)  # last lines may hold anything
            home = await asyncio.to_thread(home_id, Home(str(spool.parent)))
            await database.write(_record, vault=vault, number=number, event=masked, home=home)
        await asyncio.to_thread(partial(place.unlink, missing_ok=True))


async def record_commands(database: Database, home: Path) -> None:
    """Put what commands did to the home into the audit log, each once. A file goes when its entry is in the log."""
    from gofer.releases.lifecycle import COMMANDS

    for place in await asyncio.to_thread(lambda: sorted((home / COMMANDS).glob("[0-9]*.json"))):
        command = await asyncio.to_thread(_read_command, place)
        if command is not None:
            await database.write(_audit, command=command, mark=place.stem)
        await asyncio.to_thread(partial(place.unlink, missing_ok=True))


def _read_command(place: Path) -> dict[str, Any] | None:
    try:
        with place.open("rb") as file:
            found = json.loads(file.read(MAX_EVENT))
        words = {name: str(found[name])[:MAX_WORD] for name in ("action", "subject", "by")}
        return {**words, "data": {**dict(found["data"]), "given_at": float(found["at"])}}
    except FileNotFoundError:  # another process was quicker
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.error("supervisor.command_unreadable", file=place.name, error=str(error))
        return None


def _audit(connection: Connection, command: dict[str, Any], mark: str) -> None:
    """Write a command into the audit log, unless a process did so that was killed before it could say so."""
    lock_lane(connection, "supervisor.events")
    same = audit_entries.c.action == command["action"], audit_entries.c.subject == command["subject"]
    lately = select(audit_entries.c.data).where(*same).order_by(audit_entries.c.id.desc()).limit(SAME_COMMAND)
    if any(data.get("mark") == mark for data in connection.execute(lately).scalars()):
        return
    facts = {"workspace_id": FIRST_WORKSPACE, "member_id": "", "name": command["by"], "via": "socket"}
    what = {"address": "", "action": command["action"], "subject": command["subject"], "status": 200}
    entry = audit.append(connection, {**facts, **what})
    audit.end(connection, entry, status=200, data={**command["data"], "mark": mark})


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


def _record(connection: Connection, vault: Vault, number: int, event: dict[str, Any], home: str) -> None:
    from gofer.releases.approval import tell_owners

    lock_lane(connection, "supervisor.events")
    lately = connection.execute(_LATELY).scalars()
    again = any(one.get("number") == number and one.get("home", home) == home for one in lately)
    if not again and not _is_known(connection, event):
        data = {**event["data"], "home": home}
        log_of_events.record(connection, event["kind"], FIRST_WORKSPACE, data={**data, "number": number})
        tell_owners(connection, vault, number, event["kind"], data)


def _is_known(connection: Connection, event: dict[str, Any]) -> bool:
    """Whether this was said of the same deployment before, by a supervisor that was killed right after."""
    deployment = event["data"].get("deployment")
    query = select(events.c.data).where(events.c.kind == event["kind"]).order_by(events.c.id.desc())
    last = connection.execute(query.limit(SAME_DEPLOYMENT)).scalars()
    return bool(deployment) and any(one.get("deployment") == deployment for one in last)


_OF_SUPERVISOR = events.c.kind.in_(SUPERVISED)
_LATELY = select(events.c.data).where(_OF_SUPERVISOR).order_by(events.c.id.desc()).limit(SAME_EVENT)


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
        case _ if event.get("to") == event.get("build"):
            return f"Does not work as it should, and there is none to go back to. {event.get('reason', '')}"
        case _:
            return f"Taken back; {event.get('to')} runs again. {event.get('reason', '')}"
