"""The supervisor: one thread that starts the processes of the current release, watches them, and deploys releases.

Its state is in its home, written before each step, so it can be killed anywhere and started again. What should run is
one link; `_converge` brings what runs there, whether a release was deployed, reverted or just ended by itself.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import time

from gofer_supervisor.home import CURRENT, GOOD, Home, HomeError, Release
from gofer_supervisor.http import HealthCheck, OutagePage
from gofer_supervisor.process import Process, end_leftovers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

CONFIGURATION = 78
"""The exit code of a process whose settings cannot work: starting it again would not help."""
CRASH_LOOPS = ((3, 60.0), (10, 600.0))
"""So many ends within so many seconds are a crash loop."""
FIRST_DELAY, MAX_DELAY = 0.5, 30.0
"""Seconds before a process is started again, growing with each end."""
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
        stop_within: float = 30,
        ready_within: float = 900,
        probation: float = 600,
        watchdog: float = 60,
        health_every: float = 15,
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
        self.stop_within = stop_within
        """Seconds that a process has to end in good order."""
        self.ready_within = ready_within
        """Seconds that a process has to become ready: a large store may have to be migrated."""
        self.probation = probation
        """Seconds that a new release has to work before it counts as good."""
        self.watchdog = watchdog
        """Seconds without a sign of life after which a process is started again; 0 for never."""
        self.health_every = health_every
        """Seconds between two requests for /healthz."""

    @property
    def roles(self) -> list[tuple[str, str]]:
        """The name and the role of each process."""
        return [
            (role if count == 1 else f"{role}-{number}", role)
            for role, count in self.processes.items()
            for number in range(1, count + 1)
        ]


class Slot:
    """One place for a process: what runs in it, what is to take its place, and when the next may be started."""

    def __init__(self, name: str, role: str) -> None:
        self.name, self.role = name, role
        self.process: Process | None = None
        self.successor: Process | None = None
        """A process of another release that takes the place when it is ready."""
        self.start_at: float | None = 0.0
        """When the next process is due, while none runs; None when none is."""

    @property
    def running(self) -> list[Process]:
        return [one for one in (self.process, self.successor) if one is not None]


class Supervisor:
    """Runs until it is told to stop. `run` is the whole life of the process."""

    def __init__(self, home: Home, config: Config) -> None:
        self._home = home
        self._config = config
        self._selector = selectors.DefaultSelector()
        self._slots = [Slot(name, role) for name, role in config.roles]
        self._listener: socket.socket | None = None
        self._page: OutagePage | None = None
        self._check: HealthCheck | None = None
        self._check_at = 0.0
        self._unhealthy = 0
        self._rest = FIRST_REST
        self._stopping = False
        self._woken, self._waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._proved_from: float | None = None
        """Since when every process of a release on probation is ready."""
        self._step: Process | None = None
        """A command of a deployment that is under way: a backup, a migration."""

    # Life

    def run(self) -> int:
        """Supervise until a signal says to stop; returns the exit code."""
        self._home.prepare()
        self._state = self._home.load()
        self._catch_signals()
        if left := end_leftovers(list(self._state.processes.values()), self._config.stop_within):
            self._note("worker.exited", name="left", pids=left, reason="its supervisor had ended")
        self._state.processes = {}
        if any(slot.role in LISTENS for slot in self._slots):
            self._listener = self._listen()
        self._choose_release()
        while not self._stopping or self._running():
            self._look_at_time()
            for key, _ in self._selector.select(self._wait()):
                call: Callable[[], None] = key.data
                call()
        return 0

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
        self._home.add(installed, source="installed", schema=self._config.schema)
        changed = self._state.installed != installed.build
        self._state.installed = installed.build
        if current != installed.build and (changed or not self._runnable(current)):
            self._begin_trial(installed.build, self._home.linked(GOOD), by="installed", step="prove")
        elif self._state.trial is not None:
            self._resume_trial(self._state.trial)
        self._home.save(self._state)

    def _runnable(self, build: str) -> bool:
        """Whether a release is here: of those that were installed, only the one that is installed now."""
        try:
            manifest = self._home.manifest(build)
        except HomeError:
            return False
        if manifest.get("source") == "installed" and build != self._config.release.build:
            return False
        return os.access(str(manifest.get("python", "")), os.X_OK)

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

    def _stop_all(self) -> None:
        for process in self._running():
            process.stop(self._config.stop_within)

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
        due += [slot.start_at for slot in self._slots if slot.start_at is not None and not self._idle()]
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
        elif process is self._step:
            return
        elif not process.ready and now >= process.started_at + config.ready_within:
            self._give_up_on(process, f"it was not ready after {config.ready_within:g} seconds")
        elif process.ready and config.watchdog and now >= process.heard_at + config.watchdog:
            self._give_up_on(process, f"it gave no sign of life for {config.watchdog:g} seconds")

    def _give_up_on(self, process: Process, why: str) -> None:
        """End a process that does not work; it counts as one that has ended by itself."""
        self._note("worker.unhealthy", name=process.name, pid=process.pid, reason=why)
        process.failed = why
        process.stop(self._config.stop_within)

    # Processes

    def _running(self) -> list[Process]:
        steps = [self._step] if self._step is not None else []
        return steps + [process for slot in self._slots for process in slot.running]

    def _idle(self) -> bool:
        """Whether nothing may be started: a deployment is at a step that needs the store for itself."""
        trial = self._state.trial
        return trial is not None and trial["step"] != "prove" and not self._config.rolling

    def _converge(self, now: float) -> None:
        """Bring what runs to what should run, one process at a time where two releases may work side by side."""
        if self._idle():
            return
        wanted = self._home.linked(CURRENT)
        for slot in self._slots:
            if slot.process is None and slot.successor is None:
                if slot.start_at is not None and now >= slot.start_at:
                    slot.start_at = None
                    slot.process = self._start(slot, wanted)
            elif slot.process is not None and slot.process.build != wanted and slot.successor is None:
                if not self._config.rolling:
                    slot.process.stop(self._config.stop_within)
                elif not any(other.successor for other in self._slots):
                    slot.successor = self._start(slot, wanted)

    def _start(self, slot: Slot, build: str) -> Process:
        self._close_page()
        release = self._home.release(build)
        process = Process(
            slot.name,
            build,
            release.command(slot.role),
            {**inherited_environment(), **release.environment()},
            listener=self._listener if slot.role in LISTENS else None,
            watchdog=self._config.watchdog,
        )
        self._follow(process)
        self._note("worker.spawned", name=slot.name, pid=process.pid, build=build, version=release.version)
        return process

    def _follow(self, process: Process) -> None:
        """Keep its identity, should we be killed, and listen to it."""
        self._state.processes[str(process.pid)] = process.identity
        self._home.save(self._state)
        self._selector.register(process.notices, selectors.EVENT_READ, lambda: self._on_notice(process))
        self._selector.register(process.words, selectors.EVENT_READ, lambda: self._on_words(process))

    def _on_words(self, process: Process) -> None:
        if process.read_words():
            self._selector.unregister(process.words)

    def _on_notice(self, process: Process) -> None:
        if not process.hear():
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
        now = time.time()
        self._proved_from = None
        self._state.exits = [at for at in self._state.exits if now - CRASH_LOOPS[-1][1] < at <= now] + [now]
        self._home.save(self._state)
        why = describe_end(process)
        hopeless = process.code == CONFIGURATION or is_crash_loop(self._state.exits, now)
        if hopeless:
            self._note("worker.crash_loop", name=slot.name, reason=why, build=process.build)
        trial = self._state.trial
        failed = trial is not None and process.build == trial["build"] and (hopeless or not process.ready)
        if trial is not None and failed and self._runnable(str(trial["previous"])):
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

    # Releases

    def _take_request(self) -> None:
        """Begin what somebody asked for: to deploy a release, or to go back to the one before."""
        request = self._home.asked()
        if request is None:
            return
        trial, build, by = self._state.trial, str(request.get("build", "")), str(request.get("by", ""))
        if request.get("do") == "rollback":
            self._roll_back(by)
        elif trial is not None and trial["step"] != "prove":
            return  # it has to wait
        elif self._runnable(build) and build != self._home.linked(CURRENT):
            first = "migrate" if self._config.rolling else "stop"
            self._begin_trial(build, self._home.linked(CURRENT), by=by, step=first)
        else:
            say(f"Release {build} cannot be deployed: it is not here, or it runs already.")
        self._home.answered()

    def _roll_back(self, by: str) -> None:
        """Go back to the release before the current one, because a person says so."""
        last = self._state.trial or self._last_deployment()
        if last is None or not self._runnable(str(last["previous"])):
            say("There is no release to go back to.")
            return
        if self._home.linked(GOOD) == last["build"]:
            self._home.link(GOOD, str(last["previous"]))
        self._go_back(last, f"{by} asked for it.")

    def _last_deployment(self) -> dict[str, Any] | None:
        """The good release and the one that it replaced; None when that is not known."""
        good = self._home.linked(GOOD)
        try:
            return {"build": good, "previous": self._home.manifest(good).get("previous", "")}
        except HomeError:
            return None

    def _begin_trial(self, build: str, previous: str, *, by: str, step: str) -> None:
        """Write down what is to be deployed, before anything is done about it."""
        self._state.trial = {"build": build, "previous": previous, "by": by, "at": time.time(), "step": step}
        self._state.exits = []
        self._proved_from = None
        self._home.save(self._state)
        self._note("revision.started", build=build, previous=previous, by=by)
        if step == "prove":
            self._home.link(CURRENT, build)

    def _resume_trial(self, trial: dict[str, Any]) -> None:
        """Go on where a supervisor that was killed left off. Every step may be repeated."""
        if trial["step"] == "prove":
            self._home.link(CURRENT, trial["build"])

    def _set_step(self, step: str) -> None:
        assert self._state.trial is not None
        self._state.trial["step"] = step
        self._home.save(self._state)

    def _advance_trial(self, now: float) -> None:
        """Do the next step of a deployment, if it is due."""
        trial = self._state.trial
        if trial is None or self._step is not None:
            return
        step = trial["step"]
        if step == "stop":
            self._stop_all()
            if not self._running():
                self._take_store(trial)
        elif step in STEPS:
            self._begin_step(step, trial)
        elif step == "prove":
            self._prove(now)

    def _take_store(self, trial: dict[str, Any]) -> None:
        """Nothing serves any more: copy and migrate the store, or start at once where there is nothing to migrate."""
        if self._same_schema(trial):
            self._serve_new(trial)
        else:
            self._set_step("backup")

    def _same_schema(self, trial: dict[str, Any]) -> bool:
        old, new = (self._home.manifest(str(trial[name])).get("schema") for name in ("previous", "build"))
        return bool(old) and old == new

    def _serve_new(self, trial: dict[str, Any]) -> None:
        """From here on the new release serves. The store is not put back any more: it may hold what was answered."""
        self._set_step("prove")
        self._home.link(CURRENT, trial["build"])

    def _begin_step(self, step: str, trial: dict[str, Any]) -> None:
        """Run the command of a step: `gofer` of the old release for the backup, of the new one for the migration."""
        build = str(trial[STEPS[step]])
        copy = f"{self._home.path}/backups/{trial['build']}.db"
        if step == "backup":
            os.makedirs(os.path.dirname(copy), mode=0o700, exist_ok=True)
            for place in (copy, f"{copy}.files.tgz"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(place)
        arguments = [step] if step == "migrate" else [step, copy]
        release = self._home.release(build)
        environment = {**inherited_environment(), **release.environment()}
        self._step = Process(step, build, release.command(*arguments), environment)
        self._follow(self._step)

    def _end_step(self, process: Process) -> None:
        trial = self._state.trial
        if trial is None or self._stopping:
            return
        if process.code == 0:
            if process.name == "backup":
                self._set_step("migrate")
            elif process.name == "migrate":
                self._serve_new(trial)
            else:
                self._go_back(trial, f"{trial['build']} could not migrate the store, which was put back.")
            return
        say("\n".join(process.last_words))
        why = f"`gofer {process.name}` of {process.build} failed: {' '.join(process.last_words[-1:])}"
        if process.name == "migrate" and not self._config.rolling:
            self._set_step("restore")
        else:
            self._go_back(trial, why)

    def _prove(self, now: float) -> None:
        """The release on probation has proved itself when all its processes have worked for long enough."""
        trial = self._state.trial
        assert trial is not None
        new = [slot.process for slot in self._slots]
        working = all(one is not None and one.ready and one.build == trial["build"] for one in new)
        self._proved_from = (self._proved_from or now) if working else None
        if self._proved_from is not None and not trial.get("ready"):
            trial["ready"] = True
            self._home.save(self._state)
        if self._proved_from is None or now < self._proved_from + self._config.probation:
            return
        self._proved_from = None
        self._home.add(
            self._home.release(trial["build"]), **self._facts(trial["build"]), previous=trial["previous"]
        )
        self._home.link(GOOD, trial["build"])
        self._state.trial = None
        self._home.save(self._state)
        self._note("revision.promoted", build=trial["build"], previous=trial["previous"])

    def _facts(self, build: str) -> dict[str, Any]:
        known = {*Release.__slots__, "previous"}
        return {name: value for name, value in self._home.manifest(build).items() if name not in known}

    def _go_back(self, trial: dict[str, Any], why: str) -> None:
        """Have the release before the one on probation run again."""
        previous = str(trial["previous"])
        say(f"Going back from release {trial['build']} to {previous}: {why}")
        self._note("revision.rolled_back", build=trial["build"], to=previous, reason=why)
        self._home.link(CURRENT, previous)
        self._state.trial, self._state.exits, self._proved_from = None, [], None
        self._home.save(self._state)
        for slot in self._slots:
            slot.start_at = time.monotonic()

    def _note(self, kind: str, **data: Any) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end what still runs
            self._home.note(kind, **data)


STEPS = {"backup": "previous", "migrate": "build", "restore": "previous"}
"""The steps of a deployment that are commands of `gofer`, and which release runs each."""


def is_crash_loop(exits: list[float], now: float) -> bool:
    """Whether so many processes ended within so short a time that starting them again makes no sense."""
    return any(sum(now - within < at <= now for at in exits) >= count for count, within in CRASH_LOOPS)


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
    """Tell systemd, if it wants to know."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
            notifier.connect("\0" + address[1:] if address.startswith("@") else address)
            notifier.send(state.encode())


def say(text: str) -> None:
    """Tell whoever reads the supervisor's standard error."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
