"""The wire on one machine: named FIFOs in a directory the sandbox sees read-only.

Named, not anonymous: they outlive the server. A shell that prints to a full FIFO waits until a new server has
opened it, and frames wait in the status FIFO, which the keeper holds open.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import stat
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gofer_sandbox.provider import Listener
from gofer_sandbox.shell import scripts, slots
from gofer_sandbox.shell.frames import AT_EXIT, SLOTS
from gofer_sandbox.shell.state import MAXIMUM, ROOM

_CHUNKS_AT_ONCE = 8
_LOT = 32 * 1024
"""Half of what a FIFO holds at first: who finds so much in it has more to come."""
_PIPE = _CHUNK = 256 * 1024
_FRAME_MAXIMUM = 64 * 1024
_JUNK_AT_ONCE = 200
_PAUSE = 0.05
_SNAPSHOTS = tuple(f"s{slot.decode()}" for slot in SLOTS)
_FRAMES_TIME = 0.005
_SHARE = 10
"""Acting on frames may take one part in this many of the time once it takes long."""
_BACKGROUND_CHUNK = 64 * 1024
_HELD_AT_MOST = 64
_EARLIER = 0
"""Stands for the commands of an earlier server, whose numbers are not known."""
# Windows has none of them, and imports this too.
_SAFELY = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC"))
_READ, _WRITE, _BOTH = os.O_RDONLY | _SAFELY, os.O_WRONLY | _SAFELY, os.O_RDWR | _SAFELY
_FRAME = re.compile(rb"(?:D\d+ \d+ .*|X\d+ \d+ .*|R\d+(?: .*)?|P[01ei])\Z", re.S)


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who inside may use the files of the control directory."""

    uid: int
    gid: int

    def fifo(self, path: Path | str) -> None:
        """Make a FIFO only the session and the server can open."""
        os.mkfifo(path, 0o600)
        if os.geteuid() == 0:
            os.chown(path, self.uid, self.gid)

    def write(self, path: Path | str, text: str | bytes) -> None:
        """Write a file the session can read."""
        data = text.encode() if isinstance(text, str) else text
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
        try:
            write_all(fd, data)
            if os.geteuid() == 0:
                os.fchown(fd, -1, self.gid)
        finally:
            os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write every byte."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def prepare(control: Path, keeper: str, owner: Ownership, inside: str, private: str) -> None:
    """Fill a new control directory: what everything goes through, what every shell runs, the files that the server
    fills later, and last what PID 1 runs."""
    for name in ("in", "st", *scripts.OUTPUTS):
        owner.fifo(f"{control}/{name}")
    files = {
        "rc": scripts.rc(inside),
        "d": scripts.done(inside, private),
        "s": scripts.SNAPSHOT,
        "q": scripts.STATUS,
        "x": scripts.snapshot(inside, private),
        "c": "",
        "state": "",
        "options": "",
        "keeper": keeper,
    }
    for name, text in files.items():
        owner.write(f"{control}/{name}", text)


@dataclass(slots=True, eq=False)
class _Stream:
    """One end of the running command's output; `hold` keeps it from ending before the command has begun."""

    path: str
    slot: int
    number: int
    reader: int
    hold: int = -1
    held: bool = False
    wide: bool = False
    heard: bool = False
    """Whether the loop tells us when there is something to read."""

    @classmethod
    def open(cls, path: str, slot: int, number: int) -> _Stream:
        return cls(path, slot, number, os.open(path, _READ), os.open(path, _WRITE))

    def widen(self) -> None:
        """Give the FIFO more room; worth its cost only for a lot of output."""
        import fcntl  # not there on every system that may import this

        if not self.wide:
            self.wide = True
            with contextlib.suppress(OSError):
                fcntl.fcntl(self.reader, fcntl.F_SETPIPE_SZ, _PIPE)

    def release(self) -> None:
        if self.hold >= 0:
            os.close(self.hold)
            self.hold = -1

    def close(self) -> None:
        self.release()
        os.close(self.reader)


class FifoWire:
    """Commands and frames through FIFOs."""

    def __init__(
        self,
        control: Path,
        owner: Ownership,
        private: Callable[[], int],
        inside: str = scripts.INSIDE,
    ) -> None:
        """`private` opens, as a directory descriptor, what the sandbox calls its private directory."""
        self._control, self._owner, self._open_private, self._inside = control, owner, private, inside
        self._loop = asyncio.get_running_loop()
        self._status = os.open(control / "st", _BOTH)
        self._input = os.open(control / "in", _BOTH)
        self._private = -1
        self._partial = b""
        self._frames: deque[bytes] = deque()
        self._junk = 0
        self._paused = False
        self._asked = False
        """Whether a snapshot was asked for since a command was last heard."""
        self._slots = slots.Slots(control)
        self._streams: list[_Stream] = []
        self._spare: _Stream | None = None
        """The output of the command before, which nothing holds, for the next."""
        self._background: set[_Stream] = set()
        self._listener: Listener | None = None
        self._closed = False
        self._command = os.open(control / "c", os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._command_size = -1

    def open(self, listener: Listener) -> None:
        """Begin to deliver frames."""
        self._listener = listener
        self._loop.add_reader(self._status, self._on_status)

    def hear(self) -> None:
        """As when the loop tells of them."""
        if not self._paused:
            self._on_status()

    # Commands

    def submit(self, number: int, command: bytes, separate: bool, snapshot: str, before: int) -> None:
        """Put the command in its file, open its output, and give the shell its three short lines."""
        self._junk = 0
        self._put_command(command)
        if self._spare and not separate:
            names = self._use_spare(self._spare, number)
        else:
            names = self._open_streams(number, separate, create=True)
        os.write(self._input, scripts.lines(number, names, snapshot, before, self._inside))
        self._asked = self._asked or bool(snapshot)

    def _put_command(self, command: bytes) -> None:
        """Over the one before, which costs less than to empty the file first."""
        before, self._command_size = self._command_size, -1  # not known, should a write fail half-way
        written = os.pwrite(self._command, command, 0)
        if written < len(command):
            os.lseek(self._command, written, os.SEEK_SET)
            write_all(self._command, command[written:])
        if len(command) != before:
            os.ftruncate(self._command, len(command))
        self._command_size = len(command)

    def backlog(self) -> int:
        """What is in the FIFO of its input."""
        import fcntl  # not there on every system that may import this
        import termios

        size = fcntl.ioctl(self._input, termios.FIONREAD, bytes(4))
        return int.from_bytes(size, sys.byteorder)

    def resume(self, number: int, separate: bool) -> None:
        """Read on where another process stopped."""
        self._open_streams(number, separate, create=False)

    def adopt(self, running: bool) -> None:
        """Read on for what earlier commands left running, or it would wait for ever once its FIFO is full, and
        the next command would get its output. The current slot is the running command's, if there is one, and
        goes on being used if nobody holds it."""
        held = set()
        for name in os.listdir(self._control):
            slot = int(name[1:]) if re.fullmatch(r"[oe]\d+", name) else 0
            if slot and not (running and slot == self._slots.current) and self._adopt(name, slot):
                held.add(slot)
        for slot in set(self._slots.held) - held:
            self._slots.release(slot)

    def _adopt(self, name: str, slot: int) -> bool:
        """Whether somebody holds it."""
        path = f"{self._control}/{name}"
        number = self._slots.held.get(slot, _EARLIER)
        stream = _Stream.open(path, slot, number)
        stream.release()  # or an end that came before we opened it would not be told
        if self._at_end(stream):
            self._discard(stream)
            return False
        self._leave_open(stream)
        return True

    def _at_end(self, stream: _Stream) -> bool:
        """Whether nobody writes to a FIFO any more and nothing is left in it. At most what it can hold is read to find
        out."""
        assert self._listener is not None
        for _ in range(2 * _PIPE // _BACKGROUND_CHUNK):
            try:
                if not self._listener.background(stream.number, stream.reader, _BACKGROUND_CHUNK):
                    return True
            except BlockingIOError:
                return False
        return False

    def _use_spare(self, stream: _Stream, number: int) -> list[str]:
        self._spare = None
        stream.number = number
        self._streams = [stream]
        if not stream.heard:
            self._hear(1, stream)
        return [f"o{stream.slot}"]

    def _open_streams(self, number: int, separate: bool, create: bool) -> list[str]:
        self._drop_spare()
        if create:
            self._slots.settle()
        slot = self._slots.current
        names = slots.names(slot)[: 2 if separate else 1]
        if create and not self._slots.kept:
            for name in names:
                with contextlib.suppress(FileExistsError):
                    self._owner.fifo(self._control / name)
        self._streams = [_Stream.open(f"{self._control}/{name}", slot, number) for name in names]
        for index, stream in enumerate(self._streams, 1):
            self._hear(index, stream)
        return list(names)

    def _hear(self, index: int, stream: _Stream) -> None:
        stream.heard = True
        self._loop.add_reader(stream.reader, self._on_output, index, stream)

    def _ignore(self, stream: _Stream) -> None:
        if stream.heard:
            stream.heard = False
            self._loop.remove_reader(stream.reader)

    # Output

    def _on_output(self, index: int, stream: _Stream) -> None:
        assert self._listener is not None
        if stream is self._spare:  # somebody found its name: it waits until the next command
            self._ignore(stream)
            return
        if self._asked and not self._paused:
            self._asked = False
            self._on_status()  # the state before a command is safe before anything of it is heard
        for _ in range(_CHUNKS_AT_ONCE):
            try:
                size = self._listener.output(index, stream.reader, _CHUNK)
            except BlockingIOError:
                return
            if not size:
                return
            if size >= _LOT:
                stream.widen()

    @property
    def keeps_output(self) -> bool:
        """The keeper holds some FIFOs open; what is in one beside them is lost with its last writer."""
        return self._slots.kept

    def finish(self) -> bool:
        """Everything the command wrote before its status is in the FIFO by now."""
        streams, self._streams = self._streams, []
        held = False
        for index, stream in enumerate(streams, 1):
            stream.release()
            stream.held = not self._drained(index, stream)
            held = held or stream.held
        for stream in streams:
            if stream.held:
                self._ignore(stream)
                self._leave_open(stream)
            elif len(streams) == 1 and stream.heard and slots.kept(stream.slot):
                stream.hold = os.open(stream.path, _WRITE)
                self._spare = stream
            else:
                self._ignore(stream)
                stream.close()
        return held

    def _drop_spare(self) -> None:
        stream, self._spare = self._spare, None
        if stream:
            self._ignore(stream)
            stream.close()

    def _drained(self, index: int, stream: _Stream) -> bool:
        """Whether the stream came to its end; at most what the FIFO can hold is read to find out."""
        assert self._listener is not None
        budget = 2 * _PIPE
        while budget > 0:
            try:
                size = self._listener.output(index, stream.reader, _CHUNK)
            except BlockingIOError:
                return False
            if not size:
                return True
            budget -= size
        return False

    def _leave_open(self, stream: _Stream) -> None:
        """Something still running holds it: read on for it, slowly, so that it neither blocks nor floods. Of so many
        that they would use up the descriptors of all sessions, the last are left to wait."""
        self._slots.hold(stream.slot, stream.number)
        if len(self._background) >= _HELD_AT_MOST:
            stream.close()
            return
        self._background.add(stream)
        self._loop.add_reader(stream.reader, self._on_background, stream)

    def _on_background(self, stream: _Stream) -> None:
        assert self._listener is not None
        with contextlib.suppress(BlockingIOError):
            more = self._listener.background(stream.number, stream.reader, _BACKGROUND_CHUNK)
            self._loop.remove_reader(stream.reader)
            if more:
                self._loop.call_later(_PAUSE, self._read_background_again, stream)
            else:
                self._background.discard(stream)
                self._discard(stream)
                if stream.slot not in {other.slot for other in self._background}:
                    self._slots.release(stream.slot)

    def _read_background_again(self, stream: _Stream) -> None:
        if not self._closed:
            self._loop.add_reader(stream.reader, self._on_background, stream)

    def _discard(self, stream: _Stream) -> None:
        """Nobody holds it any more; a FIFO the keeper does not know is made anew when it is needed again."""
        stream.close()
        if not slots.kept(stream.slot) and stream.slot != self._slots.current:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(stream.path)

    # Frames

    def _on_status(self) -> None:
        began = time.monotonic()
        try:
            data = self._partial + os.read(self._status, _FRAME_MAXIMUM)
        except BlockingIOError:
            return
        *frames, self._partial = data.split(b"\0")
        if len(self._partial) > _FRAME_MAXIMUM:
            self._partial = b""
        self._junk += len(frames)
        self._frames.extend(_understood(frames))
        self._deliver(began)

    def _deliver(self, began: float) -> None:
        """Whoever is inside can write any number of frames, and each costs work that all the server's other
        sessions wait for: after a few milliseconds the rest has to wait, for longer than that took."""
        assert self._listener is not None
        while self._frames and not self._closed and time.monotonic() - began < _FRAMES_TIME:
            self._listener.frame(self._frames.popleft())
        if self._closed:
            return
        if self._frames or self._junk > _JUNK_AT_ONCE:
            self._loop.remove_reader(self._status)
            self._paused = True
            pause = max(_PAUSE, _SHARE * (time.monotonic() - began))
            self._loop.call_later(pause, self._read_status_again)
        elif self._paused:
            self._read_on()

    def _read_status_again(self) -> None:
        if self._frames:
            self._deliver(time.monotonic())
        elif not self._closed:
            self._read_on()

    def _read_on(self) -> None:
        self._paused = False
        self._loop.add_reader(self._status, self._on_status)

    # State

    def status(self) -> bytes:
        """The status file, without its terminator."""
        data = self._read_private("d", _FRAME_MAXIMUM)
        return data[:-1] if data and data.endswith(b"\0") else b""

    def death(self) -> bytes:
        """The keeper's file up to its terminator: what is behind is from a longer one before."""
        news, whole, _ = (self._read_private("x", _FRAME_MAXIMUM) or b"").partition(b"\0")
        return news if whole else b""

    def take_snapshot(self, slot: str) -> bytes | None:
        """The file of a slot; when it is so large that the next might find no room, older ones go."""
        data = self._read_private(f"s{slot}", ROOM)
        if data and len(data) > MAXIMUM:
            self._remove_older(f"s{slot}")
        return data

    def _remove_older(self, kept: str) -> None:
        written = self._written_at(kept)
        for name in _SNAPSHOTS:
            if name != kept and self._written_at(name) < written:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=self._private)

    def left_snapshots(self) -> list[bytes]:
        """The files of all slots by the time they were written."""
        found = [
            (self._written_at(name), data) for name in _SNAPSHOTS if (data := self._read_private(name, ROOM))
        ]
        return [data for _, data in sorted(found, reverse=True)]

    def left_at_exit(self) -> int:
        """By its file's time."""
        return self._written_at(f"s{AT_EXIT}")

    def _written_at(self, name: str) -> int:
        try:
            return os.stat(name, dir_fd=self._private, follow_symlinks=False).st_mtime_ns
        except OSError:
            return 0

    def ask_snapshot(self, slot: str) -> None:
        """Let an idle shell leave one."""
        os.write(self._input, scripts.snapshot_line(slot, self._inside).encode())
        self._asked = True

    def _read_private(self, name: str, maximum: int) -> bytes | None:
        try:
            if self._private < 0:
                self._private = self._open_private()
            fd = os.open(name, _READ, dir_fd=self._private)
        except OSError:
            return None
        try:
            found = os.fstat(fd)
            return os.read(fd, min(found.st_size, maximum)) if stat.S_ISREG(found.st_mode) else None
        except OSError:
            return None
        finally:
            os.close(fd)

    def put_state(self, state: bytes, options: bytes) -> None:
        """Both files are whole before the keeper is told to go on."""
        self._owner.write(self._control / "state", state)
        self._owner.write(self._control / "options", options)

    def _tidy(self) -> None:
        """A shell would hang in opening a FIFO that somebody put where it leaves its status."""
        for name in ("d", *_SNAPSHOTS) if self._private >= 0 else ():
            with contextlib.suppress(OSError):
                if stat.S_ISFIFO(os.stat(name, dir_fd=self._private, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=self._private)

    def go(self, death: int) -> None:
        """The keeper takes what the dead shell left unread, then this."""
        self._tidy()
        with contextlib.suppress(BlockingIOError):  # full of junk: the keeper empties it and asks again
            os.write(self._input, b": %d\n" % death)

    def close(self) -> None:
        """Let go of every descriptor; what is inside goes on."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._status)
        self._drop_spare()
        for stream in (*self._streams, *self._background):
            self._loop.remove_reader(stream.reader)
            stream.close()
        self._streams = []
        for fd in (self._status, self._input, self._command, self._private):
            if fd >= 0:
                os.close(fd)


def _understood(frames: list[bytes]) -> list[bytes]:
    """Those that are frames, each once where it came last: saying a thing again says nothing new."""
    found = [match.group(0) for frame in frames if (match := _FRAME.search(frame))]
    return list(dict.fromkeys(reversed(found)))[::-1] if len(found) > 1 else found
