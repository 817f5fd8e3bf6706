"""Describes a shell for people: its record, its processes, its disk and its files."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from sqlalchemy import Connection, delete, select

from gofer.errors import Conflict, NotFound
from gofer.store.locks import lock_conversation
from gofer.store.tables import JobState, in_state, jobs, shells
from gofer_sandbox import InvalidInput, Record, SandboxGone
from gofer_sandbox.inspection import Sight, list_workspace, look
from gofer_sandbox.processes import boot_id, start_time

MAX_SHOWN = 500
"""Entries of one directory, and processes."""


def live_shells(connection: Connection) -> list[str]:
    """The conversations whose shells run on this machine now, the last used first."""
    query = select(shells.c.conversation_id, shells.c.record).order_by(shells.c.used_at.desc())
    found = connection.execute(query).all()
    return list(dict.fromkeys(row.conversation_id for row in found if _lives(row.record)))


def _lives(record: dict[str, Any]) -> bool:
    try:
        session = Record.from_json(record["json"]).reference
    except (InvalidInput, KeyError):
        return False
    return bool(session.pid) and session.boot == boot_id() and start_time(session.pid) == session.start


def describe_record(record: dict[str, Any]) -> dict[str, Any]:
    """The facts in a shell's row, without how to reach the session."""
    try:
        kept = Record.from_json(record["json"])
    except (InvalidInput, KeyError):
        return {"provider": "", "level": "", "limits": {}, "created": None, "commands": 0, "running": False}
    return {
        "provider": kept.provider,
        "level": kept.level.name.lower(),
        "limits": kept.limits.to_json(),
        "created": kept.created,
        "commands": kept.last_command,
        "running": kept.running,
    }


async def seen(record: dict[str, Any], path: str) -> dict[str, Any]:
    """What a shell uses now and what a directory of it holds; raises NotFound when there is no such directory."""
    return await asyncio.to_thread(_seen, record, path)


def _seen(record: dict[str, Any], path: str) -> dict[str, Any]:
    try:
        kept = Record.from_json(record["json"])
        sight = look(kept)
    except (InvalidInput, KeyError, SandboxGone):
        return {"found": False, "use": None, "files": [], "more": 0, "path": path}
    try:
        listing = list_workspace(kept, [part for part in path.split("/") if part], limit=MAX_SHOWN)
    except InvalidInput:
        raise NotFound(f"There is no directory {path[:200]!r} in this shell.") from None
    files = [
        {
            "name": entry.name,
            "kind": entry.kind,
            "size": entry.size,
            # Programs in the shell may set any date.
            "modified_at": min(max(entry.modified, 0.0), time.time()),
            "target": entry.target or "",
        }
        for entry in listing.entries
    ]
    return {"found": True, "use": _use(sight), "files": files, "more": listing.more, "path": listing.path}


def _use(sight: Sight) -> dict[str, Any]:
    return {
        "alive": sight.alive,
        "memory": sight.memory,
        "disk": sight.usage.size,
        "files": sight.usage.files,
        "processes": [each.command for each in sight.processes[:MAX_SHOWN]],
        "looked_at": time.time(),
    }


def close_shell(connection: Connection, conversation_id: str, agent_id: str) -> None:
    """Close a shell: its processes end within a minute, its files stay for the next one. Raises NotFound, or Conflict
    while a run uses it."""
    lock_conversation(connection, conversation_id)
    at_work = select(jobs.c.id).where(
        jobs.c.conversation_id == conversation_id, jobs.c.agent_id == agent_id, in_state(JobState.RUNNING)
    )
    running = connection.execute(at_work.limit(1)).scalar()
    if running is not None:
        raise Conflict(f"Job {running} is using it. Stop that first.")
    here = (shells.c.conversation_id == conversation_id) & (shells.c.agent_id == agent_id)
    if connection.execute(delete(shells).where(here)).rowcount == 0:
        raise NotFound("There is no such shell; it may have been closed.")
