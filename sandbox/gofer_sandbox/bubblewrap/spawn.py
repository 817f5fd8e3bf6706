"""Starting bubblewrap: with an empty environment, as the session's own user, in a session of its own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gofer_sandbox.errors import StartFailed
from gofer_sandbox.kernel import starting_as

_START_TIMEOUT = 20.0
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

_REACH = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


@dataclass(frozen=True, slots=True)
class Spawned:
    """bubblewrap's process, ours to reap, and the one it made PID 1 inside."""

    monitor: int
    keeper: int

    def end(self) -> None:
        """Kill what was started, and leave no zombie."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.keeper, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.monitor, 0)


def memory_file(name: str, data: bytes = b"") -> int:
    """A file without a path."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def spawn(
    bwrap: Sequence[str],
    command: Sequence[str],
    filter_program: bytes | None,
    inherited: Sequence[int] = (),
    streams: tuple[int, int, int] | None = None,
    environment: Mapping[str, str] | None = None,
    user: int | None = None,
    meanwhile: Callable[[int], None] | None = None,
) -> Spawned:
    """Start bubblewrap, given with its options and what goes before it, and learn its child's pid. `inherited`
    are descriptors for the command, which are closed here; `streams` its standard ones, if not nothing; `user`
    whom to become, when not who we are. `meanwhile` is called while bubblewrap is at work, with one more descriptor
    that the command inherits and has to close; the command waits for it.

    That is the end from which we learn the pid: a bubblewrap that cannot tell it, for we are gone, would die of that
    and leave its child waiting for ever."""
    ours: list[int] = []
    passed = list(inherited)
    try:
        said = streams[2] if streams else _kept(ours, memory_file("said"))
        info, info_end = _pipe(ours, passed)
        arguments = [*bwrap, "--info-fd", str(info_end)]
        if filter_program:
            arguments += ["--seccomp", str(_kept(passed, memory_file("seccomp", filter_program)))]
        if meanwhile:
            waits, _ = _pipe(passed, ours)
            arguments += ["--block-fd", str(waits)]
        standard = streams or (subprocess.DEVNULL, subprocess.DEVNULL, said)
        with contextlib.nullcontext() if user is None else starting_as(user, user):
            shared = [info] if meanwhile else []
            process = _popen([*arguments, *command], [*passed, *shared], standard, environment or {})
        while passed:
            os.close(passed.pop())
        try:
            if meanwhile:
                meanwhile(info)
        except BaseException:
            Spawned(process.pid, _child(process, info, said)).end()
            raise
        return Spawned(process.pid, _child(process, info, said))
    finally:
        for fd in (*ours, *passed):
            os.close(fd)


def _kept(among: list[int], fd: int) -> int:
    """A descriptor that is closed with the others."""
    among.append(fd)
    return fd


def _pipe(readers: list[int], writers: list[int]) -> tuple[int, int]:
    """A pipe whose ends are closed each with the others."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    return _kept(readers, reader), _kept(writers, writer)


def _popen(
    arguments: list[str], passed: list[int], streams: tuple[int, int, int], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Without another user or anything else that would make Python copy this whole process first."""
    try:
        return subprocess.Popen(
            arguments,
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            env=environment,
            pass_fds=passed,
            start_new_session=True,
            umask=0o022,
        )
    except OSError as error:
        raise StartFailed(f"bwrap could not be started: {error}") from error


def _child(process: subprocess.Popen[bytes], info: int, said: int) -> int:
    """What bubblewrap says of its child; when it says nothing it has ended, and said why elsewhere."""
    data = b""
    while readable(info, _START_TIMEOUT):
        piece = os.read(info, 4096)
        data += piece
        with contextlib.suppress(ValueError):
            process.returncode = 0  # from here on the box reaps it, by its pid
            return int(json.loads(data)["child-pid"])
        if not piece:
            break
    process.returncode = None
    process.kill()
    process.wait()
    raise StartFailed(f"bwrap did not start: {words(said)}")


def readable(descriptor: int, timeout: float) -> bool:
    """Wait until something can be read. Not by `select`, which knows no descriptor above 1023, as busy servers have."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout) * 1000))


def words(said: int) -> str:
    """What was printed to a memory file."""
    return os.pread(said, 4096, 0).decode("utf-8", "replace").strip() or "it said nothing"


def through_mount(workspace: Path, staging: Path) -> list[str]:
    """A prefix that makes the workspace reachable at `staging`, where a session's user cannot reach it, as below
    /root. The mount is made in a namespace of its own, seen by nobody else and gone with the last process in it.
    """
    return [
        *("unshare", "--mount", "--propagation", "private", "--", "sh", "-c", _REACH, "sh"),
        *(str(workspace), str(staging)),
    ]


def as_user(uid: int) -> list[str]:
    """A prefix that becomes another user, after what only root can do."""
    return [shutil.which("chroot", path=_PATH) or "chroot", f"--userspec=+{uid}:+{uid}", "--groups=", "/"]
