"""Owners are asked about a release once, a yes hands it to the supervisor, and they are told once what came of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gofer.errors import Conflict, Forbidden
from gofer.jobs.control import answer, expire_questions, withdraw
from gofer.jobs.outcome import Dead, Done, Outcome, Snooze, Wait
from gofer.jobs.queue import SERVICE, Claim, stage
from gofer.jobs.worker import Run
from gofer.releases.approval import (
    APPROVE,
    DECLINE,
    KEEP,
    ROLL_BACK,
    ReleaseJobs,
    ask_about_waiting,
    decided_questions,
    tell_owners,
)
from gofer.releases.keys import trust_key, untrust_key
from gofer.releases.lifecycle import approve, decline, deploy, drop, home_id
from gofer.store import migrations
from gofer.store.tables import conversations, jobs, questions
from gofer_supervisor.home import Home, Release
from support.releases import write_key
from support.world import World


class NoAccounts:
    """No connection through which an owner could be reached: the dashboard and the command line are left."""

    async def all(self) -> list[object]:
        return []


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(str(tmp_path / "home"))
    made.prepare()
    key = trust_key(made, write_key(tmp_path / "release.pem").with_suffix(".pub"))
    release = Release(build="2.0-abc", version="2.0", python=sys.executable, revision="f00")
    facts = {"schema": "9", "approved_by": "", "previous": "1.0"}
    made.add(release, source="file", signed_by=key, checked="all is well", **facts)
    made.link("current", "1.0")
    return made


def wanted(home: Home) -> dict[str, str] | None:
    """What the supervisor was asked for; each request has an id of its own."""
    asked_for = home.asked()
    return asked_for and {name: value for name, value in asked_for.items() if name != "id"}


def handlers(world: World, home: Home) -> ReleaseJobs:
    return ReleaseJobs(world.database, world.vault, NoAccounts(), home)  # type: ignore[arg-type]


async def asked(world: World, home: Home) -> tuple[Claim, str]:
    """The question about the release, and the job that asks it."""
    assert await world.run(ask_about_waiting, vault=world.vault, home=home) == 1
    claim = await world.claim_one(pool=SERVICE)
    outcome = await handlers(world, home).ask(Run(claim))
    assert isinstance(outcome, Wait)
    assert "2.0-abc" in outcome.question
    assert "all is well" in outcome.question
    await world.end(claim, outcome)
    return claim, str((await world.rows(select(questions.c.id)))[0].id)


async def answered(world: World, home: Home, text: str, trust: str = "owner") -> Outcome:
    _, question = await asked(world, home)
    await world.run(
        partial(answer, vault=world.vault, question_id=question, text=text, by="ada", trust=trust)
    )
    return await handlers(world, home).ask(Run(await world.claim_one(pool=SERVICE)))


async def test_a_release_is_asked_about_once(world: World, home: Home) -> None:
    await asked(world, home)
    assert await world.run(ask_about_waiting, vault=world.vault, home=home) == 0
    assert len(await world.rows(select(conversations.c.id).where(conversations.c.kind == "updates"))) == 1


async def test_with_a_yes_the_supervisor_is_asked_to_deploy_it(world: World, home: Home) -> None:
    assert await answered(world, home, APPROVE) == Done()
    assert home.manifest("2.0-abc")["approved_by"] == "ada"
    assert wanted(home) == {"do": "deploy", "build": "2.0-abc", "by": "ada"}


async def test_a_worker_that_dies_after_the_yes_asks_the_supervisor_once(world: World, home: Home) -> None:
    await answered(world, home, APPROVE)
    home.answered()  # the supervisor has taken it
    state = home.load()
    state.trial = {"build": "2.0-abc", "previous": "", "by": "ada", "at": 0, "step": "prove"}
    home.save(state)
    row = (await world.rows(select(jobs).where(jobs.c.kind == "release_question")))[0]
    again = Claim(**{name: getattr(row, name) for name in Claim._fields})
    assert await handlers(world, home).ask(Run(again)) == Done()
    assert home.asked() is None


async def test_a_worker_that_dies_after_the_yes_does_not_deploy_again_what_was_taken_back(
    world: World, home: Home
) -> None:
    await answered(world, home, APPROVE)
    home.answered()
    taken_back = {"to": "1.0", "reason": "It fell over.", "at": 1.0, "asked": False}
    facts = {**home.manifest("2.0-abc"), "taken_back": taken_back}
    home.add(
        home.release("2.0-abc"), **{name: facts[name] for name in ("source", "approved_by", "taken_back")}
    )
    row = (await world.rows(select(jobs).where(jobs.c.kind == "release_question")))[0]
    again = Claim(**{name: getattr(row, name) for name in Claim._fields})
    assert await handlers(world, home).ask(Run(again)) == Done()
    assert home.asked() is None


async def test_with_a_no_it_never_runs(world: World, home: Home) -> None:
    assert await answered(world, home, DECLINE) == Done()
    assert home.asked() is None
    assert home.manifest("2.0-abc")["declined_by"] == "ada"
    assert await world.run(ask_about_waiting, vault=world.vault, home=home) == 0


async def test_a_member_cannot_approve_it(world: World, home: Home) -> None:
    with pytest.raises(Forbidden):
        await answered(world, home, APPROVE, trust="member")
    assert home.asked() is None


async def test_a_release_that_went_meanwhile_is_not_deployed(world: World, home: Home) -> None:
    claim, question = await asked(world, home)
    Path(home.path, "releases", "2.0-abc", "manifest.json").unlink()
    await world.run(
        partial(answer, vault=world.vault, question_id=question, text=APPROVE, by="ada", trust="owner")
    )
    outcome = await handlers(world, home).ask(Run(await world.claim_one(pool=SERVICE)))
    assert isinstance(outcome, Dead)
    assert claim.payload["build"] == "2.0-abc"


@pytest.mark.parametrize(
    ("kind", "data", "told"),
    [
        ("revision.promoted", {"build": "2.0-abc", "previous": "1.0"}, 1),
        ("revision.promoted", {"build": "1.0", "previous": ""}, 0),
        ("revision.rolled_back", {"build": "2.0-abc", "to": "1.0", "reason": "It fell over."}, 1),
        ("worker.exited", {"name": "serve"}, 0),
        ("worker.crash_loop", {"build": "2.0-abc", "reason": "It fell over.", "outage": 7.5}, 1),
        ("worker.crash_loop", {"build": "2.0-abc", "reason": "It fell over.", "outage": 0.0}, 0),
    ],
)
async def test_owners_are_told_once_what_became_of_a_release(
    world: World, home: Home, kind: str, data: dict[str, Any], told: int
) -> None:
    for number in (7, 7, 8) if kind == "worker.crash_loop" else (7, 7):
        await world.run(partial(tell_owners, vault=world.vault, number=number, kind=kind, data=data))
    found = await world.rows(select(jobs).where(jobs.c.kind == "release_notice"))
    assert len(found) == told
    if told:
        home.link("current", data["build"])
        claim = await world.claim_one(pool=SERVICE)
        outcome = await handlers(world, home).tell(Run(claim))
        assert isinstance(outcome, Wait if kind == "revision.promoted" else Done)


async def test_an_approval_after_it_expired_deploys_nothing(world: World, home: Home) -> None:
    _, question = await asked(world, home)
    await world.pass_time(8 * 86400)
    await world.run(expire_questions)
    late = partial(answer, vault=world.vault, question_id=question, text=APPROVE, by="ada", trust="owner")
    with pytest.raises(Conflict):
        await world.run(late)
    assert await handlers(world, home).ask(Run(await world.claim_one(pool=SERVICE))) == Done()
    assert home.asked() is None
    assert home.manifest("2.0-abc")["declined_by"] == "nobody, in time"
    with pytest.raises(Conflict, match="not approved"):
        deploy(home, "2.0-abc", by="ada")


async def test_an_approval_while_another_release_is_deployed_waits_for_its_turn(
    world: World, home: Home
) -> None:
    state = home.load()
    state.trial = {"build": "1.9", "previous": "1.0", "by": "ada", "at": 0, "step": "backup"}
    home.save(state)
    assert isinstance(await answered(world, home, APPROVE), Snooze)
    assert home.asked() is None
    state.trial = None
    home.save(state)
    row = (await world.rows(select(jobs).where(jobs.c.kind == "release_question")))[0]
    again = Claim(**{name: getattr(row, name) for name in Claim._fields})
    assert await handlers(world, home).ask(Run(again)) == Done()
    assert wanted(home) == {"do": "deploy", "build": "2.0-abc", "by": "ada"}


@pytest.mark.parametrize(
    ("text", "current", "asked_for"),
    [
        (ROLL_BACK, "2.0-abc", {"do": "rollback", "by": "ada"}),
        (ROLL_BACK, "3.0", None),  # another release runs by now: the button is about this one
        (KEEP, "2.0-abc", None),
    ],
)
async def test_a_button_of_the_notice_brings_the_release_before_back(
    world: World, home: Home, text: str, current: str, asked_for: dict[str, str] | None
) -> None:
    told = {"build": "2.0-abc", "previous": "1.0"}
    home.link("current", "2.0-abc")
    await world.run(partial(tell_owners, vault=world.vault, number=7, kind="revision.promoted", data=told))
    claim = await world.claim_one(pool=SERVICE)
    await world.end(claim, await handlers(world, home).tell(Run(claim)))
    question = str((await world.rows(select(questions.c.id)))[0].id)
    home.link("current", current)
    await world.run(
        partial(answer, vault=world.vault, question_id=question, text=text, by="ada", trust="owner")
    )
    assert await handlers(world, home).tell(Run(await world.claim_one(pool=SERVICE))) == Done()
    assert wanted(home) == asked_for


async def test_the_question_about_a_change_shows_who_wanted_it_and_the_diff(world: World, home: Home) -> None:
    diff = "diff --git a/x.py b/x.py\nindex 1..2 100644\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+```\n"
    change = {"diff": diff, "summary": "Because.", "agent": "gofer", "by": "Ann", "mark": "1"}
    release = Release(build="2.1-def", version="2.1", python=sys.executable)
    home.add(release, source="change", schema="9", change=change, approved_by="")
    jobs_of = replace(handlers(world, home), url="https://gofer.example.org")
    outcome = await jobs_of._question("2.1-def")
    assert isinstance(outcome, Wait)
    assert "The agent gofer made it, asked by Ann: Because." in outcome.question
    assert "1 file (+1 −1 lines): `x.py`" in outcome.question
    assert "https://gofer.example.org/versions/2.1-def" in outcome.question
    assert outcome.question.count("```") == 2, "a fence in the diff does not end ours"
    assert f"from version {migrations.newest()} to 9" in outcome.question


async def close_decided(world: World, home: Home) -> list[str]:
    """As a process of the running release does; returns why each was closed."""
    found = await world.run(decided_questions, home=home)
    for question_id, why in found:
        await world.run(partial(withdraw, vault=world.vault, question_id=question_id, why=why))
    return [why for _, why in found]


@pytest.mark.parametrize(
    ("done", "told"),
    [
        (lambda home: approve(home, "2.0-abc", by="root"), "root approved 2.0-abc"),
        (lambda home: decline(home, "2.0-abc", by="root"), "root declined 2.0-abc"),
        (lambda home: drop(home, "2.0-abc"), "2.0-abc was removed"),
        (lambda home: home.add(home.release("2.0-abc"), staged_at=2.0), "2.0-abc was staged again"),
        (lambda home: untrust_key(home, home.manifest("2.0-abc")["signed_by"]), "not trusted any more"),
    ],
)
async def test_a_question_that_a_command_decided_is_closed_and_changes_nothing(
    world: World, home: Home, done: Callable[[Home], None], told: str
) -> None:
    _, question = await asked(world, home)
    assert await close_decided(world, home) == []
    done(home)
    before = home.manifests().get("2.0-abc")
    (why,) = await close_decided(world, home)
    assert told in why
    late = partial(answer, vault=world.vault, question_id=question, text=APPROVE, by="ada", trust="owner")
    with pytest.raises(Conflict, match="no longer open"):
        await world.run(late)
    assert await handlers(world, home).ask(Run(await world.claim_one(pool=SERVICE))) == Done()
    assert home.manifests().get("2.0-abc") == before
    assert home.asked() is None


async def test_a_release_that_is_staged_again_is_asked_about_again(world: World, home: Home) -> None:
    claim, _ = await asked(world, home)
    home.add(home.release("2.0-abc"), source="file", staged_at=2.0)
    await close_decided(world, home)
    assert await world.run(ask_about_waiting, vault=world.vault, home=home) == 1
    first = await world.claim_one(pool=SERVICE)
    assert first.id == claim.id
    await world.end(first, await handlers(world, home).ask(Run(first)))
    assert isinstance(await handlers(world, home).ask(Run(await world.claim_one(pool=SERVICE))), Wait)


async def test_the_way_back_is_closed_when_the_release_does_not_run_any_more(
    world: World, home: Home
) -> None:
    home.link("current", "2.0-abc")
    told = {"build": "2.0-abc", "previous": "1.0"}
    await world.run(partial(tell_owners, vault=world.vault, number=7, kind="revision.promoted", data=told))
    claim = await world.claim_one(pool=SERVICE)
    await world.end(claim, await handlers(world, home).tell(Run(claim)))
    assert await close_decided(world, home) == []
    home.link("current", "1.0")
    assert await close_decided(world, home) == ["2.0-abc does not run any more"]
    assert await handlers(world, home).tell(Run(await world.claim_one(pool=SERVICE))) == Done()
    assert home.asked() is None


async def test_an_answer_for_a_key_that_is_not_trusted_any_more_deploys_nothing(
    world: World, home: Home
) -> None:
    _, question = await asked(world, home)
    await world.run(
        partial(answer, vault=world.vault, question_id=question, text=APPROVE, by="ada", trust="owner")
    )
    untrust_key(home, home.manifest("2.0-abc")["signed_by"])
    outcome = await handlers(world, home).ask(Run(await world.claim_one(pool=SERVICE)))
    assert isinstance(outcome, Dead)
    assert "not trusted any more" in outcome.detail
    assert home.asked() is None


async def test_a_release_that_does_not_say_its_store_is_asked_about_in_plain_words(
    world: World, home: Home
) -> None:
    home.add(Release(build="2.2-aaa", version="2.2", python=sys.executable), source="file")
    outcome = await handlers(world, home)._question("2.2-aaa")
    assert isinstance(outcome, Wait)
    assert "unknown" not in outcome.question
    assert "does not say which version of the store" in outcome.question


async def test_only_the_machine_that_has_a_release_asks_about_it(
    world: World, home: Home, tmp_path: Path
) -> None:
    other = Home(str(tmp_path / "other"))
    other.prepare()
    assert await world.run(ask_about_waiting, vault=world.vault, home=home) == 1
    claim = await world.claim_one(pool=SERVICE)
    assert isinstance(await handlers(world, other).ask(Run(claim)), Snooze)
    await world.end(claim, await handlers(world, home).ask(Run(claim)))
    assert await close_decided(world, other) == []
    assert len(await world.rows(select(questions.c.id).where(questions.c.answered_at.is_(None)))) == 1


async def test_a_job_whose_machine_is_gone_waits_longer_and_longer_and_ends_with_a_word(
    world: World, home: Home, tmp_path: Path
) -> None:
    other = Home(str(tmp_path / "other"))
    other.prepare()
    home.link("current", "2.0-abc")
    told = {"build": "2.0-abc", "previous": "1.0", "home": home_id(home)}
    await world.run(partial(tell_owners, vault=world.vault, number=7, kind="revision.promoted", data=told))
    waits: list[float] = []
    passed = 2.0
    while passed < 15 * 86400:
        claim = await world.claim_one(pool=SERVICE)
        outcome = await handlers(world, other).tell(Run(claim))
        await world.end(claim, outcome)
        if not isinstance(outcome, Snooze):
            break
        waits.append(outcome.after)
        await world.pass_time(passed)
        await world.run(stage)
        passed *= 2
    assert outcome == Done(reason="release.machine_gone")
    assert waits[:2] == [2.0, 2.0]
    assert waits == sorted(waits)
    assert waits[-1] == 600.0
    assert 7 * 86400 < passed < 28 * 86400


async def test_who_answers_late_does_not_make_the_machine_seem_gone(
    world: World, home: Home, tmp_path: Path
) -> None:
    other = Home(str(tmp_path / "other"))
    other.prepare()
    _, question = await asked(world, home)
    await world.pass_time(6 * 86400)
    await world.run(
        partial(answer, vault=world.vault, question_id=question, text=APPROVE, by="ada", trust="owner")
    )
    claim = await world.claim_one(pool=SERVICE)
    outcome = await handlers(world, other).ask(Run(claim))
    assert outcome == Snooze(2.0, "release.elsewhere")
    await world.end(claim, outcome)
    await world.pass_time(3)
    await world.run(stage)
    assert await handlers(world, home).ask(Run(await world.claim_one(pool=SERVICE))) == Done()
    assert wanted(home) == {"do": "deploy", "build": "2.0-abc", "by": "ada"}


async def test_any_machine_tells_what_was_taken_back(world: World, home: Home, tmp_path: Path) -> None:
    other = Home(str(tmp_path / "other"))
    other.prepare()
    data = {"build": "2.0-abc", "to": "1.0", "reason": "It fell over.", "home": home_id(home)}
    await world.run(partial(tell_owners, vault=world.vault, number=7, kind="revision.rolled_back", data=data))
    assert await handlers(world, other).tell(Run(await world.claim_one(pool=SERVICE))) == Done()
