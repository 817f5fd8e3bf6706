"""The wire to a sandbox that cannot be given descriptors, as a container: two more FIFOs in the control directory.

Anything with the session's user id can write to them, so what an earlier command left running can falsify what a later
one reports. A few looks at the shell from outside make that harder, not impossible.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from gofer_sandbox.provider import Listener
from gofer_sandbox.shell import scripts
from gofer_sandbox.shell.control import ControlWire
from gofer_sandbox.shell.frames import Decoder
from gofer_sandbox.shell.outputs import Ownership

_CHUNK = 2048
_PAUSE = 0.05
_LATER = 0.005
_FRAMES_AT_ONCE = 200
_SAFELY = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC"))


class FifoWire(ControlWire):
    """Frames from whoever writes them."""

    def __init__(self, control: Path, owner: Ownership, inside: str = scripts.INSIDE) -> None:
        super().__init__(control, owner, inside)
        self._status = os.open(control / "st", os.O_RDWR | _SAFELY)
        self._input = os.open(control / "in", os.O_RDWR | _SAFELY)
        self._decoder = Decoder()
        self._unsent = b""
        self._sending: asyncio.TimerHandle | None = None
        self._count = 0

    def open(self, listener: Listener) -> None:
        """Begin to deliver frames."""
        super().open(listener)
        self._loop.add_reader(self._status, self.hear)

    def trust(self, shell: int, expected: int) -> None:
        """Nobody says who speaks here."""

    def submit(self, number: int, command: bytes, separate: bool, snapshot: bool, before: int) -> None:
        """As every wire does."""
        self._count = 0
        super().submit(number, command, separate, snapshot, before)

    def _send(self, lines: bytes) -> None:
        """Somebody inside may have filled the shell's input: it reads that first."""
        self._unsent += lines
        self._sending = None
        if not self._closed:
            try:
                self._unsent = self._unsent[os.write(self._input, self._unsent) :]
            except BlockingIOError:
                self._sending = self._loop.call_later(_LATER, self._send, b"")

    def hear(self) -> None:
        """Whoever is inside can write any number of frames, and each costs work that all the server's other sessions
        wait for: few are read at a time, and when there are many, the rest has to wait."""
        assert self._listener is not None
        try:
            data = os.read(self._status, _CHUNK)
        except BlockingIOError:
            return
        for frame in self._decoder.feed(data):
            self._count += 1
            if not self._closed:
                self._listener.frame(frame, 0)
        self._listener.commit()
        self._loop.call_soon(self.settle)
        if self._count > _FRAMES_AT_ONCE and not self._closed:
            self._loop.remove_reader(self._status)
            self._loop.call_later(_PAUSE, self._read_on)

    def _read_on(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._status, self.hear)

    def close(self) -> None:
        """The keeper holds both open."""
        if not self._closed:
            if self._sending:
                self._sending.cancel()
            self._loop.remove_reader(self._status)
            super().close()
            os.close(self._status)
            os.close(self._input)
