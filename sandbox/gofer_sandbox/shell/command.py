"""One command from its submission to its end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from gofer_sandbox.shell.ladder import GRACE, Ladder, Step

if TYPE_CHECKING:
    from gofer_sandbox.shell.session import Shell

_SNAPSHOT_PATIENCE = 2.0
_TICK = 0.2
_SILENT_TICKS = 3
_CANNOT_REPORT = "the shell could no longer report how the command ended and was replaced"
_TAKEN = "something left running took what the shell was told; it was ended"


@dataclass(frozen=True, slots=True)
class Stop:
    """Somebody wants the command to end."""

    reason: str
    step: Step = Step.ASK


class News(Enum):
    """What whoever waits has to act on."""

    TICK = auto()
    """Time to look: is the deadline past, and can the shell still report?"""
    BEGUN = auto()
    """The shell is done with the snapshot that it owed before the command."""
    ENDED = auto()
    """The outcome is known."""
    LOST = auto()
    """PID 1 inside has ended."""


Event = Stop | News


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
    alone: bool = False
    """Whether nothing but the shell ran when it reported."""
    lost: bool = False
    """The box is gone, or nothing in it answers."""
    silenced: bool = False
    """Whether its shell was replaced for it no longer reported."""
    killed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Run:
    """Acts on events until its command has ended one way or another."""

    def __init__(self, shell: Shell, ladder: Ladder, timeout: float) -> None:
        self._shell, self._ladder, self._outcome = shell, ladder, shell.outcome
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._deadline = self._loop.time() + timeout
        self._behind = self._was_behind = shell.owes_snapshot
        self._timer = self._loop.call_later(min(_TICK, timeout), shell.push, News.TICK)
        self._silent = 0

    async def until_end(self) -> None:
        """See the command through; when the caller is cancelled, end it first."""
        try:
            await self._loop_until_end()
        except asyncio.CancelledError:
            self._shell.push(Stop(""))
            await _whatever_happens(self._loop_until_end())
            raise
        finally:
            self._timer.cancel()
            self._outcome.killed += self._ladder.killed.values()

    async def _loop_until_end(self) -> None:
        while not self.act(await self._shell.next()):
            pass
        if self._ladder.step and not self._outcome.lost:
            await self._ladder.clear()

    def act(self, event: Event) -> bool:
        """Whether the command has ended."""
        outcome = self._outcome
        match event:
            case News.BEGUN:
                self._on_begun()
                return False
            case News.TICK:
                return self._on_tick()
            case Stop():
                outcome.stopped = True
                outcome.notes += [event.reason] if event.reason else []
                return self._climb(event.step)
        outcome.lost = event is News.LOST
        return True

    def _on_begun(self) -> None:
        """The shell is done with what came before: the command's time counts from here."""
        if self._was_behind and not (self._outcome.timed_out or self._outcome.stopped):
            self._deadline = self._loop.time() + self._timeout
        self._behind = self._was_behind = False

    def _climb(self, at_least: Step) -> bool:
        step = self._ladder.climb(at_least)
        self._deadline = self._loop.time() + GRACE[step]
        self._outcome.lost = step is Step.RECREATE
        return self._outcome.lost

    def _on_tick(self) -> bool:
        ended = False
        # A shell killed in the middle of a snapshot would lose the state of the command before.
        if self._behind and self._loop.time() >= self._deadline:
            self._deadline, self._behind = self._deadline + _SNAPSHOT_PATIENCE, False
        if self._loop.time() >= self._deadline:
            self._outcome.timed_out = self._outcome.timed_out or not self._outcome.stopped
            ended = self._climb(Step.ASK)
        else:
            self._shell.box.rouse()
            self._look_at_shell()
        after = min(_TICK, max(0.0, self._deadline - self._loop.time()))
        self._timer = self._loop.call_later(after, self._shell.push, News.TICK)
        return ended

    def _look_at_shell(self) -> None:
        """A shell that waits for its next line and has not reported cannot report, or something took its lines. It is
        given them again, which runs nothing twice; then who can take lines is ended; then, with nobody left who could,
        it is given them a last time; then the shell is replaced."""
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
            self._outcome.notes.append(_CANNOT_REPORT)
            self._outcome.silenced = True
            self._shell.box.signal([process], signal.SIGKILL)


async def _whatever_happens(work: Coroutine[None, None, None]) -> None:
    """Await to the end, however often the waiting task is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
