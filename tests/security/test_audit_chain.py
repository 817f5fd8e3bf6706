"""Somebody who can write to the database tidies up the audit log after themselves: it is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, case, delete, insert, select, update

from gofer.store import audit
from gofer.store.audit import Head
from gofer.store.tables import audit_entries, audit_heads
from support.web_server import House
from support.world import World

WHO = {"workspace_id": "main", "member_id": "m", "name": "ada", "via": "session", "action": "jobs.cancel"}


async def logged(world: World, count: int = 5) -> None:
    def log(c: Connection) -> None:
        for number in range(count):
            entry = audit.append(c, {**WHO, "subject": str(number)})
            audit.end(c, entry, status=200, data={"n": number})

    await world.run(log)


async def problems(world: World, seen: Head | None = None) -> tuple[str, ...]:
    verdict = await world.database.read(lambda c: audit.verify(c, seen))
    return verdict.problems


THIRD = audit_entries.c.subject == "2"
HARM: dict[str, tuple[Any, str]] = {
    "altered": (update(audit_entries).where(THIRD).values(name="eve"), "was changed"),
    "answer altered": (update(audit_entries).where(THIRD).values(status=403), "answered was changed"),
    "facts altered": (update(audit_entries).where(THIRD).values(data={}), "answered was changed"),
    "taken out": (delete(audit_entries).where(THIRD), "1 entries before"),
    "cut": (delete(audit_entries).where(audit_entries.c.subject.in_(["3", "4"])), "its head says 5"),
    "emptied": (delete(audit_entries), "its head says 5"),
    "headless": (delete(audit_heads), "head of the log is missing"),
    "another head": (update(audit_heads).values(place=3), "head of the log is not ours"),
    "facts put in the place of an answer": (
        update(audit_entries).where(THIRD).values(status=0, end_mac=None, data={"n": 9}),
        "answered was changed",
    ),
    "reordered": (
        update(audit_entries)
        .where(audit_entries.c.subject.in_(["2", "3"]))
        .values(subject=case((THIRD, "3"), else_="2")),
        "was changed",
    ),
    "added before the first": (
        insert(audit_entries).values(**WHO, data={}, at=1.0, place=-1, link=b"x"),
        "not in the chain",
    ),
    "added in no place": (
        insert(audit_entries).values(**WHO, data={}, at=1.0, place=0, link=b"x"),
        "not in the chain",
    ),
    "added behind the last": (
        insert(audit_entries).values(**WHO, data={}, at=1.0, place=6, link=b"x"),
        "its head says 5",
    ),
    "added": (insert(audit_entries).values(**WHO, data={}, at=1.0), "not in the chain"),
}


@pytest.mark.parametrize("harm", HARM)
async def test_a_log_that_was_tidied_up_is_not_whole(world: World, harm: str) -> None:
    await logged(world)
    assert await problems(world) == ()
    statement, words = HARM[harm]
    await world.run(lambda c: c.execute(statement))
    found = await problems(world)
    assert any(words in each for each in found), found
    # Work goes on, and who knows why can begin anew.
    await logged(world, 1)
    await world.run(audit.begin_chain)
    assert await problems(world) == ()


async def test_a_log_set_back_together_with_its_head_is_found_by_who_has_seen_more(world: World) -> None:
    await logged(world, 3)
    (old,) = await world.rows(select(audit_heads))
    await logged(world, 2)
    seen = await world.database.read(audit.current_head)
    assert seen is not None
    put_back = update(audit_heads).values(place=old.place, link=old.link, mac=old.mac)
    await world.run(lambda c: c.execute(delete(audit_entries).where(audit_entries.c.place > 3)))
    await world.run(lambda c: c.execute(put_back))
    assert await problems(world) == (), "by itself it looks whole"
    assert await problems(world, seen) != ()
    assert not await world.database.read(lambda c: audit.reaches(c, seen))


async def test_entries_written_at_once_have_one_order(world: World) -> None:
    import asyncio

    await asyncio.gather(*(logged(world, 3) for _ in range(5)))
    assert await problems(world) == ()
    assert len(await world.rows(select(audit_entries.c.place))) == 15


def test_the_log_can_be_exported_and_checked_over_http(house: House, tmp_path: Path) -> None:
    api = house.api(house.token(house.owner(), "admin"))
    api.post("/audit/accept")
    member = api.post("/members", json={"name": "chained", "role": "viewer"})
    assert member.status_code == 201
    exported = api.get("/audit/export").json()
    assert exported["entries"][-1]["action"] == "members.add"
    seen = exported["head"]
    assert api.get("/audit/verify", params=seen).json()["problems"] == []
    api.delete(f"/members/{member.json()['id']}")
    house.write(lambda c: c.execute(delete(audit_entries).where(audit_entries.c.action == "members.remove")))
    assert api.get("/audit/verify", params=seen).json()["problems"] != []
    done = api.post("/audit/accept").json()
    assert done["problems"]
    whole = api.get("/audit/verify").json()
    assert whole["problems"] == []
    newest = api.get("/audit", params={"action": "audit.accept"}).json()["entries"][0]
    assert newest["data"]["problems"], "that it was not whole stays on record"
    assert json.dumps(api.get("/audit").json())
