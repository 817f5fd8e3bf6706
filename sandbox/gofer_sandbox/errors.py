"""Everything this library raises.

SandboxError
├── InvalidInput            the caller passed something no sandbox could run (also a ValueError)
├── IsolationUnavailable    the machine gives less isolation than was asked for; says how to fix it
├── StartFailed             the sandbox did not come up
├── SandboxClosed           used before it was entered or after it was closed
├── SandboxOwned            another live process holds this session
├── SandboxGone             there is nothing alive to attach to; restore instead
├── GateBlocked             a process inside stands in the gate's way; restore instead of attaching
└── files.FileError         a file operation was not possible; its own tree is in `files/errors.py`

The docstring of a class is its message when none is given.
"""

from __future__ import annotations

_MAX_SHOWN = 200


def shown(text: str) -> str:
    """What a sandbox says, fit for a message, a log or a terminal: printable, on one line, not endless."""
    safe = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[: _MAX_SHOWN + 1])
    return safe if len(safe) <= _MAX_SHOWN else safe[:_MAX_SHOWN] + "…"


class SandboxError(Exception):
    """Something went wrong in the sandbox."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class InvalidInput(SandboxError, ValueError):
    """The input cannot be used."""


class IsolationUnavailable(SandboxError):
    """This machine does not give the isolation that was asked for."""


class StartFailed(SandboxError):
    """The sandbox did not start."""


class SandboxClosed(SandboxError):
    """The sandbox is closed."""


class SandboxOwned(SandboxError):
    """Another live process owns this session."""


class SandboxGone(SandboxError):
    """The sandbox is no longer alive; restore it from its record."""


class GateBlocked(SandboxError):
    """A process in the sandbox stands in the gate's way; restore it from its record."""
