"""Exit codes, the same for every command; docs/operations.md lists them for scripts."""

from __future__ import annotations

from typing import Any

from gofer.errors import (
    ConfigError,
    Conflict,
    GoferError,
    Malformed,
    NotFound,
    StoreError,
    Temporary,
    TooBusy,
)

OK = 0
FAILED = 1
"""It was tried and did not work, or a check found something wrong."""
USAGE = 2
"""What was given to the command makes no sense."""
NOT_FOUND = 3
CONFLICT = 4
"""It exists, but is not in a state that allows this."""
TRY_LATER = 75
"""Nothing was changed; the same command may work in a moment."""
CONFIGURATION = 78
"""The installation is set up in a way that cannot work."""
INTERRUPTED = 130
BROKEN_PIPE = 141

_BY_ERROR: dict[type[GoferError], int] = {
    ConfigError: CONFIGURATION,
    Malformed: USAGE,
    NotFound: NOT_FOUND,
    Conflict: CONFLICT,
    StoreError: TRY_LATER,
    TooBusy: TRY_LATER,
    Temporary: TRY_LATER,
}

_BY_STATUS = {400: USAGE, 413: USAGE, 422: USAGE, 404: NOT_FOUND, 409: CONFLICT, 503: TRY_LATER}


class CommandFailed(Exception):
    """A command cannot do what was asked: the line to say and the code to end with."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code

    @classmethod
    def of(cls, error: GoferError) -> CommandFailed:
        """From an error raised in this process."""
        code = next((code for kind, code in _BY_ERROR.items() if isinstance(error, kind)), FAILED)
        return cls(str(error), code)

    @classmethod
    def by_problem(cls, status: int, problem: dict[str, Any]) -> CommandFailed:
        """From what the control API answered."""
        code = _BY_STATUS.get(status, FAILED)
        kind = str(problem.get("code", ""))
        if kind.startswith("vault."):
            code = CONFIGURATION
        elif kind == "service.temporary":
            code = TRY_LATER
        return cls(str(problem.get("detail") or f"The server answered {status}."), code)
