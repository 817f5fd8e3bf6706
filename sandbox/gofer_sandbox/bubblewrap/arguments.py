"""What bubblewrap is told: an empty root, the system read-only, one workspace, and nothing of the host."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from gofer_sandbox.limits import Limits
from gofer_sandbox.shell import scripts

HOME = "/workspace"
UID = GID = 1000
"""What the session's user is called inside, whoever it is outside."""

_OURS = {
    "passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:{UID}:{GID}:agent:{HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": f"root:x:0:\nagent:x:{GID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "hostname": "sandbox\n",
    "motd": "",
}

NOTHING = "motd"
"""An empty file, to be put in place of what says something of the host."""

_HOSTS = (
    "alternatives", "ca-certificates.conf", "debian_version", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "localtime", "magic", "mime.types", "os-release", "pki/ca-trust/extracted", "pki/tls/certs", "protocols",
    "services", "ssl/certs", "ssl/openssl.cnf", "timezone",
)  # fmt: skip

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
"""The keeper gives this to the shell alone. It sets only how text is encoded: with a whole locale each program inside
would open a dozen more files, to find what it has without."""

_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


def isolation() -> list[str]:
    """Namespaces and privileges; the same for the probe and for every session."""
    return [
        *("--unshare-all", "--unshare-user", "--disable-userns", "--as-pid-1", "--new-session"),
        *("--cap-drop", "ALL", "--clearenv", "--uid", str(UID), "--gid", str(GID), "--hostname", "sandbox"),
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
    bind: str = "--bind",
) -> list[str]:
    """Everything for one session; the roots are made read-only last, when all is in place."""
    arguments = [*isolation(), *system(etc)]
    for path in readonly:
        arguments += ["--ro-bind", str(path), str(path)]
    arguments += devices(limits, etc)
    arguments += ["--ro-bind", str(control), scripts.INSIDE, bind, str(workspace), HOME, "--chdir", HOME]
    for name, value in {**ENVIRONMENT, **environment}.items():
        arguments += ["--setenv", name, value]
    return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/"]


@cache
def keeper() -> Sequence[str]:
    """The command that is PID 1 inside. bash is named by its full path, because the caller may set any PATH."""
    bash = shutil.which("bash", path=ENVIRONMENT["PATH"]) or "bash"
    return [bash, *scripts.KEEPER_OPTIONS, f"{scripts.INSIDE}/keeper"]


def make_etc(base: Path) -> Path:
    """The /etc every sandbox sees: what programs need of the host's, and nothing that says who or where it is.

    It is made once and shared read-only: one bind costs a session far less than one for each file. The directory is
    named by what it is made of, so that a living sandbox's is never changed."""
    path = base / f"etc-{_fingerprint()}"
    if path.is_dir():
        return path
    temporary = Path(tempfile.mkdtemp(prefix="etc.", dir=base))
    for name in _HOSTS:
        with contextlib.suppress(OSError, shutil.Error):
            _copy(Path("/etc", name), temporary / name)
    for name, text in _OURS.items():
        (temporary / name).write_text(text)
    _open_to_all(temporary)
    try:
        temporary.rename(path)
    except OSError:  # somebody was quicker
        shutil.rmtree(temporary, ignore_errors=True)
    return path


def _fingerprint() -> str:
    seen = hashlib.sha256(repr(sorted(_OURS.items())).encode())
    for name in _HOSTS:
        with contextlib.suppress(OSError):
            status = Path("/etc", name).stat()
            seen.update(f"{name} {status.st_ino} {status.st_mtime_ns} {status.st_size}\n".encode())
    return seen.hexdigest()[:16]


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    elif source.exists():
        shutil.copyfile(source, target)


def _open_to_all(root: Path) -> None:
    """Readable by every session's user, whatever our umask is."""
    root.chmod(0o755)
    for path in root.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
