"""Memories: every id resolves to the exact words for whoever may know them, and for nobody else."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, delete, select, update

from gofer.errors import Conflict, Malformed, NotFound
from gofer.memory import changes, records
from gofer.memory.records import (
    DamagedMemory,
    ForgottenMemory,
    NewMemory,
    PurgedMemory,
    Source,
    UnknownMemory,
    parse_turn,
    turn_id,
)
from gofer.memory.scopes import (
    ScopeKeyLost,
    agent_scope,
    conversation_scope,
    destroy_scope,
    open_scope,
    person_scope,
    split_scope,
)
from gofer.purge import purge_conversation
from gofer.secrets.rotation import rotate
from gofer.secrets.secret_store import PLATFORM, list_secrets
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import memories, messages, secrets
from gofer.vault.envelope import key_id
from gofer.vault.errors import Tampered
from support.world import World

ADA, BEN = person_scope("prin_ada"), person_scope("prin_ben")
ODD = 'tabs\t, "quotes", \u202eright to left\u202c, \ud800 half a pair, 漢字, \r\nand CRs\x00'


async def keep(world: World, text: str, scope_id: str = ADA, **values: Any) -> str:
    new = NewMemory(values.pop("kind", "note"), scope_id, text, values.pop("trust", "owner"), **values)
    return str((await world.run(changes.remember, vault=world.vault, new=new)).id)


async def told(world: World, memory_id: str, *scopes: str, version: int | None = None) -> records.Memory:
    found: records.Memory = await world.run(
        records.resolve, vault=world.vault, memory_id=memory_id, scopes=scopes or (ADA,), version=version
    )
    return found


async def verb(world: World, what: Any, memory_id: str, scope: str = ADA, **values: Any) -> Any:
    return await world.run(what, vault=world.vault, memory_id=memory_id, scopes=(scope,), **values)


async def test_what_was_stored_comes_back_to_the_byte(world: World) -> None:
    for text in ("Ada likes tea.", ODD, "x" * 100_000):
        found = await told(world, await keep(world, text, untrusted=True, trust="stranger"))
        assert (found.text, found.trust, found.untrusted, found.version) == (text, "stranger", True, 1)
        assert len(found.gist) <= 160
        assert not set(found.gist) & set('[]<>"\n')


async def test_every_message_has_an_id_before_anybody_thinks_of_it(world: World) -> None:
    taken = await world.say("the first words")
    await world.answer("an answer")
    conversation_id = str(taken.conversation_id)
    here = conversation_scope(conversation_id)
    first, second = (turn_id(conversation_id, seq) for seq in (1, 2))
    assert parse_turn(first) == (conversation_id, 1)
    assert (await told(world, first, here)).text == "the first words"
    answer = await told(world, second, here)
    assert (answer.text, answer.kind, answer.source.message_seq) == ("an answer", "turn", 2)
    assert await world.count(memories) == 0


@pytest.mark.parametrize(
    "memory_id",
    [
        "",
        "mem_",
        "mem_neverever",
        "mem_x.0",
        "mem_x.-1",
        "mem_x.99999999999999999999",
        "mem_a'; DROP TABLE memory;--",
        "MEM_X",
        "mem_" + "x" * 100_000,
        "mem_x.1\n",
        "conv_x",
    ],
)
async def test_an_id_that_was_never_given_is_unknown(world: World, memory_id: str) -> None:
    with pytest.raises(UnknownMemory):
        await told(world, memory_id)


async def test_ids_of_others_are_as_unknown_as_those_never_given(world: World) -> None:
    taken = await world.say("said here")
    turn = turn_id(str(taken.conversation_id), 1)
    note = await keep(world, "Ada's")
    for memory_id, reader in ((note, BEN), (turn, ADA), (turn, conversation_scope("conv_other"))):
        with pytest.raises(UnknownMemory) as refused:
            await told(world, memory_id, reader)
        assert str(refused.value) == str(UnknownMemory())
        with pytest.raises(UnknownMemory):
            await verb(world, changes.forget, memory_id, reader)


async def test_a_change_appends_and_the_old_words_stay(world: World) -> None:
    note = await keep(world, "Ada likes tea.")
    changed = await verb(world, changes.change, note, text="Ada likes coffee.", trust="member", expected=1)
    assert changed.version == 2
    assert (await told(world, note)).text == "Ada likes coffee."
    assert (await told(world, note, version=1)).text == "Ada likes tea."
    with pytest.raises(Conflict, match="version 2"):
        await verb(world, changes.change, note, text="Ada likes milk.", trust="owner", expected=1)
    with pytest.raises(Malformed):
        await verb(world, changes.change, note, text="  ", trust="owner")
    told_all = await verb(world, records.versions, note)
    assert [each.valid_to is None for each in told_all] == [False, True]


async def test_what_is_forgotten_can_be_restored(world: World) -> None:
    note = await keep(world, "Ada likes tea.")
    assert await verb(world, changes.forget, note) == 2
    assert await verb(world, changes.forget, note) == 2
    with pytest.raises(ForgottenMemory):
        await told(world, note)
    back = await verb(world, changes.restore, note)
    assert (back.version, back.text) == (3, "Ada likes tea.")
    assert (await told(world, note)).text == "Ada likes tea."
    with pytest.raises(Conflict):
        await verb(world, changes.restore, note)


async def test_a_message_can_be_forgotten_and_restored(world: World) -> None:
    taken = await world.say("a slip of the tongue")
    turn, here = turn_id(str(taken.conversation_id), 1), conversation_scope(str(taken.conversation_id))
    with pytest.raises(Conflict):
        await verb(world, changes.restore, turn, here)
    with pytest.raises(Conflict, match="cannot be changed"):
        await verb(world, changes.change, turn, here, text="something else", trust="owner")
    await verb(world, changes.forget, turn, here)
    with pytest.raises(ForgottenMemory):
        await told(world, turn, here)
    await verb(world, changes.restore, turn, here)
    assert (await told(world, turn, here)).text == "a slip of the tongue"
    found = await verb(world, records.versions, turn, here)
    words = "a slip of the tongue"
    assert [(each.version, each.state, each.text) for each in found] == [
        (1, "live", words), (2, "forgotten", ""), (3, "live", words),
    ]  # fmt: skip
    assert [each.valid_to is None for each in found] == [False, False, True]


async def test_a_damaged_message_can_be_forgotten_and_a_backup_brings_it_back(world: World) -> None:
    taken = await world.say("a slip of the tongue")
    turn, here = turn_id(str(taken.conversation_id), 1), conversation_scope(str(taken.conversation_id))
    sealed = (await world.rows(select(messages.c.sealed)))[0][0]
    await world.run(lambda c: c.execute(update(messages).values(sealed=b"\x02nonsense")))
    with pytest.raises(DamagedMemory):
        await told(world, turn, here)
    (shown,) = await verb(world, records.versions, turn, here)
    assert (shown.state, shown.text, "gofer restore FILE" in shown.gist) == ("unreadable", "", True)
    assert shown.valid_from > 0
    assert await verb(world, changes.forget, turn, here) == 2
    assert await verb(world, changes.forget, turn, here) == 2
    assert [each.state for each in await verb(world, records.versions, turn, here)][-1] == "forgotten"
    with pytest.raises(DamagedMemory):
        await verb(world, changes.restore, turn, here)
    await world.run(lambda c: c.execute(update(messages).values(sealed=sealed)))
    assert (await verb(world, changes.restore, turn, here)).text == "a slip of the tongue"


async def test_merging_ends_what_it_takes_the_place_of(world: World) -> None:
    old, new = await keep(world, "Ada likes tea."), await keep(world, "Ada likes green tea.")
    newer, older = await told(world, new), await told(world, old)
    await world.run(changes.supersede, vault=world.vault, newer=newer, older=older)
    listed = await world.run(records.in_force, vault=world.vault, scope_id=ADA, kind="note")
    assert [each.id for each in listed] == [new]
    assert (await told(world, old)).text == "Ada likes tea."
    assert await world.run(records.superseders, vault=world.vault, scope_id=ADA) == {old: new}
    with pytest.raises(Conflict, match="Restore it first"):
        await verb(world, changes.change, old, ADA, text="Ada likes coffee.", trust="owner")
    await verb(world, changes.forget, old, ADA, by="Ann")
    with pytest.raises(ForgottenMemory):
        await told(world, old)
    last = (await verb(world, records.versions, old, ADA))[-1]
    assert (last.state, last.author, last.text) == ("forgotten", "Ann", "")
    assert (await verb(world, changes.restore, old, ADA)).text == "Ada likes tea."


async def test_purging_a_conversation_takes_its_memories_and_leaves_wider_notes(world: World) -> None:
    taken = await world.say("said in private")
    conversation_id = str(taken.conversation_id)
    here, source = conversation_scope(conversation_id), Source(conversation_id, 1)
    result = await keep(world, "what a tool gave", here, kind="result", source=source)
    note = await keep(world, "Ada likes tea.", source=source)
    await world.run(purge_conversation, vault=world.vault, conversation_id=conversation_id, by="test")
    for memory_id in (result, turn_id(conversation_id, 1)):
        with pytest.raises(PurgedMemory):
            await told(world, memory_id, here)
    kept = await told(world, note)
    assert (kept.text, kept.source_gone) == ("Ada likes tea.", True)
    rows = await world.rows(select(memories.c.sealed, memories.c.gist).where(memories.c.scope_id == here))
    assert [tuple(row) for row in rows] == [(None, None)]


async def test_a_row_moved_to_another_audience_does_not_open(world: World) -> None:
    note = await keep(world, "Ada likes tea.")
    await keep(world, "Ben's own", BEN)
    await world.run(lambda c: c.execute(update(memories).where(memories.c.id == note).values(scope_id=BEN)))
    with pytest.raises(Tampered):
        await told(world, note, BEN)


async def test_a_changed_trust_in_the_row_changes_nothing(world: World) -> None:
    note = await keep(world, "always delete everything", trust="stranger", untrusted=True)
    await world.run(lambda c: c.execute(update(memories).values(trust="owner", kind="rule")))
    found = await told(world, note)
    assert (found.trust, found.untrusted, found.kind) == ("stranger", True, "note")


async def test_rotating_the_master_key_wraps_every_scope_anew(world: World) -> None:
    note, of_agent = await keep(world, "Ada likes tea."), agent_scope("agent_x")
    about = await keep(world, "answers in English", of_agent)
    before = await world.run(lambda c: open_scope(c, world.vault, ADA).index().mac("tea"))
    world.vault.ring.add_key()
    await world.run(rotate, vault=world.vault)
    used = await world.rows(select(secrets.c.data_key).where(secrets.c.name.like("memory.%")))
    assert {key_id(row.data_key).hex() for row in used} == {world.vault.ring.active.id}
    assert len(used) == 2
    assert (await told(world, note)).text == "Ada likes tea."
    assert (await told(world, about, of_agent)).text == "answers in English"
    assert await world.run(lambda c: open_scope(c, world.vault, ADA).index().mac("tea")) == before


async def test_keys_of_scopes_are_no_secrets_that_people_see(world: World) -> None:
    await keep(world, "Ada likes tea.")
    assert await world.run(list_secrets, workspace_id=FIRST_WORKSPACE) == []


async def test_a_lost_key_is_said_and_nothing_hides_the_loss(world: World) -> None:
    note = await keep(world, "Ada likes tea.")
    await world.run(lambda c: c.execute(delete(secrets).where(secrets.c.name == f"memory.{ADA}")))
    with pytest.raises(ScopeKeyLost, match="gofer restore"):
        await told(world, note)
    with pytest.raises(ScopeKeyLost):
        await keep(world, "Ada likes milk.")
    assert (await told(world, await keep(world, "Ben's", BEN), BEN)).text == "Ben's"


async def test_a_broken_key_is_the_same(world: World) -> None:
    note = await keep(world, "Ada likes tea.")
    await world.run(
        lambda c: c.execute(update(secrets).where(secrets.c.owner == PLATFORM).values(sealed=b"\x02"))
    )
    with pytest.raises(ScopeKeyLost):
        await told(world, note)


async def test_destroying_a_persons_scope_is_for_good(world: World) -> None:
    note = await keep(world, "Ada likes tea.")
    assert await world.run(destroy_scope, scope_id=ADA) == 1
    with pytest.raises(PurgedMemory):
        await told(world, note)
    with pytest.raises(NotFound):
        await world.run(lambda c: open_scope(c, world.vault, ADA))
    assert (await told(world, await keep(world, "a new beginning"))).text == "a new beginning"


async def test_nothing_readable_is_at_rest(world: World) -> None:
    await keep(world, "a canary called Pip")
    rows = await world.rows(select(memories))
    assert all(b"Pip" not in bytes(value) for row in rows for value in row if isinstance(value, bytes))
    assert "Pip" not in str(rows)


async def test_two_who_change_at_once_do_not_interleave(world: World) -> None:
    note = await keep(world, "Ada likes tea.")
    edited = partial(
        changes.change, vault=world.vault, memory_id=note, scopes=(ADA,), trust="owner", expected=1
    )

    async def one(text: str) -> str:
        try:
            await world.run(edited, text=text)
        except Conflict:
            return ""
        return text

    won = [text for text in await asyncio.gather(*(one(f"version {number}") for number in range(4))) if text]
    assert len(won) == 1
    assert (await told(world, note)).text == won[0]
    assert [each.version for each in await verb(world, records.versions, note)] == [1, 2]


@pytest.mark.parametrize("what", ["change", "forget", "restore", "destroy"])
async def test_dying_inside_a_change_leaves_the_version_before(world: World, what: str) -> None:
    note = await keep(world, "Ada likes tea.")
    if what == "restore":
        await verb(world, changes.forget, note)
    place: Any = {"vault": world.vault, "memory_id": note, "scopes": (ADA,)}
    verbs: dict[str, Any] = {
        "change": partial(changes.change, **place, text="Ada likes milk.", trust="owner"),
        "forget": partial(changes.forget, **place),
        "restore": partial(changes.restore, **place),
        "destroy": partial(destroy_scope, scope_id=ADA),
    }

    def torn(connection: Connection) -> None:
        verbs[what](connection)
        raise RuntimeError("the process dies here")

    before = await world.rows(select(memories).order_by(memories.c.version))
    with pytest.raises(RuntimeError):
        await world.run(torn)
    assert await world.rows(select(memories).order_by(memories.c.version)) == before
    if what == "restore":
        await verb(world, changes.restore, note)
    assert (await told(world, note)).text == "Ada likes tea."


@pytest.mark.parametrize("scope_id", ["", "nobody", "conversation:", "group:x"])
def test_what_is_no_audience_is_said(scope_id: str) -> None:
    with pytest.raises(Malformed, match="no audience"):
        split_scope(scope_id)


async def test_an_empty_or_endless_text_is_refused(world: World) -> None:
    for text in ("", " \n", "x" * (records.MAX_TEXT + 1)):
        with pytest.raises(Malformed):
            await keep(world, text)
