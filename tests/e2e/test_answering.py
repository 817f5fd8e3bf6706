"""A whole instance with a model: what people do to a run while it works, waits or fails, on both databases."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from gofer.app import open_app
from gofer.integration import Admission, ConnectionContext, Unread
from gofer.jobs.wait_reasons import clock_time
from gofer.runs.answer import APOLOGIES
from gofer.settings import Settings
from gofer.store import row_macs
from gofer.store.db_time import now
from gofer.store.tables import SCHEDULE, attempts, connections, conversations, jobs, messages, replies, spends
from gofer_hello import Hello
from gofer_standins.anthropic import Anthropic, Reply, call, calls, fault, say
from gofer_standins.hello import HelloService
from gofer_standins.loopback import serve
from support.sqlite_template import with_tables
from support.world import World

pytestmark = pytest.mark.asyncio(loop_scope="module")

Eventually = Callable[..., Awaitable[Any]]


@dataclass
class Gated(Anthropic):
    """Says nothing until its gate is opened, so that a test can do something in the meantime."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def _stream(self, body: Mapping[str, Any], reply: Reply) -> AsyncIterator[bytes]:
        await self.gate.wait()
        async for piece in super()._stream(body, reply):
            yield piece


@dataclass
class Office:
    """Gofer, the service people write from, and the model it thinks with."""

    world: World
    people: HelloService
    model: Gated

    def play(self, *replies: Reply, gated: bool = False) -> None:
        """What the model will say from now on."""
        self.model.script, self.model._answered = replies, 0
        self.model.received.clear()
        (self.model.gate.clear if gated else self.model.gate.set)()

    async def say(self, text: str, room: str, **more: Any) -> int:
        self.people.rooms.add(room)
        taken = await self.world.say(text, room=room, title=room, connection_id=CONNECTION, **more)
        return int(taken.seq or 0)

    def told(self, room: str) -> list[str]:
        return [reply.text for reply in self.people.ledger if reply.room == room]

    async def job(self, room: str) -> Any:
        query = select(jobs, (jobs.c.run_at - now()).label("in_seconds"))
        query = query.join(conversations, conversations.c.id == jobs.c.conversation_id)
        query = query.where(jobs.c.kind == "answer", conversations.c.title == room).order_by(jobs.c.id.desc())
        return (await self.world.rows(query))[0]


CONNECTION = "hello_office"


@contextlib.asynccontextmanager
async def opened(data_dir: Path, url: str, people: HelloService, model: Gated) -> AsyncIterator[Office]:
    async with serve(model.app) as base:
        settings = Settings(
            data_dir=data_dir,
            database_url=url,
            anthropic_key=model.key,
            anthropic_base_url=base,
            sandbox="off",
            poll_interval=0.05,
        )
        async with open_app(with_tables(settings), roles=frozenset({"worker"})) as platform:
            world = World(platform.database, platform.vault)
            with contextlib.suppress(IntegrityError):  # there already, after a restart
                await world.connect(CONNECTION, settings={"reply_url": people.url})
            yield Office(world, people, model)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def office(own_url: str, own_dir: Path) -> AsyncIterator[Office]:
    async with HelloService("key").open() as people, opened(own_dir, own_url, people, Gated([])) as office:
        yield office


async def test_an_hour_of_rate_limit_is_a_time_on_the_job_and_costs_no_try(
    office: Office, eventually: Eventually
) -> None:
    hour = fault("rate_limit", retry_after=3600)
    office.play(hour, hour, say("Hours later."), say("Next."))
    await office.say("Are you there?", "hour")
    await eventually(lambda: _in_state(office, "hour", "scheduled"))
    job = await office.job("hour")
    assert 3000 < job.in_seconds <= 3600
    assert (job.reason, job.attempts) == ("model.unavailable", 0)
    await eventually(lambda: office.told("hour"))
    (delay,) = office.told("hour")
    until = clock_time(time.time() + job.in_seconds, "UTC", time.time())
    assert (
        delay
        == f"The model's provider makes us wait until {until}. Your message is kept, and I go on by myself."
    )
    await office.say("/status", "hour", event="command", command="status")
    await eventually(lambda: len(office.told("hour")) == 2)
    assert f"waiting to try again at {until}: the model's provider makes us wait" in office.told("hour")[1]
    await _at_once(office, job)
    await eventually(lambda: len(office.model.received) == 2)
    await eventually(lambda: _in_state(office, "hour", "scheduled"))
    await _at_once(office, job)
    await eventually(lambda: len(office.told("hour")) == 3)
    assert office.told("hour")[2] == "Hours later.", "that it takes longer is said once"
    await office.say("And then?", "hour")
    await eventually(lambda: office.told("hour")[-1] == "Next.")
    assert "makes us wait" not in str(office.model.received), "it is a word for people, not for models"


async def _at_once(office: Office, job: Any) -> None:
    """Have a job that was put off tried now."""
    await office.world.run(lambda c: c.execute(update(jobs).where(jobs.c.id == job.id).values(run_at=now())))


async def _in_state(office: Office, room: str, state: str) -> bool:
    return bool((await office.job(room)).state == state)


async def test_stop_ends_a_run_whose_model_is_silent(office: Office, eventually: Eventually) -> None:
    office.play(say("Never said."), gated=True)
    await office.say("Think hard.", "stop")
    await eventually(lambda: office.model.received)
    await office.say("/stop", "stop", event="command", command="stop", control="stop")
    await eventually(lambda: office.told("stop"))
    assert office.told("stop") == ["Stopped, as asked."]
    job = await office.job("stop")
    assert job.state == "cancelled"
    (end,) = await office.world.rows(select(attempts).where(attempts.c.job_id == job.id))
    assert end.outcome == "cancelled"
    await eventually(lambda: office.model.open_streams == 0)


async def test_what_is_said_while_it_works_reaches_its_next_turn(
    office: Office, eventually: Eventually
) -> None:
    office.play(calls(call("todo", items=[{"text": "paint"}])), say("Both done."), gated=True)
    await office.say("Paint the door.", "steer")
    await eventually(lambda: office.model.received)
    await office.say("In blue, please.", "steer")
    office.model.gate.set()
    await eventually(lambda: office.told("steer"))
    assert office.told("steer") == ["Both done."]
    first, second = office.model.received
    assert "In blue" not in str(first["messages"])
    assert "In blue, please." in str(second["messages"][-1])
    assert (await office.job("steer")).state == "done"


async def test_a_new_epoch_forgets_and_the_history_stays(office: Office, eventually: Eventually) -> None:
    office.play(say("Noted."), say("Nothing."))
    await office.say("The code is swordfish.", "new")
    await eventually(lambda: office.told("new") == ["Noted."])
    await office.say("/new", "new", event="command", command="new", control="new")
    await eventually(lambda: len(office.told("new")) == 2)
    await office.say("What is the code?", "new")
    await eventually(lambda: office.told("new")[-1] == "Nothing.")
    assert "swordfish" not in str(office.model.received[-1])
    kept = (await office.job("new")).conversation_id
    assert (
        await office.world.count(messages, messages.c.conversation_id == kept, messages.c.event == "message")
        == 2
    )


@pytest.mark.parametrize("waiting", [False, True])
async def test_new_ends_what_is_being_done_and_the_next_run_knows_nothing_of_it(
    office: Office, eventually: Eventually, waiting: bool
) -> None:
    room = f"afresh {waiting}"
    asking = calls(call("ask_user", question="Which swordfish?"))
    office.play(asking if waiting else say("Never said."), say("Afresh."), gated=not waiting)
    await office.say("Find the swordfish.", room)
    await eventually(lambda: _in_state(office, room, "waiting") if waiting else office.model.received)
    if not waiting:
        await office.say("A large swordfish.", room)
    await office.say("/new", room, event="command", command="new", control="new")
    await office.say("Fresh topic.", room)
    await eventually(lambda: "Stopped, as asked." in office.told(room))
    office.model.gate.set()
    await eventually(lambda: "Afresh." in office.told(room))
    expected = [
        "A fresh start: I no longer have in mind what was said before. Ask me to recall it if you need it.",
        "Afresh.",
        "Stopped, as asked.",
    ]
    assert sorted(office.told(room)[1 if waiting else 0 :]) == expected
    assert len(office.model.received) == 2
    seen = str(office.model.received[1]["messages"])
    assert "Fresh topic." in seen
    assert "swordfish" not in seen
    assert "Stopped" not in seen


async def test_a_refused_key_is_told_to_whoever_asked_and_ends_the_job(
    office: Office, eventually: Eventually
) -> None:
    office.play(say("Hello."), fault("auth"))
    await office.say("Hello?", "key")
    await eventually(lambda: office.told("key") == ["Hello."])
    # Another model, because its breaker opens.
    other = (
        update(conversations).where(conversations.c.title == "key").values(model="anthropic/claude-haiku-4-5")
    )
    await office.world.run(lambda c: c.execute(other))
    await office.say("And now?", "key")
    await eventually(lambda: len(office.told("key")) == 2)
    assert "refuses the key" in office.told("key")[-1]
    job = await office.job("key")
    assert (job.state, job.reason) == ("dead", "model.auth")


async def test_whoever_cannot_be_looked_up_is_told_once_that_it_could_not_be_done(
    office: Office, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with an integration whose `admit` has a bug: nobody ever finds out who is asking."""

    async def stumble(self: Hello, unread: Unread, account: ConnectionContext) -> Admission:
        raise KeyError("role")

    monkeypatch.setattr(Hello, "admit", stumble)
    await office.say("Who am I?", "nameless")

    async def is_dead() -> bool:
        await _at_once(office, job := await office.job("nameless"))
        return bool(job.state == "dead")

    await eventually(is_dead)
    job = await office.job("nameless")
    assert (job.reason, job.attempts) == ("internal", job.max_attempts)
    await eventually(lambda: office.told("nameless"))
    monkeypatch.undo()
    office.play(say("You are heard."))
    await office.say("And now?", "nameless")
    await eventually(lambda: office.told("nameless")[-1] == "You are heard.")
    assert office.told("nameless")[:-1] == [APOLOGIES["internal"]]


async def test_a_model_without_a_price_ends_the_job_tells_once_and_is_never_asked(
    office: Office, eventually: Eventually
) -> None:
    office.play(say("Hello."), say("Hello again."))
    await office.say("Hello?", "price")
    await eventually(lambda: office.told("price") == ["Hello."])
    chosen = update(conversations).where(conversations.c.title == "price")
    await office.world.run(lambda c: c.execute(chosen.values(model="anthropic/of-no-known-price")))
    await office.say("And now?", "price")
    await eventually(lambda: len(office.told("price")) == 2)
    assert "prices.toml" in office.told("price")[1]
    job = await office.job("price")
    assert (job.state, job.attempts) == ("done", 1)
    await office.world.run(lambda c: c.execute(chosen.values(model="")))
    await office.say("And again?", "price")
    await eventually(lambda: office.told("price")[2:] == ["Hello again."])
    here = (jobs.c.conversation_id == job.conversation_id, jobs.c.kind == "answer")
    assert await office.world.count(jobs, *here) == 3
    assert len(office.model.received) == 2


async def test_whoever_brings_a_budget_near_its_end_is_told_under_the_answer_and_nobody_after(
    office: Office, eventually: Eventually
) -> None:
    office.play(say("One."), say("Two."))
    await office.say("Paint the door.", "near")
    await eventually(lambda: office.told("near") == ["One."])
    job = await office.job("near")
    spent = int(
        (await office.world.rows(select(func.sum(spends.c.micros)).where(spends.c.day == _today())))[0][0]
    )
    row = {"workspace_id": job.workspace_id, "agent_id": job.agent_id, "conversation_id": "", "job_id": 0}
    row |= {"key": "before", "day": _today(), "micros": 8_000_000 - spent - 1, "settled": True}
    await office.world.run(lambda c: c.execute(insert(spends).values(row)))
    for answer in ("Two.\n\nNote: My budget for today is nearly used up: $8.00 of $10.00.", "Three."):
        await office.say("Paint the window.", "near")
        await eventually(lambda answer=answer: office.told("near")[-1] == answer)
        office.play(say("Three."))
    await office.world.run(lambda c: c.execute(delete(spends).where(spends.c.key == "before")))


async def test_short_waits_are_silent_until_they_add_up(office: Office, eventually: Eventually) -> None:
    """After a refused key the model rests for half a minute, again and again."""
    office.play(say("Hello."), fault("auth"))
    await office.say("Hello?", "rest")
    await eventually(lambda: office.told("rest") == ["Hello."])
    chosen = update(conversations).where(conversations.c.title == "rest")
    await office.world.run(lambda c: c.execute(chosen.values(model="anthropic/claude-opus-4-8")))
    await office.say("And now?", "rest")
    await eventually(lambda: len(office.told("rest")) == 2)
    await office.say("And now?", "rest")
    await eventually(lambda: _in_state(office, "rest", "scheduled"))
    job = await office.job("rest")
    assert (job.reason, job.in_seconds <= 30) == ("model.unavailable", True)
    assert await office.world.count(replies, replies.c.job_id == job.id) == 0
    earlier = {"started_at": attempts.c.started_at - 50, "ended_at": attempts.c.ended_at - 50}
    tries = update(attempts).where(attempts.c.job_id == job.id).values(earlier)
    await office.world.run(lambda c: c.execute(tries))
    await _at_once(office, job)
    await eventually(lambda: len(office.told("rest")) == 3)
    assert "makes us wait until" in office.told("rest")[2]


async def test_each_run_of_a_day_that_ends_with_its_budget_says_so_and_schedules_say_it_once(
    office: Office, eventually: Eventually
) -> None:
    """Three work at once when not even the money for one last answer is left."""
    rooms = ["spent 1", "spent 2", "spent 3"]
    step = calls(call("todo", items=[{"text": "paint"}]))
    office.play(step, step, step, gated=True)
    for room in rooms:
        await office.say("Paint the door.", room)
    await eventually(lambda: len(office.model.received) == 3)
    job = await office.job(rooms[0])
    row = {"workspace_id": job.workspace_id, "agent_id": job.agent_id, "conversation_id": "", "job_id": 0}
    row |= {"key": "elsewhere", "day": _today(), "micros": 9_999_000, "settled": True, "background": True}
    await office.world.run(lambda c: c.execute(insert(spends).values(row)))
    office.model.gate.set()
    for room in rooms:
        await eventually(lambda room=room: office.told(room))
    ended = re.compile(
        r"This agent's budget of \$10\.00 for today is used up: \$1\d\.\d\d is spent or set aside, and the next call, "
        r"with room for a last answer, could cost up to \$0\.\d+\. It begins anew tomorrow; day_dollars of .*"
    )
    assert [len(office.told(room)) for room in rooms] == [1, 1, 1]
    assert all(ended.fullmatch(office.told(room)[0]) for room in rooms)
    assert len(office.model.received) == 3
    for _ in range(2):
        seq = await office.say("Water the garden.", "garden", event=SCHEDULE)
        await eventually(lambda seq=seq: _dealt_with(office, seq))
    (told,) = office.told("garden")
    assert ended.fullmatch(told)
    for asked in (2, 3):
        await office.say("And I?", rooms[0])
        await eventually(lambda asked=asked: len(office.told(rooms[0])) == asked)
    last = await office.job(rooms[0])
    here = (jobs.c.conversation_id == last.conversation_id, jobs.c.kind == "answer")
    assert (last.state, await office.world.count(jobs, *here)) == ("done", 3), (
        "what was not read is not asked again"
    )
    await office.world.run(lambda c: c.execute(delete(spends).where(spends.c.key == "elsewhere")))


async def test_what_is_for_a_connection_whose_row_is_refused_waits_until_it_is_right(
    office: Office, eventually: Eventually
) -> None:
    """Somebody else than Gofer wrote it: that costs neither the question nor the answer."""
    settings = {"reply_url": office.people.url}
    changed = await office.world.connect("hello_changed", settings=settings)
    here = connections.c.id == changed
    await office.world.run(lambda c: c.execute(update(connections).where(here).values(max_running=7)))
    office.play(say("Here I am."))
    office.people.rooms.add("changed")
    await office.world.say("Are you there?", room="changed", title="changed", connection_id=changed)
    await eventually(lambda: _in_state(office, "changed", "scheduled"))
    job = await office.job("changed")
    assert (job.reason, job.attempts) == ("row.refused", 0)
    await office.world.run(lambda c: c.execute(update(connections).where(here).values(max_running=None)))
    await _at_once(office, job)
    await eventually(lambda: office.told("changed"))


async def test_what_is_for_an_integration_that_did_not_load_waits_until_it_is_back(
    office: Office, eventually: Eventually
) -> None:
    """A package that is broken by an upgrade costs neither the question nor the answer."""
    settings = {"reply_url": office.people.url}
    elsewhere = await office.world.connect("hello_gone", integration="gone", settings=settings)
    office.play(say("Here I am."))
    office.people.rooms.add("plugin")
    await office.world.say("Are you there?", room="plugin", title="plugin", connection_id=elsewhere)
    await eventually(lambda: _in_state(office, "plugin", "scheduled"))
    job = await office.job("plugin")
    assert (job.reason, job.attempts) == ("integration.missing", 0)
    here = connections.c.id == elsewhere
    await office.world.run(lambda c: row_macs.update(c, connections, here, {"integration": "hello"}))
    await _at_once(office, job)
    await eventually(lambda: office.told("plugin"))
    assert office.told("plugin") == ["Here I am."]


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


async def _dealt_with(office: Office, seq: int) -> bool:
    """Whether the garden's agent has read so far and has nothing left to say."""
    job = await office.job("garden")
    unsent = replies.c.state.in_(("planned", "placed"))
    left = await office.world.count(replies, replies.c.conversation_id == job.conversation_id, unsent)
    return bool(job.state == "done" and job.covers_to >= seq and not left)


async def test_a_question_survives_a_restart_and_its_answer_goes_on(
    database_url: str, data_dir: Path, eventually: Eventually
) -> None:
    """It waits without a worker, and the run that goes on has the same calls before it."""
    asking = calls(call("ask_user", question="Which colour?", choices=["red", "blue"]))
    model = Gated([asking, say("Blue it is.")])
    model.gate.set()
    async with HelloService("key").open() as people:
        async with opened(data_dir, database_url, people, model) as office:
            await office.say("Paint it.", "question")
            await eventually(lambda: _in_state(office, "question", "waiting"))
            await eventually(lambda: office.told("question"))
            assert "Which colour?" in office.told("question")[0]
            waiting = await office.job("question")
            assert (waiting.owner, waiting.lease_until, waiting.attempts) == (None, None, 0)
        async with opened(data_dir, database_url, people, model) as office:
            assert (await office.job("question")).state == "waiting"
            await office.say("The blue one.", "question", id_="later")
            await eventually(lambda: len(office.told("question")) == 2)
            assert office.told("question")[1] == "Blue it is."
            job = await office.job("question")
            assert (job.id, job.state) == (waiting.id, "done")
        assert model.refused == []
        assert "The blue one." in str(model.received[1]["messages"][-1])
