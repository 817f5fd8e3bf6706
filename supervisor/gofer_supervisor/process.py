"""One process of a release: started, listened to, stopped, and found again when its supervisor was killed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import struct
import sys
import time
from collections import deque

from gofer_supervisor.system import FIRST_PASSED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

PR_SET_PDEATHSIG = 1
"""What Linux calls it, in sys/prctl.h."""
MAX_LINES, MAX_LINE = 20, 500
"""What is kept of a process's last words."""
COULD_NOT_START = 127
PROVED, UNFIT = b"GOFER_PROVED=1", b"GOFER_UNFIT="
"""What a process on probation says of itself, beside what systemd knows."""
ALIVE, UNREADY = b"WATCHDOG=1", b"GOFER_UNREADY="
"""Its sign of life, and why it cannot work although it lives; the first without the second says that it can."""
OOM_SCORE = b"200"
"""When memory runs out, the kernel ends a release before the supervisor that can start another one."""
_CREDENTIALS = struct.Struct("3i")


class Process:
    """A process, from its start to its end. Contract: `pid` is reaped by the supervisor, which calls `ended`."""

    def __init__(
        self,
        name: str,
        build: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        listener: socket.socket | None = None,
        watchdog: float = 0,
    ) -> None:
        self.name, self.build = name, build
        self.started_at = time.monotonic()
        self.ready = False
        self.heard_at = self.started_at
        """When its event loop last gave a sign of life."""
        self.stop_by: float | None = None
        """When it is ended by force; None while it may go on."""
        self.failed = ""
        """Why the supervisor gave up on it; empty for one that was asked to stop or ended by itself."""
        self.proved = False
        """It has said that a conversation with it went as it should."""
        self.unready = ""
        """Why it cannot work now, as it says itself; empty while it can."""
        self.unready_from = 0.0
        """When it first said so."""
        self.unfit = ""
        """Why it should not go on, as it says itself or as its use of memory shows; empty while all is well."""
        self.status: int | None = None
        """What waiting for it gave; None while it runs."""
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._unfinished = b""
        self.notices, address = _notice_socket()
        self.words, writing = os.pipe()
        os.set_blocking(self.words, False)
        told = {**environment, "NOTIFY_SOCKET": address}
        if watchdog:
            told["WATCHDOG_USEC"] = str(int(watchdog * 1_000_000))
        try:
            self.pid = os.fork()
        except OSError:
            os.close(self.words)
            os.close(writing)
            raise
        if self.pid == 0:
            _become(command, told, writing, listener)
        os.close(writing)
        self.identity = [self.pid, start_time(self.pid)]

    def hear(self) -> bool:
        """Read what it says of itself; whether it has become ready by that."""
        was_ready = self.ready
        with contextlib.suppress(BlockingIOError):
            while True:
                data, extra, _, _ = self.notices.recvmsg(4096, 64)
                if _sender(extra) != self.pid:
                    continue
                self.heard_at = time.monotonic()
                lines = data.split(b"\n")
                self.ready = self.ready or b"READY=1" in lines
                self.proved = self.proved or PROVED in lines
                self.unfit = _reason_in(lines, UNFIT) or self.unfit
                if ALIVE in lines:
                    was_unready, self.unready = self.unready, _reason_in(lines, UNREADY)
                    self.unready_from = self.unready_from if was_unready else self.heard_at
        return self.ready and not was_ready

    @property
    def works(self) -> bool:
        """Whether it is ready, and has nothing to say against itself."""
        return self.ready and not self.unready and not self.unfit

    @property
    def memory(self) -> int:
        """Bytes of memory that it uses; 0 when that is not known."""
        try:
            with open(f"/proc/{self.pid}/statm", "rb") as statm:
                return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError, ValueError):
            return 0

    def read_words(self) -> bool:
        """Pass on what it writes to its standard error, and keep the end of it. True when it has closed that."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.words, 65536):
                with contextlib.suppress(OSError):
                    sys.stderr.buffer.write(data)
                    sys.stderr.buffer.flush()
                *lines, rest = (self._unfinished + data).split(b"\n")
                self._unfinished = rest[-MAX_LINE:]
                self._lines += [line[:MAX_LINE].decode("utf-8", "replace") for line in lines[-MAX_LINES:]]
            return True
        return False

    @property
    def last_words(self) -> list[str]:
        """The last lines that it wrote."""
        return [*self._lines, *([self._unfinished.decode("utf-8", "replace")] if self._unfinished else [])]

    def stop(self, within: float) -> None:
        """Ask it to end; after so many seconds it is ended by force."""
        if self.stop_by is None and self.status is None:
            self.stop_by = time.monotonic() + within
            self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def ended(self, status: int) -> None:
        """It was reaped. Take its last words and let go of everything."""
        self.status = status
        self.read_words()
        self.notices.close()
        os.close(self.words)

    @property
    def code(self) -> int:
        """Its exit code, or the negative number of the signal that ended it."""
        assert self.status is not None
        return os.waitstatus_to_exitcode(self.status)

    @property
    def lasted(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self.started_at


def _reason_in(lines: Sequence[bytes], what: bytes) -> str:
    """The reason that one of the lines gives, if one begins so."""
    said = next((line for line in lines if line.startswith(what)), b"")
    return said[len(what) :][:MAX_LINE].decode("utf-8", "replace")


def _notice_socket() -> tuple[socket.socket, str]:
    """Where a process says that it is ready or alive, as it would to systemd. The kernel says who sends."""
    notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    name = f"gofer-supervisor-{os.urandom(8).hex()}"
    notices.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    notices.bind(f"\0{name}")
    return notices, f"@{name}"


def _sender(extra: Sequence[tuple[int, int, bytes]]) -> int:
    for level, kind, data in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(_CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0])
    return -1


def _become(
    command: Sequence[str], environment: Mapping[str, str], words: int, listener: socket.socket | None
) -> NoReturn:
    """Turn the forked child into the command. Whatever fails ends it: it must never go on as a second supervisor."""
    try:
        # It ends in good order when the supervisor is killed, and the next supervisor finds its place free.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb") as score:
            score.write(OOM_SCORE)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(words, 2)
        if listener is not None:
            environment = {**environment, "LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
            if listener.fileno() == FIRST_PASSED:
                os.set_inheritable(FIRST_PASSED, True)
            else:
                os.dup2(listener.fileno(), FIRST_PASSED)
        os.execve(command[0], list(command), dict(environment))  # noqa: S606 - a list of ours
    except BaseException as error:  # noqa: BLE001 - said where the supervisor reads it
        os.write(2, f"{command[0]} cannot be started: {error}\n".encode())
    finally:
        os._exit(COULD_NOT_START)


def start_time(pid: int) -> int:
    """When a process began, in the kernel's count; 0 when there is no such process. Tells it from a later one with the
    same id."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def end_leftovers(identities: Sequence[Sequence[int]], within: float) -> list[int]:
    """End what an earlier supervisor left running: asked first, then by force. Returns the ids of what was there."""
    left = [(pid, start) for pid, start in identities if start and start_time(pid) == start]
    give_up = time.monotonic() + within
    number: int = signal.SIGTERM
    for pid, _ in left:
        _send(pid, number)
    while any(start_time(pid) == start for pid, start in left):
        if time.monotonic() > give_up:
            for pid, start in left:
                if start_time(pid) == start:
                    _send(pid, signal.SIGKILL)
            give_up = time.monotonic() + within
        time.sleep(0.05)
    return [pid for pid, _ in left]


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
