"""The /etc every sandbox sees: what programs need of the host's, and nothing that says who or where it is.

It is made once and shared read-only. One bind costs a session far less than one for each file.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from pathlib import Path

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
    "alternatives",
    "ca-certificates.conf",
    "debian_version",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "magic",
    "mime.types",
    "os-release",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "timezone",
)


def make(base: Path, host: Path = Path("/etc")) -> Path:
    """The directory; named by what it is made of, so that a living sandbox's is never changed."""
    path = base / f"etc-{_fingerprint(host)}"
    if path.is_dir():
        return path
    temporary = Path(tempfile.mkdtemp(prefix="etc.", dir=base))
    for name in _HOSTS:
        with contextlib.suppress(OSError, shutil.Error):
            _copy(host / name, temporary / name)
    for name, text in _OURS.items():
        (temporary / name).write_text(text)
    _open_to_all(temporary)
    try:
        temporary.rename(path)
    except OSError:  # somebody was quicker
        shutil.rmtree(temporary, ignore_errors=True)
    return path


def _fingerprint(host: Path) -> str:
    seen = hashlib.sha256(repr(sorted(_OURS.items())).encode())
    for name in _HOSTS:
        with contextlib.suppress(OSError):
            status = (host / name).stat()
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
