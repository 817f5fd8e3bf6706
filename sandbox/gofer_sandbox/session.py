"""A session from its box to its results: what the shell cannot do for itself is done here.

When a limit was hit, what hit it is ended; when the workspace grows too large, the command is; when the box
is lost, it is made again from its files and the last snapshot.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gofer_sandbox.disk import DiskWatch
from gofer_sandbox.errors import SandboxClosed, StartFailed
from gofer_sandbox.journal import Journal
from gofer_sandbox.local import Box
from gofer_sandbox.output import prune
from gofer_sandbox.provider import Gate, Pressure, Process, Provider, Spec
from gofer_sandbox.result import Result
from gofer_sandbox.shell.command import Outcome, Step
from gofer_sandbox.shell.session import OnOutput, Shell
from gofer_sandbox.shell.state import Snapshot


@dataclass(slots=True)
class News:
    """What the next result has to say besides its own command."""

    notes: list[str] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    background_lost: list[str] = field(default_factory=list)
    recreated: bool = False


class Session:
    """One box at a time, and the shell in it."""

    def __init__(self, provider: Provider, spec: Spec, journal: Journal, gate: Gate | None) -> None:
        self._provider, self._spec, self._journal, self.gate = provider, spec, journal, gate
        self.disk = DiskWatch(spec.workspace, spec.limits, self._pids, provider.reserve)
        self._pressure = Pressure()
        self._shell: Shell | None = None
        self._box: Box | None = None
        self.background: list[Process] = []
        self.news = News()
        self._closed = False
        self._clearing: asyncio.Task[None] | None = None

    @property
    def box(self) -> Box:
        """The living box."""
        assert self._box is not None
        return self._box

    @property
    def shell(self) -> Shell:
        """The shell in it."""
        assert self._shell is not None
        return self._shell

    @property
    def running(self) -> bool:
        """Whether a command runs."""
        return self._journal.live.running

    # Lifecycle

    async def start(self, snapshot: Snapshot | None, made: Callable[[Box], None] | None = None) -> None:
        """Make the box, bring up a shell with that state, and open the gate to the network. `made` is called with
        the box while the shell comes up."""
        self._box = await self._provider.start(self._spec)
        if self._closed:  # meanwhile
            await self._box.destroy()
            raise SandboxClosed
        self._shell = self._new_shell(self._box, snapshot)
        self._shell.begin()
        if made:
            made(self._box)
        self._pressure = self._box.pressure()
        if not await self._shell.until_ready():
            raise StartFailed("the sandbox started, but no shell came up in it")
        await self.open_gate()

    async def take_over(self, box: Box, snapshot: Snapshot | None) -> bool:
        """Go on with a living box; True when a command is still to be awaited."""
        self._box = box
        self._shell = self._new_shell(box, snapshot)
        await self.open_gate()
        self._pressure = box.pressure()
        running = self._shell.take_over()
        self._note_background(before=self._journal.live.clock if running else None)
        if not running:
            self._watch_idle()
        return running

    def moved(self, directory: Path) -> None:
        """Everything it keeps is at another place now, which the box sees no difference of."""
        self._spec = replace(self._spec, directory=directory)
        self.disk.workspace = self._spec.workspace
        self.shell.moved(directory)

    async def open_gate(self) -> None:
        """Open the network of the box, if it is to have one."""
        if self.gate:
            await self.gate.open(self.box.reference)

    def _pids(self) -> list[int]:
        return [process.pid for process in self.box.processes()]

    def _new_shell(self, box: Box, snapshot: Snapshot | None) -> Shell:
        return Shell(box, self._spec.limits, self._journal, self._spec.directory, snapshot)

    def _watch_idle(self, told: bool = False) -> None:
        """Look at what the last command left, and end what fills the disk in the background. `told` when its result
        says already that the disk is full."""
        if self.background:
            self.disk.begin(self._clear_background)
        else:
            self.disk.begin(lambda why: None if told else self.news.notes.append(why), lasting=False)

    async def detach(self) -> None:
        """Let go of everything that is still alive."""
        if self._shell and not self._closed:
            await self._shell.settle()
        self._closed = True
        await self._close_shell()
        if self._box:
            self._box.detach()

    async def destroy(self) -> None:
        """End everything that is still alive."""
        self._closed = True
        await self._end_box()

    async def _end_box(self) -> None:
        await self._close_shell()
        if self._box:
            await self._box.destroy()

    async def _close_shell(self) -> None:
        await self._watch_no_more()
        if self._shell:
            self._shell.close()
        if self.gate:
            await self.gate.close()

    # Commands

    async def run(self, command: bytes, timeout: float, separate: bool, on_output: OnOutput | None) -> Result:
        """Run a command, within the limits."""
        began = time.monotonic()
        if self.background or self._clearing:
            await self._watch_no_more()
            await self._relieve()
        return await self._result(
            self.shell.run(command, timeout, separate, on_output, self._watch_disk), began
        )

    async def resume(self) -> Result:
        """See through the command that ran when this process took over; it began when its journal says."""
        began = time.monotonic() - max(0.0, time.time() - self._journal.live.started)
        self._watch_disk()
        return await self._result(self.shell.resume(), began)

    def _watch_disk(self) -> None:
        """End the running command if it fills the disk."""
        self.disk.begin(self._stop_command)

    def _stop_command(self, why: str) -> None:
        if self.running:
            self.shell.stop(why, Step.FORCE)

    async def _result(self, command: Awaitable[Outcome], began: float) -> Result:
        try:
            outcome = await command
        except BaseException:
            self.disk.stop()
            raise
        if self._closed:
            raise SandboxClosed("the sandbox was closed or detached while the command ran")
        captures, full, kept = self.shell.captures, None, 0
        for capture in captures:
            full = capture.close() or full
            kept += capture.kept
        if outcome.lost:
            await self._make_again(outcome)
        else:
            self._note_background(alone=outcome.alone)
            if outcome.exit_code or self.background:
                await self._relieve()
        if full:
            prune(self._spec.directory / "output", self._spec.limits.spools)
        self._watch_idle(told=outcome.stopped)
        news, self.news = self.news, News()
        return Result(
            number=outcome.number,
            exit_code=outcome.exit_code,
            output=captures[0].text if captures else "",
            errors=captures[1].text if len(captures) > 1 else "",
            cwd=outcome.cwd,
            duration=time.monotonic() - began,
            timed_out=outcome.timed_out,
            cancelled=outcome.stopped,
            killed=(*outcome.killed, *news.killed),
            restarted=outcome.restarted,
            recreated=news.recreated,
            state_lost=outcome.state_lost,
            background=tuple(process.command for process in self.background),
            background_lost=tuple(news.background_lost),
            kept=kept,
            dropped=sum([capture.dropped for capture in captures]) if full else 0,
            full_output=full,
            notes=(*outcome.notes, *news.notes),
        )

    def _note_background(
        self, before: int | None = None, ended: Sequence[Process] = (), alone: bool = False
    ) -> None:
        """What runs besides the shell; `before` leaves out what a command that still runs has started, `ended`
        what was just killed and may take an instant to go. `alone` when it was just seen that nothing does."""
        found = [] if alone else self.box.background(self.shell.process)
        if not found:
            self.background, self.shell.spared = [], set()
            return
        gone = {(process.pid, process.start) for process in ended}
        self.background = [
            process
            for process in found
            if (before is None or process.start < before) and (process.pid, process.start) not in gone
        ]
        self.shell.spared = {(process.pid, process.start) for process in self.background}

    # When things go wrong

    async def _relieve(self) -> None:
        """When a limit was hit since the last look: a fork bomb outlives the command that set it off."""
        now = self.box.pressure()
        if now == self._pressure:
            return
        if now.memory > self._pressure.memory:
            self.news.notes.append("the session ran out of memory, and the process that used most was killed")
        if now.processes > self._pressure.processes:
            await self._sweep()
        self._pressure = self.box.pressure()

    async def _sweep(self) -> None:
        """End what the last command started; if that is not enough, all but the shell."""
        shell, since = self.shell.process, self._journal.live.clock
        ended = await self.box.sweep(lambda process: process == shell or process.start < since)
        if len(self.box.processes()) > self._spec.limits.processes // 2:
            ended += await self.box.sweep(lambda process: process == shell)
        self.news.notes.append(f"the session had too many processes: {len(ended)} were killed")
        self.news.killed += sorted({process.command for process in ended})
        self._note_background(ended=ended)

    def _clear_background(self, why: str) -> None:
        self._clearing = asyncio.create_task(self._end_background(why))

    async def _end_background(self, why: str) -> None:
        """No command runs, so it is something in the background that fills the disk."""
        shell = self.shell.process
        ended = await self.box.sweep(lambda process: process == shell)
        self.news.notes.append(f"{why}: what ran in the background was killed")
        self.news.killed += sorted({process.command for process in ended})
        self._note_background(ended=ended)

    async def _watch_no_more(self) -> None:
        self.disk.stop()
        if self._clearing:
            await asyncio.wait({self._clearing})
            self._clearing = None

    async def _make_again(self, outcome: Outcome) -> None:
        """The box is lost or answers nothing: end it and make another from its files and last snapshot."""
        snapshot = self.shell.snapshots.last
        outcome.state_lost = True
        # How its shell ended says nothing: the command may not have begun.
        ended = outcome.timed_out or outcome.stopped
        outcome.exit_code = 137 if ended else None
        outcome.notes += [] if ended else ["whether the command ran is not known"]
        self.news.recreated = True
        self.news.background_lost += [process.command for process in self.background]
        self.news.notes.append("the sandbox was lost and made again from its files and last snapshot")
        if self.box.pressure().memory > self._pressure.memory:
            self.news.notes.append("it ran out of memory")
        self.background = []
        await self._end_box()
        self._spec = replace(self._spec, previous=self.box.reference)
        try:
            await self.start(snapshot)
        except Exception:
            if self._closed:  # meanwhile, so its files go
                raise SandboxClosed from None
            raise
        outcome.cwd = self.shell.cwd
