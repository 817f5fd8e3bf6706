"""What boxes on this machine have in common: processes seen and ended from outside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from gofer_sandbox import processes
from gofer_sandbox.files import ConfinedFiles
from gofer_sandbox.provider import Capabilities, Pressure, Process
from gofer_sandbox.records import Reference
from gofer_sandbox.shell import scripts
from gofer_sandbox.shell.control import ControlWire, FifoWire
from gofer_sandbox.shell.outputs import Ownership


class Box(ABC):
    """One living sandbox: a keeper process and everything it leads to. Nothing inside has to help."""

    home = "/workspace"
    """The workspace, as the sandbox sees it."""
    inside = scripts.INSIDE
    """The control directory, as the shell calls it."""

    def __init__(
        self, reference: Reference, capabilities: Capabilities, child: int | None, watched: bool = True
    ) -> None:
        """`child` is the process to reap in the end, when it is a child of ours. A box that is not `watched` is told by
        its wire when it is lost, and needs no descriptor for that."""
        self.reference, self.capabilities = reference, capabilities
        self._child = child
        self._loop = asyncio.get_running_loop()
        self._handle = -1
        self._callback: Callable[[], None] | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._lost = self._over = False
        self._couple: processes.Couple | None = None
        if watched:
            self._watch()

    def wire(self) -> ControlWire:
        """A new wire to it; one at a time: the FIFOs of the control directory, unless it is given descriptors."""
        reference = self.reference
        return FifoWire(Path(reference.control), Ownership(reference.uid, reference.gid), self.inside)

    @abstractmethod
    async def destroy(self) -> None:
        """End it with everything inside, leaving no process and no zombie; keep the spec's directory."""

    def _watch(self) -> None:
        self._handle = os.pidfd_open(self.reference.pid)
        self._loop.add_reader(self._handle, self._on_end)

    def _on_end(self) -> None:
        self._loop.remove_reader(self._handle)
        if not self._ended.done():
            self._ended.set_result(None)
        if self._callback:
            self._callback()
            self._callback = None

    def alive(self) -> bool:
        """Whether PID 1 inside still runs, as far as anybody has heard."""
        return not self._lost and not self._ended.done()

    def lost(self) -> None:
        """Take it for dead from now on: its wire has hung up."""
        self._lost = True

    def settled(self) -> None:  # noqa: B027 most boxes need nothing
        """A shell is up: let go of what only a start needs."""

    def rest(self) -> None:
        """Close the files that are looked at with every command."""
        couple, self._couple = self._couple, None
        if couple:
            couple.close()

    def channel(self) -> str:
        """What the shell's lines come from: the keeper's own standard input."""
        return processes.input_of(self.reference.pid)

    def rouse(self) -> None:
        """Have PID 1 go on, should somebody inside have stopped it by tracing it."""
        reference = self.reference
        processes.send([Process(reference.pid, 0, reference.start, "")], signal.SIGCONT)

    def on_death(self, callback: Callable[[], None]) -> None:
        """Call back, once, when PID 1 inside has ended; not where the wire hangs up then."""
        self._callback = callback

    def clock(self) -> int:
        """Now, in the unit of `Process.start`."""
        return processes.clock()

    def processes(self) -> list[Process]:
        """Everything inside but PID 1; parents before children."""
        return processes.below(self.reference.pid) if self.alive() else []

    def background(self, shell: Process | None) -> list[Process]:
        """Everything inside but PID 1 and the shell. Two small reads tell that there is nothing, which is the usual
        case. When the shell has ended the next may be there already, of which nobody has heard."""
        if shell and self.alone(shell):
            return []
        if shell and self.lives(shell):
            return [process for process in self.processes() if process.pid != shell.pid]
        return [process for process in self.processes() if not self._is_shell(process)]

    def _is_shell(self, process: Process) -> bool:
        """Whether it was started by the keeper as a shell, or by one that has ended, in its background."""
        ours = (f"--rcfile {self.inside}/rc --noediting -i", f"{self.inside}/keeper")
        return process.parent == self.reference.pid and process.command.endswith(ours)

    def alone(self, shell: Process) -> bool:
        """Whether nothing runs inside but PID 1 and the shell; by files that stay open, for every command asks."""
        if self._couple is None or self._couple.child is not shell:
            self.rest()
            try:
                self._couple = processes.Couple(self.reference.pid, shell)
            except OSError:
                return False
        return self._couple.alone()

    def shell(self, inner: int = 0) -> Process | None:
        """The child of PID 1 that was started as a shell, and calls itself `inner` where that is known."""
        for pid in processes.children(self.reference.pid):
            if not inner or processes.inner_pid(pid) == inner:
                found = processes.describe(pid)
                if found and self._is_shell(found):
                    return found
        return None

    def process(self, pid: int) -> Process | None:
        """Only a child of the keeper's is one of its shells."""
        found = processes.describe(pid)
        return found if found and found.parent == self.reference.pid else None

    def lives(self, process: Process) -> bool:
        """By its start, for its number may have been used again."""
        return processes.start_time(process.pid) == process.start

    def busy(self, shell: Process) -> bool:
        """While a command runs, the shell's standard input is nothing; between commands never, or it would end."""
        return processes.input_of(shell.pid) == os.devnull

    def waits(self, shell: Process) -> bool:
        """While a command runs, the shell's standard input is not where its lines come from."""
        return processes.waits_for(shell.pid, self.channel())

    def signal(self, targets: Sequence[Process], number: int) -> None:
        """Through descriptors, so that a reused pid is never hit."""
        processes.send(targets, number)

    async def sweep(self, spare: Callable[[Process], bool]) -> list[Process]:
        """Stop all before ending any: a stopped process keeps its place under the limit, so that the others
        cannot become more."""
        stopped: dict[tuple[int, int], Process] = {}
        for _ in range(50):
            found = [process for process in self.processes() if not spare(process)]
            fresh = [process for process in found if (process.pid, process.start) not in stopped]
            if not fresh:
                break
            self.signal(fresh, signal.SIGSTOP)
            stopped |= {(process.pid, process.start): process for process in fresh}
            await asyncio.sleep(0)
        self.signal(list(stopped.values()), signal.SIGKILL)
        return list(stopped.values())

    def pressure(self) -> Pressure:
        """Nothing is counted here."""
        return Pressure()

    def files(self) -> ConfinedFiles:
        """As the session's own user, within its own root."""
        reference = self.reference
        return ConfinedFiles(reference.pid, reference.uid, reference.gid, self.home)

    async def _end_keeper(self) -> None:
        """Kill it, wait until it has gone, and leave no zombie; nothing, when that is done already."""
        if self._over:
            return
        if self._handle < 0:
            with contextlib.suppress(ProcessLookupError):
                self._watch()
        if self._handle < 0 or processes.start_time(self.reference.pid) != self.reference.start:
            await self._reap()
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        if self._child == self.reference.pid:
            await self._reap()
        await asyncio.wait_for(asyncio.shield(self._ended), 30)
        _reaped(self.reference.pid)  # should it have become our child meanwhile
        await self._reap()

    async def _reap(self) -> None:
        while self._child is not None:
            if _reaped(self._child):
                self._child = None
            else:
                await asyncio.sleep(0.0005)

    def detach(self) -> None:
        """Close the descriptors."""
        self.rest()
        self._over = True
        if self._handle >= 0:
            self._loop.remove_reader(self._handle)
            os.close(self._handle)
            self._handle = -1


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
