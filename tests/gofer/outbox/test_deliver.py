"""Replies reach their service: in order, each once, through faults and takeovers; failures are seen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import select, update

from gofer.errors import Fenced, Gone, Temporary
from gofer.integration import ConnectionContext, Outgoing
from gofer.jobs import queue
from gofer.jobs.outcome import Dead, Done, Draft, Outcome, Retry, Snooze
from gofer.jobs.queue import SERVICE, Claim
from gofer.jobs.worker import Run
from gofer.outbox import ledger
from gofer.outbox.deliver import Outbox
from gofer.store.row_macs import RowRefused
from gofer.store.tables import connections, events, jobs, replies
from gofer.vault.redaction import Secret
from gofer_hello import Hello
from support.db_outage import Away
from support.hello_service import HelloService
from support.world import World

Deliver = Callable[[], Awaitable[tuple[Claim, Outcome]]]


async def answer(world: World, *parts: str, room: str = "kitchen") -> None:
    """Somebody asks and an agent answers, in one or more parts."""
    asked = await world.say("a question", room=room)
    claim = await world.claim_one()
    draft = Draft(await world.binding(room), parts)
    await world.end(claim, Done(drafts=(draft,), included_to=asked.seq))


async def states(world: World) -> list[str]:
    return [row.state for row in await world.replies()]


async def test_replies_and_their_parts_arrive_in_order(
    world: World, service: HelloService, deliver: Deliver
) -> None:
    await answer(world, "one", "two", "three")
    await answer(world, "four")
    await deliver()
    assert service.texts == ["one", "two", "three", "four"]
    assert await states(world) == ["sent"] * 4
    assert await world.claim(pool=SERVICE) == []


async def test_one_slow_conversation_does_not_hold_up_another(
    world: World, service: HelloService, deliver: Deliver
) -> None:
    await answer(world, "for the kitchen")
    await answer(world, "for the garden", room="garden")
    service.faults = [(503, {})]
    await deliver()
    await deliver()
    assert service.texts == ["for the garden"]


@pytest.mark.parametrize("fault", ["drop", "lose", (500, {}), (502, {}), (429, {})], ids=str)
async def test_after_a_fault_at_the_service_there_is_one_complete_reply(
    world: World, service: HelloService, deliver: Deliver, fault: Any
) -> None:
    await answer(world, "the answer")
    service.faults = [fault]
    _, outcome = await deliver()
    assert isinstance(outcome, Retry)
    await world.pass_time(3600)
    await world.run(queue.stage)
    await deliver()
    assert service.texts == ["the answer"]
    assert await states(world) == ["sent"]


async def test_a_reply_by_a_refused_connection_waits_and_costs_no_try(
    world: World, service: HelloService, outbox: Outbox
) -> None:
    """Somebody else than Gofer wrote the connection's row: what is to be sent by it waits until that is right."""
    await answer(world, "the answer")
    await world.run(lambda c: c.execute(update(connections).values(max_running=7)))
    claim = await world.claim_one(pool=SERVICE)
    with pytest.raises(RowRefused):  # for which the worker puts the job off
        await outbox.handle(Run(claim))
    assert await states(world) == ["planned"]
    await world.run(lambda c: c.execute(update(connections).values(max_running=None)))
    assert await outbox.handle(Run(claim)) == Done()
    assert service.texts == ["the answer"]


class Crash(BaseException):
    """Stands for kill -9 at this point."""


@pytest.mark.parametrize("point", ["begun", "placed_outside", "placed", "completed_outside", "sent"])
async def test_after_a_crash_at_any_step_there_is_one_complete_reply(
    world: World,
    service: HelloService,
    outbox: Outbox,
    deliver: Deliver,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    def crash(name: str) -> None:
        if name == f"outbox.{point}":
            raise Crash

    await answer(world, "the answer", "its end")
    claim = await world.claim_one(pool=SERVICE)
    with monkeypatch.context() as patch:
        patch.setattr("gofer.outbox.deliver.crash_point", crash)
        with pytest.raises(Crash):
            await outbox.handle(Run(claim))
    await world.pass_time(31)
    await world.sweep()
    # A request that was on its way has arrived by then, so that looking for it finds it.
    await world.pass_time(31)
    while "planned" in await states(world):
        await deliver()
    assert service.texts == ["the answer", "its end"]
    assert await states(world) == ["sent", "sent"]


async def test_what_a_job_had_begun_that_died_is_not_hurried_by_the_next(
    world: World, service: HelloService, deliver: Deliver
) -> None:
    await answer(world, "the answer")
    claim = await world.claim_one(pool=SERVICE)
    part = await world.run(ledger.next_part, vault=world.vault, binding_id=await world.binding())
    await world.run(ledger.begin, claim=claim, part=part)
    await world.end(claim, Dead("worker.lost"))
    following, outcome = await deliver()
    assert following.id != claim.id
    assert isinstance(outcome, Snooze)
    assert (outcome.reason, service.calls) == ("unsure", [])


async def test_what_was_placed_as_the_store_went_away_is_not_placed_again(
    world: World, service: HelloService, outbox: Outbox
) -> None:
    """Also where nobody could look for it: its id is kept until it can be stored."""
    await answer(world, "the answer")
    claim = await world.claim_one(pool=SERVICE)
    outbox.database = store = Away(world.database)
    outages = []

    async def go_away() -> None:
        store.away = True
        outages.append(asyncio.create_task(store.come_back_after(0.1)))

    service.before_answer = go_away
    assert await outbox.handle(Run(claim)) == Done()
    assert service.calls == ["POST"]
    assert (await states(world), len(outages)) == (["sent"], 1)


async def test_being_told_to_wait_costs_no_try(world: World, service: HelloService, deliver: Deliver) -> None:
    await answer(world, "patient")
    service.faults = [(429, {"retry-after": "7"})]
    claim, outcome = await deliver()
    assert outcome == Snooze(7.0, "unavailable")
    assert (await world.job(claim.id)).attempts == 0


async def test_a_permanent_refusal_ends_the_job_dead_with_its_reason_and_later_replies_go_on(
    world: World, service: HelloService, deliver: Deliver
) -> None:
    await answer(world, "refused")
    await answer(world, "accepted")
    service.faults = [(400, {})]
    claim, _ = await deliver()
    assert service.texts == ["accepted"]
    refused, accepted = await world.replies()
    assert (refused.state, accepted.state) == ("failed", "sent")
    assert "400" in refused.reason
    failed = await world.rows(select(events).where(events.c.kind == "reply.failed"))
    assert [row.reply_id for row in failed] == [refused.id]
    job = await world.job(claim.id)
    assert (job.state, job.reason) == ("dead", "rejected")


async def test_a_reply_that_failed_for_good_is_sent_when_its_job_is_redriven(
    world: World, service: HelloService, deliver: Deliver
) -> None:
    await answer(world, "an old one")
    service.faults = [(400, {}), (400, {})]
    await deliver()
    await answer(world, "first", "second")
    claim, _ = await deliver()
    assert await states(world) == ["failed", "failed", "sent"]
    await world.redrive(claim.id)
    again, outcome = await deliver()
    assert (again.id, outcome) == (claim.id, Done())
    assert await states(world) == ["failed", "sent", "sent"], "the old one belongs to another job"
    assert sorted(service.texts) == ["first", "second"]


async def test_a_failure_is_not_forgotten_when_the_worker_dies_before_the_job_ends(
    world: World, service: HelloService, outbox: Outbox, deliver: Deliver
) -> None:
    await answer(world, "refused")
    service.faults = [(400, {})]
    claim = await world.claim_one(pool=SERVICE)
    await outbox.handle(Run(claim))  # and its end is never written
    await world.pass_time(31)
    await world.sweep()
    again, outcome = await deliver()
    assert again.id == claim.id
    assert isinstance(outcome, Dead)


async def test_what_was_deleted_before_it_was_complete_is_placed_again(
    world: World, service: HelloService, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    vanishing = [True]

    async def complete(self: Hello, outgoing: Outgoing, external_id: str, account: ConnectionContext) -> None:
        if vanishing:
            vanishing.pop()
            service.replies.clear()
            raise Gone("Somebody deleted it.")

    monkeypatch.setattr(Hello, "complete", complete)
    await answer(world, "the answer")
    _, outcome = await deliver()
    assert outcome == Done()
    assert (service.texts, await states(world)) == (["the answer"], ["sent"])


async def test_what_vanishes_again_and_again_is_given_up(
    world: World, service: HelloService, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def complete(self: Hello, outgoing: Outgoing, external_id: str, account: ConnectionContext) -> None:
        raise Gone("Somebody deletes it.")

    monkeypatch.setattr(Hello, "complete", complete)
    await answer(world, "the answer")
    _, outcome = await deliver()
    assert isinstance(outcome, Dead)
    assert service.calls.count("POST") == 3


async def test_a_refusal_that_may_pass_is_tried_for_as_long_as_it_says_and_then_given_up(
    world: World, service: HelloService, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def place(self: Hello, outgoing: Outgoing, account: ConnectionContext) -> str:
        raise Temporary("The room is locked.", reason="locked", retry_after=600, give_up_after=2 * 86400)

    monkeypatch.setattr(Hello, "place", place)
    await answer(world, "the answer")
    for day in range(2):
        _, outcome = await deliver()
        assert outcome == Snooze(600, "locked"), day
        await world.run(lambda c: c.execute(replies.update().values(created_at=replies.c.created_at - 86400)))
        await world.pass_time(86400)
        await world.run(queue.stage)
    claim, outcome = await deliver()
    assert isinstance(outcome, Dead)
    job = await world.job(claim.id)
    assert (job.state, job.reason) == ("dead", "locked")


async def test_one_reply_that_never_gets_through_does_not_take_the_next_with_it(
    world: World, service: HelloService, deliver: Deliver
) -> None:
    await answer(world, "never")
    await answer(world, "at the second try")
    await world.run(lambda c: c.execute(jobs.update().where(jobs.c.kind == "deliver").values(max_attempts=1)))
    service.faults = [(503, {}), (503, {})]
    claim, _ = await deliver()
    assert await states(world) == ["failed", "planned"]
    assert (await world.job(claim.id)).state == "dead"
    await deliver()
    await world.pass_time(3600)
    await world.run(queue.stage)
    await deliver()
    assert await states(world) == ["failed", "sent"]


async def test_the_tries_one_reply_cost_are_not_held_against_the_next(
    world: World, service: HelloService, deliver: Deliver
) -> None:
    await answer(world, "the third time")
    await answer(world, "at once")
    service.faults = [(503, {}), (503, {})]
    for _ in range(3):
        await deliver()
        await world.pass_time(3600)
        await world.run(queue.stage)
    assert await states(world) == ["sent", "planned"]
    claim, _ = await deliver()
    assert claim.attempts == 1
    assert await states(world) == ["sent", "sent"]


async def test_a_reply_planned_while_others_are_sent_goes_out_with_them(
    world: World, service: HelloService, deliver: Deliver
) -> None:
    async def another() -> None:
        service.before_answer = None
        await answer(world, "second")

    await answer(world, "first")
    service.before_answer = another
    await deliver()
    assert service.texts == ["first", "second"]


# Takeovers.


async def taken_over(world: World, service: HelloService, outbox: Outbox) -> Claim:
    """A deliver job whose first worker went silent before it sent anything."""
    await answer(world, "the answer")
    silent = await world.claim_one(pool=SERVICE)
    await world.pass_time(31)
    await world.sweep()
    return silent


async def test_after_a_takeover_the_last_edit_is_repeated_once_past_the_old_owners_time(
    world: World, service: HelloService, outbox: Outbox, deliver: Deliver
) -> None:
    await taken_over(world, service, outbox)
    _, outcome = await deliver()
    assert isinstance(outcome, Snooze)
    assert 0 < outcome.after <= 20
    await world.pass_time(21)
    await world.run(queue.stage)
    _, outcome = await deliver()
    assert outcome == Done()
    assert service.texts == ["the answer"]
    assert (await world.rows(select(replies.c.confirm_at)))[0][0] is None


async def test_a_new_reply_does_not_wait_for_an_old_edit_to_be_repeated(
    world: World, service: HelloService, outbox: Outbox, deliver: Deliver
) -> None:
    await taken_over(world, service, outbox)
    await deliver()
    await answer(world, "news")
    await deliver()
    assert service.texts == ["the answer", "news"]


async def test_nor_when_it_comes_while_the_delivery_decides_to_sleep(
    world: World, service: HelloService, outbox: Outbox
) -> None:
    await taken_over(world, service, outbox)
    claim = await world.claim_one(pool=SERVICE)
    outcome = await outbox.handle(Run(claim))
    await answer(world, "news")
    await world.end(claim, outcome)
    assert (await world.claim_one(pool=SERVICE)).id == claim.id


async def test_the_old_owner_can_send_nothing_more_of_its_own_accord(
    world: World, service: HelloService, outbox: Outbox, deliver: Deliver
) -> None:
    silent = await taken_over(world, service, outbox)
    await deliver()
    await answer(world, "news")
    with pytest.raises(Fenced):
        await outbox.handle(Run(silent))
    assert service.texts == ["the answer"]


async def test_a_secret_in_an_answer_is_masked_on_its_way_out(
    world: World, service: HelloService, outbox: Outbox, deliver: Deliver
) -> None:
    outbox.redactor.replace({"password": Secret("hunter2-hunter2")})
    await answer(world, "the password is hunter2-hunter2")
    await deliver()
    assert "hunter2" not in service.texts[0]
