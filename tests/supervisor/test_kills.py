"""Whatever is killed at whichever step of a deployment, of a good or a bad release: in the end the right one
serves, and owners hear of it once."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from gofer.releases.lifecycle import deploy
from supervisor.releases import Supervised, eventually

pytestmark = pytest.mark.waits

STEPS = ("stop", "backup", "migrate", "prove", "ready", "revert", "restore")
"""`ready` is the part of `prove` in which the new release serves; `revert` comes when it is taken back, `restore` when
its migration failed."""
VICTIMS = ("supervisor", "release", "tree")
FAULTS = ("", "start", "later", "migration", "silent", "unfit", "memory", "tampered")
CASES = [
    (fault, step, victim)
    for fault, step, victim in sorted(itertools.product(FAULTS, STEPS, VICTIMS))
    # A release that was tampered with gets no further than the first step, and only a migration is undone.
    if (fault != "tampered" or step == "stop") and (fault == "migration" or step != "restore")
]
SEED = 25
IN_EVERY_RUN = 6


def at_step(gofer: Supervised, build: str, step: str) -> bool:
    """Whether the deployment is at a step now; true also when it is over, since some steps never come."""
    trial = gofer.trial()
    if trial is None or trial["build"] != build:
        return gofer.home.asked() is None
    return trial["step"] == step or (step == "ready" and trial["step"] == "prove" and "ready" in trial)


def strike(gofer: Supervised, victim: str) -> None:
    """Kill the supervisor, what it runs, or everything; start the supervisor again if it is gone."""
    pids = [pid for pid, _ in gofer.home.load().processes.values()]
    assert gofer.process is not None
    if victim != "release":
        gofer.kill()
    if victim != "supervisor":
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    if victim != "release":
        start(gofer)


def start(gofer: Supervised) -> None:
    limits = {"ready_within": 4, "max_memory": 200_000_000, "probation": 1}
    gofer.start(gofer.home.release("one"), **limits)  # type: ignore[arg-type]


def tamper(gofer: Supervised, build: str) -> None:
    """Flip a bit of a release that was staged."""
    place = Path(gofer.home.release(build).path[0], "gofer", "__main__.py")
    content = place.read_bytes()
    place.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])


def notices(gofer: Supervised, build: str) -> set[tuple[str, str]]:
    """What owners are told of a release: events of one deployment are recorded once."""
    found = gofer.events("revision.promoted", "revision.rolled_back")
    return {(one["kind"], one.get("deployment", "")) for one in found if one["build"] == build}


def deploy_and_strike(gofer: Supervised, number: int, fault: str, step: str, victim: str) -> None:
    before = gofer.home.linked("good")
    build = gofer.stage(number, "" if fault == "tampered" else fault)
    if fault == "tampered":
        tamper(gofer, build)
    deploy(gofer.home, build, by="ada")
    eventually(lambda: at_step(gofer, build, step))
    time.sleep(0 if step == "revert" else random.Random(number).uniform(0, 0.1))
    strike(gofer, victim)
    eventually(lambda: gofer.home.asked() is None and gofer.trial() is None, 60)
    current = gofer.home.linked("current")
    eventually(lambda: gofer.serves(current))
    told = f"{fault or 'good'} at {step}, {victim} killed: {json.dumps(gofer.events()[-8:])}"
    assert current == gofer.home.linked("good"), told
    assert current in ((before, build) if fault == "" else (before,)), told
    if victim != "release" and fault == "":
        assert current == build, told
    assert len(notices(gofer, build)) == 1, told
    assert (current == build) != bool(gofer.home.manifest(build).get("taken_back")), told


def campaign(gofer: Supervised, cases: list[tuple[str, str, str]]) -> None:
    gofer.add("one")
    start(gofer)
    eventually(lambda: gofer.proved("one"))
    for number, case in enumerate(cases):
        deploy_and_strike(gofer, number, *case)


def test_some_kills_at_some_steps(gofer: Supervised) -> None:
    campaign(gofer, random.Random(SEED).sample(CASES, IN_EVERY_RUN))


@pytest.mark.chaos
@pytest.mark.parametrize("fault", FAULTS)
def test_every_kill_at_every_step(gofer: Supervised, fault: str) -> None:
    campaign(gofer, [case for case in CASES if case[0] == fault])
