"""The Unix socket in the data directory, for this user alone."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from gofer.errors import ConfigError

MAX_PATH = 100
"""Bytes of a path that every system takes; Linux allows 107, others fewer."""

AS_AGENT, AS_ROLE = "x-gofer-as-agent", "x-gofer-as-role"
"""Headers with which a caller asks to be less than the owner, who is whoever may open the socket."""


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """A name for the socket that is short enough to bind and connect to, valid within the block.

    Linux can name a file through an open folder, however long the folder's own path is.
    """
    if len(os.fsencode(path)) <= MAX_PATH:
        yield str(path)
        return
    if not sys.platform.startswith("linux"):
        raise ConfigError(
            f"The path {path} is too long for a Unix socket. Set GOFER_DATA_DIR to a shorter one."
        )
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def somebody_listens(path: Path) -> bool:
    """Whether a running process answers at the socket; a file that nobody answers at is left over."""
    try:
        path.stat()
    except OSError:
        # Not there, or nowhere anybody could listen: a name that is too long, a directory that is not ours.
        return False
    with reachable(path) as name, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        try:
            probe.connect(name)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            # Too busy to accept, or not ours to open: there is somebody.
            return True
    return True


def bind_socket(path: Path) -> socket.socket | None:
    """Listen at the path with mode 0600; None when another process does already."""
    if somebody_listens(path):
        return None
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The mode must be right from the first instant, so it is not left to a chmod afterwards.
    before = os.umask(0o177)
    try:
        with reachable(path) as name:
            bound.bind(name)
    except OSError as error:
        bound.close()
        raise ConfigError(f"The socket {path} cannot be made: {error.strerror}.") from error
    finally:
        os.umask(before)
    bound.setblocking(False)
    return bound


def remove_socket(path: Path, made: os.stat_result) -> None:
    """Remove the file that `bind_socket` made, and no other that has taken its place."""
    with contextlib.suppress(OSError):
        if path.stat().st_ino == made.st_ino:
            path.unlink()
