"""What bubblewrap is told: an empty root, the system read-only, one workspace, and nothing of the host."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from gofer_sandbox.bubblewrap.etc import GID, HOME, NOTHING, UID
from gofer_sandbox.limits import Limits
from gofer_sandbox.shell import scripts

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": HOME,
    "USER": "agent",
    "LOGNAME": "agent",
    "SHELL": "/bin/bash",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
}

LOCALE = {"LC_CTYPE": "C.UTF-8"}
"""For the shell alone, which the keeper gives it. How text is encoded is all that matters: with the whole of a
locale each program that starts inside would look for a dozen files more, to find what it has without."""

_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


def isolation() -> list[str]:
    """Namespaces and privileges; the same for the probe and for every session."""
    return [
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--as-pid-1",
        "--new-session",
        "--cap-drop",
        "ALL",
        "--clearenv",
        "--uid",
        str(UID),
        "--gid",
        str(GID),
        "--hostname",
        "sandbox",
    ]


@cache
def system(etc: Path) -> Sequence[str]:
    """The host's programs and libraries, read-only, and an /etc that is not the host's. A host's layout stays."""
    arguments = ["--ro-bind", "/usr", "/usr", "--ro-bind", str(etc), "/etc"]
    for name in _SYSTEM:
        place = Path("/", name)
        if place.is_symlink():
            arguments += ["--symlink", os.readlink(place), str(place)]
        elif place.is_dir():
            arguments += ["--ro-bind", str(place), str(place)]
    return arguments


def devices(limits: Limits, etc: Path) -> list[str]:
    """A fresh /proc, a minimal /dev, and tmpfs of known size wherever memory could be filled.

    The session is root over its own ipc and pid namespaces, whose settings it could change, were they not
    read-only; and how the kernel was started is the host's affair.
    """
    return [
        *("--proc", "/proc", "--dev", "/dev"),
        *("--ro-bind", "/proc/sys", "/proc/sys", "--ro-bind", str(etc / NOTHING), "/proc/cmdline"),
        *tmpfs(limits.shm, "/dev/shm", "1777"),  # noqa: S108 a path inside
        *tmpfs(limits.tmp, "/tmp", "1777"),  # noqa: S108
        *("--perms", "0755", "--dir", "/run", "--perms", "0755", "--dir", "/var"),
        *("--symlink", "/tmp", "/var/tmp"),  # noqa: S108
    ]


def tmpfs(size: int, place: str, mode: str) -> list[str]:
    """A bounded tmpfs."""
    return ["--perms", mode, "--size", str(size), "--tmpfs", place]


def session(
    etc: Path,
    workspace: Path,
    control: Path,
    limits: Limits,
    environment: Mapping[str, str],
    readonly: Sequence[Path],
) -> list[str]:
    """Everything for one session; the roots are made read-only last, when all is in place."""
    arguments = [*isolation(), *system(etc)]
    for path in readonly:
        arguments += ["--ro-bind", str(path), str(path)]
    arguments += devices(limits, etc)
    arguments += ["--ro-bind", str(control), scripts.INSIDE, "--bind", str(workspace), HOME, "--chdir", HOME]
    for name, value in {**ENVIRONMENT, **environment}.items():
        arguments += ["--setenv", name, value]
    return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/"]


@cache
def keeper() -> Sequence[str]:
    """The command that is PID 1 inside; bash by its place, as on the host, for the caller may give any PATH."""
    bash = shutil.which("bash", path=ENVIRONMENT["PATH"]) or "bash"
    return [bash, *scripts.KEEPER_OPTIONS, f"{scripts.INSIDE}/keeper"]
