"""A release is deployed or taken back as one transaction: whatever it does, and whenever the supervisor is killed, what
worked before serves in the end, or what works now."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gofer.releases.lifecycle import deploy
from gofer_sandbox.bubblewrap import binary
from gofer_supervisor.home import list_files, write_json
from gofer_supervisor.supervisor import CONFIGURATION
from supervisor.releases import Supervised, eventually
from support.releases import plant_compiled

pytestmark = pytest.mark.waits


def running(gofer: Supervised, **config: Any) -> None:
    """The release `one`, proved."""
    gofer.start(gofer.add("one"), **config)
    eventually(lambda: gofer.proved("one"))


def test_a_good_release_takes_over_and_becomes_the_good_one(gofer: Supervised) -> None:
    running(gofer)
    gofer.add("two")
    gofer.ask(do="deploy", build="two", by="ada")
    eventually(lambda: gofer.proved("two"))
    assert gofer.serves("two")
    # The store is copied by the release that knows it and migrated by the new one, while neither serves.
    assert gofer.did == ["one serve", "one stopped", "one backup", "two migrate", "two serve"]
    eventually(lambda: gofer.events("revision.promoted")[-1]["previous"] == "one")


ONCE_MORE = ("configuration", "later", "memory", "unready")


@pytest.mark.parametrize(
    "fault", ["start", "silent", "unfit", *(pytest.param(each, marks=pytest.mark.slow) for each in ONCE_MORE)]
)
def test_a_release_that_does_not_work_is_taken_back(gofer: Supervised, fault: str) -> None:
    running(gofer)
    gofer.add("two", fault)
    gofer.stop()
    limits: dict[str, Any] = {"trial_ready_within": 1 if fault == "silent" else 60, "max_memory": 200_000_000}
    limits["unready_within"] = 0.5
    gofer.start(gofer.home.release("one"), probation=60, **limits)
    eventually(lambda: gofer.serves("one"))
    gofer.ask(do="deploy", build="two", by="ada")
    eventually(lambda: bool(gofer.events("revision.rolled_back")) and gofer.serves("one"))
    assert gofer.home.linked("current") == gofer.home.linked("good") == "one"
    (told,) = gofer.events("revision.rolled_back")
    kept = gofer.home.manifest("two")["taken_back"]
    assert (kept["to"], kept["reason"], kept["asked"]) == ("one", told["reason"], False)
    assert "one restore" not in gofer.did  # it may have served: what was answered since is not forgotten


def test_a_release_that_dies_of_the_first_message_is_taken_back(gofer: Supervised) -> None:
    running(gofer)
    gofer.stop()
    gofer.add("two", "request")
    gofer.start(gofer.home.release("one"), probation=60)
    gofer.ask(do="deploy", build="two", by="ada")
    eventually(lambda: gofer.serves("two"))
    for _ in range(3):
        with pytest.raises(OSError, match=r".*"):
            gofer.get("/message")
    eventually(lambda: gofer.serves("one"))
    assert gofer.get("/message") == (200, "one")


def _flip_bit(place: Path) -> None:
    content = place.read_bytes()
    place.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])


TAMPERED: dict[str, Callable[[Path, Path], object]] = {
    "its code": lambda lib, packages: _flip_bit(lib / "gofer/__main__.py"),
    "what Python compiled of it": lambda lib, packages: plant_compiled(
        lib / "gofer/__main__.py", "raise SystemExit('planted')"
    ),
    "a package": lambda lib, packages: _flip_bit(packages / "lib/needed.py"),
    "what Python compiled of a package": lambda lib, packages: plant_compiled(
        packages / "lib/needed.py", "raise SystemExit('planted')"
    ),
    "a file that is a pipe": lambda lib, packages: os.mkfifo(lib / "gofer/pipe.py"),
    "its interpreter": lambda lib, packages: _replace(packages / "bin/python", lib / "gofer/__main__.py"),
    "the list of its packages": lambda lib, packages: _flip_bit(packages.with_name(f"{packages.name}.json")),
}


def _replace(link: Path, target: Path) -> None:
    link.unlink()
    link.symlink_to(target)
    target.chmod(0o755)


def _give_packages(gofer: Supervised, build: str) -> Path:
    """Have a release use packages of its own, as one with other requirements does; returns where they are."""
    place = Path(gofer.home.path, "deps", "packages-1")
    (place / "bin").mkdir(parents=True)
    (place / "lib").mkdir()
    (place / "bin/python").symlink_to(sys.executable)
    (place / "lib/needed.py").write_text("NEEDED = True\n")
    facts = {"python": str(place / "bin/python"), "packages": list_files(str(place))}
    write_json(f"{gofer.home.path}/releases/{build}/manifest.json", {**gofer.home.manifest(build), **facts})
    return place


@pytest.mark.parametrize("what", TAMPERED)
def test_what_was_changed_since_a_release_was_staged_never_runs(gofer: Supervised, what: str) -> None:
    running(gofer)
    build = gofer.stage(1)
    lib, packages = Path(gofer.home.release(build).path[0]), _give_packages(gofer, build)
    TAMPERED[what](lib, packages)
    deploy(gofer.home, build, by="ada")
    eventually(lambda: gofer.home.asked() is None)
    (told,) = gofer.events("revision.rolled_back")
    assert (told["build"], told["to"]) == (build, "one")
    assert "is not what the release was staged with" in told["reason"]
    assert gofer.did == ["one serve"], "the release that runs goes on, and nothing of the other was run"
    assert gofer.serves("one")


def test_a_release_with_packages_of_its_own_runs_when_nothing_was_changed(gofer: Supervised) -> None:
    running(gofer)
    build = gofer.stage(1)
    _give_packages(gofer, build)
    deploy(gofer.home, build, by="ada")
    eventually(lambda: gofer.proved(build))
    assert gofer.home.changed_file(build) == "", "a release that runs changes nothing of itself"


def test_a_supervisor_that_is_killed_while_it_reads_a_release_reads_it_again(gofer: Supervised) -> None:
    running(gofer)
    build = gofer.stage(1)
    large = Path(gofer.home.release(build).path[0], "large.py")
    large.touch()
    os.truncate(large, 1 << 40)  # takes no room, and hours to read
    deploy(gofer.home, build, by="ada")
    eventually(lambda: len(gofer.home.load().processes) == 2)
    assert gofer.serves("one")
    gofer.kill()
    large.unlink()
    gofer.start(gofer.home.release("one"))
    eventually(lambda: gofer.proved(build))


def test_a_migration_that_fails_is_undone_and_the_old_release_serves(gofer: Supervised) -> None:
    running(gofer)
    gofer.add("two", "migration")
    gofer.ask(do="deploy", build="two", by="ada")
    eventually(lambda: bool(gofer.events("revision.rolled_back")) and gofer.serves("one"))
    assert gofer.did[2:] == ["one backup", "two migrate", "one restore", "one serve"]


def test_where_releases_can_work_side_by_side_nothing_stops(gofer: Supervised) -> None:
    gofer.start(gofer.add("one"), processes={"web": 2}, rolling=True)
    eventually(lambda: gofer.proved("one"))
    gofer.add("two")
    gofer.ask(do="deploy", build="two", by="ada")
    answers = set()
    while gofer.home.linked("good") != "two":
        answers.add(gofer.get())
    assert answers <= {(200, "one"), (200, "two")}
    assert gofer.did.count("two migrate") == 1
    ended = [event for event in gofer.events("worker.exited") if event["build"] == "one"]
    assert [event["asked"] for event in ended] == [True, True]


def test_a_release_that_fails_side_by_side_never_takes_over(gofer: Supervised) -> None:
    gofer.start(gofer.add("one"), processes={"web": 2}, rolling=True)
    eventually(lambda: gofer.proved("one"))
    gofer.add("two", "start")
    gofer.ask(do="deploy", build="two", by="ada")
    while not gofer.events("revision.rolled_back"):
        assert gofer.get() == (200, "one")
    assert gofer.did.count("one serve") + gofer.did.count("one web") == 2  # neither was ever stopped


YOUNGEST_FIRST = """
import os
reap, ended = os.waitpid, []
def waitpid(pid, options):
    try:
        while (one := reap(pid, options))[0]:
            ended.append(one)
    except ChildProcessError:
        pass
    return ended.pop() if ended else (0, 0)
os.waitpid = waitpid
"""
"""The kernel promises no order; this one has the supervisor hear of the new release's end first."""


def test_when_both_releases_end_at_once_the_one_before_runs_again(gofer: Supervised, tmp_path: Path) -> None:
    gofer.start(gofer.add("one"), processes={"web": 2}, rolling=True, first=YOUNGEST_FIRST)
    eventually(lambda: gofer.proved("one"))
    gofer.add("two", f"waits {tmp_path / 'never'}")
    gofer.ask(do="deploy", build="two", by="ada")
    eventually(lambda: "two web" in gofer.did)
    assert gofer.process is not None
    gofer.process.send_signal(signal.SIGSTOP)  # so that it learns of everything in one look
    for pid, _ in gofer.home.load().processes.values():
        os.kill(pid, signal.SIGKILL)
    gofer.process.send_signal(signal.SIGCONT)
    eventually(lambda: bool(gofer.events("revision.rolled_back")) and gofer.serves("one"), 60)
    assert gofer.home.linked("current") == gofer.home.linked("good") == "one"
    assert gofer.trial() is None


def test_a_person_can_go_back_to_the_release_before(gofer: Supervised) -> None:
    running(gofer)
    gofer.add("two")
    gofer.ask(do="deploy", build="two", by="ada")
    eventually(lambda: gofer.proved("two"))
    gofer.ask(do="rollback", by="ada")
    eventually(lambda: bool(gofer.events("revision.rolled_back")))
    assert gofer.get() == (200, "one"), "what is said is so"
    assert gofer.home.linked("good") == gofer.home.linked("current") == "one"
    (told,) = gofer.events("revision.rolled_back")
    assert told["reason"] == "ada asked for it."
    assert gofer.home.manifest("two")["taken_back"]["asked"] is True


def test_a_release_is_taken_back_when_the_one_before_serves_and_not_earlier(gofer: Supervised) -> None:
    """What should run, what runs, what is said: in this order, also when the release before takes long to start."""
    running(gofer)
    gofer.add("two", "unfit")
    gate = Path(gofer.home.path, "gate")
    gofer.rewrite("one", f"waits {gate}")
    gofer.ask(do="deploy", build="two", by="ada")
    eventually(lambda: gofer.did.count("one serve") == 2)
    assert gofer.home.linked("current") == "one"
    assert (gofer.trial() or {})["step"] == "revert"
    assert gofer.events("revision.rolled_back") == []
    assert "taken_back" not in gofer.home.manifest("two")
    gofer.kill()  # and the next one goes on
    gofer.start(gofer.home.release("one"))
    eventually(lambda: gofer.did.count("one serve") == 3)
    assert gofer.events("revision.rolled_back") == []
    gate.touch()
    eventually(lambda: gofer.trial() is None)
    (told,) = gofer.events("revision.rolled_back")
    assert (told["build"], told["to"]) == ("two", "one")
    assert gofer.get() == (200, "one")


def test_when_the_release_before_does_not_run_either_this_is_said_and_another_can_be_deployed(
    gofer: Supervised,
) -> None:
    running(gofer)
    gofer.add("two", "unfit")
    gofer.rewrite("one", "start")
    gofer.ask(do="deploy", build="two", by="ada")
    eventually(lambda: bool(gofer.events("worker.crash_loop")))
    (told,) = gofer.events("revision.rolled_back")
    assert "5 of 6 attempts failed" in told["reason"]
    assert "The process serve ended by itself (exit code 1)" in told["reason"]
    assert gofer.get()[0] == 503
    assert gofer.home.supervised()
    gofer.add("three")
    gofer.ask(do="deploy", build="three", by="ada")
    eventually(lambda: gofer.proved("three") and gofer.serves("three"))
    assert len(gofer.events("revision.rolled_back")) == 1


def test_a_release_that_fails_with_none_before_it_goes_on_and_is_not_called_good(gofer: Supervised) -> None:
    gofer.start(gofer.add("one", "unfit"), probation=60)
    eventually(lambda: bool(gofer.events("revision.rolled_back")))
    (told,) = gofer.events("revision.rolled_back")
    assert told["build"] == told["to"] == "one"
    assert gofer.get() == (200, "one")
    assert gofer.home.linked("good") == ""
    assert "taken_back" not in gofer.home.manifest("one")
    assert "5 of 6 attempts failed" in (gofer.trial() or {})["unfit"]
    gofer.kill()
    gofer.start(gofer.home.release("one"), probation=60)
    eventually(lambda: gofer.did.count("one serve") == 2 and gofer.serves("one"))
    assert "5 of 6 attempts failed" in (gofer.trial() or {})["unfit"], "it is not forgotten"


def test_a_release_with_none_before_it_can_prove_itself_after_another_start(gofer: Supervised) -> None:
    gofer.start(gofer.add("one", "unfit"))
    eventually(lambda: bool(gofer.events("revision.rolled_back")))
    gofer.rewrite("one", "")
    gofer.end_process()
    eventually(lambda: gofer.proved("one"))
    assert len(gofer.events("revision.rolled_back")) == len(gofer.events("revision.promoted")) == 1


def test_what_is_not_here_is_not_deployed(gofer: Supervised) -> None:
    running(gofer)
    for build in ("three", "../one", "", "one"):
        gofer.ask(do="deploy", build=build, by="ada")
        eventually(lambda: gofer.home.asked() is None)
    assert gofer.trial() is None
    assert gofer.serves("one")
    assert gofer.did == ["one serve"]


def test_a_newly_installed_release_runs_on_probation(gofer: Supervised) -> None:
    running(gofer)
    gofer.stop()
    gofer.start(gofer.add("two"))
    eventually(lambda: gofer.proved("two") and gofer.serves("two"))


@pytest.mark.parametrize(
    "step",
    [
        "migrate",
        "restore",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("stop", "backup", "prove")),
    ],
)
def test_a_supervisor_killed_at_any_step_ends_with_a_release_that_works(gofer: Supervised, step: str) -> None:
    running(gofer)
    good = step != "restore"
    gofer.add("two", "" if good else "migration")
    gofer.kill()
    state = gofer.home.load()
    state.trial = {"build": "two", "previous": "one", "by": "ada", "at": 0.0, "step": step}
    gofer.home.save(state)
    gofer.start(gofer.home.release("one"))
    if good:
        eventually(lambda: gofer.proved("two") and gofer.serves("two"))
    else:
        eventually(lambda: bool(gofer.events("revision.rolled_back")) and gofer.serves("one"))
    assert gofer.trial() is None


@pytest.mark.slow
def test_random_kills_during_deployments_leave_one_release_serving(gofer: Supervised) -> None:
    running(gofer)
    for number, fault in enumerate(["", "start", "", "migration", ""]):
        build = f"try-{number}"
        gofer.add(build, fault)
        gofer.ask(do="deploy", build=build, by="ada")
        for _ in range(3):
            eventually(lambda: gofer.trial() is not None or gofer.home.asked() is None)
            gofer.kill()
            gofer.start(gofer.home.release("one"))
        eventually(lambda: gofer.home.asked() is None and gofer.trial() is None)
        eventually(lambda: gofer.serves(gofer.home.linked("current")))
        assert gofer.home.linked("current") == gofer.home.linked("good")
    assert gofer.home.linked("good") == "try-4"


@pytest.mark.parametrize(
    "damaged",
    [
        '{"installed": 3, "trial": [',
        '{"installed": "one", "trial": {"build": "one"}, "processes": {}, "exits": []}',
        '{"installed": "one", "trial": {"build": "../x", "previous": "", "step": "prove"}, "processes": {}}',
    ],
)
def test_a_damaged_state_keeps_nobody_offline(gofer: Supervised, damaged: str) -> None:
    running(gofer)
    gofer.kill()
    Path(gofer.home.path, "supervisor.json").write_text(damaged)
    Path(gofer.home.path, "request.json").write_text('{"do": "dep')
    gofer.start(gofer.home.release("one"))
    eventually(lambda: gofer.serves("one"))
    gofer.add("two")
    gofer.ask(do="deploy", build="two")
    eventually(lambda: gofer.proved("two"))


def test_the_installed_release_is_started_again_also_when_its_manifest_is_damaged(gofer: Supervised) -> None:
    running(gofer)
    gofer.damage("one")
    gofer.end_process()
    assert gofer.get() == (200, "one")


def test_a_rollback_without_a_release_to_go_back_to_ends_nothing(gofer: Supervised) -> None:
    running(gofer)
    gofer.kill()
    with open(f"{gofer.home.path}/supervisor.json", "w") as file:
        file.write("{")
    Path(gofer.home.path, "good").unlink()
    gofer.start(gofer.home.release("one"))
    eventually(lambda: gofer.serves("one"))
    gofer.ask(do="rollback", by="ada")
    eventually(lambda: gofer.home.asked() is None)
    assert gofer.serves("one")
    assert gofer.process is not None
    assert gofer.process.poll() is None


def test_a_release_is_good_only_when_a_conversation_with_it_went_well(gofer: Supervised) -> None:
    running(gofer, ready_within=3)
    gofer.add("two", canary=True)
    gofer.ask(do="deploy", build="two", by="ada")
    eventually(lambda: gofer.proved("two"))
    gofer.add("three", "mute", canary=True)
    gofer.ask(do="deploy", build="three", by="ada")
    eventually(lambda: bool(gofer.events("revision.rolled_back")) and gofer.serves("two"))
    assert gofer.home.linked("good") == "two"
    assert "No conversation" in gofer.events("revision.rolled_back")[-1]["reason"]


def test_what_the_release_said_is_the_reason_why_it_was_taken_back(gofer: Supervised) -> None:
    running(gofer)
    gofer.add("two", "unfit")
    gofer.ask(do="deploy", build="two", by="ada")
    eventually(lambda: bool(gofer.events("revision.rolled_back")) and gofer.serves("one"))
    assert "5 of 6 attempts failed" in gofer.events("revision.rolled_back")[-1]["reason"]


def test_a_current_release_with_a_damaged_manifest_gives_way_to_the_good_one(gofer: Supervised) -> None:
    running(gofer)
    gofer.stop()
    gofer.add("two")
    gofer.start(gofer.home.release("one"), probation=60)
    gofer.ask(do="deploy", build="two", by="ada")
    eventually(lambda: gofer.serves("two"))
    gofer.damage("two")
    gofer.end_process()
    eventually(lambda: gofer.serves("one") and gofer.trial() is None)
    assert gofer.home.linked("current") == "one"
    assert len(gofer.events("revision.rolled_back")) == 1
    assert gofer.process is not None
    assert gofer.process.poll() is None


def test_without_a_good_release_that_can_run_the_installed_one_does(gofer: Supervised) -> None:
    running(gofer)
    gofer.add("two")
    gofer.ask(do="deploy", build="two", by="ada")
    eventually(lambda: gofer.proved("two"))
    gofer.damage("two")  # which is current and good
    gofer.end_process()
    eventually(lambda: gofer.serves("one"))


def test_a_supervisor_that_starts_with_a_damaged_current_release_runs_the_good_one(gofer: Supervised) -> None:
    running(gofer)
    for build in ("two", "three"):
        gofer.add(build)
        gofer.ask(do="deploy", build=build, by="ada")
        eventually(lambda build=build: gofer.proved(build))  # type: ignore[misc]
    gofer.kill()
    gofer.home.link("good", "two")
    gofer.damage("three")
    gofer.start(gofer.home.release("one"))
    eventually(lambda: gofer.serves("two"))


def test_a_manifest_that_is_damaged_while_it_is_deployed_ends_nothing(gofer: Supervised) -> None:
    running(gofer)
    gofer.add("two")
    gofer.kill()
    state = gofer.home.load()
    state.trial = {"build": "two", "previous": "one", "by": "ada", "at": 0.0, "step": "migrate"}
    gofer.home.save(state)
    gofer.damage("two")
    gofer.start(gofer.home.release("one"))
    eventually(lambda: gofer.serves("one") and gofer.trial() is None)


def test_of_two_updates_at_once_one_is_refused_or_waits(gofer: Supervised) -> None:
    running(gofer)
    for build in ("two", "three"):
        gofer.add(build)
    gofer.ask(do="deploy", build="two", by="ada")
    with pytest.raises(FileExistsError):
        gofer.ask(do="deploy", build="three", by="bob")
    eventually(lambda: gofer.home.asked() is None)
    gofer.ask(do="deploy", build="three", by="bob")  # while the first one is under way
    eventually(lambda: gofer.proved("three") and gofer.serves("three"))
    assert gofer.did.count("three migrate") == gofer.did.count("two migrate") == 1


def test_what_replaces_a_release_on_probation_and_fails_gives_way_to_the_good_one(gofer: Supervised) -> None:
    running(gofer)
    gofer.stop()
    gofer.add("two")
    gofer.add("three", "start")
    gofer.start(gofer.home.release("one"), probation=60)
    gofer.ask(do="deploy", build="two", by="ada")
    eventually(lambda: gofer.serves("two"))
    gofer.ask(do="deploy", build="three", by="ada")
    eventually(lambda: bool(gofer.events("revision.rolled_back")) and gofer.serves("one"))


def test_a_release_can_be_deployed_while_the_very_first_is_on_probation(gofer: Supervised) -> None:
    gofer.start(gofer.add("one"), probation=3)
    eventually(lambda: gofer.serves("one"))
    gofer.add("two")
    gofer.ask(do="deploy", build="two", by="ada")
    eventually(lambda: gofer.proved("two") and gofer.serves("two"))
    assert gofer.events("revision.promoted")[-1]["previous"] == "one"


def test_a_second_supervisor_of_the_same_home_ends_and_disturbs_nobody(gofer: Supervised) -> None:
    running(gofer)
    first = gofer.process
    before = gofer.events("worker.spawned")
    gofer.start(gofer.home.release("one"))
    second, gofer.process = gofer.process, first
    assert second is not None
    assert second.wait(60) == CONFIGURATION
    assert gofer.serves("one")
    assert gofer.events("worker.spawned") == before


JUMPS = """
import pathlib, time
real, real_ns, place = time.time, time.time_ns, pathlib.Path({place!r})
time.time = lambda: real() + float(place.read_text())
time.time_ns = lambda: real_ns() + int(float(place.read_text()) * 1e9)
"""


@pytest.mark.parametrize("seconds", [-86400 * 365, 86400 * 365])
def test_a_clock_that_jumps_changes_nothing(gofer: Supervised, tmp_path: Path, seconds: int) -> None:
    clock = tmp_path / "clock"
    clock.write_text("0")
    gofer.start(gofer.add("one"), first=JUMPS.format(place=str(clock)), probation=2)
    eventually(lambda: gofer.proved("one"))
    gofer.add("two")
    gofer.ask(do="deploy", build="two", by="ada")
    eventually(lambda: gofer.serves("two"))
    clock.write_text(str(seconds))
    assert gofer.home.linked("good") == "one", "probation is not over by that"
    seen = [event["kind"] for event in gofer.events()]
    for place in Path(gofer.home.path, "events").glob("*.json"):
        place.unlink()  # the release has taken them into the log
    last = int(json.loads(Path(gofer.home.path, "last_event.json").read_text())["number"])
    eventually(lambda: gofer.proved("two"))
    clock.write_text("0")
    gofer.end_process()
    eventually(lambda: bool(gofer.events("worker.exited")) and gofer.serves("two"))
    assert "revision.promoted" not in seen[2:] or seen.count("revision.promoted") == 1
    numbers = sorted(int(place.stem) for place in Path(gofer.home.path, "events").glob("*.json"))
    assert min(numbers) > last, "an event with an older number would be taken for one that is in the log"
    assert [event["kind"] for event in gofer.events("revision.promoted")] == ["revision.promoted"]


def test_crash_loops_are_seen_also_when_the_clock_is_set_back_each_time(
    gofer: Supervised, tmp_path: Path
) -> None:
    back = "import time; at = iter(range(10**9, 0, -1000)); time.time = lambda: float(next(at))"
    gofer.start(gofer.add("one", "start"), first=back)
    eventually(lambda: bool(gofer.events("worker.crash_loop")))
    assert len(gofer.events("worker.spawned")) == 3


def small_disk(place: Path) -> list[str]:
    """A command line that runs something with a disk of four megabytes in a place."""
    bwrap = [str(binary.find()), "--dev-bind", "/", "/", "--die-with-parent"]
    return [*bwrap, "--size", str(4 << 20), "--tmpfs", str(place)]


def test_a_release_that_fills_the_disk_is_taken_back(gofer: Supervised, tmp_path: Path) -> None:
    home = Path(gofer.home.path)
    one, two = gofer.add("one"), gofer.add("two", f"disk {home}/full")
    kept = tmp_path / "kept"
    home.rename(kept)  # the disk is empty: fill it with what is there, inside
    home.mkdir()
    inside = [*small_disk(home), "sh", "-c", f'cp -r {kept}/. {home}/; exec "$@"', "sh"]
    gofer.start(one, inside=inside, probation=60)
    assert gofer.process is not None
    eventually(lambda: gofer.serves("one"))
    seen = Supervised(tmp_path)
    (pid,) = Path(f"/proc/{gofer.process.pid}/task/{gofer.process.pid}/children").read_text().split()
    seen.home.__init__(f"/proc/{pid}/root{home}")  # type: ignore[misc]
    seen.ask(do="deploy", build=two.build, by="ada")
    eventually(lambda: bool(seen.events("revision.rolled_back")))
    eventually(lambda: gofer.serves("one"))
    assert Path(f"/proc/{pid}/root{home}/full").stat().st_size > 1 << 20
    assert seen.home.linked("current") == "one"
    os.kill(int(pid), signal.SIGTERM)
    gofer.process.wait(60)
