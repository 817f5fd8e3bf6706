"""The loop over the real store, on both databases: killed at every event, taken over, finished once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from agent.conftest import Make
from agent.ports import Killed, LocalShell
from agent.ports import World as Run
from gofer.agent.journal import KINDS
from gofer.agent.limits import Short
from gofer.agent.outcome import Answered, Failed
from gofer.agent.prices import MICROS, load_prices
from gofer.agent.state import fold
from gofer.errors import Fenced
from gofer.jobs import control
from gofer.jobs.outcome import Done
from gofer.jobs.queue import Claim
from gofer.jobs.worker import Run as WorkerRun
from gofer.runs import spend
from gofer.runs.spend import StoreLedger, cost_of_job
from gofer.runs.store_adapters import StoreBlobs, StoreHistory, StoreJournal, StoreQuestions
from gofer.store.tables import events
from gofer_standins.anthropic import Anthropic, Reply, call, calls, say, think
from support.world import World


def script(request: Mapping[str, Any]) -> Reply:
    answered = sum(message["role"] == "assistant" for message in request["messages"])
    replies = [
        calls(think("A secret thought."), call("bash", command="echo x >>log"), call("ls")),
        calls(call("write", path="new.txt", content="a private line")),
        say("All done."),
    ]
    reply: Reply = replies[answered]
    return reply


class DyingJournal(StoreJournal):
    """The store's journal of a worker that is killed after so many entries."""

    left: int | None = None

    async def append(self, kind: str, data: dict[str, Any], parent_id: int | None = None) -> int:
        event_id = await super().append(kind, data, parent_id)
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                raise Killed
        return event_id


def lend(run: Run, world: World, claim: Claim, *, die_after: int | None = None) -> StoreJournal:
    """Back a run's ports with the store, under this claim."""
    journal = DyingJournal(world.database, world.vault, claim)
    journal.left = die_after
    run.journal = journal  # type: ignore[assignment]
    run.history = StoreHistory(world.database, world.vault, claim)  # type: ignore[assignment]
    run.questions = StoreQuestions(world.database, world.vault, claim)  # type: ignore[assignment]
    run.blobs = StoreBlobs(world.database, world.vault, str(claim.conversation_id))  # type: ignore[assignment]
    run.ledger = StoreLedger(database=world.database, claim=claim, timezone="UTC")  # type: ignore[assignment]
    return journal


async def take_over(world: World) -> Claim:
    await world.pass_time(60)
    await world.sweep()
    return await world.claim_one(owner="worker-2")


@pytest.mark.slow
async def test_killed_at_every_event_another_worker_takes_over_and_finishes_once(
    world: World, direct: Make, tmp_path: Path
) -> None:
    run, service = direct(script)
    cut = 0
    while True:
        cut += 1
        await world.say("Do it.", room=f"room {cut}")
        claim = await world.claim_one(owner="worker-1")
        directory = tmp_path / f"cut{cut}"
        directory.mkdir()
        run.shell = LocalShell(directory)
        service.usage.clear()
        old = lend(run, world, claim, die_after=cut)
        try:
            outcome = await run.run()
        except Killed:
            new = await take_over(world)
            assert new.id == claim.id
            lend(run, world, new)
            outcome = await run.run()
            with pytest.raises(Fenced):
                await old.append("run.warned", {"code": "late", "sentence": "From the grave."})
            claim = new
        else:
            break
        assert outcome == Answered("All done.", included_to=1)
        assert service.refused == [], f"killed after event {cut}"
        await check(world, claim, service, directory)
        await world.end(claim, Done(included_to=1))
    assert cut > 12


async def check(world: World, claim: Claim, service: Anthropic, directory: Path) -> None:
    history = await StoreJournal(world.database, world.vault, claim).load()
    state = fold(history)
    finished = [event.data for event in history if event.kind == "tool.finished"]
    assert len(finished) == len({data["call_id"] for data in finished}) == 3
    unknown = [data["name"] for data in finished if data["status"] == "unknown"]
    ran = (directory / "log").read_text() if (directory / "log").exists() else ""
    assert ran == ("" if "bash" in unknown else "x\n")
    assert (directory / "new.txt").exists() or "write" in unknown
    await check_money(world, claim, service, state.spent)


async def check_money(world: World, claim: Claim, service: Anthropic, folded: int) -> None:
    """What was paid is in the ledger, and the ledger never says less than what was paid."""
    price = load_prices().of("anthropic/claude-sonnet-5-5")
    assert price is not None
    from gofer.agent.model import Usage

    paid = sum(
        price.cost(
            Usage(
                one["input_tokens"],
                one["cache_read_input_tokens"],
                one["cache_creation_input_tokens"],
                0,
                one["output_tokens"],
            )
        )
        for one in service.usage
    )
    ledger = round(await world.database.read(partial(cost_of_job, job_id=claim.id)) * MICROS)
    assert 0 < paid <= ledger <= folded


async def test_nobodys_words_are_in_the_clear(world: World, direct: Make) -> None:
    run, _ = direct(script)
    await world.say("Do it.")
    lend(run, world, await world.claim_one())
    await run.run()
    rows = await world.rows(select(events).where(events.c.kind.in_(list(KINDS))))
    assert len(rows) > 10
    for row in rows:
        text = f"{row.data} {row.sealed!r}"
        for words in ("Do it", "secret thought", "echo x", "private line", "All done"):
            assert words not in text, row.kind


async def test_who_has_begun_finishes_when_there_is_not_enough_for_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty jobs of four calls each, all at once, and money for fifteen calls."""
    monkeypatch.setattr(spend, "PATIENCE", 0.4)
    monkeypatch.setattr(spend, "BETWEEN_TRIES", 0.02)
    claims = []
    for number in range(20):
        await world.say(room=f"room {number}")
        claims.append(await world.claim_one())

    async def work(claim: Claim) -> bool:
        ledger = StoreLedger(database=world.database, claim=claim, timezone="UTC")
        for turn in range(1, 5):
            if await ledger.reserve(f"turn:{turn}", 100, {"day": 1500}) is not None:
                return False
            await asyncio.sleep(0.01)
            await ledger.settle(f"turn:{turn}", 95)
        await world.end(claim, Done(included_to=1))
        return True

    finished = await asyncio.gather(*map(work, claims))
    assert sum(finished) >= 2, "not none, because everybody has begun"


async def test_two_runs_cannot_both_spend_the_last_of_the_day(world: World, direct: Make) -> None:
    ledgers = []
    for room in ("one", "two"):
        await world.say(room=room)
        claim = await world.claim_one()
        ledgers.append(StoreLedger(database=world.database, claim=claim, timezone="UTC"))
    caps: Any = {"day": 100}
    first, second = ledgers
    assert await first.reserve("turn:1", 70, caps) is None
    waiting = asyncio.create_task(second.reserve("turn:1", 70, caps))
    assert await first.reserve("turn:1", 90, caps) is None, "the same call again replaces its own"
    await asyncio.sleep(0.1)
    assert not waiting.done(), "what is only set aside is waited for"
    await first.settle("turn:1", 20)
    assert await waiting is None
    await second.settle("turn:1", 50)
    assert await first.reserve("turn:2", 40, caps) == Short("day", 70), "what is paid is gone"


class PausingJournal(StoreJournal):
    """The store's journal of a run that somebody pauses before its nth entry."""

    pause: Callable[[], Awaitable[Any]]
    left: int

    async def append(self, kind: str, data: dict[str, Any], parent_id: int | None = None) -> int:
        self.left -= 1
        if self.left == 0:
            await self.pause()
        return await super().append(kind, data, parent_id)


async def test_whoever_pauses_a_run_pays_for_no_call_after_that(
    world: World, direct: Make, tmp_path: Path
) -> None:
    run, service = direct(script)
    for cut in range(1, 30):
        await world.say("Do it.", room=f"room {cut}")
        claim = await world.claim_one(owner="worker-1")
        (directory := tmp_path / f"cut{cut}").mkdir()
        run.shell = LocalShell(directory)
        service.usage.clear()
        lend(run, world, claim)
        its = WorkerRun(claim)
        journal = PausingJournal(world.database, world.vault, claim, run=its)
        called: list[int] = []

        async def pause(job: int = claim.id, called: list[int] = called) -> None:
            await world.run(control.pause, job_id=job, by="ann")
            called.append(len(service.received))

        journal.pause, journal.left = pause, cut
        run.journal = journal
        run.inbox.paused = lambda its=its: its.pause_read
        outcome = await run.run()
        if not called:
            break
        assert len(service.received) == called[0], f"a call after the pause before event {cut}"
        if isinstance(outcome, Failed):
            assert outcome.reason == "paused"
            await world.run(control.resume, job_id=claim.id, by="ann")
            its.pause_read = False
            outcome = await run.run()
        assert outcome == Answered("All done.", included_to=1)
        assert service.refused == []
        await check(world, claim, service, directory)
        await world.end(claim, Done(included_to=1))
    assert cut > 12
