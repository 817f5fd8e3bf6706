"""One command from its submission to its end."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, field
from typing import Protocol

from gofer_sandbox.provider import Box, Process, Wire
from gofer_sandbox.shell import frames
from gofer_sandbox.shell.ladder import GRACE, Ladder, Step

_TICK = 0.2
_SILENT_TICKS = 3


@dataclass(frozen=True, slots=True)
class Deadline:
    """The command's time is up, or a rung of the ladder's."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Somebody wants the command to end."""

    reason: str
    step: Step = Step.ASK


@dataclass(frozen=True, slots=True)
class Tick:
    """Time to look whether the shell can still report."""


@dataclass(frozen=True, slots=True)
class Lost:
    """PID 1 inside has ended."""


Event = frames.Frame | Deadline | Stop | Tick | Lost


@dataclass(slots=True)
class Outcome:
    """What is known of a command when it has ended."""

    number: int
    exit_code: int | None = None
    cwd: str = ""
    timed_out: bool = False
    stopped: bool = False
    restarted: bool = False
    state_lost: bool = False
    lost: bool = False
    """The box is gone, or nothing in it answers."""
    killed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Speaker(Protocol):
    """What seeing a command through needs of its shell."""

    box: Box
    wire: Wire
    process: Process | None
    snapshots: int
    unread: bool

    def push(self, event: Event) -> None: ...
    async def next(self) -> Event: ...
    def submit(self, command: bytes) -> None: ...


async def see_through(
    shell: Speaker, ladder: Ladder, outcome: Outcome, timeout: float, command: bytes | None
) -> None:
    """Act on events until the command has ended one way or another, and fill in the outcome."""
    run = _Run(shell, ladder, outcome, timeout, command)
    try:
        while not run.act(await shell.next()):
            pass
    finally:
        run.cancel_timers()
        outcome.killed += ladder.killed.values()


class _Run:
    def __init__(
        self, shell: Speaker, ladder: Ladder, outcome: Outcome, timeout: float, command: bytes | None
    ) -> None:
        self._shell, self._ladder, self._outcome, self._command = shell, ladder, outcome, command
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.call_later(timeout, shell.push, Deadline())
        self._tick = self._loop.call_later(_TICK, shell.push, Tick())
        self._snapshots_before = shell.snapshots
        self._silent = 0
        self._died = False

    def cancel_timers(self) -> None:
        self._deadline.cancel()
        self._tick.cancel()

    def act(self, event: Event) -> bool:
        """Whether the command has ended."""
        outcome = self._outcome
        match event:
            case frames.Done():
                return self._on_done(event)
            case frames.Died():
                self._on_died(event)
            case frames.Ready():
                return self._on_ready_again()
            case Lost():
                outcome.lost = True
                return True
            case Deadline():
                outcome.timed_out = outcome.timed_out or not outcome.stopped
                return self._climb(Step.ASK)
            case Stop():
                outcome.stopped = True
                outcome.notes += [event.reason] if event.reason else []
                return self._climb(event.step)
            case Tick():
                self._on_tick()
        return False

    def _on_done(self, event: frames.Done) -> bool:
        if event.number != self._outcome.number:
            return False
        self._outcome.exit_code, self._outcome.cwd = event.exit_code, event.cwd
        return True

    def _on_died(self, event: frames.Died) -> None:
        if not self._died and not event.unread:
            self._died = self._outcome.restarted = True
            self._outcome.exit_code = None if self._silent >= _SILENT_TICKS else event.exit_code

    def _on_ready_again(self) -> bool:
        """A new shell took over: the command ended with the old one, unless that had never read it."""
        shell, outcome = self._shell, self._outcome
        if not self._died:
            return False
        if shell.unread and self._command is not None and not (outcome.timed_out or outcome.stopped):
            self._died, outcome.exit_code = False, None
            shell.wire.finish()
            shell.submit(self._command)
            return False
        outcome.state_lost = shell.snapshots == self._snapshots_before
        return True

    def _climb(self, at_least: Step) -> bool:
        step = self._ladder.climb(at_least)
        self._deadline.cancel()
        self._deadline = self._loop.call_later(GRACE[step], self._shell.push, Deadline())
        self._outcome.lost = step is Step.RECREATE
        return self._outcome.lost

    def _on_tick(self) -> None:
        """A shell that waits for its next line without having reported cannot report: replace it."""
        self._tick = self._loop.call_later(_TICK, self._shell.push, Tick())
        process = self._shell.process
        waits = process is not None and self._shell.box.waits(process)
        self._silent = self._silent + 1 if waits else 0
        if process and self._silent == _SILENT_TICKS:
            self._outcome.notes.append(
                "the shell could no longer report how the command ended and was replaced"
            )
            self._shell.box.signal([process], signal.SIGKILL)
