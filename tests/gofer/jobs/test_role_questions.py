"""Questions asked of a role: in several places at once, the first answer counts, and only of who has the role."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

from gofer.errors import Conflict, Forbidden, Malformed
from gofer.jobs.control import GivenAnswer, answer, answer_to
from gofer.jobs.outcome import MEMBERS, OWNERS, Wait
from gofer.jobs.queue import SERVICE, Claim
from gofer.outbox.ledger import next_part
from gofer.store.tables import JobState, bindings, questions, replies
from support.both_databases import slow_on_postgres
from support.world import World

database_url = slow_on_postgres

ABOUT = "proposal 1"


async def ask(world: World, of: str = OWNERS) -> Claim:
    """A job in the kitchen asks in the chats of Ann and Bob."""
    for room, by in (("kitchen", "cleo"), ("chat of ann", "ann"), ("chat of bob", "bob")):
        await world.say("hello", room=room, by=by, addressed=False)
    await world.submit("asking", pool=SERVICE, conversation_id=await conversation(world, "kitchen"))
    claim = await world.claim_one(pool=SERVICE)
    drafts = [await world.draft("May I?", room=f"chat of {who}", kind="note") for who in ("ann", "bob")]
    await world.end(claim, Wait("May I?", ABOUT, of, drafts=tuple(drafts), choices=("Yes", "No")))
    assert await world.state(claim.id) is JobState.WAITING
    return claim


async def conversation(world: World, room: str) -> str:
    query = select(bindings.c.conversation_id).where(bindings.c.ref == room)
    return str((await world.rows(query))[0][0])


async def question(world: World) -> str:
    return str((await world.rows(select(questions.c.id)))[0].id)


async def say(world: World, text: str, by: str, trust: str = "owner", **more: Any) -> int:
    verb = partial(answer, vault=world.vault, question_id=await question(world), by=by, trust=trust)
    return int(await world.run(verb, text=text, **more))


async def told(world: World, room: str) -> list[tuple[str, tuple[str, ...], bool]]:
    """What a place is sent: the text, its buttons, and whether it takes the buttons of a question away."""
    found = []
    binding = await world.binding(room)
    for row in await world.replies(room):
        before = replies.update().where(replies.c.id < row.id).values(state="failed")
        await world.run(lambda c, before=before: c.execute(before))
        part = await world.run(next_part, vault=world.vault, binding_id=binding)
        found.append((part.text, part.choices, "ends_question" in part.facts))
    return found


async def test_the_first_answer_counts_and_the_other_places_are_told(world: World) -> None:
    claim = await ask(world)
    await say(world, "yes", "ann", name="Ann `*x*`", said_in=await conversation(world, "chat of ann"))
    assert await world.state(claim.id) is JobState.READY
    assert len(await world.replies("chat of ann")) == 1, "where it was answered nothing more is said"
    (asked, note) = await told(world, "chat of bob")
    assert asked == ("May I?", (), False), "the buttons of what is not out yet are left away"
    assert note[0].startswith("`Ann '*x*': Yes`")
    assert note[2]
    with pytest.raises(Conflict, match="no longer open"):
        await say(world, "No", "bob")
    given = await world.run(answer_to, vault=world.vault, job_id=claim.id, call_id=ABOUT)
    assert given == GivenAnswer(asked=True, text="Yes", by="Ann `*x*`")
    other = await world.run(answer_to, vault=world.vault, job_id=claim.id, call_id="proposal 2")
    assert other == GivenAnswer(), "an answer is good for what was asked, and for nothing else"


async def test_of_two_who_answer_at_once_one_is_heard(world: World) -> None:
    claim = await ask(world)
    came = await asyncio.gather(
        *(say(world, text, by) for text, by in (("Yes", "ann"), ("No", "bob")) * 5), return_exceptions=True
    )
    assert sum(isinstance(one, int) for one in came) == 1
    assert all(isinstance(one, int | Conflict) for one in came)
    first = next(text for text, one in zip(("Yes", "No") * 5, came, strict=True) if isinstance(one, int))
    given = await world.run(answer_to, vault=world.vault, job_id=claim.id, call_id=ABOUT)
    assert given.text == first
    notes = [await world.replies(f"chat of {who}") for who in ("ann", "bob")]
    assert [len(each) for each in notes] == [2, 2], "one question and one note each"


@pytest.mark.parametrize(
    ("of", "trust", "may"),
    [
        (OWNERS, "owner", True),
        (OWNERS, "member", False),
        (OWNERS, "stranger", False),
        (OWNERS, "", False),
        (MEMBERS, "member", True),
        (MEMBERS, "owner", True),
        (MEMBERS, "stranger", False),
    ],
)
async def test_only_who_has_the_role_may_answer(world: World, of: str, trust: str, may: bool) -> None:
    claim = await ask(world, of)
    if may:
        await say(world, "No", "ann", trust)
        return
    with pytest.raises(Forbidden):
        await say(world, "Yes", "mallory", trust)
    assert await world.state(claim.id) is JobState.WAITING
    assert (await world.run(answer_to, vault=world.vault, job_id=claim.id, call_id=ABOUT)).open


async def test_what_is_none_of_the_choices_is_no_answer(world: World) -> None:
    claim = await ask(world)
    with pytest.raises(Malformed, match="Answer with one of: Yes, No"):
        await say(world, "perhaps", "ann")
    assert await world.state(claim.id) is JobState.WAITING


async def test_an_answer_to_a_question_that_somebody_rewrote_counts_for_nothing(world: World) -> None:
    claim = await ask(world, MEMBERS)
    await world.run(lambda c: c.execute(questions.update().values(call_id="another")))
    given = await world.run(answer_to, vault=world.vault, job_id=claim.id, call_id="another")
    assert given == GivenAnswer(asked=True, open=True)
