"""A living sandbox of bubblewrap's: a pid namespace whose PID 1 is our keeper."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from gofer_sandbox import processes
from gofer_sandbox.bubblewrap import users
from gofer_sandbox.bubblewrap.cgroups import Group
from gofer_sandbox.limits import Limits
from gofer_sandbox.provider import Capabilities, Pressure, Process
from gofer_sandbox.record import Reference
from gofer_sandbox.runtime import remove_control
from gofer_sandbox.shell import scripts
from gofer_sandbox.shell.fifo import FifoWire, Ownership


class BubblewrapBox:
    """Processes are seen and ended from outside; nothing inside has to help."""

    def __init__(
        self,
        session: str,
        reference: Reference,
        capabilities: Capabilities,
        group: Group | None,
        limits: Limits,
        monitor: int | None = None,
    ) -> None:
        """`monitor` is bubblewrap's own process when it is a child of ours, to be reaped."""
        self.reference, self.capabilities = reference, capabilities
        self._session, self._group, self._limits, self._monitor = session, group, limits, monitor
        self._loop = asyncio.get_running_loop()
        self._handle = os.pidfd_open(reference.pid)
        self._callback: Callable[[], None] | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._handle, self._on_end)

    def _on_end(self) -> None:
        self._loop.remove_reader(self._handle)
        if not self._ended.done():
            self._ended.set_result(None)
        if self._callback:
            self._callback()
            self._callback = None

    def wire(self) -> FifoWire:
        """Over the FIFOs of the control directory."""
        owner = Ownership(self.reference.uid, self.reference.gid)
        place = f"/proc/{self.reference.pid}/root{scripts.PRIVATE}"
        return FifoWire(
            Path(self.reference.control),
            owner,
            lambda: os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC),
        )

    def alive(self) -> bool:
        """PID 1's descriptor tells, whatever its number means by now."""
        return not self._ended.done()

    def on_death(self, callback: Callable[[], None]) -> None:
        """Call back once."""
        self._callback = callback

    def clock(self) -> int:
        """The kernel's own."""
        return processes.clock()

    def processes(self) -> list[Process]:
        """Everything below PID 1: orphans inside become its children."""
        return processes.below(self.reference.pid) if self.alive() else []

    def background(self, shell: Process | None) -> list[Process]:
        """Two small reads tell that there is nothing, which is the usual case."""
        if shell and processes.is_alone(self.reference.pid, shell.pid):
            return []
        return [process for process in self.processes() if shell is None or process.pid != shell.pid]

    def shell(self, inner: int) -> Process | None:
        """The child of PID 1 that has that number inside."""
        for pid in processes.children(self.reference.pid):
            if processes.inner_pid(pid) == inner:
                return processes.describe(pid)
        return None

    def waits(self, shell: Process) -> bool:
        """While a command runs, the shell's standard input is not the FIFO its lines come from."""
        return processes.sleeps_alone(shell.pid) and processes.reads_from(shell.pid, f"{scripts.INSIDE}/in")

    def signal(self, targets: Sequence[Process], number: int) -> None:
        """Through descriptors, so that a reused pid is never hit."""
        processes.send(targets, number)

    async def sweep(self, spare: Callable[[Process], bool]) -> list[Process]:
        """Stop everything first, so that nothing can fork while it is being ended."""
        if await self._freeze():
            try:
                doomed = [process for process in self.processes() if not spare(process)]
                self.signal(doomed, signal.SIGKILL)
            finally:
                self._thaw()
        else:
            doomed = await self._stop_all(spare)
            self.signal(doomed, signal.SIGKILL)
        return doomed

    async def _freeze(self) -> bool:
        group = self._group
        if group is None or not group.freeze(True):
            return False
        for _ in range(100):
            if group.frozen():
                return True
            await asyncio.sleep(0.002)
            group.freeze(True)
        self._thaw()
        return False

    def _thaw(self) -> None:
        if self._group:
            self._group.freeze(False)

    async def _stop_all(self, spare: Callable[[Process], bool]) -> list[Process]:
        """Without a freezer: a stopped process keeps its place under the limit, so the rest cannot grow."""
        stopped: dict[tuple[int, int], Process] = {}
        for _ in range(50):
            found = [process for process in self.processes() if not spare(process)]
            fresh = [process for process in found if (process.pid, process.start) not in stopped]
            if not fresh:
                break
            self.signal(fresh, signal.SIGSTOP)
            stopped |= {(process.pid, process.start): process for process in fresh}
            await asyncio.sleep(0)
        return list(stopped.values())

    def pressure(self) -> Pressure:
        """From the control group, else by counting."""
        known = self._group.pressure() if self._group else None
        if known is not None:
            return known
        count = sum(1 for _ in processes.descendants(self.reference.pid))
        return Pressure(processes=int(count >= 0.8 * self._limits.processes))

    async def destroy(self) -> None:
        """Killing PID 1 of a pid namespace ends everything in it, and its end is known when all are gone."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        if self._group:
            self._group.freeze(False)
        await asyncio.wait_for(asyncio.shield(self._ended), 30)
        await self._reap()
        self.detach()
        await clean_up(self._session, self.reference, self._group)

    async def _reap(self) -> None:
        """bubblewrap's own process ends right after its child."""
        while self._monitor is not None:
            if _reaped(self._monitor):
                self._monitor = None
            else:
                await asyncio.sleep(0.0005)

    def detach(self) -> None:
        """Close the descriptor."""
        if self._handle >= 0:
            self._loop.remove_reader(self._handle)
            os.close(self._handle)
            self._handle = -1


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


async def clean_up(session: str, reference: Reference, group: Group | None) -> None:
    """Remove what a sandbox that has ended leaves on the host."""
    if group:
        await group.remove()
    control = Path(reference.control)
    if reference.control:
        await asyncio.to_thread(remove_control, control)
        if os.geteuid() == 0:
            users.release(control.parent / "uids", session, reference.uid)
