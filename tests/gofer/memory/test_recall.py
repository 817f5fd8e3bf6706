"""Recall over a real store: what was said is found where everybody present may know it, and nowhere else."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sqlalchemy import select, update

from gofer.errors import Forbidden
from gofer.identity import grant_role
from gofer.jobs.queue import SERVICE
from gofer.memory import audience as audience_module
from gofer.memory import changes, index, records
from gofer.memory import manager as manager_module
from gofer.memory import recall as recall_module
from gofer.memory.audience import audience, new_scope
from gofer.memory.index import read_index
from gofer.memory.manager import MAX_CHANGES, MEMORY, Judgement, NoteTidier, by_rule
from gofer.memory.notes import EVENT
from gofer.memory.recall import DAMAGED, Recall, Results, reindex
from gofer.memory.records import NewMemory, turn_id
from gofer.memory.scopes import agent_scope, conversation_scope, person_scope
from gofer.purge import purge_conversation
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import (
    Trust,
    agents,
    conversations,
    events,
    jobs,
    memories,
    memory_indexes,
    memory_postings,
    messages,
    secrets,
)
from support.both_databases import slow_on_postgres
from support.world import World, admit

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
                audience, conversation_id=self.rooms[room], agents=[await self.agent()], narrowed=narrowed
            )
        )
        return await self.recall.search(scopes, query)

    async def note(self, scope_id: str, text: str) -> str:
        new = NewMemory("note", scope_id, text, "owner")
        return str((await self.world.run(changes.remember, vault=self.world.vault, new=new)).id)


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
    await scene.said("ann-more", "ann", "the parrot is called Otto")
    assert await scene.found("ann-phone", "parrot") == []
    assert await scene.found("ann-web", "parrot") == ["the parrot is called Otto"]


async def test_what_was_said_many_private_conversations_ago_is_recalled(scene: Scene) -> None:
    await scene.said("ann-phone", "ann", CANARY)
    for n in range(30):
        await scene.said(f"ann-web-{n}", "ann", f"small talk {n}")
    while await scene.recall.tick():
        pass
    assert await scene.found("ann-web-29", "canary") == [CANARY]


async def test_of_many_private_conversations_those_in_use_are_recalled(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audience_module, "MAX_ROOMS", 2)
    await scene.said("ann-phone", "ann", CANARY)
    for n in range(4):
        await scene.said(f"ann-web-{n}", "ann", f"small talk {n}")
    await scene.said("ann-phone", "ann", "and it sings")
    assert CANARY in await scene.found("ann-web-3", "canary")


async def test_a_search_for_one_kind_finds_it_behind_any_number_of_others(scene: Scene) -> None:
    for n in range(6):
        await scene.said("kitchen", "ann", f"zither {n}")
    here = conversation_scope(scene.rooms["kitchen"])
    words = "Whoever repairs it is in the long list on the wall, as are the harp and the zither"
    memory = await scene.note(here, words)
    for kind in ("note", "turn"):
        results = await scene.recall.search([here], "zither", 1, kind)
        assert [each.memory.kind for each in results.found] == [kind]
    assert (await scene.recall.search([here], "zither", 1, "note")).found[0].memory.id == memory


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
    await scene.world.run(changes.forget, **one)
    assert await scene.found("ann-phone", "oolong") == []
    await scene.world.run(changes.restore, **one)
    assert await scene.found("ann-phone", "oolong") == ["Ann drinks oolong tea"]
    await scene.world.run(changes.change, **one, text="Ann drinks espresso", trust="owner")
    assert await scene.found("ann-phone", "espresso") == ["Ann drinks espresso"]
    turn = await scene.said("ann-phone", "ann", "my locker is 4471")
    here = (conversation_scope(scene.rooms["ann-phone"]),)
    await scene.world.run(changes.forget, vault=scene.world.vault, memory_id=turn, scopes=here)
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


async def test_a_damaged_note_is_said_and_hides_no_other(scene: Scene) -> None:
    await scene.said("ann-phone", "ann", "hello")
    scope, world = person_scope(scene.people["ann"]), scene.world
    damaged = await scene.note(scope, "the boat is at the pier")
    await scene.note(scope, "a boat needs paint")
    await scene.note(scope, "A boat needs PAINT")
    await world.run(
        lambda c: c.execute(update(memories).where(memories.c.id == damaged).values(sealed=b"\x02nonsense"))
    )
    assert set(await scene.found("ann-phone", "boat")) == {"a boat needs paint", "A boat needs PAINT"}
    for _ in range(2):  # as a search found it, and as doctor does
        assert (set(scene.recall.degraded), damaged in scene.recall.degraded[scope]) == ({scope}, True)
        await scene.recall.examine()
    assert await NoteTidier(world.database, world.vault).tidy(scope) == 1


async def test_a_damaged_message_is_said_and_hides_no_other_until_it_is_forgotten(scene: Scene) -> None:
    """Also those that were said after it, which are indexed in their order."""
    damaged = await scene.said("ann-phone", "ann", "the boat is at the pier")
    await scene.said("ann-phone", "ann", "a boat needs paint")
    here, first = conversation_scope(scene.rooms["ann-phone"]), messages.c.seq == 1
    await scene.world.run(lambda c: c.execute(update(messages).where(first).values(sealed=b"\x02nonsense")))
    assert await scene.found("ann-phone", "boat") == ["a boat needs paint"]
    for _ in range(2):
        assert (set(scene.recall.degraded), damaged in scene.recall.degraded[here]) == ({here}, True)
        scene.recall = Recall(scene.world.database, scene.world.vault)
        await scene.recall.examine()
    await scene.world.run(changes.forget, vault=scene.world.vault, memory_id=damaged, scopes=(here,))
    assert await scene.found("ann-phone", "boat") == ["a boat needs paint"]
    assert scene.recall.degraded == await scene.recall.examine() == {}


async def test_everything_is_examined_in_pieces_and_what_there_was_no_time_for_is_counted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall_module, "_EXAMINED_AT_ONCE", 2)
    said = [await scene.said("ann-phone", "ann", f"small talk {n}") for n in range(5)]
    scope = person_scope(scene.people["ann"])
    noted = [await scene.note(scope, f"note {n}") for n in range(5)]
    for n in range(3):
        await scene.said(f"ann-web-{n}", "ann", "hello")
    last = (messages.c.conversation_id == scene.rooms["ann-phone"]) & (messages.c.seq == 5)
    bad = memories.c.id == max(noted)
    await scene.world.run(lambda c: c.execute(update(messages).where(last).values(sealed=b"\x02no")))
    await scene.world.run(lambda c: c.execute(update(memories).where(bad).values(sealed=b"\x02no")))
    found = await scene.recall.examine()
    assert set(found) == {scope, conversation_scope(scene.rooms["ann-phone"])}
    assert (max(noted) in str(found), said[-1] in str(found), scene.recall.not_examined) == (True, True, 0)
    assert await scene.recall.examine(seconds=-1) == found, "what was known before stays"
    assert scene.recall.not_examined == 5


async def test_rows_of_another_layout_are_never_misread_and_are_made_anew(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer release finds rows of an older one, and the other way round."""
    await scene.said("ann-phone", "ann", "the boat is yellow")
    here = conversation_scope(scene.rooms["ann-phone"])
    assert await scene.found("ann-phone", "boat") == ["the boat is yellow"]
    for layout in ("posting-2", index.LAYOUT):
        monkeypatch.setattr(index, "LAYOUT", layout)
        found = await scene.results("ann-phone", "boat")
        assert (found.found, found.degraded) == ([], {here: DAMAGED})
        await scene.world.run(reindex, scope_id=here)
        assert await scene.found("ann-phone", "boat") == ["the boat is yellow"]


async def test_no_other_persons_private_room_counts_as_ones_own(scene: Scene) -> None:
    await scene.said("ben-phone", "ben", "hello")
    await scene.said("ann-phone", "ann", CANARY)
    await scene.world.run(lambda c: c.execute(update(conversations).values(private=True)))
    assert CANARY not in await scene.found("ben-phone", "canary")


async def test_a_tick_of_tidying_is_bounded(scene: Scene) -> None:
    scope, tidier = person_scope(scene.people["ann"]), NoteTidier(scene.world.database, scene.world.vault)
    for _ in range(MAX_CHANGES + 3):
        await scene.note(scope, "Tea at five")
    assert [await tidier.tidy(scope) for _ in range(3)] == [MAX_CHANGES, 2, 0]


async def test_notes_that_say_the_same_become_one_in_a_job_that_can_die(scene: Scene) -> None:
    await scene.said("ann-phone", "ann", "hello")
    scope = person_scope(scene.people["ann"])
    for text in ("Tea at five.", "tea at FIVE", "Tea at six.", "Tea at five!"):
        await scene.note(scope, text)
    await scene.found("ann-phone", "tea")
    (claim,) = await scene.world.claim(pool=SERVICE)
    assert (claim.kind, claim.payload) == (MEMORY, {"scope": scope})
    tidier = NoteTidier(scene.world.database, scene.world.vault)
    found = list(
        by_rule(await scene.world.run(manager_module._notes, vault=scene.world.vault, scope_id=scope))
    )
    assert len(found) == 2
    # One is merged, then the process dies; whoever goes on merges the rest and nothing twice.
    await scene.world.run(manager_module._merge, vault=scene.world.vault, found=found[0])
    assert await tidier.tidy(scope) == 1
    assert await tidier.tidy(scope) == 0
    left = await scene.found("ann-phone", "tea")
    assert sorted(left) == ["Tea at five!", "Tea at six."]
    told = await scene.world.rows(select(events.c.data).where(events.c.kind == EVENT))
    merges = [row.data for row in told if row.data["what"] == "merge"]
    assert len(merges) == 2
    assert all(each["tokens_before"] > each["tokens_after"] for each in merges)


RELATED = {
    # The older note, the newer one, and what becomes of the two by rule.
    ("The code of the garden gate is 1234.", "The code of the garden gate is 5678."): "contradiction",
    ("Ann's boat is called Gannet", "Ann's boat is called Puffin"): "contradiction",
    ("Das Boot von Ann heißt Tölpel", "Das Boot von Ann heißt Möwe"): "contradiction",
    ("Ann likes strong coffee", "Ann does not like strong coffee"): "contradiction",
    ("The office opens at 9 in the morning", "In the morning the office opens at 9!"): "merge",
    ("Ann likes tea", "Ann likes tea and coffee"): "merge",
    ("Ann is allergic to peanuts and to nuts and eggs", "Ann is allergic to eggs"): "",
    ("The deploy key is in the safe in room four", "The key is in the safe"): "",
    ("Ann's old cat is black", "Ann's old cat is hungry"): "",
    ("The meeting is on Monday", "The meeting is in room 5"): "",
    ("The office opens at 9", "The office opens at 10"): "",
    ("Backup runs on host alpha3", "Backup runs on host alpha4"): "",
}


@pytest.mark.parametrize("pair", RELATED)
async def test_what_two_notes_are_to_each_other_by_rule(scene: Scene, pair: tuple[str, str]) -> None:
    scope = person_scope(scene.people["ann"])
    older, newer = [await scene.note(scope, text) for text in pair]
    assert await NoteTidier(scene.world.database, scene.world.vault).tidy(scope) == bool(RELATED[pair])
    kept = [note.id for note in await in_force(scene, scope)]
    assert kept == ([newer] if RELATED[pair] else sorted((older, newer), key=kept.index))
    assert (await resolved(scene, older, scope)).text == pair[0], "the older can still be read"
    told = await scene.world.rows(select(events.c.data).where(events.c.kind == EVENT))
    assert [(row.data["what"], row.data["id"]) for row in told] == (
        [(RELATED[pair], newer)] if RELATED[pair] else []
    )


async def in_force(scene: Scene, scope: str) -> list[records.Memory]:
    found: list[records.Memory] = await scene.world.run(
        records.in_force, vault=scene.world.vault, scope_id=scope, kind="note"
    )
    return found


async def resolved(scene: Scene, memory_id: str, scope: str) -> records.Memory:
    found: records.Memory = await scene.world.run(
        records.resolve, vault=scene.world.vault, memory_id=memory_id, scopes=(scope,)
    )
    return found


async def test_what_a_newer_note_took_the_place_of_can_be_restored_and_stays_then(scene: Scene) -> None:
    scope, world = person_scope(scene.people["ann"]), scene.world
    await scene.said("ann-phone", "ann", "hello")
    older = await scene.note(scope, "The code of the gate is 1234")
    newer = await scene.note(scope, "The code of the gate is 5678")
    tidier = NoteTidier(world.database, world.vault)
    assert await tidier.tidy(scope) == 1
    assert await scene.found("ann-phone", "code of the gate") == ["The code of the gate is 5678"]
    await world.run(changes.restore, vault=world.vault, memory_id=older, scopes=(scope,))
    assert await tidier.tidy(scope) == 0, "somebody has decided"
    assert {note.id for note in await in_force(scene, scope)} == {older, newer}
    assert len(await scene.found("ann-phone", "code of the gate")) == 2


async def test_nobodys_word_takes_the_place_of_a_more_trusted_ones(scene: Scene) -> None:
    scope, world = person_scope(scene.people["ann"]), scene.world
    for text, trust, untrusted in (
        ("The code of the gate is 1234", "owner", False),
        ("The code of the gate is 5678", "member", False),
        ("The code of the gate is 9999", "stranger", True),
    ):
        new = NewMemory("note", scope, text, trust, untrusted=untrusted)
        await world.run(changes.remember, vault=world.vault, new=new)
    assert await NoteTidier(world.database, world.vault).tidy(scope) == 0


async def test_a_model_judges_what_no_rule_can_and_says_what_long_notes_are_about(scene: Scene) -> None:
    scope, world = person_scope(scene.people["ann"]), scene.world
    older = await scene.note(scope, "Ann's old cat is black")
    newer = await scene.note(scope, "Ann's old cat is white")
    long = await scene.note(scope, "Well, where shall I begin. " * 30 + "The pump needs oil in March.")
    asked: list[Any] = []

    async def judge(pairs: Any, texts: Any) -> Judgement:
        asked.append((pairs, texts))
        return Judgement(["contradicts"] * len(pairs), ["when the pump\nneeds oil"] * len(texts))

    tidier = NoteTidier(world.database, world.vault)
    assert await tidier.tidy(scope, judge) == 1
    assert asked[0][0] == [("Ann's old cat is white", "Ann's old cat is black")]
    found = {note.id: note.gist for note in await in_force(scene, scope)}
    assert older not in found
    assert found[long] == "when the pump needs oil"
    assert newer in found
    assert await tidier.tidy(scope, judge) == 0
    assert len(asked) == 1, "what is decided is not asked again"

    async def without_money(pairs: Any, texts: Any) -> None:
        return None

    await scene.note(scope, "Ann's old cat is grey")
    assert await tidier.tidy(scope, without_money) == 0


async def test_of_the_same_note_many_times_one_job_is_made(scene: Scene) -> None:
    await scene.said("ann-phone", "ann", "hello")
    for _ in range(3):
        await scene.note(person_scope(scene.people["ann"]), "Tea at five")
        await scene.found("ann-phone", "tea")
    assert await scene.world.count(jobs, jobs.c.kind == MEMORY) == 1


async def test_messages_without_words_hide_none_that_have_some(scene: Scene) -> None:
    await scene.said("ann-phone", "ann", "The harbour is blue")
    for _ in range(40):
        await scene.said("ann-phone", "ann", "")
    assert await scene.found("ann-phone", "harbour ann") == ["The harbour is blue"]
