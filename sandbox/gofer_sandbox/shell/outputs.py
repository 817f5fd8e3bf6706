"""Where commands print: named FIFOs in a directory the sandbox sees read-only.

Named, not anonymous: programs open `/dev/stdout`, and a FIFO outlives the server. A command that prints to a full one
waits until a new server has opened it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gofer_sandbox.output import write_at
from gofer_sandbox.provider import Listener
from gofer_sandbox.shell import scripts

if sys.platform == "linux":  # others import this, too
    import fcntl
    import termios

_LOT = 32 * 1024
"""Half of what a FIFO holds at first: who finds so much in it has more to come."""
_CHUNK = 256 * 1024
_PIPE, _NARROW = 1024 * 1024, 64 * 1024
"""What a FIFO is made to hold while a command prints a lot, which is the most that an ordinary user may have, and what
it holds else."""
_FILL_PAUSE = 0.001
"""Seconds that a FIFO is left to fill: to be woken for every few lines costs more than to read them. The loop's timers
know no shorter time, so that about 0.8 GB/s is the most there can be; without a pause it is half of that."""
_PAUSE = 0.05
_BACKGROUND_CHUNK = 64 * 1024
_HELD_AT_MOST = 64
_EARLIER = 0
"""Stands for the commands of an earlier server, whose numbers are not known."""
# Windows has none of them, and imports this too.
SAFELY = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC"))
_READ, _WRITE = os.O_RDONLY | SAFELY, os.O_WRONLY | SAFELY


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
            write_at(fd, data, 0)
            if os.geteuid() == 0:
                os.fchown(fd, -1, self.gid)
        finally:
            os.close(fd)


@dataclass(slots=True, eq=False)
class Stream:
    """One end of the running command's output; `hold` keeps it from ending before the command has begun."""

    path: str
    name: str
    slot: int
    number: int
    reader: int
    hold: int = -1
    room: int = _NARROW
    heard: bool = False
    """Whether the loop tells us when there is something to read."""

    @classmethod
    def open(cls, control: Path, name: str, slot: int, number: int) -> Stream:
        path = f"{control}/{name}"
        return cls(path, name, slot, number, os.open(path, _READ), os.open(path, _WRITE))

    def resize(self, size: int) -> None:
        """Have the FIFO hold so much, unless its user has too many that do."""
        with contextlib.suppress(OSError):
            self.room = fcntl.fcntl(self.reader, fcntl.F_SETPIPE_SZ, size)

    def release(self) -> None:
        if self.hold >= 0:
            os.close(self.hold)
            self.hold = -1

    def close(self) -> None:
        self.release()
        os.close(self.reader)


class Slots:
    """Which output FIFOs are in use, in a file for the server that takes over. A slot is a FIFO for output and one for
    errors kept apart. A command takes the lowest that nothing holds; what runs on after its command goes on holding it.
    """

    def __init__(self, control: Path) -> None:
        self._path = control / "slots"
        self.current = 1
        """Of the running or last command."""
        self.held: dict[int, int] = {}
        """By slot, the number of the command whose processes hold it."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            data = json.loads(self._path.read_bytes())
            self.held = {int(slot): int(number) for slot, number in data["held"].items()}
            self.current = int(data["current"])

    def take(self) -> None:
        """Make the lowest that nothing holds the current one."""
        free = next(slot for slot in range(1, len(self.held) + 2) if slot not in self.held)
        if free != self.current:
            self.current = free
            self._save()

    def hold(self, slot: int, number: int) -> None:
        """Something that a command started runs on and may print."""
        self.held[slot] = number
        self._save()

    def release(self, slot: int) -> None:
        """Nothing holds it any more."""
        if self.held.pop(slot, None) is not None:
            self._save()

    def _save(self) -> None:
        temporary = self._path.with_suffix(".new")
        temporary.write_text(json.dumps({"current": self.current, "held": self.held}))
        os.replace(temporary, self._path)


def _kept(slot: int) -> bool:
    """Whether the keeper holds a slot open, so that nothing is lost when the last writer has gone."""
    return slot <= scripts.SLOTS


def waiting(descriptor: int, queue: str) -> bool:
    """Whether anything is in one of the queues that the kernel counts for a descriptor."""
    return any(fcntl.ioctl(descriptor, getattr(termios, queue), bytes(4)))


class Outputs:
    """The outputs of one session."""

    _listener: Listener

    def __init__(self, control: Path, owner: Ownership) -> None:
        self._control, self._owner = control, owner
        self._loop = asyncio.get_running_loop()
        self._slots = Slots(control)
        self._streams: list[Stream] = []
        self._ended: list[Stream] = []
        """Of the command before; something that runs on may hold them."""
        self._spare: list[Stream] = []
        """The output of the command before, if nothing holds it, for the next."""
        self._background: set[Stream] = set()
        self._closed = False

    def begin(self, number: int, separate: bool) -> list[str]:
        """Open what a new command prints to, and say what it is called."""
        spare, self._spare = self._spare, []
        if spare and not separate:
            spare[0].number, self._streams = number, spare
            self._hear(1, spare[0])
        else:
            self._close(spare)
            self._slots.take()
            self._open_streams(number, separate)
        return self.current

    @property
    def current(self) -> list[str]:
        """What the running command prints to."""
        return [stream.name for stream in self._streams]

    @property
    def keeps_output(self) -> bool:
        """The keeper holds some FIFOs open; what is in one beside them is lost with its last writer."""
        return _kept(self._slots.current)

    def rest(self) -> None:
        """Let go of what only saves time, for a session that is not used."""
        self.settle()
        self._close(self._spare)
        self._spare = []

    def close(self) -> None:
        """Let go of all of them."""
        self.rest()
        self._closed = True
        self._close([*self._streams, *self._background])
        self._streams = []

    def _close(self, streams: Iterable[Stream]) -> None:
        for stream in streams:
            self._ignore(stream)
            stream.close()

    def _open_streams(self, number: int, separate: bool) -> None:
        slot = self._slots.current
        for index, kind in enumerate("oe"[: 2 if separate else 1], 1):
            name = f"{kind}{slot}"
            if not _kept(slot):
                with contextlib.suppress(FileExistsError):
                    self._owner.fifo(self._control / name)
            stream = Stream.open(self._control, name, slot, number)
            self._streams.append(stream)
            self._hear(index, stream)

    def adopt(self, running: bool) -> None:
        """Read on for what earlier commands left running, or it would wait for ever once its FIFO is full, and
        the next command would get its output. The current slot is the running command's, if there is one, and
        goes on being used if nobody holds it."""
        held = set()
        for name in os.listdir(self._control):
            slot = int(name[1:]) if re.fullmatch(r"[oe]\d+", name) else 0
            if slot and not (running and slot == self._slots.current):
                stream = Stream.open(self._control, name, slot, self._slots.held.get(slot, _EARLIER))
                stream.release()  # or an end that came before we opened it would not be told
                if self._at_end(stream):
                    self._discard(stream)
                else:
                    self._leave_open(stream)
                    held.add(slot)
        for slot in set(self._slots.held) - held:
            self._slots.release(slot)

    def _at_end(self, stream: Stream) -> bool:
        """Whether nobody writes to a FIFO any more and nothing is left in it. At most what it can hold is read to find
        out."""
        for _ in range(2 * _PIPE // _BACKGROUND_CHUNK):
            try:
                if not self._listener.background(stream.number, stream.reader, _BACKGROUND_CHUNK):
                    return True
            except BlockingIOError:
                break
        return False

    def _hear(self, index: int, stream: Stream) -> None:
        if not stream.heard:
            stream.heard = True
            self._loop.add_reader(stream.reader, self._on_output, index, stream)

    def _ignore(self, stream: Stream) -> None:
        stream.heard = False
        self._loop.remove_reader(stream.reader)

    def _on_output(self, index: int, stream: Stream) -> None:
        if stream not in self._streams:
            if stream in self._spare or stream in self._ended:
                self._ignore(stream)  # somebody found its name, or runs on: it waits
            return
        taken = 0
        with contextlib.suppress(BlockingIOError):
            while taken < _PIPE:
                size = self._listener.output(index, stream.reader, _CHUNK)
                if not size:
                    return
                if size >= _LOT and stream.room < _PIPE:
                    stream.resize(_PIPE)
                taken += size
        if stream.room > _NARROW and taken < stream.room // 4:
            self._ignore(stream)
            self._loop.call_later(_FILL_PAUSE, self._read_more, index, stream)

    def _read_more(self, index: int, stream: Stream) -> None:
        if stream in self._streams:
            self._hear(index, stream)
            self._on_output(index, stream)

    def finish(self) -> None:
        """Everything the command wrote before its status is in the FIFO by now, which holds no more than this."""
        self._ended, self._streams = self._streams, []
        for index, stream in enumerate(self._ended, 1):
            budget = 2 * _PIPE if waiting(stream.reader, "FIONREAD") else 0
            with contextlib.suppress(OSError):
                while budget > 0 and (size := self._listener.output(index, stream.reader, _CHUNK)):
                    budget -= size

    def settle(self) -> None:
        """See whether something that runs on has the last command's output. Its caller need not wait for that, but the
        next command must."""
        ended, self._ended = self._ended, []
        for stream in ended:
            stream.release()
            if stream.room > _NARROW:
                stream.resize(_NARROW)
            if not self._at_end(stream):
                self._ignore(stream)
                self._leave_open(stream)
            elif len(ended) == 1 and _kept(stream.slot):
                stream.hold = os.open(stream.path, _WRITE)
                self._spare = [stream]
            else:
                self._close([stream])

    def _leave_open(self, stream: Stream) -> None:
        """Something still running holds it: read on for it, slowly, so that it neither blocks nor floods. Of so many
        that they would use up the descriptors of all sessions, the last are left to wait."""
        self._slots.hold(stream.slot, stream.number)
        if len(self._background) >= _HELD_AT_MOST:
            stream.close()
            return
        self._background.add(stream)
        self._read_background(stream)

    def _read_background(self, stream: Stream) -> None:
        if not self._closed:
            self._loop.add_reader(stream.reader, self._on_background, stream)

    def _on_background(self, stream: Stream) -> None:
        with contextlib.suppress(BlockingIOError):
            more = self._listener.background(stream.number, stream.reader, _BACKGROUND_CHUNK)
            self._loop.remove_reader(stream.reader)
            if more:
                self._loop.call_later(_PAUSE, self._read_background, stream)
            else:
                self._background.discard(stream)
                self._discard(stream)
                if stream.slot not in {other.slot for other in self._background}:
                    self._slots.release(stream.slot)

    def _discard(self, stream: Stream) -> None:
        """Nobody holds it any more; a FIFO the keeper does not know is made anew when it is needed again."""
        stream.close()
        if not _kept(stream.slot) and stream.slot != self._slots.current:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(stream.path)
