"""The supervisor: one thread that starts the processes of the release that should run, and watches them.

Its state is in its home, written before each step, so it can be killed anywhere and started again. What should run is
one link; `_converge` brings what runs there, whether a release was deployed, reverted or just ended by itself.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time

from gofer_supervisor.deployment import Deployments, Slot
from gofer_supervisor.home import CURRENT, GOOD, Home, HomeError
from gofer_supervisor.http import HealthCheck, OutagePage
from gofer_supervisor.process import Process, end_leftovers
from gofer_supervisor.system import (
    CRASH_LOOPS,
    ON_PROBATION,
    TOGETHER,
    Config,
    describe_end,
    inherited_environment,
    is_crash_loop,
    notify_systemd,
    restart_delay,
    say,
    uptime,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CONFIGURATION = 78
"""The exit code of a process whose settings cannot work: starting it again would not help."""
FIRST_REST, MAX_REST = 60.0, 600.0
"""Seconds between two tries while nothing runs, growing."""
MAX_UNHEALTHY = 3
"""Health checks in a row that may fail before the processes are started again."""
LISTENS = ("serve", "web")
"""The roles that get the listening socket."""
BACKLOG = 2048
BIND_TIMEOUT = 10.0
LOOK_EVERY = 1.0
"""Seconds between two looks for a request."""


class Supervisor(Deployments):
    """Runs until it is told to stop. `run` is the whole life of the process."""

    def __init__(self, home: Home, config: Config) -> None:
        super().__init__(home, config)
        self._listener: socket.socket | None = None
        self._page: OutagePage | None = None
        self._check: HealthCheck | None = None
        self._check_at = 0.0
        self._unhealthy = 0
        self._rest = FIRST_REST
        self._woken, self._waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    # Life

    def run(self) -> int:
        """Supervise until a signal says to stop; returns the exit code."""
        self._home.prepare()
        self._home.take(BIND_TIMEOUT)
        self._state = self._home.load()
        self._catch_signals()
        if left := end_leftovers(list(self._state.processes.values()), self._config.stop_within):
            self._note("worker.exited", name="left", pids=left, reason="its supervisor had ended")
        self._state.processes = {}
        if any(slot.role in LISTENS for slot in self._slots):
            self._listener = self._listen()
        self._choose_release()
        while not self._stopping or self._running():
            self._attempt(self._look_at_time)
            for key, _ in self._selector.select(self._wait()):
                self._attempt(key.data)
        return 0

    def _attempt(self, do: Callable[[], None]) -> None:
        """Do what the machine may refuse for want of processes, descriptors or memory. It is tried again at the next
        look, and what runs goes on. Should that not help, systemd hears no sign of life and starts us again."""
        try:
            do()
        except (HomeError, OSError) as error:
            say(f"The supervisor could not go on, and tries again: {error}")
            time.sleep(LOOK_EVERY)

    def _catch_signals(self) -> None:
        signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        self._selector.register(self._woken, selectors.EVENT_READ, self._on_signals)

    def _listen(self) -> socket.socket:
        """The socket that every process listens on, so that whoever comes while none does waits and is not refused."""
        config = self._config
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        give_up = time.monotonic() + BIND_TIMEOUT
        while True:
            try:
                listener.bind((config.host, config.port))
                break
            except OSError as error:
                if time.monotonic() > give_up:
                    listener.close()
                    where = f"{config.host}:{config.port}"
                    raise HomeError(f"Cannot listen on {where}: {error.strerror}.") from error
                time.sleep(0.2)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        return listener

    def _choose_release(self) -> None:
        """What is installed runs if it is not what was installed before: somebody has put it there. Else what ran."""
        installed, current = self._config.release, self._home.linked(CURRENT)
        self._add_installed()
        changed = self._state.installed != installed.build
        self._state.installed = installed.build
        if current != installed.build and changed:
            self._begin_trial(installed.build, self._home.linked(GOOD), by="installed", step="prove")
        elif self._state.trial is not None:
            self._resume_trial(self._state.trial)
        self._save()

    # Signals and time

    def _on_signals(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self._woken, 512):
                if number in (signal.SIGTERM, signal.SIGINT):
                    self._stop_or_hurry(number)
                elif number == signal.SIGHUP:
                    self._stop_all()  # each is started again when it has ended
        self._reap()

    def _stop_or_hurry(self, number: int) -> None:
        """The first signal ends everything in good order; the second is passed on, and processes end at once."""
        if self._stopping:
            for process in self._running():
                process.signal(number)
            return
        self._stopping = True
        notify_systemd("STOPPING=1")
        self._close_page()
        self._stop_all()

    def _reap(self) -> None:
        """Wait for every child that has ended; as the first process of a container, also for those of others."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for process in self._running():
                if process.pid == pid:
                    self._on_end(process, status)

    def _wait(self) -> float:
        """Seconds until something is due, at most until the next look for a request."""
        now = time.monotonic()
        due = [now + LOOK_EVERY]
        empty = [] if self._idle() else [slot for slot in self._slots if not slot.running]
        due += [slot.start_at for slot in empty if slot.start_at is not None]
        due += [process.stop_by for process in self._running() if process.stop_by is not None]
        if self._check is not None:
            due.append(self._check.give_up)
        return max(0.0, min(due) - now) + 0.001

    def _look_at_time(self) -> None:
        now = time.monotonic()
        for process in self._running():
            self._look_at(process, now)
        if not self._stopping:
            self._take_request()
            self._advance_trial(now)
            self._converge(now)
            self._look_at_health(now)
        if self._page is not None:
            self._page.tidy()
        if os.environ.get("WATCHDOG_USEC"):
            notify_systemd("WATCHDOG=1")

    def _look_at(self, process: Process, now: float) -> None:
        config = self._config
        if process.stop_by is not None:
            if now >= process.stop_by:
                process.signal(signal.SIGKILL)
        elif process in (self._step, self._verification):
            return
        elif process.memory > config.max_memory > 0:
            process.unfit = f"it used more than {config.max_memory // 2**20} MiB of memory"
            self._give_up_on(process, process.unfit)
            process.signal(signal.SIGKILL)
        elif not process.ready and now >= process.started_at + self._ready_within(process):
            self._give_up_on(process, f"it was not ready after {self._ready_within(process):g} seconds")
        elif process.unready and now >= process.unready_from + config.unready_within:
            process.unfit = f"it was not ready for {config.unready_within:g} seconds: {process.unready}"
            self._give_up_on(process, process.unfit)
        elif process.ready and config.watchdog and now >= process.heard_at + config.watchdog:
            self._give_up_on(process, f"it gave no sign of life for {config.watchdog:g} seconds")

    def _ready_within(self, process: Process) -> float:
        trial = self._state.trial
        replaces = trial is not None and trial["previous"] and process.build == trial["build"]
        return self._config.trial_ready_within if replaces else self._config.ready_within

    def _give_up_on(self, process: Process, why: str) -> None:
        """End a process that does not work; it counts as one that has ended by itself."""
        self._note("worker.unhealthy", name=process.name, pid=process.pid, reason=why)
        process.failed = why
        process.stop(self._config.stop_within)

    # Processes

    def _converge(self, now: float) -> None:
        """Bring what runs to what should run, one process at a time where two releases may work side by side."""
        if self._idle():
            return
        wanted = self._home.linked(CURRENT)
        if any(slot.process is None or slot.process.build != wanted for slot in self._slots):
            wanted = self._usable(wanted)
        for slot in self._slots:
            if slot.process is None and slot.successor is None:
                if slot.start_at is not None and now >= slot.start_at:
                    slot.process = self._start(slot, wanted)
                    slot.start_at = None
            elif slot.process is not None and slot.process.build != wanted and slot.successor is None:
                if not self._config.rolling:
                    slot.process.stop(self._config.stop_within)
                elif not any(other.successor for other in self._slots):
                    slot.successor = self._start(slot, wanted)

    def _start(self, slot: Slot, build: str) -> Process:
        self._close_page()
        installed = self._config.release
        release = installed if build == installed.build else self._home.release(build)
        trial = self._state.trial
        proving = {ON_PROBATION: "1"} if trial is not None and trial["build"] == build else {}
        process = Process(
            slot.name,
            build,
            release.command(slot.role),
            {**inherited_environment(), **release.environment(), **proving},
            listener=self._listener if slot.role in LISTENS else None,
            watchdog=self._config.watchdog,
        )
        self._follow(process)
        self._note("worker.spawned", name=slot.name, pid=process.pid, build=build, version=release.version)
        return process

    def _on_notice(self, process: Process) -> None:
        became_ready = process.hear()
        trial = self._state.trial
        proving = trial is not None and (trial["step"], trial["build"]) == ("prove", process.build)
        if process.unfit and trial is not None and proving:
            self._go_back(trial, f"The process {process.name} found that it does not work: {process.unfit}.")
        if not became_ready:
            return
        self._check_at = time.monotonic() + self._config.health_every
        for slot in self._slots:
            if slot.successor is process and slot.process is not None:
                slot.process.stop(self._config.stop_within)
        if all(slot.process is not None and slot.process.ready for slot in self._slots):
            self._rest = FIRST_REST
            notify_systemd("READY=1")

    def _on_end(self, process: Process, status: int) -> None:
        for source in (process.notices, process.words):
            with contextlib.suppress(KeyError):
                self._selector.unregister(source)
        process.ended(status)
        self._state.processes.pop(str(process.pid), None)
        if process is self._step:
            self._step = None
            self._end_step(process)
            return
        if process is self._verification:
            self._end_verification(process)
            return
        slot = next(one for one in self._slots if process in one.running)
        if slot.successor is process:
            slot.successor = None
        else:
            slot.process, slot.successor = slot.successor, None
        asked = process.stop_by is not None and not process.failed
        self._note_end(process, asked=asked)
        if slot.process is None:
            slot.start_at = time.monotonic()
        if not asked and not self._stopping:
            self._on_failure(slot, process)

    def _note_end(self, process: Process, *, asked: bool) -> None:
        self._note(
            "worker.exited",
            name=process.name,
            pid=process.pid,
            build=process.build,
            code=process.code,
            seconds=round(process.lasted, 1),
            asked=asked,
            last_lines=[] if asked else process.last_words,
        )

    def _on_failure(self, slot: Slot, process: Process) -> None:
        """A process has ended that should not have: start it again, go back to the release before, or rest."""
        now, trial = uptime(), self._state.trial
        self._proved_from = None
        if trial is not None and trial["step"] == "revert":
            if process.build == trial["build"]:
                return  # it was to end anyway
            self._end_revert(describe_end(process))
        long_ago = CRASH_LOOPS[-1][1]
        exits = [at for at in self._state.exits if now - long_ago < at <= now]
        self._state.exits = exits if exits and now - exits[-1] < TOGETHER else [*exits, now]
        self._state.outage = 0.0 if process.lasted >= long_ago else self._state.outage
        why, trial = describe_end(process), self._state.trial
        hopeless = process.code == CONFIGURATION or is_crash_loop(self._state.exits, now)
        failed = hopeless or not process.ready or process.unfit
        goes_back = trial is not None and failed and self._can_go_back(trial, process)
        if hopeless and not goes_back:
            self._state.outage = self._state.outage or time.time()
        self._save()
        if hopeless:
            outage = 0.0 if goes_back else self._state.outage
            self._note("worker.crash_loop", name=slot.name, reason=why, build=process.build, outage=outage)
        if trial is not None and goes_back:
            self._go_back(trial, why)
        elif hopeless:
            self._rest_for_a_while(why)
        else:
            slot.start_at = time.monotonic() + restart_delay(len(self._state.exits))

    # While nothing can run

    def _rest_for_a_while(self, why: str) -> None:
        """Stop starting things quickly. Say what is wrong to whoever comes, and try again later."""
        self._stop_all()
        for slot in self._slots:
            slot.start_at = time.monotonic() + self._rest
        notify_systemd(f"STATUS={why}")
        say(f"Gofer cannot run: {why} It is tried again in {self._rest:g} seconds.")
        self._rest = min(MAX_REST, self._rest * 2)
        if self._listener is not None and self._page is None:
            self._page = OutagePage(self._listener, self._selector, why)

    def _close_page(self) -> None:
        if self._page is not None:
            self._page.close()
            self._page = None

    # Health

    def _look_at_health(self, now: float) -> None:
        """Ask for /healthz now and then: a process that answers its watchdog may still answer nobody else."""
        if self._check is not None:
            if now >= self._check.give_up:
                self._on_check()
            return
        listening = [slot.process for slot in self._slots if slot.role in LISTENS]
        ready = listening and all(one is not None and one.ready and one.stop_by is None for one in listening)
        if ready and now >= self._check_at and self._listener is not None:
            self._check = HealthCheck(self._listener.getsockname()[:2], "/healthz")
            self._selector.register(self._check.socket, self._check.wants, self._on_check)

    def _on_check(self) -> None:
        check = self._check
        assert check is not None
        status = check.look()
        if status is None:
            self._selector.modify(check.socket, check.wants, self._on_check)
            return
        self._selector.unregister(check.socket)
        check.close()
        self._check, self._check_at = None, time.monotonic() + self._config.health_every
        self._unhealthy = 0 if status == 200 else self._unhealthy + 1
        if self._unhealthy >= MAX_UNHEALTHY:
            self._unhealthy = 0
            for slot in self._slots:
                if slot.role in LISTENS and slot.process is not None and slot.process.stop_by is None:
                    self._give_up_on(
                        slot.process, f"/healthz was not answered {MAX_UNHEALTHY} times in a row"
                    )
