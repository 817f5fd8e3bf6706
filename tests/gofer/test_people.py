"""Who somebody is: a conversation knows whether it is private and with whom, and every Member is a Principal."""

from __future__ import annotations

import dataclasses
from typing import Any

from sqlalchemy import select

from gofer.identity import (
    WEB_CHAT,
    grant_role,
    known_principal,
    link,
    new_link,
    private_person,
)
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import conversations, identities, principals
from gofer.web.auth.members import add_member, change_member, remove_member
from support.world import CONNECTION, World


async def conversation(world: World) -> Any:
    (row,) = await world.rows(select(conversations))
    return row


async def ann(world: World, **values: Any) -> str:
    who = {"integration": "hello", "subject": "ann", "name": "Ann", "role": "owner", "by": "test", **values}
    return str(await world.run(grant_role, workspace_id=FIRST_WORKSPACE, **who))


async def known(world: World, integration: str, subject: str) -> Any:
    return await world.run(
        known_principal, workspace_id=FIRST_WORKSPACE, integration=integration, subject=subject
    )


async def role(world: World, member_id: str) -> str:
    return str((await known(world, WEB_CHAT, member_id)).role)


async def test_a_conversation_keeps_what_its_integration_says_of_who_reads_it(world: World) -> None:
    await world.say("psst", private=True)
    assert (await conversation(world)).private is True
    await world.say("hello all")
    assert (await conversation(world)).private is False, "somebody else came in"
    await world.say("psst", private=True)
    assert (await conversation(world)).private is False, "what others could read stays open to them"


async def test_of_a_conversation_from_before_the_next_message_tells(world: World) -> None:
    await world.say("psst", private=True)
    await world.run(lambda c: c.execute(conversations.update().values(private=None)))
    assert await world.run(private_person, conversation_id=(await conversation(world)).id) is None
    await world.say("psst", private=True)
    assert (await conversation(world)).private is True


async def test_a_schedule_does_not_say_who_reads_a_place(world: World) -> None:
    await world.say("psst", private=True)
    await world.deliver(dataclasses.replace(world.arrival("tick", event="schedule"), source="schedule"))
    assert (await conversation(world)).private is True


async def test_a_private_conversation_is_held_with_one_known_person(world: World) -> None:
    await world.say("psst", private=True)
    room = (await conversation(world)).id
    assert await world.run(private_person, conversation_id=room) is None, "nobody knows who it is"
    person = await ann(world)
    assert await world.run(private_person, conversation_id=room) == person
    await world.say("tick", private=True, by="schedule:x", event="schedule")
    assert await world.run(private_person, conversation_id=room) == person, "a schedule is nobody"
    await world.say("hello all")
    assert await world.run(private_person, conversation_id=room) is None


async def test_every_member_is_a_principal_whose_role_follows(world: World) -> None:
    member = await world.run(add_member, name="bob", role="viewer")
    assert await role(world, member) == "viewer"
    for given, expected in (("operator", "member"), ("owner", "owner"), ("viewer", "viewer")):
        await world.run(change_member, member_id=member, role=given)
        if given == "owner":
            await world.run(add_member, name="ada", role="owner")
        assert await role(world, member) == expected
    await world.run(remove_member, named="bob")
    assert [row.name for row in await world.rows(select(principals))] == ["ada"]
    assert len(await world.rows(select(identities))) == 1


async def test_a_room_of_the_web_chat_is_private_with_its_member(world: World) -> None:
    await world.connect("web", integration=WEB_CHAT)
    member = await world.run(add_member, name="bob", role="operator")
    await world.say("hello", room=f"{member}:1", by=member, connection_id="web", private=True)
    room = (await conversation(world)).id
    assert await world.run(private_person, conversation_id=room) == (await known(world, WEB_CHAT, member)).id
    await world.run(change_member, member_id=member, role="viewer")
    assert await world.run(private_person, conversation_id=room) is None, "who may only look is a stranger"


async def test_a_member_who_is_known_elsewhere_rises_nowhere_but_falls_everywhere(world: World) -> None:
    person = await ann(world, role="member")
    code = await world.run(new_link, workspace_id=FIRST_WORKSPACE, integration="hello", subject="ann")
    member = await world.run(add_member, name="ann", role="operator")
    linked = {"integration": WEB_CHAT, "connection_id": CONNECTION, "subject": member, "code": code}
    assert await world.run(link, workspace_id=FIRST_WORKSPACE, **linked)
    await world.run(add_member, name="ada", role="owner")
    await world.run(change_member, member_id=member, role="owner")
    assert await role(world, member) == "member", "an owner of the dashboard is not one in chats by that"
    await world.run(change_member, member_id=member, role="viewer")
    found = await known(world, "hello", "ann")
    assert (found.id, found.role) == (person, "viewer")


async def test_a_viewer_gains_nothing_by_a_link(world: World) -> None:
    member = await world.run(add_member, name="vic", role="viewer")
    code = await world.run(new_link, workspace_id=FIRST_WORKSPACE, integration=WEB_CHAT, subject=member)
    await world.run(
        link, workspace_id=FIRST_WORKSPACE, connection_id=CONNECTION, integration="hello", subject="vic", code=code
    )  # fmt: skip
    await world.say("psst", private=True, by="vic")
    assert await world.run(private_person, conversation_id=(await conversation(world)).id) is None
