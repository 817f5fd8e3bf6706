"""A session seen from outside: whether it lives, what it uses and what its workspace holds, without owning it.

Nothing inside is asked or changed, and a link is never followed, so it may be done at any time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gofer_sandbox import processes, tree
from gofer_sandbox.disk import Usage, measure
from gofer_sandbox.errors import InvalidInput, SandboxGone
from gofer_sandbox.files.confinement import Listing, list_directory
from gofer_sandbox.kernel import closing
from gofer_sandbox.provider import Process
from gofer_sandbox.records import Record, Reference

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096  # Windows imports this too
_MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class Sight:
    """A session as it is now."""

    alive: bool | None
    """None where that cannot be seen from here: it is in a container, or on another machine."""
    memory: int
    """Bytes that its processes have in memory; what they share is counted for each."""
    processes: tuple[Process, ...]
    usage: Usage


def look(record: Record) -> Sight:
    """See what a session uses now. SandboxGone when its directory is not on this machine."""
    workspace = Path(record.directory) / "workspace"
    if not workspace.is_dir():
        raise SandboxGone("its directory is not on this machine")
    alive = is_alive(record.reference) if record.reference.pid else None
    found = processes.below(record.reference.pid) if alive else []
    return Sight(alive, sum(_resident(each.pid) for each in found), tuple(found), measure(workspace))


def list_workspace(record: Record, path: Sequence[str] = (), *, limit: int = 500) -> Listing:
    """What a directory of the workspace holds. InvalidInput for what is no directory of it."""
    if len(path) > _MAX_DEPTH or any(part in ("", ".", "..") or "/" in part or "\0" in part for part in path):
        raise InvalidInput("not a directory of the workspace")
    with contextlib.ExitStack() as opened:
        try:
            fd = opened.enter_context(closing(tree.open_directory(f"{record.directory}/workspace")))
            for part in path:
                fd = opened.enter_context(closing(tree.open_directory(part, fd)))
            return list_directory(fd, "/".join(path), limit)
        except OSError as error:
            raise InvalidInput("not a directory of the workspace") from error


def is_alive(reference: Reference) -> bool:
    """Only a process with the same start time in the same boot is the one that was recorded."""
    return reference.boot == processes.boot_id() and processes.start_time(reference.pid) == reference.start


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0
