"""One command from its submission to its end, and how it is brought there: asked first, forced after, and only what it
started."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from gofer_sandbox.local import Box
from gofer_sandbox.provider import Process

if TYPE_CHECKING:
    from gofer_sandbox.shell.session import Shell

_SNAPSHOT_PATIENCE = 2.0
_TICK = 0.2
_SILENT_TICKS = 3
_UNREPORTED = "the shell reported nothing more and was replaced: whether the command ran is not known"
_TAKEN = "something left running took what the shell was told; it was ended"


class Step(Enum):
    """The rungs, in their order."""

    ASK = auto()
    """Abort the rest of the list, and SIGTERM to what the command started."""
    FORCE = auto()
    """SIGKILL to what the command started."""
    REPLACE = auto()
    """SIGKILL to the shell; the keeper starts another one with its state."""
    RECREATE = auto()
    """Nothing inside answers any more."""


GRACE = {Step.ASK: 0.5, Step.FORCE: 0.5, Step.REPLACE: 2.0, Step.RECREATE: 0.0}
_LOOK = 0.005


class Ladder:
    """One climb. What ran before the command began, and its children, are spared."""

    def __init__(
        self,
        box: Box,
        shell: Callable[[], Process | None],
        since: int,
        spared: set[tuple[int, int]],
    ) -> None:
        self._box, self._shell, self._since, self._spared = box, shell, since, spared
        self.step: Step | None = None
        self.killed: dict[tuple[int, int], str] = {}

    def climb(self, at_least: Step = Step.ASK) -> Step:
        """Do the next step and say which it was."""
        following = Step(self.step.value + 1) if self.step else Step.ASK
        self.step = max(following, at_least, key=lambda step: step.value)
        shell = [found] if (found := self._shell()) else []
        if self.step is Step.ASK:
            self._box.signal(shell, signal.SIGUSR2)
            self._end(signal.SIGTERM)
            self._box.signal(shell, signal.SIGCONT)
        elif self.step is Step.FORCE:
            self._force()
        elif self.step is Step.REPLACE:
            self._box.signal(shell or ([found] if (found := self._box.shell()) else []), signal.SIGKILL)
            self._force()
        return self.step

    def _force(self) -> None:
        for _ in range(20):
            if not self._end(signal.SIGKILL):
                return

    def _end(self, number: int) -> bool:
        """Signal everything the command started; False when there is nothing."""
        found = self._started()
        self._box.signal(found, number)
        if number == signal.SIGTERM:
            self._box.signal(found, signal.SIGCONT)
        self._note_killed(found)
        return bool(found)

    def _note_killed(self, found: list[Process]) -> None:
        """By what each was called when it was first seen: one that is ending has no name any more."""
        self.killed = {(process.pid, process.start): process.command for process in found} | self.killed

    def _started(self) -> list[Process]:
        """Not the shell, nor one that is about to take the place of one that ended."""
        spare = self._spare()
        return [process for process in self._box.background(self._shell()) if not spare(process)]

    def _spare(self) -> Callable[[Process], bool]:
        """Whether a process is none of the command's; to be asked of parents before their children."""
        shell, families = self._shell(), set[int]()

        def spare(process: Process) -> bool:
            if (process.pid, process.start) in self._spared or process.parent in families:
                families.add(process.pid)
                return True
            return process.start < self._since or (shell is not None and process.pid == shell.pid)

        return spare

    async def clear(self) -> None:
        """After the command's end: what it left in the background was asked to end with it, and is made to when
        its grace is over; all at once, for something that forks and ends is gone before it is seen or hit. A shell
        that is coming up has a moment to be heard of: until then it looks like any of them."""
        await self._until(lambda: not self._started(), GRACE[Step.ASK])
        if self._box.background(self._shell()):
            await self._until(lambda: self._shell() is not None, GRACE[Step.FORCE])
            ended = await self._box.sweep(self._spare())
            self._note_killed(ended)
            await self._until(lambda: not self._started(), GRACE[Step.FORCE])

    async def _until(self, holds: Callable[[], bool], within: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while not holds():  # noqa: ASYNC110 the kernel tells only who asks
                    await asyncio.sleep(_LOOK)


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
            reason, step = shell.stops.popleft()
            outcome.stopped = True
            outcome.notes += [reason] if reason else []
            self._climb(step)
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
        if process is None or self._shell.wire.behind or not self._shell.box.waits(process):
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
