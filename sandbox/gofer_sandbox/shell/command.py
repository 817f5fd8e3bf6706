"""One command from its submission to its end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gofer_sandbox.shell.ladder import GRACE, Ladder, Step

if TYPE_CHECKING:
    from gofer_sandbox.shell.session import Shell

_SNAPSHOT_PATIENCE = 2.0
_TICK = 0.2
_SILENT_TICKS = 3
_UNREPORTED = "the shell reported nothing more and was replaced: whether the command ran is not known"
_TAKEN = "something left running took what the shell was told; it was ended"


@dataclass(frozen=True, slots=True)
class Stop:
    """Somebody wants the command to end."""

    reason: str
    step: Step = Step.ASK


@dataclass(slots=True)
class Outcome:
    """What is known of a command."""

    number: int
    command: bytes | None = None
    """What was submitted; None when another process did."""
    before: int = 0
    """How the command before ended."""
    again: int = 0
    """How often its lines were given again."""
    refused: bool = False
    """Whether the shell reports that it has not begun it, however often it is told to."""
    left_at_exit: bool = False
    """Whether the shell that ended with it has left a snapshot."""
    lost_before: bool = False
    """Whether state was lost before the shell ended with it."""
    exit_code: int | None = None
    cwd: str = ""
    timed_out: bool = False
    stopped: bool = False
    restarted: bool = False
    state_lost: bool = False
    alone: bool = False
    """Whether nothing but the shell ran when it reported."""
    lost: bool = False
    """The box is gone, or nothing in it answers."""
    silenced: bool = False
    """Whether its shell was replaced for it no longer reported."""
    killed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Run:
    """Sees a command through until it has ended one way or another. It acts on what is so, not on what it was told, and
    looks again and again: nothing that it was not told of can keep it waiting."""

    def __init__(self, shell: Shell, ladder: Ladder, timeout: float) -> None:
        self._shell, self._ladder, self._outcome = shell, ladder, shell.outcome
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._deadline = self._loop.time() + timeout
        self._behind = self._patient = shell.snapshots.owed
        """Whether the shell has to leave a snapshot before the command, and may be waited for."""
        self._look_at = self._loop.time() + min(_TICK, timeout)
        self._silent = 0

    async def until_end(self) -> None:
        """See the command through; when the caller is cancelled, end it first."""
        try:
            await self._loop_until_end()
        except asyncio.CancelledError:
            self._shell.stop("")
            await _whatever_happens(self._loop_until_end())
            raise
        finally:
            self._outcome.killed += self._ladder.killed.values()

    async def _loop_until_end(self) -> None:
        while not self._ended():
            await self._shell.news(self._look_at)
        if self._outcome.silenced:
            self._outcome.notes.append(_UNREPORTED)
        if self._ladder.step and not self._outcome.lost:
            await self._ladder.clear()

    def _ended(self) -> bool:
        """Act on what is so now; whether the command has ended."""
        shell, outcome = self._shell, self._outcome
        if not shell.running:
            return True
        if self._behind and not shell.snapshots.owed:
            self._on_begun()
        while shell.stops and not outcome.lost:
            stop = shell.stops.popleft()
            outcome.stopped = True
            outcome.notes += [stop.reason] if stop.reason else []
            self._climb(stop.step)
        if self._loop.time() >= self._look_at:
            self._look()
        outcome.lost = outcome.lost or shell.lost
        return outcome.lost

    def _on_begun(self) -> None:
        """The shell is done with what came before: the command's time counts from here."""
        if not (self._outcome.timed_out or self._outcome.stopped):
            self._deadline = self._loop.time() + self._timeout
        self._behind = self._patient = False

    def _climb(self, at_least: Step) -> None:
        step = self._ladder.climb(at_least)
        self._deadline = self._loop.time() + GRACE[step]
        self._look_at = min(self._look_at, self._deadline)
        self._outcome.lost = step is Step.RECREATE

    def _look(self) -> None:
        """Is the deadline past, and can the shell still report?"""
        # A shell killed in the middle of a snapshot would lose the state of the command before.
        if self._patient and self._loop.time() >= self._deadline:
            self._deadline, self._patient = self._deadline + _SNAPSHOT_PATIENCE, False
        if self._loop.time() >= self._deadline:
            self._outcome.timed_out = self._outcome.timed_out or not self._outcome.stopped
            self._climb(Step.ASK)
        else:
            self._shell.box.rouse()
            self._look_at_shell()
        self._look_at = min(self._loop.time() + _TICK, self._deadline)

    def _look_at_shell(self) -> None:
        """A shell that waits for its next line and has not reported cannot report, or something took its lines. It is
        given them again, which runs nothing twice; then who can take lines is ended; then, with nobody left who could,
        it is given them a last time; then the shell is replaced. When it was only stopped, its lines are still there,
        and the next shell gets them."""
        process = self._shell.process
        if process is None or not self._shell.box.waits(process):
            self._silent = 0
            return
        self._silent += 1
        if self._silent < _SILENT_TICKS:
            self._shell.submit_again()
        elif taken := self._shell.end_takers():
            self._silent = 0
            self._outcome.killed += [one.command for one in taken]
            self._outcome.notes.append(_TAKEN)
        elif self._silent == _SILENT_TICKS:
            self._shell.submit_again()
        else:
            self._outcome.silenced = True
            self._shell.box.signal([process], signal.SIGKILL)


async def _whatever_happens(work: Coroutine[None, None, None]) -> None:
    """Await to the end, however often the waiting task is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
