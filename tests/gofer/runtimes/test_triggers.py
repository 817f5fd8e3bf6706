"""A Trigger step by step, by a clock that the test sets, on both databases: one delivery for each hop, one answer, and
nothing stranded, wherever it is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gofer.errors import Conflict, Fenced, Malformed, NotFound
from gofer.intake.admit import unread
from gofer.integration import Parsed
from gofer.jobs.control import set_closed
from gofer.jobs.notifications import LocalSignals
from gofer.jobs.outcome import Cancel, Dead, Done, Draft, Outcome, Snooze
from gofer.jobs.queue import Claim
from gofer.jobs.worker import Run
from gofer.runs.agent_files import AgentFiles
from gofer.runs.agent_sync import sync_agent
from gofer.runtimes import hops as hop_rows
from gofer.runtimes import records, requests
from gofer.runtimes.chain import ChainRules
from gofer.runtimes.requests import TriggerWish
from gofer.runtimes.safeguards import SafeguardRules
from gofer.runtimes.triggers import Triggers
from gofer.settings import Settings
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import (
    JobState,
    Trust,
    agents,
    conversations,
    hops,
    jobs,
    messages,
    participants,
    replies,
    runtimes,
)
from support.world import World

FILE = 'runtime = "tmux"\n[external]\nfallback = "helper"\nack_within = 60\nanswer_within = 600\n'
HOST, MEMBER = "laptop", "member_ann"


class Pane:
    """The first agent of a world runs in a terminal; `helper` stands in for it."""

    def __init__(self, world: World, folder: Path, **settings: Any) -> None:
        self.world = world
        (folder / "agents").mkdir(parents=True, exist_ok=True)
        (folder / "agents" / "gofer.toml").write_text(FILE)
        (folder / "agents" / "helper.toml").write_text("")
        self.files = AgentFiles(folder / "agents")
        self.settings = Settings(data_dir=folder, **settings)
        callbacks: Any = None
        self.triggers = Triggers(
            settings=self.settings,
            database=world.database,
            agents=self.files,
            signals=LocalSignals(),
            callbacks=callbacks,
        )

    async def furnish(self, **heartbeat: Any) -> Pane:
        await self.world.agent("helper", event="never")
        spec = self.files.get("gofer")
        await self.world.run(sync_agent, workspace_id=FIRST_WORKSPACE, spec=spec)
        register = partial(records.register, name="pane", agent="gofer", kind="tmux", member_id=MEMBER)
        await self.world.run(register)
        await self.announce(**heartbeat)
        return self

    async def announce(self, **heartbeat: Any) -> Any:
        said = records.Announcement("gofer", "tmux", HOST, **{"state": "live", "session": "s1", **heartbeat})
        return await self.world.run(records.announce, name="pane", member_id=MEMBER, said=said, every=15.0)

    async def say(self, text: str = "hello", **values: Any) -> None:
        await self.world.say(text, **{"by": "ann", **values})
        await self.world.run(lambda c: c.execute(messages.update().values(trust=Trust.OWNER)))

    async def claim(self) -> Claim:
        await self.world.pass_time(0.1)
        await self.world.run(_ready)
        claims = await self.world.claim(20)
        (own,) = [claim for claim in claims if claim.kind == "answer"]
        return own

    async def look(self, claim: Claim) -> Outcome:
        """One run of the Trigger, which is not ended: as if its worker were killed right after."""
        admitted = await self.world.database.read(
            partial(unread, vault=self.world.vault, claim=claim, after=claim.covers_from)
        )
        known = [replace(each, trust=Trust.OWNER) for each in admitted]

        async def draft(text: str, kind: Any = "error") -> tuple[Draft, ...]:
            return (await self.world.draft(text, kind=kind),)

        named = select(agents.c.name).where(agents.c.id == claim.agent_id)
        spec = self.files.get((await self.world.rows(named))[0].name)
        return await self.triggers.handle(Run(claim), spec, known, draft)

    async def step(self) -> Outcome:
        """One run of the Trigger, and its end."""
        claim = await self.claim()
        outcome = await self.look(claim)
        await self.world.end(claim, outcome)
        return outcome

    async def orders(self, host: str = HOST, member: str = MEMBER) -> list[tuple[int, int]]:
        taken = await self.world.run(hop_rows.take_orders, member_id=member, host=host)
        return [(hop.job_id, hop.number) for hop, _ in taken]

    async def report(self, order: tuple[int, int], status: str, reason: str = "") -> str:
        def say(connection: Any) -> str:
            row, runtime = hop_rows.find_order(connection, hop_rows.order_id(*order), MEMBER)
            return hop_rows.report(
                connection, row, runtime, status=status, reason=reason, session="", ack_within=60
            )

        return str(await self.world.run(say))

    async def post(self, order: tuple[int, int], text: str = "done", agent: str = "gofer") -> str:
        said = await self.world.run(
            requests.say_for_hop,
            vault=self.world.vault,
            conversation_id=(await self.world.job(order[0])).conversation_id,
            agent=agent,
            hop=order,
            text=text,
        )
        return str(said["result"])

    async def acknowledge(self, order: tuple[int, int] | None = None, **values: Any) -> dict[str, Any]:
        here = {"conversation_id": await self.conversation(), "agent": "gofer"}
        asked = {**here, "seq": None, "done": False, "answer_within": 600, **values}
        return dict(await self.world.run(requests.acknowledge, hop=order, **asked))

    async def close(self, *, closed: bool = True) -> bool:
        close = partial(set_closed, conversation_id=await self.conversation(), closed=closed, by="ann")
        return bool(await self.world.run(close))

    async def conversation(self) -> str:
        return str((await self.world.rows(select(conversations.c.id)))[0][0])

    async def trail(self) -> list[tuple[str, str, str]]:
        rows = await self.world.rows(select(hops).order_by(hops.c.job_id, hops.c.number))
        return [(row.action, row.state, row.reason) for row in rows]

    async def participant(self) -> Any:
        first = select(jobs.c.participant_id).order_by(jobs.c.id).limit(1).scalar_subquery()
        return (await self.world.rows(select(participants).where(participants.c.id == first)))[0]

    async def trigger(
        self, target: str = "gofer", conversation_id: str = "", **values: Any
    ) -> dict[str, Any]:
        wish = TriggerWish("ann", **values)
        return dict(
            await self.world.run(
                requests.trigger,
                conversation_id=conversation_id or await self.conversation(),
                agent=target,
                kind="tmux",
                fallback="helper",
                wish=wish,
                heartbeat=15,
                chain=ChainRules(True),
                safeguards=self.safeguards,
                wake_when_closed=False,
            )
        )

    @property
    def safeguards(self) -> SafeguardRules:
        s = self.settings
        return SafeguardRules(
            s.trigger_turns, s.trigger_findings, s.triggers_per_agent, s.triggers_per_conversation
        )

    async def turn(self, text: str = "done") -> None:
        """One whole Trigger that is answered."""
        await self.step()
        (order,) = await self.orders()
        assert await self.post(order, text) == "accepted"
        assert isinstance(await self.step(), Done)


def _ready(connection: Any) -> None:
    from gofer.jobs.queue import stage

    stage(connection)


@pytest.fixture
async def pane(world: World, tmp_path: Path) -> Pane:
    return await Pane(world, tmp_path).furnish(can_resume=True, can_spawn=True)


async def test_it_waits_without_a_slot_and_ends_with_the_answer(pane: Pane) -> None:
    await pane.say("look at this")
    outcome = await pane.step()
    assert isinstance(outcome, Snooze)
    (order,) = await pane.orders()
    assert await pane.orders() == []
    assert await pane.report(order, "delivered") == ""
    sleeping = await pane.step()
    assert isinstance(sleeping, Snooze)
    assert (sleeping.reason, 50 < sleeping.after <= 60) == ("hop.delivered", True)
    assert (await pane.acknowledge(order))["ack_seq"] == 1
    assert isinstance(await pane.step(), Snooze)
    assert await pane.post(order) == "accepted"
    assert await pane.step() == Done(included_to=1)
    row = await pane.participant()
    assert (row.read_seq, row.ack_seq, row.wake_seq) == (1, 1, 1)
    assert await pane.world.count(jobs, jobs.c.kind == "post") == 1
    assert await pane.post(order, "done") == "repeat"
    assert await pane.world.count(jobs, jobs.c.kind == "post") == 1


@pytest.mark.parametrize(
    ("ends", "trail"),
    [
        (
            ("taken", "taken", "delivered", "acknowledged", "lost"),
            [
                *[("live", "host.away"), ("resume", "host.away"), ("resume", "runtime.silent")],
                *[("spawn", "runtime.silent"), ("fallback", "runtime.silent")],
            ],
        ),
    ],
)
async def test_deadlines_move_it_on_to_the_fallback(
    pane: Pane, ends: Sequence[str], trail: list[tuple[str, str]]
) -> None:
    await pane.say()
    await pane.step()  # live, and no host comes for it
    await pane.announce(can_resume=True, can_spawn=True)
    await _late(pane, 31)
    await _late(pane, 31)  # resume: no host either
    (order,) = await pane.orders()
    await pane.report(order, "delivered")
    await _late(pane, 61)  # resumed again: delivered, never acknowledged
    (order,) = await pane.orders()
    await pane.report(order, "delivered")
    await pane.acknowledge(order)
    outcome = await _late(pane, 601)  # spawned: acknowledged, never answered
    assert outcome == Done(included_to=1, reason="fallback")
    assert [(action, reason) for action, _, reason in await pane.trail()] == trail
    assert await pane.post(order) == "kept"
    (stand_in,) = await pane.world.rows(select(jobs).where(jobs.c.kind == "answer", jobs.c.state == "ready"))
    assert (stand_in.covers_from, stand_in.covers_to) == (0, 1)
    assert (await pane.participant()).read_seq == 1


async def _late(pane: Pane, seconds: float) -> Outcome:
    """Let time pass, with the host still there."""
    await pane.world.pass_time(seconds)
    await pane.announce(can_resume=True, can_spawn=True)
    return await pane.step()


async def test_killed_after_every_look_each_hop_is_made_and_delivered_once(pane: Pane) -> None:
    """Every run of the Trigger dies before its end is written; the next worker goes on."""
    await pane.say()
    world, taken = pane.world, []
    for reason in ("pane.gone", "resume.failed", "resume.failed", "spawn.failed"):
        for _ in range(2):  # twice: the second one finds what the first has made
            dead = await pane.claim()
            await pane.look(dead)
            await world.pass_time(40)
            await world.sweep()
            await pane.announce(can_resume=True, can_spawn=True)
            with pytest.raises(Fenced):
                await world.end(dead, Done(included_to=1))
            await world.run(lambda c: c.execute(jobs.update().values(attempts=0)))
            await world.run(lambda c: c.execute(hops.update().values(deadline=hops.c.deadline + 40)))
        await pane.step()
        orders = await pane.orders()
        taken += orders
        assert len(orders) == 1
        await pane.report(orders[0], "failed", reason)
    for _ in range(2):
        dead = await pane.claim()
        assert await pane.look(dead) == Done(included_to=1, reason="fallback")
        await world.pass_time(40)
        await world.sweep()
        await world.run(lambda c: c.execute(jobs.update().values(attempts=0)))
        await _finish_others(pane)
    outcome = await _own_step(pane)
    assert outcome == Done(included_to=1, reason="fallback")
    assert len(taken) == len(set(taken)) == 4
    actions = [action for action, _, _ in await pane.trail()]
    assert actions == ["live", "resume", "resume", "spawn", "fallback"]
    stand_ins = [row for row in await world.answer_jobs() if "stands_in_for" in row.payload]
    assert len(stand_ins) == 1
    assert await world.sweep() == 0, "nothing is stranded"


async def _finish_others(pane: Pane) -> None:
    """The stand-in is left alone: only Triggers of the pane are looked at."""
    await pane.world.run(
        lambda c: c.execute(
            jobs.update()
            .where(jobs.c.unique_key.like("fallback:%"))
            .values(state=JobState.SCHEDULED, run_at=9e9)
        )
    )


async def _own_step(pane: Pane) -> Outcome:
    await _finish_others(pane)
    return await pane.step()


async def test_an_answer_and_a_deadline_at_the_same_moment_lead_to_one_of_both(pane: Pane) -> None:
    await pane.say()
    await pane.step()
    (order,) = await pane.orders()
    await pane.report(order, "delivered")
    await pane.world.pass_time(61)
    claim = await pane.claim()
    outcome, *said = await asyncio.gather(pane.look(claim), pane.post(order, "a"), pane.post(order, "b"))
    await pane.world.end(claim, outcome)
    trail = await pane.trail()
    if "accepted" in said:
        assert said.count("accepted") == 1
        assert [state for _, state, _ in trail] == ["answered"]
    else:
        assert said == ["kept", "kept"]
        assert trail[0] == ("live", "failed", "runtime.silent")
    sent = await pane.world.rows(select(jobs).where(jobs.c.kind == "post"))
    assert sum("late" not in row.payload for row in sent) == said.count("accepted")


async def test_two_hosts_at_once_get_an_order_once_and_another_members_host_never(pane: Pane) -> None:
    await pane.say()
    await pane.step()
    assert await pane.orders(member="member_eve") == []
    assert await pane.orders(host="elsewhere") == []
    taken = await asyncio.gather(*(pane.orders() for _ in range(5)))
    assert sorted(len(each) for each in taken) == [0, 0, 0, 0, 1]


async def test_an_order_of_a_host_that_died_is_handed_out_once_more_and_then_given_up(pane: Pane) -> None:
    await pane.say()
    await pane.step()
    assert len(await pane.orders()) == 1
    await _late(pane, 121)
    assert len(await pane.orders()) == 1, "the host's journal knows what it had begun"
    await _late(pane, 121)
    assert await pane.trail() == [("live", "failed", "host.lost"), ("resume", "queued", "")]


async def test_a_message_that_comes_meanwhile_gets_a_trigger_of_its_own(pane: Pane) -> None:
    await pane.say("one")
    await pane.step()
    (order,) = await pane.orders()
    await pane.say("two")
    await pane.post(order)
    assert await pane.step() == Done(included_to=1)
    assert isinstance(await pane.step(), Snooze)
    ((job_id, number),) = await pane.orders()
    assert (job_id != order[0], number) == (True, 1)


async def test_what_it_has_read_by_itself_does_not_wake_it(pane: Pane) -> None:
    await pane.say()
    await pane.acknowledge(seq=1)
    assert await pane.step() == Done(included_to=1, reason="read")
    assert await pane.trail() == []


async def test_an_agent_that_has_nothing_to_say_ends_it(pane: Pane) -> None:
    await pane.say()
    await pane.step()
    (order,) = await pane.orders()
    await pane.acknowledge(order, done=True)
    assert await pane.step() == Done(included_to=1, reason="read")
    assert await pane.post(order) == "kept"


async def test_what_was_never_seen_cannot_be_acknowledged(pane: Pane) -> None:
    await pane.say()
    await pane.step()
    order = ((await pane.world.answer_jobs())[0].id, 1)
    with pytest.raises(Conflict, match="not delivered yet"):
        await pane.acknowledge(order)
    with pytest.raises(Conflict, match="no message 9 yet"):
        await pane.acknowledge(seq=9)
    with pytest.raises(Malformed):
        await pane.acknowledge()
    with pytest.raises(NotFound):
        await pane.acknowledge((order[0], 7))
    assert await pane.post(order, "I guess") == "kept", "an answer to what was not handed out goes nowhere"
    assert (await pane.participant()).ack_seq is None
    (taken,) = await pane.orders()
    await pane.acknowledge(taken)
    twice = await pane.acknowledge(taken)
    assert (twice["ignored"], twice["ack_seq"]) == (False, 1)


async def test_another_agent_cannot_answer(pane: Pane) -> None:
    await pane.say()
    await pane.step()
    (order,) = await pane.orders()
    with pytest.raises(NotFound):
        await pane.post(order, "mine!", agent="helper")
    assert await pane.trail() == [("live", "taken", "")]


async def test_a_stopped_trigger_sends_nothing_more(pane: Pane) -> None:
    await pane.say()
    await pane.step()
    (order,) = await pane.orders()
    await pane.world.cancel(order[0])
    assert await pane.step() == Cancel("cancelled")
    assert await pane.post(order) == "kept"
    assert await pane.trail() == [("live", "cancelled", "cancelled")]
    assert (await pane.participant()).read_seq == 1


async def test_a_trigger_that_was_given_up_with_an_open_hop_sends_nothing_more(pane: Pane) -> None:
    """Its worker died again and again: people were told so."""
    await pane.say()
    await pane.step()
    claim = await _hurried(pane)
    await pane.world.end(claim, Dead("worker.lost", included_to=1))
    assert await pane.orders() == [], "nothing more of it is handed out"
    await pane.world.redrive(claim.id)
    await pane.step()
    (order,) = await pane.orders()
    assert order[1] == 2, "what was left open before is over"
    await pane.world.end(await _hurried(pane), Dead("worker.lost", included_to=1))
    assert await pane.report(order, "delivered") == "trigger.over"
    assert await pane.post(order) == "kept"
    assert (await pane.acknowledge(order))["reason"] == "trigger.over"


async def test_a_dead_letter_says_so_and_a_redrive_begins_again(pane: Pane, tmp_path: Path) -> None:
    (tmp_path / "agents" / "gofer.toml").write_text('runtime = "tmux"\n')
    await pane.say()
    await pane.world.pass_time(200)  # the host is away
    claim = await pane.claim()
    assert isinstance(await pane.look(claim), Dead)
    outcome = await pane.look(claim)  # killed in between: the same end, and no further hop
    assert isinstance(outcome, Dead)
    assert outcome.reason == "runtime.offline"
    assert "could not be reached" in outcome.drafts[0].parts[0]
    await pane.world.end(claim, outcome)
    assert (await pane.participant()).read_seq == 1
    await pane.announce()
    await pane.world.redrive(claim.id)
    assert isinstance(await pane.step(), Snooze)
    assert [action for action, _, _ in await pane.trail()] == ["dead_letter", "live"]


async def test_a_closed_conversation_makes_no_trigger_until_it_is_opened_again(pane: Pane) -> None:
    await pane.say()
    await pane.turn()
    await pane.close()
    for text in ("one", "two"):
        await pane.say(text)
        assert await pane.world.sweep() == 0
    assert len(await pane.world.answer_jobs()) == 1, "no Trigger was made"
    told = await pane.world.rows(select(jobs.c.payload).where(jobs.c.kind == "reception"))
    assert [row.payload for row in told] == [{"seq": 2, "unheard": True, "closed": True}], (
        "people hear it once"
    )
    row = await pane.participant()
    assert (row.read_seq, row.wake_seq) == (1, 3), "it stays unread"
    assert (await pane.trigger())["reason"] == "conversation.closed"
    assert await pane.close(closed=False), "workers look at once"
    assert not await pane.close(closed=False)
    await pane.turn()
    assert (await pane.participant()).read_seq == 3


async def test_a_trigger_that_was_there_before_its_conversation_was_closed_says_so(pane: Pane) -> None:
    await pane.say()
    await pane.close()
    outcome = await pane.step()
    assert isinstance(outcome, Done)
    assert outcome.reason == "conversation.closed"
    assert "closed" in outcome.drafts[0].parts[0]


async def test_an_agent_whose_file_says_so_is_woken_in_closed_conversations(
    pane: Pane, tmp_path: Path
) -> None:
    (tmp_path / "agents" / "gofer.toml").write_text(FILE + "wake_when_closed = true\n")
    await pane.world.run(sync_agent, workspace_id=FIRST_WORKSPACE, spec=pane.files.get("gofer"))
    await pane.say()
    await pane.turn()
    await pane.close()
    await pane.say("still there?")
    await pane.turn()


async def test_a_place_that_its_service_closes_is_closed_here(pane: Pane) -> None:
    await pane.say()
    await pane.turn()
    arrival = pane.world.arrival()
    for number, closed in enumerate((True, False)):
        parsed = Parsed(f"closing-{number}", "issues.closed", note="closed", closed=("kitchen", closed))
        taken = await pane.world.deliver(replace(arrival, parsed=parsed, body_hash=f"{number}"))
        if closed:
            await pane.say("one more")
            assert (await pane.trigger())["action"] == "refused"
        else:
            assert taken.woke, "what was said meanwhile is answered now"
            await pane.turn()


async def test_waking_by_hand_is_idempotent_and_says_what_is_done(pane: Pane) -> None:
    await pane.say()
    assert (await pane.trigger())["action"] == "already_pending"
    await pane.turn()
    made = await pane.trigger(reason="look again")
    assert (made["action"], made["runtime"], made["next"]) == ("enqueued", "pane", "live")
    again = await pane.trigger()
    assert (again["action"], again["job"]) == ("already_pending", made["job"])
    await pane.turn("again")
    await pane.world.pass_time(200)
    away = await pane.trigger()
    assert (away["action"], away["reason"], away["next"]) == (
        "fallback_required", "runtime.offline", "fallback:helper"
    )  # fmt: skip


def test_the_bounds_are_those_of_the_settings_and_the_design() -> None:
    rules = SafeguardRules()
    fields = Settings.model_fields
    names = ("trigger_turns", "trigger_findings", "triggers_per_agent", "triggers_per_conversation")
    assert (rules.turns, rules.findings, rules.per_agent, rules.per_conversation) == (20, 3, 60, 30)
    assert tuple(fields[name].default for name in names) == (20, 3, 60, 30)
    quiet = ("trigger_quiet", "trigger_look_again", "trigger_defer")
    assert tuple(fields[name].default for name in quiet) == (20, 5, 60)
    assert fields["runtime_resume_within"].default == 12 * 3600
    assert fields["runtime_crashes"].default == 3


async def test_turns_without_a_person_block_it_until_one_says_so(world: World, tmp_path: Path) -> None:
    """Two agents that only wake each other end here as well."""
    pane = await Pane(world, tmp_path, trigger_turns=4).furnish()
    await pane.say()
    await pane.turn("first")
    for number in range(4):
        assert (await pane.trigger(agent="other"))["action"] == "enqueued", number
        await pane.turn(f"turn {number}")
        await pane.world.pass_time(130)  # within the rates
        await pane.announce()
    refused = await pane.trigger(agent="other")
    assert (refused["action"], refused["reason"]) == ("refused", "blocked.loop.no_progress")
    row = await pane.participant()
    assert row.blocked_at is not None
    forced = await pane.trigger(force=True, reason="the deadline")
    assert forced["action"] == "enqueued"
    await pane.turn("forced")
    assert (await pane.trigger())["action"] == "refused", "force lifts no block"
    await pane.world.run(requests.unblock, conversation_id=await pane.conversation(), agent="gofer", by="ann")
    assert (await pane.trigger())["action"] == "enqueued"


async def test_two_agents_that_only_answer_each_other_are_stopped(pane: Pane, tmp_path: Path) -> None:
    (tmp_path / "agents" / "helper.toml").write_text('runtime = "tmux"\n')
    register = partial(records.register, name="other", agent="helper", kind="tmux", member_id=MEMBER)
    await pane.world.run(register)
    said = records.Announcement("helper", "tmux", HOST, "live", "s2")
    await pane.world.run(records.announce, name="other", member_id=MEMBER, said=said, every=15.0)
    await pane.say("talk about it")
    await pane.turn("I begin.")
    await pane.say("and you, helper", agent="helper")
    turns, names = 0, ("helper", "gofer")
    while True:
        name = names[turns % 2]
        if turns:
            told = await pane.trigger(name, agent=names[(turns + 1) % 2])
            if told["action"] != "enqueued":
                break
        await pane.step()
        (order,) = await pane.orders()
        assert await pane.post(order, f"What do you mean by {turns}?", name) == "accepted"
        await pane.step()
        turns += 1
    assert (told["action"], told["reason"]) == ("refused", "blocked.loop.no_progress")
    assert turns == 2 + 20, "the first turn of each covers what the person said"


async def test_three_answers_that_say_the_same_block_it(pane: Pane) -> None:
    await pane.say("What did you find?")
    await pane.turn("I found nothing.")
    for _ in range(2):
        assert (await pane.trigger(agent="other"))["action"] == "enqueued"
        await pane.turn("  I found\nnothing. ")
    refused = await pane.trigger(agent="other")
    assert (refused["action"], refused["reason"]) == ("refused", "blocked.loop.same_words")
    await pane.say("and now?")
    outcome = await pane.step()
    assert isinstance(outcome, Done)
    assert outcome.reason == "blocked.loop.same_words"
    assert "said the same" in outcome.drafts[0].parts[0]
    with pytest.raises(NotFound):
        await pane.world.run(
            requests.unblock, conversation_id=await pane.conversation(), agent="nobody", by="ann"
        )


async def test_what_a_person_says_in_between_is_progress(pane: Pane) -> None:
    for number in range(5):
        await pane.say(f"Is it green now, {number}?")
        await pane.turn("No.")
    for _ in range(2):
        assert (await pane.trigger(agent="other"))["action"] == "enqueued"
        await pane.turn("No.")
    await pane.say("And now?")
    await pane.turn("No.")
    assert (await pane.trigger(agent="other"))["action"] == "enqueued"


@pytest.mark.parametrize("rate", ["triggers_per_conversation", "triggers_per_agent"])
async def test_rates_hold_it_back_until_there_is_room(world: World, tmp_path: Path, rate: str) -> None:
    pane = await Pane(world, tmp_path, **{rate: 3}).furnish()
    for number in range(3):
        await pane.say(f"{number}")
        await pane.turn(f"{number}")
    await pane.say("one more")
    outcome = await pane.step()
    assert isinstance(outcome, Snooze)
    assert outcome.reason == "rate.limited"
    assert 3500 < outcome.after <= 3600
    assert "was asked too often" in outcome.drafts[0].parts[0]
    await pane.say("are you there?")
    await world.run(lambda c: c.execute(jobs.update().values(run_at=0)))
    assert isinstance(await pane.step(), Snooze)
    (told,) = await world.rows(select(replies).where(replies.c.kind == "note"))
    assert told.job_id == (await world.answer_jobs())[-1].id, "it is said once"
    await world.pass_time(3601)
    await pane.announce()
    assert isinstance(await pane.step(), Snooze)
    assert (await pane.trail())[-1] == ("live", "queued", "")


async def test_a_clock_that_jumps_strands_nothing(pane: Pane) -> None:
    await pane.say()
    await pane.step()
    await pane.world.pass_time(-90_000)  # the clock goes back by a day
    outcome = await pane.look(await _hurried(pane))
    assert isinstance(outcome, Snooze)
    assert outcome.after <= hop_rows.TAKE_WITHIN
    await pane.world.pass_time(180_000)  # and forward by two
    runtime = (await pane.world.rows(select(runtimes)))[0]
    assert runtime.seen_at is not None


async def _hurried(pane: Pane) -> Claim:
    await pane.world.run(lambda c: c.execute(jobs.update().values(run_at=0)))
    return await pane.claim()


async def test_a_host_cannot_announce_what_is_not_its_own(pane: Pane) -> None:
    said = records.Announcement("gofer", "tmux", HOST, "live")
    announce = partial(records.announce, name="pane", member_id=MEMBER, said=said, every=15.0)
    with pytest.raises(NotFound):
        await pane.world.run(announce, member_id="member_eve")
    with pytest.raises(Conflict, match="registered as tmux"):
        await pane.world.run(announce, said=replace(said, agent="helper"))
    with pytest.raises(NotFound):
        await pane.world.run(announce, name="nothing")
    with pytest.raises(Conflict, match="announced by the host laptop already"):
        await pane.world.run(announce, said=replace(said, host="another"))
    await pane.world.pass_time(46)
    await pane.world.run(announce, said=replace(said, host="another"))
    with pytest.raises(NotFound):
        await pane.world.run(hop_rows.find_order, given=hop_rows.order_id(1, 1), member_id="member_eve")


async def test_a_host_cannot_put_an_order_off_for_ever_and_a_crash_after_the_prompt_counts(
    pane: Pane,
) -> None:
    await pane.say()
    await pane.step()
    (order,) = await pane.orders()
    for _ in range(6):
        await pane.world.pass_time(110)
        await pane.announce(can_resume=True)
        await pane.report(order, "deferred", "deferred.typing")
    assert (await pane.trail())[0] == ("live", "failed", "host.lost")
    await pane.step()
    (order,) = await pane.orders()
    await pane.acknowledge(order)
    assert await pane.report(order, "failed", "runtime.crashed") == ""
    assert await pane.report(order, "delivered") == "hop.failed", "it is over, and said so"


async def test_a_runtime_that_somebody_else_wrote_gets_nothing(pane: Pane) -> None:
    await pane.say()
    await pane.step()
    await pane.world.run(lambda c: c.execute(runtimes.update().values(member_id="member_eve")))
    assert await pane.orders(member="member_eve") == []
    await pane.world.run(lambda c: c.execute(hops.update().values(deadline=0)))
    await pane.world.run(lambda c: c.execute(jobs.update().values(run_at=0)))
    await pane.world.run(_ready)
    claim = await pane.world.claim_one()
    assert (await pane.look(claim)).reason == "fallback"  # type: ignore[union-attr]
