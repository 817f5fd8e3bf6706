"""The wire to a sandbox that cannot be given descriptors, as a container: two more FIFOs in the control directory.

Anything with the session's user id can write to them, so what an earlier command left running can falsify what a later
one reports.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from gofer_sandbox.provider import Listener
from gofer_sandbox.shell import scripts
from gofer_sandbox.shell.control import ControlWire, waiting
from gofer_sandbox.shell.frames import Decoder
from gofer_sandbox.shell.outputs import SAFELY, Ownership

_CHUNK = 2048
"""Whoever is inside can write any number of frames: few are read at a time, for all other sessions wait meanwhile."""


class FifoWire(ControlWire):
    """Frames from whoever writes them."""

    def __init__(self, control: Path, owner: Ownership, inside: str = scripts.INSIDE) -> None:
        super().__init__(control, owner, inside, f"{inside}/st")
        self._status = os.open(control / "st", os.O_RDWR | SAFELY)
        self._input = os.open(control / "in", os.O_RDWR | SAFELY)
        self._decoder = Decoder()

    def open(self, listener: Listener) -> None:
        """Begin to deliver frames."""
        super().open(listener)
        self._loop.add_reader(self._status, self.hear)

    def trust(self, shell: int, expected: int) -> None:
        """Nobody says who speaks here."""

    def _send(self, lines: bytes) -> None:
        """All of it or, where somebody inside has filled the shell's input, nothing: it is given again in time."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._input, lines)

    def unread(self) -> bool:
        """Whether lines that were sent, by whomever, are still to be read."""
        return waiting(self._input, "FIONREAD")

    def hear(self) -> None:
        """One piece of them."""
        try:
            data = os.read(self._status, _CHUNK)
        except BlockingIOError:
            return
        for frame in self._decoder.feed(data):
            if not self._closed:
                self._listener.frame(frame, 0)
        self._listener.commit()
        self._loop.call_soon(self.settle)

    def close(self) -> None:
        """The keeper holds both open."""
        if not self._closed:
            self._loop.remove_reader(self._status)
            super().close()
            os.close(self._status)
            os.close(self._input)
