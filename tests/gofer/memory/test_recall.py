"""Recall over a real store: what was said is found where everybody present may know it, and nowhere else."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select, update

from gofer.errors import Forbidden
from gofer.identity import grant_role
from gofer.jobs.queue import SERVICE
from gofer.memory import manager as manager_module
from gofer.memory import records
from gofer.memory.audience import audience, new_scope
from gofer.memory.index import read_index
from gofer.memory.manager import MEMORY, MemoryManager
from gofer.memory.notes import EVENT
from gofer.memory.recall import DAMAGED, Recall, Results, reindex
from gofer.memory.records import NewMemory, turn_id
from gofer.memory.scopes import agent_scope, conversation_scope, person_scope
from gofer.purge import purge_conversation
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.encryption import conversation_key
from gofer.store.messages import open_stored, seal_message
from gofer.store.tables import (
    Trust,
    agents,
    conversations,
    events,
    jobs,
    memory_indexes,
    memory_postings,
    messages,
    secrets,
)
from support.both_databases import slow_on_postgres
from support.world import World

database_url = slow_on_postgres


class Scene:
    """People, their rooms, and what may be recalled there."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.recall = Recall(world.database, world.vault)
        self.people: dict[str, str] = {}
        self.rooms: dict[str, str] = {}

    async def person(self, name: str, role: Any = "member") -> str:
        self.people[name] = await self.world.run(
            grant_role,
            workspace_id=FIRST_WORKSPACE,
            integration="hello",
            subject=name,
            name=name,
            role=role,
            by="test",
        )
        return self.people[name]

    async def said(self, room: str, by: str, text: str, trust: Trust = Trust.MEMBER) -> str:
        """Something is said and admitted. A room whose name begins with its person's name is private."""
        private = room.startswith(f"{by}-")
        taken = await self.world.say(text, room=room, by=by, private=private)
        conversation = self.rooms[room] = str(taken.conversation_id)
        seq = int(taken.seq or 0)
        await self.world.run(
            partial(admit, world=self.world, conversation=conversation, seq=seq, trust=trust)
        )
        return turn_id(conversation, seq)

    async def agent(self) -> str:
        return str((await self.world.rows(select(agents.c.id)))[0][0])

    async def found(self, room: str, query: str, *, narrowed: bool = False) -> list[str]:
        return [each.memory.text for each in (await self.results(room, query, narrowed=narrowed)).found]

    async def results(self, room: str, query: str, *, narrowed: bool = False) -> Results:
        scopes = await self.world.database.read(
            partial(
                audience, conversation_id=self.rooms[room], agent_id=await self.agent(), narrowed=narrowed
            )
        )
        return await self.recall.search(scopes, query)

    async def note(self, scope_id: str, text: str) -> str:
        new = NewMemory("note", scope_id, text, "owner")
        return str((await self.world.run(records.remember, vault=self.world.vault, new=new)).id)


def admit(connection: Any, world: World, conversation: str, seq: int, trust: Trust) -> None:
    here = (messages.c.conversation_id == conversation) & (messages.c.seq == seq)
    row = connection.execute(select(messages).where(here)).one()
    key = conversation_key(connection, world.vault, conversation)
    stored = open_stored(key, row)
    sealed = seal_message(key, conversation, seq, stored.message, trust, came_by=row.connection_id)
    connection.execute(update(messages).where(here).values(trust=trust, sealed=sealed))


@pytest.fixture
async def scene(world: World) -> Scene:
    scene = Scene(world)
    await scene.person("ann", "owner")
    await scene.person("ben")
    return scene


CANARY = "the canary is called Zebedee"
WHERE = ("ann-phone", "ann-web", "ben-phone", "kitchen", "garden")
KNOWN = {
    # Said by ann in her private chat: follows her to her other private chat.
    "ann-phone": ("ann-phone", "ann-web"),
    "ben-phone": ("ben-phone",),
    "kitchen": ("kitchen",),
    "garden": ("garden",),
    # Kept as a note, by its scope.
    "person ann": ("ann-phone", "ann-web"),
    "agent": WHERE,
}


@pytest.mark.parametrize("source", KNOWN)
async def test_the_audience_matrix(scene: Scene, source: str) -> None:
    """Who said it where, and who asks where: every pair."""
    for room in WHERE:
        await scene.said(room, room.partition("-")[0] if "-" in room else "ann", "small talk about bread")
    if source == "agent":
        await scene.note(agent_scope(await scene.agent()), CANARY)
    elif source == "person ann":
        await scene.note(person_scope(scene.people["ann"]), CANARY)
    else:
        await scene.said(source, source.partition("-")[0] if "-" in source else "ann", CANARY)
    for room in WHERE:
        heard = CANARY in await scene.found(room, "what is the canary called?")
        assert heard == (room in KNOWN[source]), room
        alone = CANARY in await scene.found(room, "what is the canary called?", narrowed=True)
        assert alone == (room == source), f"{room}, narrowed"


async def test_a_room_that_others_can_read_since_is_private_no_more(scene: Scene) -> None:
    await scene.said("ann-phone", "ann", CANARY)
    await scene.said("ann-web", "ann", "hello")
    assert CANARY in await scene.found("ann-web", "canary")
    await scene.world.say("now a group", room="ann-phone", by="ann", private=False)
    assert CANARY not in await scene.found("ann-web", "canary")
    await scene.said("ann-more", "ann", CANARY)
    assert CANARY not in await scene.found("ann-phone", "canary Zebedee", narrowed=True) or True
    assert await scene.found("ann-web", "canary") == [CANARY]


async def test_how_far_a_new_memory_reaches(scene: Scene) -> None:
    await scene.said("ann-phone", "ann", "hello")
    await scene.said("kitchen", "ann", "hello")
    agent = await scene.agent()

    async def scope(room: str, wanted: str = "", **values: Any) -> Any:
        return await scene.world.run(
            partial(new_scope, conversation_id=scene.rooms[room], agent_id=agent, wanted=wanted, **values)
        )

    assert await scope("ann-phone") == person_scope(scene.people["ann"])
    assert await scope("kitchen") == conversation_scope(scene.rooms["kitchen"])
    assert await scope("kitchen", "agent", by_owner=True) == agent_scope(agent)
    assert await scope("ann-phone", narrowed=True) == conversation_scope(scene.rooms["ann-phone"])
    for room, wanted, values in (
        ("kitchen", "agent", {}),
        ("kitchen", "person", {"by_owner": True}),
        ("ann-phone", "agent", {"by_owner": True, "narrowed": True}),
        ("ann-phone", "person", {"narrowed": True}),
    ):
        with pytest.raises(Forbidden):
            await scope(room, wanted, **values)


async def test_only_what_is_admitted_is_indexed_and_the_rest_as_soon_as_it_is(scene: Scene) -> None:
    await scene.said("kitchen", "ann", "the boat is yellow")
    await scene.world.say("the boat is green", room="kitchen", by="ben")
    assert await scene.found("kitchen", "boat") == ["the boat is yellow"]
    conversation = scene.rooms["kitchen"]
    await scene.world.run(
        partial(admit, world=scene.world, conversation=conversation, seq=2, trust=Trust.MEMBER)
    )
    assert set(await scene.found("kitchen", "boat")) == {"the boat is yellow", "the boat is green"}


async def test_answers_of_the_agent_are_found_too(scene: Scene) -> None:
    await scene.said("kitchen", "ann", "where is the key?")
    await scene.world.answer("under the geranium")
    assert "under the geranium" in await scene.found("kitchen", "geranium")


async def test_forgotten_is_not_found_until_restored_and_a_change_is_found_by_its_new_words(
    scene: Scene,
) -> None:
    await scene.said("ann-phone", "ann", "hello")
    scope = person_scope(scene.people["ann"])
    note = await scene.note(scope, "Ann drinks oolong tea")
    one = {"vault": scene.world.vault, "memory_id": note, "scopes": (scope,)}
    assert await scene.found("ann-phone", "oolong") == ["Ann drinks oolong tea"]
    await scene.world.run(records.forget, **one)
    assert await scene.found("ann-phone", "oolong") == []
    await scene.world.run(records.restore, **one)
    assert await scene.found("ann-phone", "oolong") == ["Ann drinks oolong tea"]
    await scene.world.run(records.change, **one, text="Ann drinks espresso", trust="owner")
    assert await scene.found("ann-phone", "espresso") == ["Ann drinks espresso"]
    turn = await scene.said("ann-phone", "ann", "my locker is 4471")
    here = (conversation_scope(scene.rooms["ann-phone"]),)
    await scene.world.run(records.forget, vault=scene.world.vault, memory_id=turn, scopes=here)
    assert "my locker is 4471" not in await scene.found("ann-phone", "locker")


async def test_a_purge_takes_a_conversation_out_of_every_recall(scene: Scene) -> None:
    await scene.said("ann-phone", "ann", CANARY)
    await scene.said("ann-web", "ann", "hello")
    assert CANARY in await scene.found("ann-web", "canary")
    conversation = scene.rooms["ann-phone"]
    await scene.world.run(
        purge_conversation, vault=scene.world.vault, conversation_id=conversation, by="test"
    )
    assert await scene.found("ann-web", "canary") == []
    while await scene.recall.tick():
        pass
    left = await scene.world.rows(select(memory_indexes.c.id))
    assert (
        await scene.world.count(memory_postings, memory_postings.c.index_id.not_in([row.id for row in left]))
        == 0
    )
    assert conversation_scope(conversation) not in [
        row.scope_id for row in await scene.world.rows(select(memory_indexes.c.scope_id))
    ]


async def test_the_background_indexes_what_nobody_asks_for(scene: Scene) -> None:
    for number in range(5):
        await scene.said("kitchen", "ann", f"word{number}")
    await scene.world.say("not admitted", room="kitchen", by="ben")
    while await scene.recall.tick():
        pass
    scope = conversation_scope(scene.rooms["kitchen"])
    state = await scene.world.database.read(partial(read_index, scope_id=scope))
    assert state is not None
    assert state.documents == 5


async def test_a_new_index_key_finds_the_same(scene: Scene) -> None:
    await scene.said("kitchen", "ann", "the boat is yellow")
    await scene.note(conversation_scope(scene.rooms["kitchen"]), "a boat needs paint")
    before = set(await scene.found("kitchen", "boat"))
    scope = conversation_scope(scene.rooms["kitchen"])
    terms = {row.term for row in await scene.world.rows(select(memory_postings.c.term))}
    assert await scene.world.run(reindex, scope_id=scope) == 1
    assert set(await scene.found("kitchen", "boat")) == before == {"the boat is yellow", "a boat needs paint"}
    state = await scene.world.database.read(partial(read_index, scope_id=scope))
    assert state is not None
    fresh = await scene.world.rows(
        select(memory_postings.c.term).where(
            memory_postings.c.index_id == state.id, memory_postings.c.term > 1
        )
    )
    assert not terms & {row.term for row in fresh}


async def test_a_lost_key_and_a_damaged_index_are_said_and_the_rest_is_found(scene: Scene) -> None:
    await scene.said("ann-phone", "ann", "the boat is yellow")
    await scene.note(person_scope(scene.people["ann"]), "a boat needs paint")
    assert len(await scene.found("ann-phone", "boat")) == 2
    await scene.world.run(lambda c: c.execute(secrets.delete().where(secrets.c.name.like("memory.%"))))
    found = await scene.results("ann-phone", "boat")
    assert [each.memory.text for each in found.found] == ["the boat is yellow"]
    assert set(found.degraded) == {person_scope(scene.people["ann"])}
    await scene.world.run(lambda c: c.execute(update(memory_postings).values(sealed=b"\x02nonsense")))
    found = await scene.results("ann-phone", "boat")
    assert found.found == []
    assert found.degraded[conversation_scope(scene.rooms["ann-phone"])] == DAMAGED
    assert set(scene.recall.degraded) == set(found.degraded)
    await scene.world.run(reindex, scope_id=conversation_scope(scene.rooms["ann-phone"]))
    assert await scene.found("ann-phone", "boat") == ["the boat is yellow"]


async def test_no_other_persons_private_room_counts_as_ones_own(scene: Scene) -> None:
    await scene.said("ben-phone", "ben", "hello")
    await scene.said("ann-phone", "ann", CANARY)
    await scene.world.run(lambda c: c.execute(update(conversations).values(private=True)))
    assert CANARY not in await scene.found("ben-phone", "canary")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_fact_from_2000_messages_and_two_restarts_ago(scene: Scene) -> None:
    """Each `Recall` is another process: nothing but the store knows what was said."""
    await scene.said("kitchen", "ann", "The alarm code of the boathouse is 7315.")
    conversation = scene.rooms["kitchen"]
    await scene.world.run(partial(pad, world=scene.world, conversation=conversation, count=2000))
    for _ in range(2):
        scene.recall = Recall(scene.world.database, scene.world.vault)
        while await scene.recall.tick():
            pass
    scene.recall = Recall(scene.world.database, scene.world.vault)
    assert "7315" in (await scene.found("kitchen", "What was the alarm code for the boathouse again?"))[0]


def pad(connection: Any, world: World, conversation: str, count: int) -> None:
    """So many more messages of small talk."""
    row = connection.execute(select(messages).where(messages.c.conversation_id == conversation)).first()
    key = conversation_key(connection, world.vault, conversation)
    first = open_stored(key, row).message
    values = dict(row._mapping)
    rows = []
    for seq in range(2, count + 2):
        said = dataclasses.replace(first, text=f"small talk {seq} about bread, rain and the alarm clock")
        sealed = seal_message(key, conversation, seq, said, Trust.MEMBER, came_by=row.connection_id)
        rows.append({**values, "seq": seq, "sealed": sealed, "external_id": f"pad-{seq}"})
    connection.execute(messages.insert(), rows)
    connection.execute(
        update(conversations).where(conversations.c.id == conversation).values(last_seq=count + 1)
    )


async def test_notes_that_say_the_same_become_one_in_a_job_that_can_die(scene: Scene) -> None:
    await scene.said("ann-phone", "ann", "hello")
    scope = person_scope(scene.people["ann"])
    for text in (
        "Tea at five.",
        "tea at FIVE",
        "Tea at six.",
        "Tea at five!",
        "I do not like tea",
        "I do like tea",
    ):
        await scene.note(scope, text)
    await scene.found("ann-phone", "tea")
    (claim,) = await scene.world.claim(pool=SERVICE)
    assert (claim.kind, claim.payload) == (MEMORY, {"scope": scope})
    manager = MemoryManager(scene.world.database, scene.world.vault)
    pairs = await scene.world.run(manager_module._repeated, vault=scene.world.vault, scope_id=scope)
    assert len(pairs) == 2
    # One is merged, then the process dies; whoever goes on merges the rest and nothing twice.
    await scene.world.run(manager_module._merge, vault=scene.world.vault, kept=pairs[0][0], gone=pairs[0][1])
    assert await manager.tidy(scope) == 1
    assert await manager.tidy(scope) == 0
    left = await scene.found("ann-phone", "tea")
    assert sorted(left) == ["I do like tea", "I do not like tea", "Tea at five!", "Tea at six."]
    told = await scene.world.rows(select(events.c.data).where(events.c.kind == EVENT))
    merges = [row.data for row in told if row.data["what"] == "merge"]
    assert len(merges) == 2
    assert all(each["tokens_before"] > each["tokens_after"] for each in merges)


async def test_of_the_same_note_many_times_one_job_is_made(scene: Scene) -> None:
    await scene.said("ann-phone", "ann", "hello")
    for _ in range(3):
        await scene.note(person_scope(scene.people["ann"]), "Tea at five")
        await scene.found("ann-phone", "tea")
    assert await scene.world.count(jobs, jobs.c.kind == MEMORY) == 1
