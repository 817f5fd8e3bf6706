"""Ends and removes what a crash left, and only that."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from gofer_sandbox import records, tree
from gofer_sandbox.errors import SandboxOwned
from gofer_sandbox.journal import Journal, session_of
from gofer_sandbox.provider import Provider
from gofer_sandbox.records import Record


async def reap(
    provider: Provider, keep: Collection[str], *, within: Path | str, now: float | None = None
) -> list[str]:
    """End and remove a provider's sessions nobody owns: those whose id is not to be kept, and those idle for
    too long.

    Other programs of the same user have their records in the same place, so only sessions whose directory
    lies within `within` are looked at; name the directory that this program alone keeps its sessions in.
    A session is owned while the process that started or attached to it lives, which its lock tells. What is
    ended is found by pid, start time and boot, so nothing else can be hit. Returns the ids.
    """
    removed = []
    for record in list(records.every(provider.base)):
        ours = record.provider == provider.name and _lies_in(record.directory, within)
        due = record.id not in keep or _expired(record, now or time.time())
        if ours and due and await _remove(record, provider):
            removed.append(record.id)
    return removed


def _lies_in(directory: str, place: Path | str) -> bool:
    return Path(directory).resolve().is_relative_to(Path(place).resolve())


def _expired(record: Record, now: float) -> bool:
    """The journal is written with every command, so its time is that of the last use."""
    try:
        last = (Path(record.directory) / "live").stat().st_mtime
    except OSError:
        last = record.last_used
    return now - last > record.limits.idle


async def _remove(record: Record, provider: Provider) -> bool:
    """The session is held while it is ended, so that nobody attaches to it meanwhile; where another has begun in its
    directory nobody can."""
    held: Journal | None = None
    with records.moving(provider.base):
        current = records.get(provider.base, record.id)
        if current is None:
            return False
        record = current  # it may have been moved meanwhile
        try:
            with contextlib.suppress(FileNotFoundError):
                held = Journal(Path(record.directory))
        except SandboxOwned:
            if session_of(Path(record.directory)) in ("", record.id):
                return False
            record = replace(record, ephemeral=False)  # the other needs the directory
    try:
        box = await provider.find(record)
        if box:
            await box.destroy()
        else:
            await provider.remove(record)
        records.remove(provider.base, record.id)
        if record.ephemeral:
            await asyncio.to_thread(tree.remove, Path(record.directory))
    finally:
        if held:
            held.close()
    return True
