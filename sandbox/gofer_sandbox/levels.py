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


_ISOLATED = "own namespaces, no capabilities, a system call filter"
_LIMITED = f"{_ISOLATED}; memory, cpu and processes are limited for the session as a whole"
_WORDS = {
    Level.NONE: "no isolation: commands run as this user, on this machine, with its files and network",
    Level.ISOLATED: f"{_ISOLATED}; limits per process only",
    Level.LIMITED: _LIMITED,
    Level.SEPARATED: f"{_LIMITED}; every session has a user id of its own",
}
