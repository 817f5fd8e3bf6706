"""The deployment of a release as one transaction: each step is written down before it is done, may be repeated, and is
undone by going back to the release before.

What should run is one link. The supervisor brings what runs there, whether a release was deployed or taken back.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import sys
import time
from functools import partial

from gofer_supervisor.home import CURRENT, GOOD, Home, HomeError, Release, State
from gofer_supervisor.process import Process
from gofer_supervisor.system import Config, inherited_environment, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

STEPS = {"backup": "previous", "migrate": "build", "restore": "previous"}
"""The steps of a deployment that are commands of `gofer`, and which release runs each."""
VERIFY = (
    "import sys; sys.path.insert(0, sys.argv[1]); from gofer_supervisor.deployment import verify; "
    "sys.exit(verify(*sys.argv[2:]))"
)
"""Reading a release and its packages takes seconds and memory. So a process of its own does it, while the supervisor
looks after the others."""
CHANGED = 3
"""Its exit code when a file was changed, whose name is its last line."""


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


def deployment_id(trial: Mapping[str, Any]) -> str:
    """What one deployment is known by: an event about it that is written twice is one."""
    return f"{trial['build']}@{trial.get('at') or time.time()}"


def verify(home: str, build: str) -> int:
    """Name a file of a release that was changed since it was staged, if there is one; returns the exit code."""
    changed = Home(home).changed_file(build)
    if changed:
        say(changed if changed.isprintable() else ascii(changed))
    return CHANGED if changed else 0


class Deployments:
    """The releases of a home, and the one that is being deployed. Knows what should run, and leaves it to the
    supervisor to start and watch it."""

    def __init__(self, home: Home, config: Config) -> None:
        self._home = home
        self._config = config
        self._state = State()
        self._selector = selectors.DefaultSelector()
        self._slots = [Slot(name, role) for name, role in config.roles]
        self._stopping = False
        self._proved_from: float | None = None
        """Since when every process of a release on probation is ready."""
        self._step: Process | None = None
        """A command of a deployment that is under way: a backup, a migration."""
        self._verification: Process | None = None
        """Reads the files of the release that was asked for, before anything is done about it."""
        self._finding: str | None = None
        """Why the release that was asked for is not what was staged; empty when it is, None while that is unknown."""

    # What runs

    def _running(self) -> list[Process]:
        commands = [one for one in (self._step, self._verification) if one is not None]
        return commands + [process for slot in self._slots for process in slot.running]

    def _idle(self) -> bool:
        """Whether nothing may be started: a deployment is at a step that needs the store for itself."""
        trial = self._state.trial
        return trial is not None and trial["step"] not in ("prove", "revert") and not self._config.rolling

    def _stop_all(self) -> None:
        for process in self._running():
            process.stop(self._config.stop_within)

    def _follow(self, process: Process) -> None:
        """Keep its identity, should we be killed, and listen to it."""
        self._state.processes[str(process.pid)] = process.identity
        self._save()
        for source, hear in ((process.notices, self._on_notice), (process.words, self._on_words)):
            self._selector.register(source, selectors.EVENT_READ, partial(self._unless_ended, process, hear))

    def _unless_ended(self, process: Process, hear: Callable[[Process], None]) -> None:
        """Hear a process, unless the same look has found that it has ended: then everything of it is closed."""
        if process.status is None:
            hear(process)

    def _on_words(self, process: Process) -> None:
        if process.read_words():
            self._selector.unregister(process.words)

    def _on_notice(self, process: Process) -> None:
        """A process says how it is."""
        raise NotImplementedError

    # Which release can run

    def _runnable(self, build: str) -> bool:
        """Whether a release is here: of those that were installed, only the one that is installed now."""
        try:
            manifest = self._home.manifest(build)
            self._home.release(build)
        except HomeError:
            return False
        if manifest.get("source") == "installed" and build != self._config.release.build:
            return False
        return os.access(str(manifest.get("python", "")), os.X_OK)

    def _usable(self, build: str) -> str:
        """The build that should run, if it can be: else the good one, or what is installed, which takes its place."""
        if self._runnable(build) or build == self._config.release.build:
            return build
        other = self._fallback(self._home.linked(GOOD))
        self._end_revert(f"{build} was to run again, but its manifest is missing or damaged.")
        damaged = {"build": build, "previous": other, "by": "", "at": time.time()}
        self._go_back(damaged, "Its manifest is missing or damaged.")
        return other

    def _fallback(self, *builds: str) -> str:
        """The first of these releases that can run, else the one that is installed."""
        return next((build for build in builds if self._runnable(build)), self._config.release.build)

    def _add_installed(self) -> None:
        """Write down the release that is installed. Its manifest can always be written again."""
        kept: dict[str, Any] = {}
        with contextlib.suppress(HomeError):
            known = self._home.manifest(self._config.release.build)
            kept = {name: known[name] for name in ("previous", "proved_at", "taken_back") if name in known}
        facts = {"source": "installed", "schema": self._config.schema, "canary": self._config.canary, **kept}
        self._keep(lambda: self._home.add(self._config.release, **facts))

    def _can_go_back(self, trial: dict[str, Any], process: Process) -> bool:
        """Whether a process is of the release on probation, and another release can run in its place."""
        here = trial["step"] != "revert" and process.build == trial["build"]
        return here and bool(trial["build"] != self._fallback(str(trial["previous"])))

    # The transaction

    def _take_request(self) -> None:
        """Begin what somebody asked for: to deploy a release, or to go back to the one before."""
        request = self._home.asked()
        if request is None:
            return
        trial, id_ = self._state.trial, str(request.get("id", ""))
        if id_ and id_ == self._state.taken:
            pass  # begun by a supervisor that was killed before it could take the request away
        elif trial is not None and trial["step"] != "prove":
            return  # it has to wait
        elif request.get("do") == "rollback":
            self._begin_revert(id_, str(request.get("by", "")))
        elif not self._begin_deployment(id_, str(request.get("build", "")), str(request.get("by", ""))):
            return  # its files are being read
        self._home.answered()

    def _begin_deployment(self, id_: str, build: str, by: str) -> bool:
        """Begin to deploy a release, or refuse to; False while it is not known yet whether its files are the right
        ones."""
        trial = self._state.trial
        if build == self._home.linked(CURRENT):
            say(f"Release {build} runs already.")
        elif not self._runnable(build):
            self._refuse(id_, build, "it is not here, or what it needs is not.")
        elif self._finding is None:
            self._begin_verification(build)
            return False
        elif self._finding:
            self._refuse(id_, build, self._finding)
        else:
            # One on probation gives way to the next, and if that one fails, what is known to be good comes back.
            proved = [] if trial is None else [str(trial["previous"])]
            before = self._fallback(*proved, self._home.linked(CURRENT))
            self._state.taken = id_
            self._begin_trial(build, before, by=by, step="migrate" if self._config.rolling else "stop")
        self._finding = None
        return True

    def _begin_verification(self, build: str) -> None:
        if self._verification is None:
            arguments = [os.path.dirname(os.path.dirname(__file__)), self._home.path, build]
            command = [sys.executable, "-I", "-S", "-c", VERIFY, *arguments]
            self._verification = Process("verify", build, command, inherited_environment())
            self._follow(self._verification)

    def _end_verification(self, process: Process) -> None:
        """Keep what was found. One that was ended before it was done is begun again."""
        self._verification = None
        said = " ".join(process.last_words[-1:])
        if process.code == 0:
            self._finding = ""
        elif process.code == CHANGED:
            self._finding = f"{said} is not what the release was staged with."
        elif process.code > 0:
            self._finding = f"its files could not be verified: {said}"

    def _refuse(self, id_: str, build: str, why: str) -> None:
        """Tell the owners that a release does not run after all: once, however often the request is taken."""
        say(f"Release {build} is not deployed: {why}")
        to, reason = self._home.linked(CURRENT), f"It never ran: {why}"
        told = {"build": build, "to": to, "reason": reason, "deployment": f"{build}@{id_}"}
        self._note("revision.rolled_back", **told)
        self._record_end(build, to, reason)

    def _begin_revert(self, id_: str, by: str) -> None:
        """Write down that the release before the current one is wanted back, because a person says so."""
        last = self._state.trial or self._last_deployment()
        if last is None or not self._runnable(str(last["previous"])):
            say("There is no release to go back to.")
            return
        self._state.taken = id_
        self._go_back({**last, "at": time.time()}, f"{by} asked for it.", asked=True)

    def _revert(self, trial: dict[str, Any]) -> None:
        """Have what should run be the release before; the supervisor ends and starts processes until it does. Only
        when it serves is the release taken back, and anybody told so."""
        self._link_back(trial)
        if self._all_ready(str(trial["previous"])):
            self._end_revert()

    def _link_back(self, trial: dict[str, Any]) -> None:
        if self._home.linked(GOOD) == trial["build"]:
            self._link(GOOD, str(trial["previous"]))
        if self._home.linked(CURRENT) != trial["previous"]:
            self._link(CURRENT, str(trial["previous"]))

    def _all_ready(self, build: str) -> bool:
        """Whether every process is of a release and ready, and none of another one is left."""
        return all(
            slot.successor is None
            and slot.process is not None
            and (slot.process.build, slot.process.ready, slot.process.stop_by) == (build, True, None)
            for slot in self._slots
        )

    def _end_revert(self, but: str = "") -> None:
        """The release is taken back: say so, once, with what is wrong with the one before it if anything is."""
        trial = self._state.trial
        if trial is None or trial["step"] != "revert":
            return
        self._link_back(trial)  # a process of the one before may end before anything was done about it
        build, to = str(trial["build"]), str(trial["previous"])
        why = f"{trial.get('why') or 'Somebody asked for it.'} {but}".rstrip()
        self._note("revision.rolled_back", build=build, to=to, reason=why, deployment=deployment_id(trial))
        self._record_end(build, to, why, asked=bool(trial.get("asked")))
        self._state.trial = None
        self._save()

    def _last_deployment(self) -> dict[str, Any] | None:
        """The good release and the one that it replaced; None when that is not known."""
        good = self._home.linked(GOOD)
        try:
            return {"build": good, "previous": self._home.manifest(good).get("previous", "")}
        except HomeError:
            return None

    def _begin_trial(self, build: str, previous: str, *, by: str, step: str) -> None:
        """Write down what is to be deployed, before anything is done about it."""
        at = time.time()
        trial = {"build": build, "previous": previous, "by": by, "at": at, "step": step, "since": at}
        self._end_revert()
        self._note("revision.started", build=build, previous=previous, by=by, deployment=deployment_id(trial))
        self._state.trial = trial
        self._state.exits = []
        self._proved_from = None
        self._save()
        if step == "prove":
            self._link(CURRENT, build)

    def _resume_trial(self, trial: dict[str, Any]) -> None:
        """Go on where a supervisor that was killed left off. Every step may be repeated."""
        if trial["step"] == "prove":
            self._link(CURRENT, trial["build"])

    def _set_step(self, step: str) -> None:
        assert self._state.trial is not None
        self._state.trial.update(step=step, since=time.time())
        self._save()

    def _advance_trial(self, now: float) -> None:
        """Do the next step of a deployment, if it is due."""
        trial = self._state.trial
        if trial is None or self._step is not None:
            return
        try:
            self._do_step(trial, now)
        except HomeError as error:
            self._go_back(trial, str(error))

    def _do_step(self, trial: dict[str, Any], now: float) -> None:
        step = trial["step"]
        if step == "revert":
            self._revert(trial)
        elif step == "stop":
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
        self._link(CURRENT, trial["build"])
        self._start_now()

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
        working = all(one is not None and one.works and one.build == trial["build"] for one in new)
        if working and self._proved_from is None:
            trial["ready"], trial["until"] = True, time.time() + self._config.probation
            self._save()
        self._proved_from = (self._proved_from or now) if working else None
        if self._proved_from is None or now < self._proved_from + self._config.probation:
            return
        if not self._answers(trial["build"]):
            if now >= self._proved_from + self._config.probation + self._config.ready_within:
                self._go_back(trial, "No conversation with it went as it should.")
            return
        self._proved_from = None
        self._amend(trial["build"], previous=trial["previous"], proved_at=time.time(), taken_back=None)
        self._link(GOOD, trial["build"])
        told = {"build": trial["build"], "previous": trial["previous"], "deployment": deployment_id(trial)}
        self._note("revision.promoted", **told)
        self._state.trial = None
        self._save()

    def _answers(self, build: str) -> bool:
        """Whether a process of a release has said that it answers; true for one that does not know how to say so."""
        if any(slot.process is not None and slot.process.proved for slot in self._slots):
            return True
        return not self._home.manifest(build).get("canary")

    def _amend(self, build: str, **facts: Any) -> None:
        """Write more into the manifest of a release; raises HomeError when it cannot be read."""
        release, known = self._home.release(build), self._home.manifest(build)
        kept = {name: value for name, value in known.items() if name not in Release.__slots__}
        self._keep(lambda: self._home.add(release, **{**kept, **facts}))

    def _record_end(self, build: str, to: str, reason: str, *, asked: bool = False) -> None:
        """Keep with a release why it was taken back, where also a command finds it that runs without a server."""
        with contextlib.suppress(HomeError):
            self._amend(build, taken_back={"to": to, "reason": reason, "at": time.time(), "asked": asked})

    def _go_back(self, trial: dict[str, Any], why: str, *, asked: bool = False) -> None:
        """Write down that the release before is wanted back, by a person or because this one does not work."""
        previous = self._fallback(str(trial["previous"]), self._home.linked(GOOD))
        if previous == trial["build"]:
            self._stay(trial, why)
            return
        say(f"Going back from release {trial['build']} to {previous}: {why}")
        known = {name: trial[name] for name in ("build", "at")}
        reason = {"why": why, "asked": asked}
        self._state.trial = {**known, "previous": previous, "step": "revert", "since": time.time(), **reason}
        self._state.exits, self._proved_from = [], None
        self._save()
        self._start_now()

    def _stay(self, trial: dict[str, Any], why: str) -> None:
        """There is no release to go back to: say so, once. This one goes on and stays on probation, until it proves
        itself after another start or another release takes its place."""
        self._proved_from = None
        if not trial.get("unfit"):
            say(f"Release {trial['build']} goes on, since there is none to go back to: {why}")
            told = {"build": trial["build"], "to": trial["build"], "reason": why}
            self._note("revision.rolled_back", **told, deployment=deployment_id(trial))
            trial["unfit"] = why
            self._save()

    def _start_now(self) -> None:
        """Another release is to run: it need not wait until the one that failed would have been tried again."""
        for slot in self._slots:
            slot.start_at = time.monotonic()

    def _note(self, kind: str, **data: Any) -> None:
        self._keep(lambda: self._home.note(kind, **data))

    def _save(self) -> None:
        self._keep(lambda: self._home.save(self._state))

    def _link(self, name: str, build: str) -> None:
        self._keep(lambda: self._home.link(name, build))

    def _keep(self, write: Callable[[], None]) -> None:
        """Write to the home. A full disk must not end what still runs: the reserve is given up for it first."""
        try:
            write()
        except OSError:
            self._home.give_up_reserve()
            try:
                write()
            except OSError as error:
                say(f"{self._home.path} cannot be written to: {error.strerror}.")
