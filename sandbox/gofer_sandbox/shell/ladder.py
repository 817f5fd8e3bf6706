"""How a command is brought to an end: asked first, forced after, and only what it started."""

from __future__ import annotations

import signal
from collections.abc import Callable
from enum import Enum, auto

from gofer_sandbox.processes import without_families
from gofer_sandbox.provider import Box, Process


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
        if self.step is Step.ASK:
            self._ask()
        elif self.step is Step.FORCE:
            self._force()
        elif self.step is Step.REPLACE:
            self._replace()
        return self.step

    def _ask(self) -> None:
        shell = self._shell()
        if shell:
            self._box.signal([shell], signal.SIGUSR2)
        self._end(signal.SIGTERM)
        if shell:
            self._box.signal([shell], signal.SIGCONT)

    def _force(self) -> None:
        for _ in range(20):
            if not self._end(signal.SIGKILL):
                return

    def _replace(self) -> None:
        shell = self._shell()
        if shell:
            self._box.signal([shell], signal.SIGKILL)
        self._force()

    def _end(self, number: int) -> bool:
        """Signal everything the command started; False when there is nothing."""
        shell = self._shell()
        found = [
            process
            for process in without_families(self._box.processes(), self._spared)
            if process.start >= self._since and (shell is None or process.pid != shell.pid)
        ]
        self._box.signal(found, number)
        if number == signal.SIGTERM:
            self._box.signal(found, signal.SIGCONT)
        self.killed |= {(process.pid, process.start): process.command for process in found}
        return bool(found)
