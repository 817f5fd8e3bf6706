"""Where commands print: named FIFOs in a directory the sandbox sees read-only.

Named, not anonymous: programs open `/dev/stdout`, and a FIFO outlives the server. A command that prints to a full one
waits until a new server has opened it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from gofer_sandbox.provider import Listener
from gofer_sandbox.shell import slots

_CHUNKS_AT_ONCE = 8
_LOT = 32 * 1024
"""Half of what a FIFO holds at first: who finds so much in it has more to come."""
_PIPE = _CHUNK = 256 * 1024
_PAUSE = 0.05
_BACKGROUND_CHUNK = 64 * 1024
_HELD_AT_MOST = 64
_EARLIER = 0
"""Stands for the commands of an earlier server, whose numbers are not known."""
# Windows has none of them, and imports this too.
_SAFELY = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC"))
_READ, _WRITE = os.O_RDONLY | _SAFELY, os.O_WRONLY | _SAFELY


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


@dataclass(slots=True, eq=False)
class Stream:
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
    def open(cls, path: str, slot: int, number: int) -> Stream:
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


class Outputs:
    """The outputs of one session."""

    def __init__(self, control: Path, owner: Ownership) -> None:
        self._control, self._owner = control, owner
        self._loop = asyncio.get_running_loop()
        self._slots = slots.Slots(control)
        self._streams: list[Stream] = []
        self._spare: Stream | None = None
        """The output of the command before, for the next."""
        self._unsettled = False
        """Whether something may hold it."""
        self._background: set[Stream] = set()
        self._listener: Listener | None = None
        self._closed = False

    def begin(self, number: int, separate: bool) -> list[str]:
        """Open what a new command prints to, and say what it is called."""
        self.settle()
        if self._spare and not separate:
            return self._use_spare(self._spare, number)
        return self._open_streams(number, separate, create=True)

    @property
    def current(self) -> list[str]:
        """What the running command prints to."""
        return [os.path.basename(stream.path) for stream in self._streams]

    def rest(self) -> None:
        """Let go of what only saves time, for a session that is not used."""
        self._drop_spare()

    def close_outputs(self) -> None:
        """Let go of all of them."""
        self._closed = True
        self._drop_spare()
        for stream in (*self._streams, *self._background):
            self._loop.remove_reader(stream.reader)
            stream.close()
        self._streams = []

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
        stream = Stream.open(path, slot, number)
        stream.release()  # or an end that came before we opened it would not be told
        if self._at_end(stream):
            self._discard(stream)
            return False
        self._leave_open(stream)
        return True

    def _at_end(self, stream: Stream) -> bool:
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

    def _use_spare(self, stream: Stream, number: int) -> list[str]:
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
        self._streams = [Stream.open(f"{self._control}/{name}", slot, number) for name in names]
        for index, stream in enumerate(self._streams, 1):
            self._hear(index, stream)
        return list(names)

    def _hear(self, index: int, stream: Stream) -> None:
        stream.heard = True
        self._loop.add_reader(stream.reader, self._on_output, index, stream)

    def _ignore(self, stream: Stream) -> None:
        if stream.heard:
            stream.heard = False
            self._loop.remove_reader(stream.reader)

    def _on_output(self, index: int, stream: Stream) -> None:
        assert self._listener is not None
        if stream is self._spare:  # somebody found its name: it waits until the next command
            self._ignore(stream)
            return
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

    def finish(self) -> None:
        """Everything the command wrote before its status is in the FIFO by now."""
        streams, self._streams = self._streams, []
        if len(streams) == 1 and streams[0].heard and slots.kept(streams[0].slot):
            self._drained(1, streams[0])
            self._spare, self._unsettled = streams[0], True
            return
        for index, stream in enumerate(streams, 1):
            stream.release()
            stream.held = not self._drained(index, stream)
        for stream in streams:
            self._ignore(stream)
            if stream.held:
                self._leave_open(stream)
            else:
                stream.close()

    def settle(self) -> None:
        """See whether something that runs on has the last command's output. Its caller need not wait for that, but the
        next command must."""
        stream = self._spare
        if not stream or not self._unsettled or self._closed:
            return
        self._unsettled = False
        stream.release()
        if self._at_end(stream):
            stream.hold = os.open(stream.path, _WRITE)
        else:
            self._spare = None
            self._ignore(stream)
            self._leave_open(stream)

    def _drop_spare(self) -> None:
        stream, self._spare = self._spare, None
        if stream:
            self._ignore(stream)
            stream.close()

    def _drained(self, index: int, stream: Stream) -> bool:
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

    def _leave_open(self, stream: Stream) -> None:
        """Something still running holds it: read on for it, slowly, so that it neither blocks nor floods. Of so many
        that they would use up the descriptors of all sessions, the last are left to wait."""
        self._slots.hold(stream.slot, stream.number)
        if len(self._background) >= _HELD_AT_MOST:
            stream.close()
            return
        self._background.add(stream)
        self._loop.add_reader(stream.reader, self._on_background, stream)

    def _on_background(self, stream: Stream) -> None:
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

    def _read_background_again(self, stream: Stream) -> None:
        if not self._closed:
            self._loop.add_reader(stream.reader, self._on_background, stream)

    def _discard(self, stream: Stream) -> None:
        """Nobody holds it any more; a FIFO the keeper does not know is made anew when it is needed again."""
        stream.close()
        if not slots.kept(stream.slot) and stream.slot != self._slots.current:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(stream.path)
