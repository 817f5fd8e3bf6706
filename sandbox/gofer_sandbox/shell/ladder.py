"""How a command is brought to an end: asked first, forced after, and only what it started."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from enum import Enum, auto

from gofer_sandbox.local import Box
from gofer_sandbox.provider import Process


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
