"""The memory manager beside runs: what was said is summed up before an answer has to wait for it, within its budget."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import Connection, select, update

from gofer.jobs import queue
from gofer.jobs.outcome import Done, Snooze
from gofer.jobs.queue import SERVICE
from gofer.jobs.worker import Run
from gofer.memory import changes, records
from gofer.memory.manager import MEMORY, by_rule_lately, ensure_job
from gofer.memory.notes import EVENT
from gofer.memory.records import NewMemory
from gofer.memory.scopes import agent_scope, conversation_scope
from gofer.purge import purge_conversation
from gofer.runs import memory_manager
from gofer.runs.agent_files import AgentFiles
from gofer.runs.memory_manager import MemoryManager, ensure_summing_up, tick
from gofer.runs.model_keys import ModelKeys
from gofer.settings import Settings
from gofer.store.tables import Trust, agents, events, jobs, memories, messages, participants, spends
from gofer_standins import loopback
from gofer_standins.anthropic import Anthropic, say
from support.world import World, admit

SUMMARY = "Goal: g\nConstraints: c\nProgress: p\nDecisions: d\nNext steps: n\nFiles: f"


class Desk:
    """A manager, its model, and a conversation with some history."""

    def __init__(self, world: World, manager: MemoryManager, model: Anthropic) -> None:
        self.world, self.manager, self.model = world, manager, model
        self.conversation = ""

    async def talk(self, count: int, size: int = 1200) -> str:
        """Messages that were read and answered; returns the participant."""
        for number in range(count):
            taken = await self.world.say(f"Message {number}. " + "blue cups " * (size // 10))
            self.conversation = str(taken.conversation_id)
            seq = int(taken.seq or 0)
            await self.world.run(
                partial(admit, world=self.world, conversation=self.conversation, seq=seq, trust=Trust.MEMBER)
            )
        claim = await self.world.claim_one()
        await self.world.end(claim, Done(included_to=count))
        return str(claim.participant_id)

    async def work(self) -> Any:
        """Do the next job of the manager, if there is one."""
        await self.world.pass_time(60)
        await self.world.run(queue.stage)
        claims = await self.world.claim(pool=SERVICE)
        for claim in claims:
            assert claim.kind == MEMORY
            outcome = await self.manager.handle(Run(claim))
            await self.world.end(claim, outcome)
            return outcome
        return None

    async def summaries(self) -> list[Any]:
        query = select(memories).where(memories.c.kind == "summary", memories.c.valid_to.is_(None))
        return await self.world.rows(query)

    async def told(self, what: str) -> list[dict[str, Any]]:
        rows = await self.world.rows(
            select(events.c.data).where(events.c.kind == EVENT).order_by(events.c.id)
        )
        return [row.data for row in rows if row.data["what"] == what]


@asynccontextmanager
async def desk(world: World, folder: Path, script: Any = None, toml: str = "") -> AsyncIterator[Desk]:
    model = Anthropic(script or (lambda request: say(SUMMARY)))
    (folder / "agents").mkdir()
    (folder / "agents" / "gofer.toml").write_text(toml)
    async with loopback.serve(model.app) as url, httpx2.AsyncClient() as http:
        settings = Settings(data_dir=folder, anthropic_key=model.key, anthropic_base_url=url)
        keys = ModelKeys(settings=settings, database=world.database, vault=world.vault, http=http)
        files = AgentFiles(folder / "agents")
        manager = MemoryManager(
            settings=settings, database=world.database, vault=world.vault, keys=keys, agents=files
        )
        yield Desk(world, manager, model)
    assert model.refused == []


async def test_a_full_working_memory_is_summed_up_by_the_model_once(world: World, tmp_path: Path) -> None:
    async with desk(world, tmp_path) as here:
        participant = await here.talk(30)
        assert await world.run(ensure_summing_up, participant=participant)
        assert not await world.run(ensure_summing_up, participant=participant), "one at a time"
        await here.work()
        assert len(here.model.received) == 1
        (kept,) = await here.summaries()
        scope = conversation_scope(here.conversation)
        found = await world.run(records.resolve, vault=world.vault, memory_id=kept.id, scopes=(scope,))
        assert found.text == SUMMARY
        assert found.covers, "what it stands for can be recalled"
        (told,) = await here.told("summarise")
        assert told["id"] == kept.id
        assert told["tokens_before"] > told["tokens_after"] > 0
        (event,) = await world.rows(select(events).where(events.c.kind == "context.checkpoint"))
        assert (event.conversation_id, event.sealed is None) == (here.conversation, False)
        (paid,) = await world.rows(select(spends))
        assert (paid.settled, paid.background, paid.micros > 0) == (True, True, True)
        await world.run(ensure_summing_up, participant=participant)
        await here.work()
        assert len(await here.summaries()) == len(here.model.received) == 1, "what is left has room"
        await world.run(purge_conversation, vault=world.vault, conversation_id=here.conversation, by="test")
        (event,) = await world.rows(select(events).where(events.c.kind == "context.checkpoint"))
        assert event.sealed is None


async def test_without_money_a_rule_sums_up_and_a_quiet_conversation_is_left_as_it_is(
    world: World, tmp_path: Path
) -> None:
    async with desk(world, tmp_path, toml="[limits]\nmemory_day_dollars = 0\n") as here:
        participant = await here.talk(30)
        await world.run(ensure_summing_up, participant=participant, quiet=True)
        await here.work()
        assert await here.summaries() == []
        await world.run(ensure_summing_up, participant=participant)
        await here.work()
        assert len(await here.summaries()) == 1
        assert here.model.received == []


async def test_a_budget_of_its_own_bounds_what_a_day_of_tidying_costs(world: World, tmp_path: Path) -> None:
    async with desk(world, tmp_path, toml="[limits]\nmemory_day_dollars = 0.00001\n") as here:
        participant = await here.talk(30)
        await world.run(ensure_summing_up, participant=participant)
        await here.work()
        assert here.model.received == [], "the call could cost more than there is"
        assert len(await here.summaries()) == 1, "so a rule does it"
        assert await world.rows(select(spends)) == []
        (told,) = await world.run(by_rule_lately)
        assert "memory_day_dollars" in told


@pytest.mark.parametrize("meanwhile", ["a run", "a new epoch", "a summary"])
async def test_nothing_is_written_when_something_happens_meanwhile(
    world: World, tmp_path: Path, meanwhile: str
) -> None:
    async with desk(world, tmp_path) as here:
        participant = await here.talk(30)

        def change(connection: Connection) -> None:
            values: dict[str, Any] = {"epoch_seq": 5} if meanwhile == "a new epoch" else {"summary": b"x"}
            connection.execute(update(participants).values(values))

        async def happen() -> None:
            if meanwhile == "a run":
                await world.say("And now?")
            else:
                await world.run(change)

        before = await world.database.read(partial(memory_manager._idle, participant=participant))
        await world.run(ensure_summing_up, participant=participant)
        await world.pass_time(60)
        await world.run(queue.stage)
        (claim,) = await world.claim(pool=SERVICE)
        ours = claim._replace(
            conversation_id=before.conversation_id, participant_id=before.id, agent_id=before.agent_id
        )
        point = await here.manager._summary(ours, before, None, 0.75)
        assert point is not None
        await happen()
        kept = await world.run(
            memory_manager._keep, vault=world.vault, claim=ours, before=before, point=point
        )
        assert not kept
        assert await here.summaries() == []


async def test_a_run_that_is_under_way_is_left_alone(world: World, tmp_path: Path) -> None:
    async with desk(world, tmp_path) as here:
        participant = await here.talk(30)
        await world.say("And now?")
        await world.run(ensure_summing_up, participant=participant)
        await here.work()
        assert (await here.summaries(), here.model.received) == ([], [])


async def test_quiet_conversations_are_looked_at_once(world: World, tmp_path: Path) -> None:
    async with desk(world, tmp_path) as here:
        await here.talk(20)
        looked: dict[str, int] = {}
        assert await tick(world.database, 900, looked) == 0, "somebody has just written"
        earlier = update(messages).values(created_at=messages.c.created_at - 1000)
        await world.run(lambda connection: connection.execute(earlier) and None)
        assert await tick(world.database, 900, looked) == 1
        assert await tick(world.database, 900, looked) == 0
        await here.work()
        assert len(await here.summaries()) == 1, "half full is enough when the cache is cold"


async def test_a_slow_or_broken_model_changes_nothing_and_fails_nothing(world: World, tmp_path: Path) -> None:
    async with desk(world, tmp_path, lambda request: say("no json at all")) as here:
        agent = str((await world.rows(select(agents.c.id)))[0][0])
        for text in ("Ann's old cat is black", "Ann's old cat is white"):
            new = NewMemory("note", agent_scope(agent), text, "owner")
            await world.run(changes.remember, vault=world.vault, new=new)
        await world.run(ensure_job, lane="memory:x", payload={"scope": agent_scope(agent)})
        assert isinstance(await here.work(), Done)
        assert len(here.model.received) == 1
        assert await world.count(memories, memories.c.valid_to.is_(None)) == 2
        assert await world.count(jobs, jobs.c.kind == MEMORY, jobs.c.state == "done") == 1


async def test_a_model_that_answers_too_late_is_said_and_fails_nothing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_manager, "MODEL_TIMEOUT", 0.05)
    async with desk(world, tmp_path, lambda request: say(SUMMARY, delay=30)) as here:
        participant = await here.talk(30)
        await world.run(ensure_summing_up, participant=participant)
        assert isinstance(await here.work(), Done)
        assert await here.summaries() == []
        (told,) = await world.run(by_rule_lately)
        assert "did not answer in time" in told


async def test_one_job_at_a_time_keeps_no_other_service_waiting(world: World, tmp_path: Path) -> None:
    async with desk(world, tmp_path) as here:
        participant = await here.talk(1)
        await world.run(ensure_summing_up, participant=participant)
        async with here.manager._one_at_a_time:
            assert isinstance(await here.work(), Snooze)
