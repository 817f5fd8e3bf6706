"""How well a sandbox is isolated, in an order a minimum can be compared with."""

from __future__ import annotations

from enum import IntEnum


class Level(IntEnum):
    """What a provider achieved on this machine; each includes those before it."""

    NONE = 0
    ISOLATED = 1
    LIMITED = 2
    SEPARATED = 3

    @property
    def words(self) -> str:
        """The level in plain words."""
        return _WORDS[self]


_WORDS = {
    Level.NONE: "no isolation: commands run as this user, on this machine, with its files and network",
    Level.ISOLATED: "own namespaces, no capabilities, a system call filter; limits per process only",
    Level.LIMITED: "as isolated, and memory, cpu and processes are limited for the session as a whole",
    Level.SEPARATED: "as limited, and every session has a user id of its own",
}
