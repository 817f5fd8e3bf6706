"""The wire to a sandbox that this machine's kernel runs: a socket on which the kernel says who speaks.

Both the shell and its keeper read and write the other end. A process that an earlier command left running may hold a
copy of it, too, and write what it likes: the kernel puts the sender's pid to every piece (SO_PASSCRED), and only the
keeper's and the shell's are believed. Who the shell is, the keeper says.

The keeper holds a copy of our end, so the channel outlives the server, and the next one takes it from there.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from pathlib import Path

from gofer_sandbox import processes
from gofer_sandbox.errors import SandboxGone
from gofer_sandbox.kernel import take_descriptor
from gofer_sandbox.shell import scripts
from gofer_sandbox.shell.control import ControlWire
from gofer_sandbox.shell.frames import Decoder, Died, Started, few
from gofer_sandbox.shell.outputs import Ownership, waiting

_CHUNK = 64 * 1024
_TIME = 0.002
"""How long the loop may be kept at a time."""
_SNAPSHOT_PAUSE = 0.001
"""bash writes each line on its own: most of a snapshot is read at once when it has had time to."""
_PAUSE = 0.05
_FORGED_AT_MOST = 100
"""Pieces that others wrote, until those are ended who do."""
_UNKNOWN, _UNKNOWN_SIZE = 64, 2048
_CREDENTIALS = struct.Struct("3i")
_PEEK = getattr(socket, "MSG_PEEK", 0) | getattr(socket, "MSG_DONTWAIT", 0)


def pair() -> tuple[socket.socket, socket.socket]:
    """A new channel: our end and theirs. What is sent out of band counts like anything else."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    ours.setblocking(False)
    return ours, theirs


def take(keeper: int) -> socket.socket:
    """Our end, from the keeper of a session whose server has gone."""
    try:
        ours = socket.socket(fileno=take_descriptor(keeper, scripts.HELD))
    except OSError as error:
        raise SandboxGone(f"the session's channel could not be taken from its keeper: {error}") from error
    ours.setblocking(False)
    return ours


class SocketWire(ControlWire):
    """Frames from those alone whom the kernel attests."""

    def __init__(self, control: Path, owner: Ownership, channel: socket.socket, keeper: int) -> None:
        super().__init__(control, owner)
        self._channel, self._source, self._keeper = channel, channel.fileno(), keeper
        self._from_keeper, self._from_shell = Decoder(), Decoder()
        self._shell = self._expected = 0
        self._unknown: dict[int, bytes] = {}
        """What others said while a shell was coming up: one of them may turn out to be it."""
        self._forged = self._heard_size = 0
        self._paused = False

    def trust(self, shell: int, expected: int) -> None:
        """Go on believing the shell with that pid; or, if none is there, the one that the keeper calls so."""
        self._shell, self._expected = shell, expected

    def _send(self, lines: bytes) -> None:
        """Lines are short and few: what has no room for them has stopped to read, and is replaced in time."""
        if self._paused:
            self._read_on()
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            self._channel.send(lines)

    def unread(self) -> bool:
        """Whether lines that were sent are still to be read."""
        return waiting(self._channel.fileno(), "TIOCOUTQ")

    # What comes in

    def hear(self, wait: bool = True) -> bool:
        """Until there is no more, or for as long as the loop may be kept; or only until a snapshot has begun."""
        until = time.monotonic() + _TIME
        while (more := self._take()) and time.monotonic() < until:
            if not wait and self._from_shell.amid_snapshot:
                break
        if wait:
            self.settle()
        return more

    def _on_readable(self) -> None:
        more = self.hear(wait=False)
        self._loop.call_soon(self.settle)  # after whoever waits for what was heard
        if more and self._from_shell.amid_snapshot:
            self._pause(_SNAPSHOT_PAUSE)
        elif self._forged > _FORGED_AT_MOST and not self._closed:
            self._pause(_PAUSE)

    def _take(self) -> bool:
        """Act on the next piece; False when there is none."""
        self._take_off()
        if self._closed:
            return False
        try:
            data, ancillary, _, _ = self._channel.recvmsg(_CHUNK, 32, _PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data, ancillary = b"", []
        if not data:  # nobody inside has the other end any more, or somebody closed it for all
            self._loop.remove_reader(self._source)
            self._listener.hung_up()
            return False
        now, sender = few(data), _sender(ancillary)
        self._heard_size = len(now)
        self._heard(now, sender)
        self.behind = len(now) < len(data) and sender == self._shell
        if self.behind:  # its command has made it forge
            self._forged = max(self._forged, _FORGED_AT_MOST + 1)
        return len(now) < len(data) or len(data) == _CHUNK or self._from_shell.amid_snapshot

    def _take_off(self) -> None:
        """What was acted on is in the journal before it is taken off the channel: a server that dies in between leaves
        it to the next."""
        size, self._heard_size = self._heard_size, 0
        if size and not self._closed:
            self._listener.commit()
            self._channel.recv(size)

    def settle(self) -> None:
        """Also what was heard and not yet taken off."""
        self._take_off()
        super().settle()

    def _heard(self, data: bytes, sender: int) -> None:
        if sender == self._keeper:
            for frame in self._from_keeper.feed(data):
                if isinstance(frame, (Started, Died)):  # whoever was the shell is no more
                    self._shell, self._from_shell = 0, Decoder()
                    self._expected = frame.pid if isinstance(frame, Started) else 0
                    self._listener.frame(frame, sender)
                    self._recognise()
        elif sender and (sender == self._shell or self._is_shell(sender)):
            self._shell = sender
            for frame in self._from_shell.feed(data):
                if not isinstance(frame, (Started, Died)):  # which are the keeper's to say
                    self._listener.frame(frame, sender)
        elif not self._shell and len(self._unknown) < _UNKNOWN and processes.parent(sender) == self._keeper:
            self._unknown[sender] = (self._unknown.get(sender, b"") + data)[:_UNKNOWN_SIZE]
        else:
            self._forged += 1
            if self._forged % _FORGED_AT_MOST == 0:
                self._listener.forged(sender)

    def _is_shell(self, sender: int) -> bool:
        """Whether it is whom the keeper has called the shell."""
        return not self._shell and self._expected > 0 and processes.inner_pid(sender) == self._expected

    def _recognise(self) -> None:
        """A shell may have said that it is there before the keeper has said who it is."""
        unknown, self._unknown = self._unknown, {} if self._expected else self._unknown
        for sender, data in unknown.items() if self._expected else ():
            if self._is_shell(sender):
                self._heard(data, sender)

    def _pause(self, seconds: float) -> None:
        self._paused = True
        self._loop.remove_reader(self._source)
        self._loop.call_later(seconds, self._read_on)

    def _read_on(self) -> None:
        if self._paused and not self._closed:
            self._paused, self._forged = False, 0
            self._loop.add_reader(self._source, self._on_readable)

    def close(self) -> None:
        """The keeper's copy stays."""
        if not self._closed:
            self._take_off()
            self._loop.remove_reader(self._source)
            super().close()
            self._channel.close()


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Whose pid the kernel says; 0 when it is none of this namespace's."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            return int(_CREDENTIALS.unpack_from(data)[0])
    return 0
