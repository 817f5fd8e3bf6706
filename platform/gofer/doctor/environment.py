"""Checks that need no open store: settings, files, port, sandbox."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import sqlite3
import stat
import sys
from pathlib import Path

from gofer import __version__
from gofer.doctor.findings import Finding, Severity
from gofer.settings import ANOTHER_DIRECTORY, Settings, may_be_closed, unknown_variables

OLDEST_PYTHON = (3, 11)
MIN_DISK = 500 * 1024 * 1024
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def look_around(settings: Settings, *, serving: bool) -> list[Finding]:
    """Everything that can be said before the platform is asked."""
    return [
        _python(),
        _versions(),
        _data_dir(settings),
        _disk(settings),
        _port(settings, serving=serving),
        # What a server was told when it was started is known to it alone.
        *([] if serving else [openness(settings)]),
        *unknown_settings(),
    ]


def unknown_settings() -> list[Finding]:
    """Misspelt variables of this process, which would otherwise be ignored silently."""
    return [
        Finding(
            "settings",
            "warning",
            f"{name} means nothing to this version.",
            f"If you meant {near}, rename it; else: unset {name}" if near else f"unset {name}",
        )
        for name, near in unknown_variables().items()
    ]


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info < OLDEST_PYTHON:
        return Finding("python", "error", f"Python {version} is too old.", "Install Python 3.11 or newer.")
    return Finding("python", "ok", f"Python {version}.")


def _versions() -> Finding:
    line = f"Gofer {__version__}, SQLite {sqlite3.sqlite_version}, {sys.platform}."
    return Finding("versions", "ok", line)


def _data_dir(settings: Settings) -> Finding:
    path = settings.data_dir
    try:
        found = path.stat().st_mode
    except FileNotFoundError:
        return _not_there(path)
    except OSError as error:
        return Finding("data directory", "error", f"{path}: {error.strerror}.", "Set GOFER_DATA_DIR.")
    if not stat.S_ISDIR(found):
        return Finding("data directory", "error", f"{path} is not a directory.", "Set GOFER_DATA_DIR.")
    mode = stat.S_IMODE(found)
    if mode & 0o077 and not may_be_closed(path):
        return _of_others(path, mode)
    if mode & 0o022:
        return Finding("data directory", "error", f"Others may write to {path}.", f"chmod go-w {path}")
    if not _writable(path):
        return Finding("data directory", "error", f"{path} is not writable.", f"chown $USER {path}")
    if mode & 0o077:
        return Finding("data directory", "note", f"Others may look into {path}.", f"chmod 700 {path}")
    return Finding("data directory", "ok", f"{path}, for this user alone.")


def _not_there(path: Path) -> Finding:
    """It will be made, unless that cannot be."""
    above = _nearest(path)
    if above.is_dir() and _writable(above):
        return Finding("data directory", "note", f"{path} is not there yet.", "gofer serve")
    line = f"{path} is not there and cannot be made: {above} is not writable."
    fix = (
        f"Set GOFER_DATA_DIR to a directory you may write to, or run: sudo install -d -m 700 -o $USER {path}"
    )
    return Finding("data directory", "error", line, fix)


def _of_others(path: Path, mode: int) -> Finding:
    severity: Severity = "error" if mode & 0o022 else "note"
    done = "write to" if mode & 0o022 else "look into"
    return Finding("data directory", severity, f"Others may {done} {path}.", ANOTHER_DIRECTORY)


def _writable(path: Path) -> bool:
    return os.access(path, os.W_OK | os.X_OK, effective_ids=True)


def _nearest(path: Path) -> Path:
    """The path itself, or the nearest one above it that is there."""
    while not os.path.exists(path):  # unlike Path.exists, it does not raise for a name that is too long
        path = path.parent
    return path


def _disk(settings: Settings) -> Finding:
    path = _nearest(settings.data_dir)
    free = shutil.disk_usage(path).free
    line = f"{free / 1024**3:.1f} GiB free."
    if free < MIN_DISK:
        return Finding("disk", "warning", line, f"Free some space on the file system of {path}.")
    return Finding("disk", "ok", line)


def _port(settings: Settings, *, serving: bool) -> Finding:
    where = f"{settings.host}:{settings.port}"
    if serving or settings.port == 0:
        return Finding("port", "ok", "Asked of the running server below." if serving else "Any free one.")
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except (OSError, UnicodeError) as error:
            line = f"{where}: {getattr(error, 'strerror', None) or error}."
            option, value = another_place(settings, error)
            return Finding("port", "error", line, f"GOFER_{option.upper()}={value} gofer serve")
    return Finding("port", "ok", f"{where} is free.")


def another_place(settings: Settings, error: Exception) -> tuple[str, str]:
    """What to change when its address cannot be listened on: the option's name and another value."""
    if isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES):
        return "port", str(settings.port + 1)
    return "host", "127.0.0.1"


def openness(settings: Settings) -> Finding:
    """Whether others can reach it."""
    if settings.host in LOOPBACK:
        return Finding("network", "ok", f"Listens on {settings.host} alone.")
    return Finding(
        "network",
        "warning",
        f"Listens on {settings.host}, which others can reach.",
        "Unset GOFER_HOST and put a reverse proxy with TLS in front, unless this is a private network.",
    )
