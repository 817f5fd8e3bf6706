"""What is told when somebody else has written to the database: refused rows, and an audit log that is not whole.

Rows are found refused while they are read, where nothing can be written; so this writes the events a moment later. The
last head of the audit log that was seen is kept in the data directory: a log that was cut together with its head, back
to an older one that was rightly signed, does not reach it any more.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import Connection, select

from gofer.errors import GoferError
from gofer.mac_upgrade import SEEN, place_of
from gofer.store import audit, row_macs
from gofer.store import events as log_of_events
from gofer.store.audit import Head, Verdict
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.db_time import now
from gofer.store.tables import events

if TYPE_CHECKING:
    from gofer.app import Platform

log = structlog.get_logger()

REFUSED = "row.refused"
_EVERY = 2.0
_HEAD_EVERY = 30
"""Rounds after which the head of the audit log is looked at."""
_LATELY = 30 * 86400.0
_MAX_SHOWN = 50


async def keep_watch(platform: Platform) -> None:
    """Write down what was refused, and keep an eye on the audit log."""
    rounds = 0
    while True:
        try:
            await note_refused(platform)
            if rounds % _HEAD_EVERY == 0:
                await remember_head(platform)
        except GoferError as error:
            log.warning("alarms.not_noted", error=str(error))
        except Exception:
            log.exception("alarms.not_noted")
        rounds += 1
        await asyncio.sleep(_EVERY)


async def note_refused(platform: Platform) -> None:
    """Make an event of each row that was refused since the last time."""
    refused = platform.database.signing.take_unwritten()
    if not refused:
        return
    rows = [{"kind": REFUSED, "workspace_id": FIRST_WORKSPACE, "data": asdict(row)} for row in refused]
    await platform.database.write(log_of_events.record_many, rows=rows)


def refused_lately(connection: Connection) -> list[row_macs.RefusedRow]:
    """Rows that were refused when they were used, and still would be."""
    query = select(events.c.data).where(
        events.c.job_id.is_(None), events.c.at > now() - _LATELY, events.c.kind == REFUSED
    )
    found = connection.execute(query.order_by(events.c.at.desc()).limit(_MAX_SHOWN)).scalars().all()
    rows = dict.fromkeys(row_macs.RefusedRow(str(data["table"]), str(data["key"])) for data in found)
    return row_macs.still_refused(connection, list(rows))


async def examined(platform: Platform) -> Verdict:
    """The whole audit log looked at, up to its head and past the one this machine has seen."""
    seen = _seen(platform)
    return await platform.database.read(audit.verify, seen=seen)


async def remember_head(platform: Platform, *, anew: bool = False) -> None:
    """Keep the head of the audit log outside the database; tell when it no longer reaches the one that is kept."""
    seen = None if anew else _seen(platform)

    def look(connection: Connection) -> tuple[Head | None, bool]:
        return audit.current_head(connection), seen is None or audit.reaches(connection, seen)

    head, whole = await platform.database.read(look)
    if head is None or not whole:
        log.error("audit.not_whole", fix="gofer audit verify")
    elif head != seen:
        path = _path(platform)
        fresh = path.with_name(path.name + ".new")
        text = json.dumps({"database": place_of(platform.settings), **asdict(head)})
        await asyncio.to_thread(_replace, fresh, path, text)


def _replace(fresh: Path, path: Path, text: str) -> None:
    fresh.write_text(text)
    fresh.chmod(0o600)
    fresh.rename(path)


def _path(platform: Platform) -> Path:
    return platform.settings.data_dir / SEEN


def _seen(platform: Platform) -> Head | None:
    """The last head that this machine has seen of this database."""
    try:
        kept = json.loads(_path(platform).read_text())
        right = kept["database"] == place_of(platform.settings)
        return Head(int(kept["place"]), str(kept["link"])) if right else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
