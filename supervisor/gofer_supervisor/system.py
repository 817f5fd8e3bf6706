"""What `gofer up` hands over, and what the supervisor asks of the machine and tells it: clocks, memory, systemd."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time

from gofer_supervisor.home import Release

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gofer_supervisor.process import Process

FIRST_PASSED = 3
"""The descriptor of the first socket that is passed to a process, as systemd numbers it."""
CRASH_LOOPS = ((3, 60.0), (10, 600.0))
"""So many ends within so many seconds are a crash loop."""
FIRST_DELAY, MAX_DELAY = 0.5, 30.0
"""Seconds before a process is started again, growing with each end."""
TOGETHER = 0.4
"""Seconds within which ends count as one: no process ends twice in that time, so several have had one cause."""
PART_OF_MEMORY = 0.75
"""How much of the memory one process may use, unless the configuration says so."""

ON_PROBATION = "GOFER_ON_PROBATION"
"""The variable that tells a process to prove that it works."""


class Config:
    """What `gofer up` hands over."""

    def __init__(
        self,
        *,
        release: Release,
        processes: Mapping[str, int] | None = None,
        host: str = "127.0.0.1",
        port: int = 8765,
        schema: str = "",
        rolling: bool = False,
        canary: bool = False,
        stop_within: float = 30,
        ready_within: float = 900,
        trial_ready_within: float = 60,
        unready_within: float = 300,
        probation: float = 600,
        watchdog: float = 60,
        health_every: float = 15,
        max_memory: int = 0,
    ) -> None:
        self.release = release
        """The one that is installed in the environment that starts the supervisor."""
        self.processes = processes or {"serve": 1}
        """How many processes of each role."""
        self.host, self.port = host, port
        self.schema = schema
        """The version that the installed release brings the store to."""
        self.rolling = rolling
        """Whether two releases may work side by side, as on Postgres: then nothing stops while one is deployed."""
        self.canary = canary
        """Whether the installed release says when a conversation with it went as it should."""
        self.stop_within = stop_within
        """Seconds that a process has to end in good order."""
        self.ready_within = ready_within
        """Seconds that a process has to become ready: a large store may have to be migrated."""
        self.trial_ready_within = min(trial_ready_within, ready_within)
        """The same for a new release in the place of one that works: nobody is served meanwhile, and the store was
        migrated before."""
        self.unready_within = unready_within
        """Seconds that a process may say that it is not ready, after it was, before it is started again."""
        self.probation = probation
        """Seconds that a new release has to work before it counts as good."""
        self.watchdog = watchdog
        """Seconds without a sign of life after which a process is started again; 0 for never."""
        self.health_every = health_every
        """Seconds between two requests for /healthz."""
        self.max_memory = max_memory or usable_memory()
        """Bytes of memory that one process may use."""

    @property
    def roles(self) -> list[tuple[str, str]]:
        """The name and the role of each process."""
        return [
            (role if count == 1 else f"{role}-{number}", role)
            for role, count in self.processes.items()
            for number in range(1, count + 1)
        ]


def is_crash_loop(exits: list[float], now: float) -> bool:
    """Whether so many processes ended within so short a time that starting them again makes no sense."""
    return any(sum(now - within < at <= now for at in exits) >= count for count, within in CRASH_LOOPS)


def usable_memory() -> int:
    """Bytes of memory that one process may use: most of what the machine or the container has; 0 when not known."""
    found = []
    with contextlib.suppress(OSError, IndexError, ValueError), open("/proc/meminfo", "rb") as info:
        found.append(int(info.readline().split()[1]) * 1024)
    with contextlib.suppress(OSError, ValueError), open("/sys/fs/cgroup/memory.max", "rb") as limit:
        found.append(int(limit.read()))
    return int(min(found, default=0) * PART_OF_MEMORY)


def uptime() -> float:
    """Seconds since the machine was started: a clock that nobody sets, and that outlives this process."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def restart_delay(exits: int) -> float:
    """Seconds before the next start, after so many ends within ten minutes."""
    return float(min(MAX_DELAY, FIRST_DELAY * 2 ** (exits - 1)))


def describe_end(process: Process) -> str:
    """Why a process is not there any more, in a sentence for people."""
    if process.failed:
        return f"The process {process.name} was ended: {process.failed}."
    code = process.code
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"The process {process.name} ended by itself ({how}) after {process.lasted:.0f} seconds."


def inherited_environment() -> dict[str, str]:
    """The environment, without what systemd meant for the supervisor alone."""
    own = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
    return {name: value for name, value in os.environ.items() if name not in own}


def notify_systemd(state: str) -> None:
    """Tell whoever started this process how it is, if they want to know: systemd, or the supervisor of a release. Who
    does not listen, because it hangs or was stopped, is not waited for."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, kind) as notifier:
            notifier.connect("\0" + address[1:] if address.startswith("@") else address)
            notifier.send(state.encode())


def say(text: str) -> None:
    """Tell whoever reads the supervisor's standard error."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
