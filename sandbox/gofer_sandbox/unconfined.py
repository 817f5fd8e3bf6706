"""No sandbox at all: the same shell as this user, on this machine, with its files and its network.

For development where isolation cannot be had. It is never chosen for the caller and says so at every start.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
from pathlib import Path

from gofer_sandbox import processes, runtime
from gofer_sandbox.inspection import is_alive
from gofer_sandbox.levels import Level
from gofer_sandbox.limits import RESERVE
from gofer_sandbox.local import Box
from gofer_sandbox.provider import Capabilities, Feature, Process, Report, Spec
from gofer_sandbox.records import Record, Reference
from gofer_sandbox.shell import scripts
from gofer_sandbox.shell.control import prepare
from gofer_sandbox.shell.outputs import Ownership

_MARK = "GOFER_SANDBOX_SESSION"
_WARNING = "UNCONFINED: session %s has no isolation; whatever runs in it can do all that you can"
_log = logging.getLogger(__name__)


class UnconfinedBox(Box):
    """Its processes are told by a mark in their environment, for orphans here become init's children."""

    def __init__(self, session: str, reference: Reference, home: str, child: int | None) -> None:
        capabilities = Capabilities("unconfined", Level.NONE, True, network=False, limits_by="rlimits")
        super().__init__(reference, capabilities, child)
        self.home, self.inside = home, reference.control
        self._mark = f"{_MARK}={session}".encode()

    def processes(self) -> list[Process]:
        """Every process that carries the mark, save the keeper."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != self.reference.pid and self._marked(int(name)):
                found.append(processes.describe(int(name)))
        return [process for process in found if process]

    def _marked(self, pid: int) -> bool:
        try:
            return self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False

    def alone(self, shell: Process) -> bool:
        """There is no short way to tell."""
        return False

    async def destroy(self) -> None:
        """End the keeper first, so that nothing is restarted, then everything with the mark."""
        await self._end_keeper()
        for _ in range(50):
            if not await self.sweep(lambda _: False):
                break
        self.detach()
        await asyncio.to_thread(runtime.remove_control, Path(self.reference.control))


class Unconfined:
    """Makes shells that are not sandboxes."""

    name = "unconfined"
    shares = True

    def __init__(self, reserve: int = RESERVE) -> None:
        """`reserve` is the free space of the machine below which no workspace may grow."""
        self.reserve = reserve

    @property
    def base(self) -> Path:
        """Where control directories are made."""
        return runtime.directory()

    async def probe(self) -> Report:
        """There is nothing to try."""
        isolation = Feature("isolation", False, "this provider has none", "use bubblewrap or docker")
        return Report(self.name, Level.NONE, (isolation,))

    async def start(self, spec: Spec) -> Box:
        """Spawn the keeper as an ordinary process."""
        _log.warning(_WARNING, spec.id)
        uid, gid = os.geteuid(), os.getegid()
        control = runtime.make_control(self.base, spec.id, gid)
        channel = scripts.Channel(str(control))
        keeper = scripts.keeper(spec.limits, None, spec.limits.memory, channel)
        prepare(control, keeper, Ownership(uid, gid), channel)
        process = await asyncio.to_thread(_spawn, spec, control)
        start = processes.start_time(process.pid) or 0
        reference = Reference(process.pid, start, processes.boot_id(), uid, gid, str(control))
        return UnconfinedBox(spec.id, reference, str(spec.workspace), process.pid)

    async def find(self, record: Record) -> Box | None:
        """The living keeper of a record."""
        reference = record.reference
        if not is_alive(reference):
            return None
        _log.warning(_WARNING, record.id)
        child = processes.child_of_ours(reference.pid)  # when we have let go of it before
        return UnconfinedBox(record.id, reference, f"{record.directory}/workspace", child)

    async def remove(self, record: Record) -> None:
        """Remove the control directory."""
        if record.reference.control:
            await asyncio.to_thread(runtime.remove_control, Path(record.reference.control))


def _spawn(spec: Spec, control: Path) -> subprocess.Popen[bytes]:
    environment = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": str(spec.workspace),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PAGER": "cat",
        _MARK: spec.id,
        **spec.environment,
    }
    process = subprocess.Popen(
        [shutil.which("bash") or "bash", *scripts.KEEPER_OPTIONS, str(control / "keeper")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=spec.workspace,
        start_new_session=True,
    )
    process.returncode = 0  # the box reaps it, by its pid
    return process
