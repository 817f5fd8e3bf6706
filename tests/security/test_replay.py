"""Threat: somebody who has seen a genuine webhook sends it again, long after, under a delivery id of their own.

GitHub signs the body and not the delivery's id. What was said is known by the id that is signed with it, for ever.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import Connection, select, update

from gofer.jobs.maintenance import prune
from gofer.purge import purge_conversation
from gofer.store.tables import conversations, deliveries, jobs, messages
from support.github_scene import Running, Scene, gofer, request


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
async def running(request: pytest.FixtureRequest, scene: Scene, tmp_path: Path) -> AsyncIterator[Running]:
    url = "" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    async with gofer(scene, tmp_path / "data", database_url=url) as running:
        yield running


async def post(scene: Scene, kind: str, body: bytes, delivery: str) -> str:
    signed = request(kind, body, secret=scene.app.webhook_secret, delivery=delivery)
    headers = {name: value.decode() for name, value in signed.headers}
    async with httpx2.AsyncClient(trust_env=False) as client:
        answer = await client.post(scene.app.hook_url, content=body, headers=headers)
    assert answer.status_code == 200
    return str(answer.json()["result"])


def event(scene: Scene, kind: str, **more: Any) -> bytes:
    """An event of ada's on the first issue, as GitHub would tell it."""
    repository, ada = scene.repository, scene.github.world.user("ada")
    user = {"login": ada.login, "id": ada.id, "type": "User"}
    value = {
        "action": "created" if kind == "issue_comment" else "labeled",
        "issue": {"number": 1, "title": "Broken", "body": "It is.", "user": user, "updated_at": "2026-01-01T00:00:00Z"},
        "repository": {
            "id": repository.id, "full_name": repository.full_name, "default_branch": "main",
            "owner": {"login": "acme", "id": repository.owner},
        },
        "sender": user,
        **more,
    }  # fmt: skip
    return json.dumps(value).encode()


def long_ago(connection: Connection) -> None:
    """A year passes, and what is old is pruned."""
    connection.execute(update(deliveries).values(received_at=deliveries.c.received_at - 366 * 86_400))
    connection.execute(update(jobs).values(finished_at=jobs.c.finished_at - 366 * 86_400))
    prune(connection, older_than=30 * 86_400)


async def test_what_was_said_once_is_a_repeat_for_ever(scene: Scene, running: Running) -> None:
    await scene.github.open_issue("ada", scene.repository, "Broken", "It is.")
    user = {"login": "ada", "id": scene.github.world.user("ada").id, "type": "User"}
    comment = {"id": 4711, "body": "@gofer deploy it", "created_at": "2026-01-01T00:00:00Z", "user": user}
    bodies = {
        "issue_comment": event(scene, "issue_comment", comment=comment),
        "issues": event(scene, "issues", label={"name": "gofer"}),
    }
    for number, (kind, body) in enumerate(bodies.items()):
        assert await post(scene, kind, body, f"first-{number}") == "accepted"
    await running.quiet()
    database = running.platform.database
    await database.write(long_ago)
    for number, (kind, body) in enumerate(bodies.items()):
        assert await post(scene, kind, body, f"second-{number}") == "repeat"
    for row in await running.rows(select(conversations.c.id)):
        purge = partial(purge_conversation, vault=running.platform.vault, conversation_id=row.id, by="test")
        await database.write(purge)
    for number, (kind, body) in enumerate(bodies.items()):
        assert await post(scene, kind, body, f"third-{number}") == "repeat"
    await running.quiet()
    assert await running.jobs(lambda row: row.kind == "answer") == [], "those before were pruned"
    kept = await running.rows(
        select(deliveries.c.message_digest).where(deliveries.c.message_digest.is_not(None))
    )
    assert not any("4711" in row.message_digest for row in kept)
    assert all(len(row.message_digest) == 64 for row in kept)


async def test_another_body_under_a_known_delivery_id_is_said(
    scene: Scene, running: Running, capfd: pytest.CaptureFixture[str]
) -> None:
    user = {"login": "ada", "id": scene.github.world.user("ada").id, "type": "User"}
    for number in (1, 2):
        comment = {"id": number, "body": "hello", "created_at": "2026-01-01T00:00:00Z", "user": user}
        body = event(scene, "issue_comment", comment=comment)
        assert await post(scene, "issue_comment", body, "the-same") == (
            "accepted" if number == 1 else "repeat"
        )
    assert "delivery.another_body" in "".join(capfd.readouterr())
    assert len(await running.rows(select(messages.c.seq))) == 1


async def test_taking_it_in_again_on_purpose_still_works(scene: Scene, running: Running) -> None:
    user = {"login": "ada", "id": scene.github.world.user("ada").id, "type": "User"}
    comment = {"id": 9, "body": "@gofer hello", "created_at": "2026-01-01T00:00:00Z", "user": user}
    await scene.github.open_issue("ada", scene.repository, "Broken", "It is.")
    body = event(scene, "issue_comment", comment=comment)
    assert await post(scene, "issue_comment", body, "d-1") == "accepted"
    await running.quiet()
    answered = len(await running.jobs(lambda row: row.kind == "answer"))
    intake = running.platform.intake
    connected = await intake.connected(running.connection_id)
    given = request("issue_comment", body, secret=scene.app.webhook_secret, delivery="d-1")
    assert (await intake.take(connected, given, "replay", again=True)).result == "accepted"
    await running.quiet()
    assert len(await running.jobs(lambda row: row.kind == "answer")) == answered + 1
    assert await post(scene, "issue_comment", body, "d-1") == "repeat", (
        "GitHub's own button, when all is well"
    )
