"""A release is deployed or taken back as one transaction: whatever it does, and whenever the supervisor is killed, what
worked before serves in the end, or what works now."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.releases import Supervised, eventually


def running(gofer: Supervised, **config: object) -> None:
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


@pytest.mark.parametrize("fault", ["start", "configuration", "silent", "later"])
def test_a_release_that_does_not_work_is_taken_back(gofer: Supervised, fault: str) -> None:
    running(gofer)
    gofer.add("two", fault)
    gofer.stop()
    gofer.start(gofer.home.release("one"), ready_within=1 if fault == "silent" else 60, probation=60)
    eventually(lambda: gofer.serves("one"))
    gofer.ask(do="deploy", build="two", by="ada")
    eventually(lambda: bool(gofer.events("revision.rolled_back")) and gofer.serves("one"))
    assert gofer.home.linked("current") == gofer.home.linked("good") == "one"
    assert len(gofer.events("revision.rolled_back")) == 1
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


def test_a_person_can_go_back_to_the_release_before(gofer: Supervised) -> None:
    running(gofer)
    gofer.add("two")
    gofer.ask(do="deploy", build="two", by="ada")
    eventually(lambda: gofer.proved("two"))
    gofer.ask(do="rollback", by="ada")
    eventually(lambda: gofer.serves("one"))
    assert gofer.home.linked("good") == gofer.home.linked("current") == "one"
    assert gofer.events("revision.rolled_back")[-1]["reason"] == "ada asked for it."


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


@pytest.mark.parametrize("step", ["stop", "backup", "migrate", "prove", "restore"])
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


def test_a_damaged_state_keeps_nobody_offline(gofer: Supervised) -> None:
    running(gofer)
    gofer.kill()
    with open(f"{gofer.home.path}/supervisor.json", "w") as file:
        file.write('{"installed": 3, "trial": [')
    gofer.start(gofer.home.release("one"))
    eventually(lambda: gofer.serves("one"))


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
