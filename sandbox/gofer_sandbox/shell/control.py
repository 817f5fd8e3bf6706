"""What all wires have in common: the control directory, which the server writes and the sandbox sees read-only; and the
wire that is nothing but that directory."""

from __future__ import annotations

import contextlib
import os
import select
from abc import ABC, abstractmethod
from pathlib import Path

from gofer_sandbox.output import write_at
from gofer_sandbox.provider import Listener
from gofer_sandbox.shell import scripts
from gofer_sandbox.shell.frames import Decoder, few
from gofer_sandbox.shell.outputs import SAFELY, Outputs, Ownership, Stream, waiting
from gofer_sandbox.shell.scripts import Channel


def prepare(control: Path, keeper: dict[str, str], owner: Ownership, channel: Channel) -> None:
    """Fill a new control directory: what everything goes through, what every shell runs, the files that the server
    fills later, and last what PID 1 runs."""
    for name in scripts.OUTPUTS if channel.attested else ("in", "st", *scripts.OUTPUTS):
        owner.fifo(f"{control}/{name}")
    files = {
        "rc": scripts.rc(channel),
        "s": scripts.STATE,
        "x": scripts.snapshot(channel),
        "m": scripts.mend(channel.control),
        "q": scripts.CODE,
        "r": scripts.ERROR,
        "c0": scripts.BEGUN,
        "c1": "",
        "state": "",
        "options": "",
        **keeper,
    }
    for name, text in files.items():
        owner.write(f"{control}/{name}", text)


_CHUNK = 2048
_MOMENT = 0.0002
"""Seconds: the loop may be kept so long by a command."""
_SELECTABLE = 1024
"""Descriptors from here on cannot be waited for by `select`, which alone knows times so short."""


class ControlWire(Outputs, ABC):
    """Commands as files, and short lines that have the shell act on them."""

    _source: int
    """Where frames come from."""
    behind = False
    """Whether the shell itself has said more than is heard at a time, and its report may be among that."""

    def __init__(
        self, control: Path, owner: Ownership, inside: str = scripts.INSIDE, status: str = "&0"
    ) -> None:
        """`status` is where the shell writes."""
        super().__init__(control, owner)
        self._inside, self._ask = inside, scripts.ask(status, inside)
        before = (control / "d").exists()  # a shell of a release that had a file for it
        self._report = b"\\builtin . %b/d\n" % inside.encode() if before else scripts.REPORT
        self._lines = self._report
        """What has the shell run its command, and report."""
        self._asked = False
        """Whether a snapshot was asked for since a command was last heard."""
        self._files: dict[str, tuple[int, int]] = {}
        """Of what is written with every command, the descriptor and the size."""

    @abstractmethod
    def _send(self, lines: bytes) -> None:
        """Give the shell, or the keeper, lines to read."""

    def open(self, listener: Listener) -> None:
        """Begin to deliver frames."""
        self._listener = listener
        self._loop.add_reader(self._source, self._on_readable)

    def submit(self, number: int, command: bytes, separate: bool, before: int) -> None:
        """Put the command in its file, open its output, and give the shell its short lines."""
        self._put("c1", command)
        fifos = self.begin(number, separate)
        self._lines = scripts.run(number, before, fifos, self._inside) + self._report
        self._send(self._lines)

    def submit_again(self) -> None:
        """Give it the lines once more; a command that has begun does not begin again. What is left of lines whose
        beginning was taken may have opened a quote, which the comment ends."""
        self._send(b'#"\n' + self._lines)

    @abstractmethod
    def unread(self) -> bool:
        """Whether lines that were sent are still to be read."""

    def _put(self, name: str, data: bytes) -> None:
        """Over what was there before, which costs less than to empty the file first."""
        fd, before = self._files.pop(name, (-1, -1))  # not known, should a write fail half-way
        if fd < 0:
            fd = os.open(self._control / name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            write_at(fd, data, 0)
            if len(data) != before:
                os.ftruncate(fd, len(data))
        except OSError:
            os.close(fd)
            raise
        self._files[name] = fd, len(data)

    def resume(self, number: int, separate: bool) -> None:
        """Read on where another process stopped."""
        self._open_streams(number, separate)
        self._lines = scripts.run(number, 0, self.current, self._inside) + self._report

    def trust(self, shell: int, expected: int) -> None:
        """Whom to believe: the shell of an earlier server's journal, or the one that it had been told to expect."""

    @abstractmethod
    def hear(self) -> object:
        """Deliver the frames that are there already."""

    @abstractmethod
    def _on_readable(self) -> None:
        """Deliver what has come in."""

    def hear_at_once(self) -> None:
        """Deliver what comes within a moment: what the shell does by itself is over before the loop would have come
        round."""
        if self._source < _SELECTABLE and select.select((self._source,), (), (), _MOMENT)[0]:
            self._on_readable()

    def _on_output(self, index: int, stream: Stream) -> None:
        """The state before a command is safe before anything of it is heard."""
        if self._asked and stream in self._streams:
            self._asked = False
            self.hear()
        super()._on_output(index, stream)

    def ask_snapshot(self) -> None:
        """Have an idle shell leave one."""
        self._asked = True
        self._send(self._ask)

    def ask_small_snapshots(self) -> None:
        """From now on the shell names large variables instead of writing them."""
        self._owner.write(self._control / "s", scripts.SMALL_STATE)

    def keep(self, snapshot: bytes) -> None:
        """Leave it for the server that comes after; one that was killed half-way has left none."""
        with contextlib.suppress(OSError):
            self._put("kept", b"")
            self._put("kept", snapshot)

    def kept(self) -> bytes:
        """What the server before left."""
        try:
            return (self._control / "kept").read_bytes()
        except OSError:
            return b""

    def put_state(self, state: bytes, options: bytes) -> None:
        """Both files are whole before the keeper is told to go on."""
        self._owner.write(self._control / "state", state)
        self._owner.write(self._control / "options", options)

    def go(self, death: int) -> None:
        """The keeper takes what the dead shell left unread, then this."""
        self._send(b": %d\n" % death)

    def rest(self) -> None:
        """Let go of what only saves time."""
        super().rest()
        while self._files:
            os.close(self._files.popitem()[1][0])


class FifoWire(ControlWire):
    """Frames from whoever writes them, for a sandbox that cannot be given descriptors, as a container: two more FIFOs
    in the control directory. Anything with the session's user id can write to them, so what an earlier command left
    running can falsify what a later one reports."""

    def __init__(self, control: Path, owner: Ownership, inside: str = scripts.INSIDE) -> None:
        super().__init__(control, owner, inside, f"{inside}/st")
        self._source = os.open(control / "st", os.O_RDWR | SAFELY)
        self._input = os.open(control / "in", os.O_RDWR | SAFELY)
        self._decoder, self._rest = Decoder(), b""

    def _send(self, lines: bytes) -> None:
        """All of it or, where somebody inside has filled the shell's input, nothing: it is given again in time."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._input, lines)

    def unread(self) -> bool:
        """Whether lines that were sent, by whomever, are still to be read."""
        return waiting(self._input, "FIONREAD")

    def hear(self) -> None:
        """Few of them at a time."""
        if self._closed:
            return
        try:
            data = self._rest or os.read(self._source, _CHUNK)
        except BlockingIOError:
            return
        now = few(data)
        self._rest = data[len(now) :]
        for frame in self._decoder.feed(now):
            if not self._closed:
                self._listener.frame(frame, 0)
        self._listener.commit()
        self._loop.call_soon(self.hear if self._rest else self.settle)

    _on_readable = hear

    def close(self) -> None:
        """The keeper holds both open."""
        if not self._closed:
            self._loop.remove_reader(self._source)
            super().close()
            os.close(self._source)
            os.close(self._input)
