"""One command from its submission to its end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Protocol

from gofer_sandbox.provider import Box, Process, Wire
from gofer_sandbox.shell import frames
from gofer_sandbox.shell.ladder import GRACE, Ladder, Step

_SNAPSHOT_PATIENCE = 2.0
_TICK = 0.2
_SILENT_TICKS = 3
_CANNOT_REPORT = "the shell could no longer report how the command ended and was replaced"


@dataclass(frozen=True, slots=True)
class Stop:
    """Somebody wants the command to end."""

    reason: str
    step: Step = Step.ASK


@dataclass(frozen=True, slots=True)
class Tick:
    """Time to look: is the deadline past, and can the shell still report?"""


@dataclass(frozen=True, slots=True)
class Lost:
    """PID 1 inside has ended."""


TICK = Tick()

Event = frames.Frame | Stop | Tick | Lost


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
    killed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Speaker(Protocol):
    """What seeing a command through needs of its shell."""

    box: Box
    wire: Wire
    exits: int
    owes_snapshot: bool
    behind_snapshot: bool
    unread: bool
    unkept: str
    on_tick: Callable[[], None]

    @property
    def process(self) -> Process | None: ...
    def push(self, event: Event) -> None: ...
    async def next(self) -> Event: ...
    def submit(self, command: bytes) -> None: ...


class Run:
    """Acts on events until its command has ended one way or another, and fills in the outcome."""

    def __init__(
        self, shell: Speaker, ladder: Ladder, outcome: Outcome, timeout: float, command: bytes | None
    ) -> None:
        self._shell, self._ladder, self._outcome, self._command = shell, ladder, outcome, command
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._deadline = self._loop.time() + timeout
        self._behind = self._was_behind = shell.owes_snapshot
        self._timer = self._loop.call_later(min(_TICK, timeout), shell.push, TICK)
        self._exits_before = 0 if command is None else shell.exits
        self._silent = 0
        self._died = False

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
            case frames.Done():
                return self._on_done(event)
            case frames.Died():
                self._on_died(event)
            case frames.Snapped():
                self._on_begun()
            case frames.Ready():
                return self._on_ready_again(event)
            case Lost():
                outcome.lost = True
                return True
            case Stop():
                outcome.stopped = True
                outcome.notes += [event.reason] if event.reason else []
                return self._climb(event.step)
            case Tick():
                return self._on_tick()
        return False

    def _on_begun(self) -> None:
        """The shell is done with what came before: the command's time counts from here."""
        if self._was_behind and not (self._outcome.timed_out or self._outcome.stopped):
            self._deadline = self._loop.time() + self._timeout
        self._behind = self._was_behind = False

    def _on_done(self, event: frames.Done) -> bool:
        """Unless it was not the shell that said so, but something that runs besides."""
        shell = self._shell.process
        if event.number != self._outcome.number:
            return False
        self._outcome.alone = shell is not None and self._shell.box.alone(shell)
        if shell and not self._outcome.alone and self._shell.box.busy(shell):
            return False
        self._outcome.exit_code, self._outcome.cwd = event.exit_code, event.cwd
        return True

    def _on_died(self, event: frames.Died) -> None:
        if not self._died and not event.unread:
            self._died = self._outcome.restarted = True
            self._outcome.exit_code = None if self._silent >= _SILENT_TICKS else event.exit_code

    def _on_ready_again(self, event: frames.Ready) -> bool:
        """A new shell took over: the command ended with the old one, unless that had never read it, or not come to
        it from the snapshot before."""
        shell, outcome = self._shell, self._outcome
        if not self._died:
            return False
        not_begun = shell.unread or (self._was_behind and shell.behind_snapshot)
        if not_begun and self._command is not None and not (outcome.timed_out or outcome.stopped):
            self._behind = self._was_behind = False
            self._died, outcome.exit_code = False, None
            shell.wire.finish()
            shell.submit(self._command)
            return False
        outcome.cwd = event.cwd
        outcome.state_lost = shell.exits == self._exits_before or bool(shell.unkept)
        outcome.notes += [shell.unkept] if shell.unkept else []
        return True

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
            self._shell.on_tick()
            self._shell.box.rouse()
            self._look_at_shell()
        after = min(_TICK, max(0.0, self._deadline - self._loop.time()))
        self._timer = self._loop.call_later(after, self._shell.push, TICK)
        return ended

    def _look_at_shell(self) -> None:
        """A shell that waits without running the command and without having reported: replace it. One that an
        earlier server had heard may leave its report only now."""
        if self._command is None and isinstance(left := frames.parse(self._shell.wire.status()), frames.Done):
            self._shell.push(left)
        process = self._shell.process
        waits = process is not None and self._shell.box.waits(process)
        self._silent = self._silent + 1 if waits else 0
        if process and self._silent == _SILENT_TICKS:
            self._outcome.notes.append(_CANNOT_REPORT)
            self._shell.box.signal([process], signal.SIGKILL)


async def _whatever_happens(work: Coroutine[None, None, None]) -> None:
    """Await to the end, however often the waiting task is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
