"""What people do with staged releases, and how each of them stands: approved, declined, deployed, taken back, dropped.

Everything is in the home, so that it can be done and seen while no release runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gofer.errors import Conflict, NotFound
from gofer.releases.keys import trusted_keys
from gofer.releases.wheel import ReleaseRefused
from gofer.settings import Settings
from gofer_supervisor.home import CURRENT, GOOD, MANIFEST, Home, HomeError, write_json
from gofer_supervisor.process import start_time

MAX_RELEASES = 3
"""Releases that are kept; those that are current or good are kept beside them."""
COMMANDS = "commands"
"""The directory of a home in which commands wait until the running release takes them into the audit log."""
BUSY = "Another deployment is under way: gofer update list"


def open_home(settings: Settings) -> Home:
    """The home of the supervisor; there may be none yet."""
    return Home(str(settings.home_path.absolute()))


def home_id(home: Home) -> str:
    """The id of a home among those of other machines with the same store."""
    place = Path(home.path, "id")
    with contextlib.suppress(FileNotFoundError):
        return place.read_text()
    name = os.urandom(8).hex()
    beside = Path(home.path, f".id-{name}.new")  # a name of its own: two threads may be here at once
    beside.write_text(name)
    with contextlib.suppress(FileExistsError):
        os.link(beside, place)  # of two that make it at once, one does
    beside.unlink()
    return place.read_text()


def manifest_in(home: Home, build: str) -> dict[str, Any]:
    """All that is known of a release; raises NotFound."""
    try:
        return home.manifest(build)
    except HomeError as error:
        raise NotFound(f"{error} `gofer update list` shows those there are.") from error


def approve(home: Home, build: str, *, by: str) -> None:
    """Let a release be deployed."""
    manifest = manifest_in(home, build)
    if not manifest.get("approved_by"):
        _amend(home, build, manifest, approved_by=by)


def decline(home: Home, build: str, *, by: str) -> None:
    """Keep a release from being deployed. Somebody at the command line may still approve it."""
    manifest = manifest_in(home, build)
    if not manifest.get("approved_by") and not manifest.get("declined_by"):
        _amend(home, build, manifest, declined_by=by)


def _amend(home: Home, build: str, manifest: Mapping[str, Any], **facts: Any) -> None:
    write_json(f"{home.path}/releases/{build}/{MANIFEST}", {**manifest, **facts})


def waiting_releases(home: Home) -> dict[str, dict[str, Any]]:
    """The manifests of staged releases that nobody has approved or declined."""
    return {
        build: manifest
        for build, manifest in home.manifests().items()
        if manifest.get("source") != "installed"
        and not manifest.get("approved_by")
        and not manifest.get("declined_by")
    }


def deploy(home: Home, build: str, *, by: str) -> None:
    """Ask the supervisor to deploy a release that was approved; raises Conflict when it cannot be now, and
    ReleaseRefused when it can never be."""
    manifest = manifest_in(home, build)
    if not manifest.get("approved_by"):
        raise Conflict(f"Release {build} is not approved yet: gofer update approve {build}")
    if build == home.linked(CURRENT):
        raise Conflict(f"Release {build} runs already.")
    if why := untrusted(home, manifest):
        raise ReleaseRefused(f"Release {build} is not deployed. {why}")
    _ask(home, {"do": "deploy", "build": build, "by": by})


def untrusted(home: Home, manifest: Mapping[str, Any]) -> str:
    """Why the signature of a staged release counts no more; empty while it does, or where there is none."""
    key = str(manifest.get("signed_by") or "")
    if not key or key in trusted_keys(home):
        return ""
    return f"It is signed with the key {key}, which is not trusted any more."


def roll_back(home: Home, *, by: str) -> str:
    """Ask the supervisor to go back to the release before the current one, which is returned; raises Conflict, or
    NotFound when there is none."""
    current, trial = home.linked(CURRENT), home.load().trial or {}
    known = trial.get("previous") or home.manifests().get(current, {}).get("previous")
    before = str(known or home.linked(GOOD))
    if not before or before == current:
        raise NotFound("There is no release before this one to go back to: gofer update list")
    _ask(home, {"do": "rollback", "by": by})
    return before


def _ask(home: Home, request: dict[str, Any]) -> None:
    if home.asked() is not None or (home.load().trial or {}).get("step", "prove") != "prove":
        raise Conflict(BUSY)
    try:
        home.ask(request)
    except FileExistsError as error:
        raise Conflict(BUSY) from error


def drop(home: Home, build: str) -> None:
    """Remove a staged release; raises Conflict for one that runs, may come back or is wanted."""
    if manifest_in(home, build).get("source") == "installed":
        raise Conflict(f"Release {build} is the installed one. Install another one in its place.")
    if build in in_use(home) or (home.asked() or {}).get("build") == build:
        raise Conflict(f"Release {build} runs, is being deployed, or is the one to go back to.")
    _remove(home, build)


def in_use(home: Home) -> set[str]:
    """The releases that run, ran well, are on probation, or come back if one on probation fails."""
    trial = home.load().trial or {}
    return {home.linked(CURRENT), home.linked(GOOD), trial.get("build", ""), trial.get("previous", "")}


# How releases stand


def release_states(home: Home) -> dict[str, str]:
    """How each release stands, in words."""
    trial = home.load().trial or {}
    return {build: _state(home, build, manifest, trial) for build, manifest in home.manifests().items()}


def _state(home: Home, build: str, manifest: Mapping[str, Any], trial: Mapping[str, Any]) -> str:
    reverting = trial.get("step") == "revert"
    if build == trial.get("build"):
        deploying = "being taken back" if reverting else f"being deployed ({trial['step']})"
        proving = "runs, does not work as it should" if trial.get("unfit") else "runs, on probation"
        return proving if trial["step"] == "prove" else deploying
    if build == home.linked(CURRENT):
        return "is started again" if reverting else "runs"
    if build == home.linked(GOOD):
        return "comes back if the new one fails"
    if manifest.get("taken_back"):
        return "taken back"
    if "proved_at" in manifest or manifest.get("previous"):
        return "ran before"
    if manifest.get("source") == "installed":
        return "was installed"
    if manifest.get("approved_by"):
        return "approved, not deployed"
    return "declined" if manifest.get("declined_by") else "waits for approval"


STEPS = {
    "stop": "the release before ends in good order",
    "backup": "the store is copied",
    "migrate": "the new release migrates the store",
    "restore": "the copy of the store is put back",
    "start": "the new release starts",
    "prove": "the new release is on probation",
    "revert": "the release before starts again",
}
"""What is done in each step of a deployment, in words."""
NEXT = {"stop": ("backup", "migrate", "start", "prove"), "backup": ("migrate", "start", "prove")}
NEXT |= {"migrate": ("start", "prove"), "start": ("prove",), "restore": ("revert",)}
"""What comes after a step, if all goes well. Without another version of the store nothing is copied or migrated."""


def under_way(home: Home) -> dict[str, Any] | None:
    """The deployment that is under way: its `build`, the one before (`previous`), the `step`, `since` when, what is
    done (`doing`), what comes `next`, and for a release on probation `until` when; None when there is none."""
    trial = home.load().trial
    if trial is None or trial.get("unfit"):
        return None
    step = "start" if trial["step"] == "prove" and not trial.get("ready") else str(trial["step"])
    return {
        "build": str(trial["build"]),
        "previous": str(trial["previous"]),
        "step": step,
        "since": float(trial.get("since") or trial["at"]),
        "doing": STEPS[step],
        "next": [STEPS[one] for one in NEXT.get(step, ())],
        "until": trial.get("until") if step == "prove" else None,
    }


def expected_server(home: Home) -> tuple[str, bool]:
    """Why a server can be expected here soon, although none answers, and whether an update is under way; empty when
    nothing is to be waited for: no supervisor runs, or it has found that nothing can."""
    if not home.supervised():
        return "", False
    state, deploying = home.load(), under_way(home)
    if deploying is not None and deploying["step"] != "prove":
        return f"Gofer is being updated: {deploying['doing']}.", True
    starting = any(start_time(pid) == begun for pid, begun in state.processes.values())
    return ("Gofer is being started." if starting or not state.outage else ""), False


def last_failure(home: Home) -> dict[str, Any] | None:
    """The release that was taken back last and why, unless a person wanted it, it is deployed once more or another one
    has proved itself since: its `build`, `to`, `reason` and `at`. One that does not work, and has none before it, goes
    on: `to` is itself."""
    trial = home.load().trial or {}
    if trial.get("unfit"):
        return {"build": trial["build"], "to": trial["build"], "reason": trial["unfit"], "at": trial["at"]}
    found = [
        {"build": build, **manifest["taken_back"]}
        for build, manifest in home.manifests().items()
        if manifest.get("taken_back") and build != trial.get("build")
    ]
    last = max(found, key=lambda one: float(one["at"]), default=None)
    proved = home.manifests().get(home.linked(GOOD), {}).get("proved_at", 0.0)
    return None if last is None or last.pop("asked") or float(proved) > float(last["at"]) else last


def record_command(home: Home, action: str, subject: str, *, by: str, **facts: Any) -> None:
    """Leave a command for the audit log, which the running release writes: it was given to the home and not to it."""
    directory = f"{home.path}/{COMMANDS}"
    os.makedirs(directory, mode=0o700, exist_ok=True)
    told = {"action": f"update.{action}", "subject": subject, "by": by, "at": time.time(), "data": facts}
    write_json(f"{directory}/{time.time_ns()}-{os.getpid()}.json", told)


def prune(home: Home, keep: int = MAX_RELEASES) -> list[str]:
    """Remove the oldest releases; never those that run, ran well or are on probation. Returns what went."""
    staged = [build for build, manifest in home.manifests().items() if manifest.get("source") != "installed"]
    needed = in_use(home)
    spare = [build for build in staged if build not in needed]
    gone = spare[: max(0, len(spare) - keep)]
    for build in gone:
        _remove(home, build)
    used = {Path(str(manifest.get("python"))).parent.parent for manifest in home.manifests().values()}
    for place in Path(home.path, "deps").glob("*/"):
        if place not in used:
            place.with_name(f"{place.name}.json").unlink(missing_ok=True)
            shutil.rmtree(place, ignore_errors=True)
    return gone


def _remove(home: Home, build: str) -> None:
    """Remove a release, and the copy of the store that was made before it migrated."""
    shutil.rmtree(Path(home.path, "releases", build), ignore_errors=True)
    for copy in (f"{build}.db", f"{build}.db.files.tgz"):
        Path(home.path, "backups", copy).unlink(missing_ok=True)
