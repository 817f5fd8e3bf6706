"""Admission and polling with an integration made for the test: asked once, one poller, nothing skipped."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select, true

from gofer.connections.changes import switch_connection
from gofer.connections.context import LoadedConnections
from gofer.connections.inflow import CATCH_UP, POLL, ensure_inflow, fetch_now, fetch_trouble
from gofer.connections.registry import IntegrationRegistry
from gofer.errors import Fenced, Malformed, Permanent, Temporary
from gofer.intake.admit import Admitter, unread
from gofer.intake.polling import Poller
from gofer.intake.receive import LARGE, Gate, Intake
from gofer.integration import (
    Admission,
    Author,
    ConnectionContext,
    File,
    Incoming,
    Integration,
    Parsed,
    Request,
    Unread,
)
from gofer.jobs.kinds import ANSWER
from gofer.jobs.notifications import LocalSignals
from gofer.jobs.outcome import Done, Outcome
from gofer.jobs.queue import SERVICE, Claim
from gofer.jobs.worker import Run
from gofer.secrets.last_used import Uses
from gofer.store import row_macs
from gofer.store.blobs import read_blob
from gofer.store.tables import JobState, connections, in_state, jobs, messages
from gofer.vault.redaction import Redactor
from support.both_databases import slow_on_postgres
from support.patience import patience
from support.world import CONNECTION, World

database_url = slow_on_postgres

Eventually = Callable[..., Awaitable[Any]]


class Post(Integration):
    """A service that is asked for its mail."""

    name = "post"
    can_poll = can_catch_up = True

    def __init__(self) -> None:
        self.box: list[dict[str, str]] = []
        self.asked_after: list[str | None] = []
        self.admitted: list[str] = []
        self.trouble: Exception | None = None
        self.locked: Exception | None = None
        self.reading, self.go_on = threading.Event(), threading.Event()
        self.reads: Any = ...

    def parse(self, request: Request, account: ConnectionContext) -> Parsed:
        if self.reads is not ...:
            odd: Parsed = self.reads
            return odd
        letter = request.json()
        if "slowly" in letter:
            self.reading.set()
            assert self.go_on.wait(patience(30))
        message = Incoming(
            "kitchen", Author(letter["from"]), letter["text"], addressed=True, external_id=letter["id"]
        )
        return Parsed(letter["id"], "message", message)

    async def poll(self, account: ConnectionContext, last: str | None) -> Sequence[Request]:
        if self.trouble is not None:
            trouble, self.trouble = self.trouble, None
            raise trouble
        self.asked_after.append(last)
        known = [letter["id"] for letter in self.box]
        new = self.box[known.index(last) + 1 :] if last in known else self.box
        if not new:
            await asyncio.sleep(0.01)
        return [Request(json.dumps(letter).encode()) for letter in new]

    async def catch_up(self, account: ConnectionContext, since: float) -> AsyncIterator[Request]:
        if self.locked is not None:
            raise self.locked
        for letter in self.box:
            yield Request(json.dumps(letter).encode())

    async def admit(self, unread: Unread, account: ConnectionContext) -> Admission:
        if self.trouble is not None:
            raise self.trouble
        self.admitted.append(unread.message.text)
        return Admission(
            "member", text=unread.message.text.upper(), files=(File("a.txt", "text/plain", b"abc"),)
        )


class Office:
    """What a process needs to take mail in."""

    def __init__(self, world: World, post: Post) -> None:
        registry = IntegrationRegistry([])
        registry.integrations["post"] = post
        self.accounts = LoadedConnections(
            database=world.database,
            vault=world.vault,
            registry=registry,
            public_url="",
            uses=Uses(world.database),
        )
        self.intake = Intake(
            database=world.database, vault=world.vault, accounts=self.accounts, signals=LocalSignals(),
            gate=Gate(1000), redactor=Redactor(),
        )  # fmt: skip
        self.poller = Poller(database=world.database, accounts=self.accounts, intake=self.intake)
        self.admitter = Admitter(
            database=world.database, vault=world.vault, accounts=self.accounts, redactor=Redactor()
        )


@pytest.fixture
def post() -> Post:
    return Post()


@pytest.fixture
async def office(world: World, post: Post) -> Office:
    await world.run(
        lambda c: row_macs.update(c, connections, true(), {"integration": "post", "settings": {}})
    )
    return Office(world, post)


def letter(number: int) -> dict[str, str]:
    return {"id": f"letter-{number}", "from": "ann", "text": f"text {number}"}


async def say_nothing(run: Run) -> Outcome:
    return Done()


async def inflow(world: World) -> int:
    names = frozenset({"post"})
    made: int = await world.run(ensure_inflow, polling=names, catching_up=names, public=False)
    return made


async def test_processes_that_start_together_make_one_poller(world: World, office: Office) -> None:
    made = await asyncio.gather(*(inflow(world) for _ in range(4)))
    kinds = [row.kind for row in await world.rows(select(jobs))]
    assert len(kinds) == len(set(kinds)) == sum(made)
    assert {CATCH_UP, POLL} <= set(kinds)


async def test_what_is_polled_comes_in_once_and_in_order(
    world: World, office: Office, post: Post, eventually: Eventually
) -> None:
    post.box = [letter(n) for n in range(5)]
    await inflow(world)
    async with world.worker({POLL: office.poller.poll, ANSWER: say_nothing}):
        await eventually(lambda: has_messages(world, 5))
        post.box.append(letter(5))
        await eventually(lambda: has_messages(world, 6))
    assert post.asked_after[0] is None
    rows = await world.rows(select(messages.c.external_id).order_by(messages.c.seq))
    assert [row.external_id for row in rows] == [f"letter-{n}" for n in range(6)]


async def test_while_much_text_is_read_everything_else_goes_on(office: Office, post: Post) -> None:
    connected = await office.accounts.get(CONNECTION)
    much = {**letter(1), "text": "[" * LARGE, "slowly": "yes"}
    taking = asyncio.create_task(
        office.intake.take(connected, Request(json.dumps(much).encode()), "webhook"),
    )
    assert await asyncio.to_thread(post.reading.wait, 30)
    small = await office.intake.take(connected, Request(json.dumps(letter(2)).encode()), "webhook")
    post.go_on.set()
    assert (await taking).result == small.result == "accepted"


async def test_whatever_an_integration_makes_of_a_request_it_is_no_failure_of_ours(
    world: World, office: Office, post: Post
) -> None:
    ann = Author("ann")
    connected = await office.accounts.get(
        await world.run(lambda c: c.execute(select(connections.c.id)).scalar_one())
    )
    for odd in (
        None,
        Parsed(7, "message"),  # type: ignore[arg-type]
        Parsed("1", "message", Incoming("kitchen", Author("\ud800"), "half a pair", addressed=True)),
        Parsed("2", "message", Incoming("kitchen", ann, "x", addressed=True, title="a\x00b")),
        Parsed("3", "message", Incoming("kitchen", ann, None, addressed=True)),  # type: ignore[arg-type]
    ):
        post.reads = odd
        with pytest.raises(Malformed):
            await office.intake.take(connected, Request(b"{}"), "webhook")
    assert not await has_messages(world, 1)


async def has_messages(world: World, count: int) -> bool:
    return await world.count(messages) >= count


@pytest.mark.parametrize("trouble", [Temporary(retry_after=0.05), Permanent("no"), Temporary()], ids=repr)
async def test_trouble_at_the_service_pauses_the_poller_and_costs_no_try(
    world: World, office: Office, post: Post, eventually: Eventually, trouble: Exception
) -> None:
    post.trouble = trouble
    await inflow(world)

    async def has_paused() -> bool:
        (job,) = await world.rows(select(jobs).where(jobs.c.kind == POLL))
        return bool(job.state == "scheduled" or post.asked_after)

    async with world.worker({POLL: office.poller.poll}):
        await eventually(has_paused)
    (job,) = await world.rows(select(jobs).where(jobs.c.kind == POLL))
    assert job.attempts == 0


async def test_what_a_person_must_put_right_ends_no_job_dead(
    world: World, office: Office, post: Post, eventually: Eventually
) -> None:
    post.locked = Permanent("no", reason="credentials")
    await inflow(world)
    for named in (CONNECTION, "gone"):
        await world.submit(f"schedule:{named}", kind=CATCH_UP, pool=SERVICE, payload={"connection_id": named})

    async def is_tried() -> bool:
        return (
            await world.count(jobs, jobs.c.kind == CATCH_UP, in_state(JobState.READY, JobState.RUNNING)) == 0
        )

    async with world.worker({CATCH_UP: office.poller.catch_up}):
        await eventually(is_tried)
        rows = await world.rows(
            select(jobs.c.lane, jobs.c.state, jobs.c.reason).where(jobs.c.kind == CATCH_UP)
        )
        assert {tuple(row) for row in rows} == {
            (f"catch_up:{CONNECTION}", "scheduled", "credentials"),
            (f"schedule:{CONNECTION}", "done", "credentials"),
            ("schedule:gone", "done", "connection.removed"),
        }
        assert await world.database.read(partial(fetch_trouble, connection_id=CONNECTION)) == "credentials"
        post.locked, post.box = None, [letter(1)]
        await world.run(fetch_now, connection_id=CONNECTION)
        await eventually(lambda: has_messages(world, 1))
    assert not await world.database.read(partial(fetch_trouble, connection_id=CONNECTION))


async def test_a_connection_that_is_switched_off_ends_the_jobs_that_wait_for_their_next_try(
    world: World, office: Office, post: Post, eventually: Eventually
) -> None:
    post.locked = Permanent("no", reason="credentials")
    await inflow(world)

    async def is_in(state: JobState) -> bool:
        return await world.count(jobs, jobs.c.kind == CATCH_UP, in_state(state)) == 1

    async with world.worker({CATCH_UP: office.poller.catch_up}):
        await eventually(lambda: is_in(JobState.SCHEDULED))
        await world.run(switch_connection, connection_id=CONNECTION, enabled=False, by="owner")
        office.accounts.forget()
        await eventually(lambda: is_in(JobState.DONE))


# Admission.


async def working(world: World) -> Claim:
    await world.say("hello")
    return await world.claim_one()


async def test_a_message_is_admitted_once_and_what_was_found_is_kept(
    world: World, office: Office, post: Post
) -> None:
    claim = await working(world)
    for _ in range(2):
        found = await world.database.read(lambda c: unread(c, world.vault, claim, 0))
        (read,) = await office.admitter.admit(claim, found)
    assert post.admitted == ["hello"]
    assert (read.message.text, read.trust) == ("HELLO", "member")
    digest = read.message.attachments[0].ref.removeprefix("blob:")
    kept = await world.database.read(lambda c: read_blob(c, world.vault, str(claim.conversation_id), digest))
    assert kept == b"abc"


async def test_a_worker_that_lost_its_job_admits_nothing(world: World, office: Office) -> None:
    claim = await working(world)
    found = await world.database.read(lambda c: unread(c, world.vault, claim, 0))
    await world.pass_time(31)
    await world.sweep()
    with pytest.raises(Fenced):
        await office.admitter.admit(claim, found)
    assert (await world.rows(select(messages.c.trust)))[0][0] == "unknown"


async def test_who_cannot_be_looked_up_is_a_stranger_and_an_outage_is_tried_again(
    world: World, office: Office, post: Post
) -> None:
    claim = await working(world)
    found = await world.database.read(lambda c: unread(c, world.vault, claim, 0))
    post.trouble = Temporary()
    with pytest.raises(Temporary):
        await office.admitter.admit(claim, found)
    post.trouble = Permanent("gone")
    (read,) = await office.admitter.admit(claim, found)
    assert read.trust == "stranger"


async def test_an_edit_that_crosses_admission_is_not_lost(world: World, office: Office) -> None:
    """Edited after it was asked about and before the answer is stored: the newer words are kept."""
    await world.say("helo", external_id="m1")
    claim = await world.claim_one()
    found = await world.database.read(lambda c: unread(c, world.vault, claim, 0))
    await world.say("hello, world", external_id="m1", replaces_id="m1")
    (read,) = await office.admitter.admit(claim, found)
    assert read.message.text == "HELLO, WORLD"
