"""What bubblewrap is told: an empty root, the system read-only, one workspace, and nothing of the host."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gofer_sandbox.limits import Limits
from gofer_sandbox.shell import scripts
from gofer_sandbox.shell.state import MAXIMUM

HOME = "/workspace"
UID = GID = 1000
"""What the session's user is called inside, whoever it is outside."""

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": HOME,
    "USER": "agent",
    "LOGNAME": "agent",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
}

ETC = {
    "passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:{UID}:{GID}:agent:{HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": f"root:x:0:\nagent:x:{GID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "hostname": "sandbox\n",
}
"""Files the sandbox gets instead of the host's."""

_HOST_ETC = (
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "magic",
    "mime.types",
    "os-release",
    "pki/ca-trust",
    "pki/tls/certs",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "timezone",
)
"""What programs need of the host's /etc and what says nothing about it."""

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


def system() -> list[str]:
    """The host's programs and libraries, read-only, and a few files of /etc."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in _SYSTEM:
        place = Path("/", name)
        if place.is_symlink():
            arguments += ["--symlink", os.readlink(place), str(place)]
        elif place.is_dir():
            arguments += ["--ro-bind", str(place), str(place)]
    for name in _HOST_ETC:
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return arguments


def devices(limits: Limits) -> list[str]:
    """A fresh /proc, a minimal /dev, and tmpfs of known size wherever memory could be filled."""
    return [
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        *tmpfs(limits.shm, "/dev/shm", "1777"),
        *tmpfs(limits.tmp, "/tmp", "1777"),
        *tmpfs(MAXIMUM, scripts.PRIVATE, "0700"),
        "--symlink",
        "/tmp",
        "/var/tmp",
    ]


def tmpfs(size: int, place: str, mode: str) -> list[str]:
    """A bounded tmpfs."""
    return ["--perms", mode, "--size", str(size), "--tmpfs", place]


def session(
    workspace: Path,
    control: Path,
    limits: Limits,
    environment: Mapping[str, str],
    readonly: Sequence[Path],
) -> list[str]:
    """Everything for one session; the roots are made read-only last, when all is in place."""
    arguments = [*isolation(), *system()]
    for name in ETC:
        arguments += ["--ro-bind", str(control / "etc" / name), f"/etc/{name}"]
    for path in readonly:
        arguments += ["--ro-bind", str(path), str(path)]
    arguments += devices(limits)
    arguments += ["--ro-bind", str(control), scripts.INSIDE, "--bind", str(workspace), HOME, "--chdir", HOME]
    for name, value in {**ENVIRONMENT, **environment}.items():
        arguments += ["--setenv", name, value]
    return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/"]


def keeper() -> list[str]:
    """The command that is PID 1 inside."""
    return ["bash", "--noprofile", "--norc", f"{scripts.INSIDE}/keeper"]
