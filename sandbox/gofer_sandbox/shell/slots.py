"""Which output FIFOs are in use, in a file for the server that takes over.

A slot is a FIFO for output and one for errors kept apart. A command takes the lowest that nothing holds; what
runs on after its command goes on holding it.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from gofer_sandbox.shell import scripts


class Slots:
    """The slot of the running or next command, and those that earlier ones left held."""

    def __init__(self, control: Path) -> None:
        self._path = control / "slots"
        self.current = 1
        self.held: dict[int, int] = {}
        """By slot, the number of the command whose processes hold it."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            data = json.loads(self._path.read_bytes())
            self.held = {int(slot): int(number) for slot, number in data["held"].items()}
            self.current = int(data["current"])

    @property
    def kept(self) -> bool:
        """Whether what is printed to the current slot stays in it while no server is there."""
        return kept(self.current)

    def hold(self, slot: int, number: int) -> None:
        """Something that a command started runs on and may print: the next command gets another slot."""
        self.held[slot] = number
        if slot == self.current:
            self.current = self._lowest()
        self._save()

    def settle(self) -> None:
        """Go back to a slot whose output is kept, when one is free again."""
        if not self.kept and self._lowest() != self.current:
            self.current = self._lowest()
            self._save()

    def _lowest(self) -> int:
        return next(free for free in range(1, len(self.held) + 2) if free not in self.held)

    def release(self, slot: int) -> None:
        """Nothing holds it any more."""
        if self.held.pop(slot, None) is not None:
            self._save()

    def _save(self) -> None:
        temporary = self._path.with_suffix(".new")
        temporary.write_text(json.dumps({"current": self.current, "held": self.held}))
        os.replace(temporary, self._path)


def names(slot: int) -> tuple[str, str]:
    """What a slot's FIFOs are called, for output and for errors."""
    return f"o{slot}", f"e{slot}"


def kept(slot: int) -> bool:
    """Whether the keeper holds a slot open, so that nothing is lost when the last writer has gone."""
    return slot <= scripts.SLOTS
