"""What a session leaves on disk for the process that comes after: who owns it, and which command runs."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path

from gofer_sandbox.errors import SandboxOwned

_SIZE = 1024
_NAME = 64
UNKNOWN = -1


@dataclass(slots=True)
class LiveState:
    """The command that runs or ran last."""

    number: int = 0
    running: bool = False
    separate: bool = False
    started: float = 0.0
    """Wall time."""
    clock: int = 0
    """The box's clock when it was submitted."""
    deadline: float = 0.0
    """Wall time."""
    shell: int = 0
    """The user's shell, as this machine numbers it; 0 while there is none."""
    expected: int = 0
    """What a shell is called inside that was started and is not ready yet."""
    deaths: int = 0
    """How many shells have died."""
    code: int = UNKNOWN
    """How the shell ended that ended with the command."""
    lost: bool = False
    """Whether state was lost with a shell and nobody may have been told."""


_FORMS = [f'"{field.name}":%{"f" if field.type == "float" else "d"}' for field in fields(LiveState)]
_LINE = "{" + ",".join(_FORMS) + "}"
_values = attrgetter(*(field.name for field in fields(LiveState)))


class Journal:
    """One open file: its lock says who owns the session, its content which command runs.

    The kernel drops the lock with the process, so an owner killed at any instant is never mistaken for a
    living one. The content is overwritten in place by one write each time, before a command is sent and
    after its result is known. Behind it stands which session the directory belongs to: one that was left behind by
    a crash may live on when another has begun there.
    """

    def __init__(self, directory: Path) -> None:
        """Take the session, or raise SandboxOwned."""
        import fcntl  # not there on every system that may import this

        self._fd = os.open(directory / "live", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise SandboxOwned(f"another process is using the session in {directory}") from None
        self.live = LiveState()
        with contextlib.suppress(ValueError, TypeError):
            self.live = LiveState(**json.loads(os.pread(self._fd, _SIZE, 0)))

    @property
    def session(self) -> str:
        """The session that the directory belongs to, if any has ever begun there."""
        return _session(self._fd)

    def claim(self, session: str) -> None:
        """Make it that session's."""
        os.pwrite(self._fd, session.encode().ljust(_NAME), _SIZE)

    def write(self) -> None:
        """Put down what `live` says now, as JSON of numbers; by hand, for it is written twice with every command."""
        os.pwrite(self._fd, (_LINE % _values(self.live)).encode().ljust(_SIZE), 0)

    def close(self) -> None:
        """Let another process take the session; also while one that is just being started has our descriptors."""
        import fcntl

        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = -1


def _session(fd: int) -> str:
    return os.pread(fd, _NAME, _SIZE).decode("utf-8", "replace").strip()


def session_of(directory: Path) -> str:
    """The session that a directory belongs to, whoever owns it."""
    with open(directory / "live", "rb") as file:
        return _session(file.fileno())


def owned(directory: Path) -> bool:
    """Whether a living process holds the session."""
    with contextlib.suppress(FileNotFoundError):
        try:
            Journal(directory).close()
        except SandboxOwned:
            return True
    return False
