"""Strangers whom a service vouches for by name: they must not have a job made for everything that they write."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import func, select, update

from gofer.connections.changes import add_connection
from gofer.intake.admit import Admitter, StrangerLimit, read_one
from gofer.integration import sign_body
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.db_time import now
from gofer.store.tables import deliveries, jobs, messages
from gofer.vault.redaction import Secret
from support.github_scene import Scene, gofer
from support.web_server import House

KEY = "a-signing-key-of-the-tests"
MOST = 3


class Door:
    """A connection that nobody works for, so that nothing but intake is seen."""

    def __init__(self, house: House) -> None:
        self.house = house
        self._client = house.browser().client
        self._number = 0
        self._connection = house.write(
            add_connection,
            vault=house.platform.vault,
            workspace_id=FIRST_WORKSPACE,
            integration=house.platform.registry.get("hello"),
            name="hello",
            settings={"reply_url": "http://127.0.0.1:9/replies"},
            secrets_given={"signing_key": Secret(KEY)},
            by="test",
        )
        house.run(house.platform.secrets_changed())

    def post(self, author: str, **more: Any) -> str:
        """What becomes of one more message, each in a room of its own."""
        self._number += 1
        what = {"id": f"m{self._number}", "room": f"r{self._number}", "from": author, "text": "hi", **more}
        body = json.dumps(what).encode()
        headers = {"x-hello-signature": sign_body(body, KEY, time.time())}
        return str(
            self._client.post(f"/hooks/{self._connection}", content=body, headers=headers).json()["result"]
        )

    def found_to_be_stranger(self, author: str) -> None:
        """As admission finds out."""
        self.house.write(
            lambda c: c.execute(
                update(messages)
                .where(messages.c.author == author)
                .values(trust="stranger", admitted_at=now())
            )
        )

    def jobs(self) -> int:
        query = select(func.count()).select_from(jobs)
        return int(self.house.read(lambda c: c.execute(query).scalar_one()))


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("strangers") / "data"
    folder.mkdir(mode=0o700)
    house = House(folder, roles=("web",), max_from_stranger=MOST)
    yield Door(house)
    house.close()


def test_a_strangers_messages_make_a_bounded_number_of_jobs(door: Door) -> None:
    assert door.post("eve") == "accepted"
    door.found_to_be_stranger("eve")
    assert [door.post("eve") for _ in range(6)] == ["accepted"] * (MOST - 1) + ["noted"] * (7 - MOST)
    before = door.jobs()
    assert door.post("eve") == "noted"
    assert door.jobs() == before
    assert door.post("ada") == "accepted", "others are not concerned"
    noted = select(deliveries.c.note).order_by(deliveries.c.id.desc()).where(deliveries.c.note != "").limit(1)
    assert "Redeliver" in door.house.read(lambda c: c.execute(noted).scalar_one())


def test_who_was_not_looked_at_yet_is_not_bounded(door: Door) -> None:
    """What came while we were away comes all at once, and none of it may be lost."""
    assert {door.post("ben") for _ in range(MOST * 4)} == {"accepted"}


def test_what_nobody_has_to_answer_is_not_counted(door: Door) -> None:
    assert {door.post("zoe", addressed=False) for _ in range(MOST * 2)} == {"accepted"}
    door.found_to_be_stranger("zoe")
    assert door.post("zoe") == "accepted"


def test_who_is_found_to_be_a_stranger_again_and_again_is_not_looked_up_any_more() -> None:
    limit = StrangerLimit(MOST)
    for _ in range(MOST):
        assert limit.may_look_up("github_1", "eve")
        limit.was_stranger("github_1", "eve")
    assert not limit.may_look_up("github_1", "eve")
    assert limit.may_look_up("github_1", "ada")
    assert limit.may_look_up("github_2", "eve")


async def test_nor_is_it_asked_more_when_all_come_at_once(scene: Scene, tmp_path: Path) -> None:
    """Before the first of them was looked at, none is known to be a stranger's."""
    async with gofer(scene, tmp_path / "data") as running:
        issue = await scene.github.open_issue("ada", scene.repository, "Broken", "It is.")
        await scene.github.comment("mallory", scene.repository, issue.number, "@gofer 1")
        await running.quiet()
        platform = running.platform
        (row,) = await running.rows(select(messages).where(messages.c.trust == "stranger"))
        read = await platform.database.read(
            lambda c: read_one(c, platform.vault, row.conversation_id, row.seq)
        )
        admitter = Admitter(
            database=platform.database,
            vault=platform.vault,
            accounts=platform.accounts,
            redactor=platform.redactor,
            strangers=StrangerLimit(MOST),
        )
        claim: Any = SimpleNamespace(workspace_id=FIRST_WORKSPACE)
        before = len(scene.github.calls)
        assert read is not None
        found = {(await admitter._ask(claim, read)).trust for _ in range(MOST * 3)}
    asked = [call for call in scene.github.calls[before:] if "collaborators/mallory/permission" in call[1]]
    assert (found, len(asked)) == ({"stranger"}, MOST)


async def test_the_service_is_asked_about_a_stranger_a_bounded_number_of_times(
    scene: Scene, tmp_path: Path
) -> None:
    async with gofer(scene, tmp_path / "data", max_from_stranger=MOST) as running:
        issue = await scene.github.open_issue("ada", scene.repository, "Broken", "It is.")
        for number in range(MOST * 2):
            await scene.github.comment("mallory", scene.repository, issue.number, f"@gofer {number}")
            await running.quiet()
    asked = [call for call in scene.github.calls if "collaborators/mallory/permission" in call[1]]
    assert 0 < len(asked) <= MOST
