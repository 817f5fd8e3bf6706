"""What a shell leaves of its state: asked for after every command, kept for the server that comes after and for a
reboot, and given to the next shell."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

from gofer_sandbox.shell.control import ControlWire
from gofer_sandbox.shell.frames import Snapped
from gofer_sandbox.shell.state import Snapshot, kept

_LARGE = 32 * 1024
"""bash takes long to write one: it is asked for only when the shell has nothing else to do."""
_ASK_LARGE_AFTER = 1.0
_SAVE_EVERY = 1.0
"""Seconds: the server's loop waits for the disk meanwhile."""


class Snapshots:
    """Those of one session; the last is `last`."""

    def __init__(self, wire: ControlWire, directory: Path, home: str, last: Snapshot | None) -> None:
        self.last, self.directory = last, directory
        self.count = 0
        """How many came whole."""
        self.owed = False
        """Whether the shell is still busy with one that it was asked for."""
        self._wire, self._home = wire, home
        self._loop = asyncio.get_running_loop()
        self._small = False
        """Whether the shell names its large variables instead of writing them."""
        self._large = False
        """Whether the last took long."""
        self._later: asyncio.Handle | None = None
        """Asks for the one after the last command."""
        self._saving: asyncio.TimerHandle | None = None
        self._saved_at = -_SAVE_EVERY
        self._put: tuple[Snapshot | None, ...] = ()
        """What the next shell would begin with."""

    def ask(self) -> None:
        """Have the shell leave one now."""
        self.cancel()
        self.owed = True
        self._wire.ask_snapshot()

    def ask_soon(self) -> None:
        """Have it leave one once the caller has its result: bash would go on to that with the result still on its way,
        on the very processor the server is woken on. The next command waits for it."""
        self.cancel()
        if self._large:
            self._later = self._loop.call_later(_ASK_LARGE_AFTER, self.ask)
        else:
            self._later = self._loop.call_soon(self.ask)

    @property
    def soon(self) -> bool:
        """Whether one is asked for as soon as the loop comes round."""
        return self._later is not None and not self._large

    @property
    def pending(self) -> bool:
        """Whether one is still to be asked for, or to come."""
        return self._later is not None or self.owed

    def cancel(self) -> None:
        """Ask for none that was still to be asked for."""
        if self._later:
            self._later.cancel()
            self._later = None

    def take(self, frame: Snapped, amid: bool, number: int) -> bool:
        """Keep what the shell wrote after the command of that number, or `amid` it. False when nothing can be."""
        self.owed = False
        if frame.cut and not self._small:
            self._small = self._large = True
            self._wire.ask_small_snapshots()
            if not amid:
                self.ask()
        else:
            self.count += 1
        found = kept(frame, self.last)
        if found is None:
            return False
        self._keep(replace(found, after=number - (amid and not frame.at_exit)))
        if frame.at_exit:
            self.put()  # while it ends: the next shell is not kept waiting for it
        return True

    def _keep(self, snapshot: Snapshot) -> None:
        """For the server that comes after at once, and on disk, for a reboot, now and then."""
        self.last, self._large = snapshot, self._small or snapshot.size > _LARGE
        self._wire.keep(snapshot.data())
        due = self._saved_at + _SAVE_EVERY
        if self._loop.time() >= due:
            self._save()
        elif self._saving is None:
            self._saving = self._loop.call_at(due, self._save)

    def _save(self) -> None:
        """A full disk must not take the session down."""
        if self._saving:
            self._saving.cancel()
        self._saving, self._saved_at = None, self._loop.time()
        temporary = self.directory / "snapshot.new"
        with contextlib.suppress(OSError):
            temporary.write_bytes(self.last.data() if self.last else b"")
            temporary.replace(self.directory / "snapshot")

    def lacks(self, number: int) -> bool:
        """Whether none has what a command changed."""
        return number > 0 and (self.last is None or self.last.after < number)

    def take_dropped(self) -> list[str]:
        """What a shell that is to begin does not get, once."""
        last = self.last or Snapshot()
        dropped, passing = ", ".join(last.dropped), ", ".join(last.lost_with_shell())
        if dropped or passing:
            self.last = replace(last, dropped=(), passing=b"")
        notes = [f"the shell's state was too large to keep; not brought back: {dropped}"] if dropped else []
        return [*notes, f"lost with the shell and not brought back: {passing}"] if passing else notes

    def take_limits(self, now: bytes) -> str:
        """Which limits a shell that came up does not have any more, once."""
        had = set(self.last.limits.splitlines() if self.last else ()) - set(now.splitlines())
        if not self.last or not had:
            return ""
        names = sorted({line.partition(b"(")[0].strip().decode("utf-8", "replace")[:40] for line in had})
        self.last = replace(self.last, limits=b"")
        return f"limits set with ulimit are not brought back: {', '.join(names[:10])}"

    def put(self) -> None:
        """In place for the next shell, unless it is there already."""
        if self._put != (self.last,):
            state = self.last.state(self._home) if self.last else b""
            self._wire.put_state(state, self.last.option_lines() if self.last else b"")
            self._put = (self.last,)

    def close(self) -> None:
        """Save what is still to be saved, and ask for no more."""
        self.cancel()
        if self._saving:
            self._save()
