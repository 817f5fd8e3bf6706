"""The control API itself: what makes no sense is answered with a reason, nothing secret comes out."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gofer.app import Platform, open_app
from gofer.jobs.finish import finish_run
from gofer.jobs.outcome import Wait
from gofer.jobs.queue import AGENT, claim
from gofer.settings import Settings
from gofer.web.api import control_app
from gofer.web.api.table import OPERATIONS
from support.both_databases import slow_on_postgres
from support.patience import patiently

database_url = slow_on_postgres


@pytest.fixture
async def platform(data_dir: Path, database_url: str) -> AsyncIterator[Platform]:
    settings = Settings(data_dir=data_dir, database_url=database_url, sandbox="off")
    async with open_app(settings, roles=frozenset()) as platform:
        yield platform


@pytest.fixture
async def api(platform: Platform) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=control_app(platform))
    async with httpx2.AsyncClient(transport=transport, base_url="http://gofer/api/v1") as client:
        yield client


def requests() -> list[tuple[str, str]]:
    """Every route, asked for something that is not there."""
    found = []
    for each in OPERATIONS:
        path = re.sub(r"\{\w+:int\}", "987654321", re.sub(r"\{\w+\}", "nobody", each.path))
        if not each.stream:
            found.append((each.method, path))
    return found


BODIES = (b"", b"{", b"[]", b"null", b'{"surprise": 1}', b'{"again": {}}', b"\xff\xfe", b"[" * 5000)


async def test_nonsense_is_answered_with_a_reason(api: httpx2.AsyncClient, platform: Platform) -> None:
    # A body is read before the store is asked.
    bodies = BODIES if platform.database.dialect == "sqlite" else (b"", b'{"surprise": 1}')
    for method, path in requests():
        for body in bodies:
            if path in ("/key/rotate",):
                continue
            answer = await api.request(method, path, content=body, params={"limit": "many"})
            assert answer.status_code < 500, (method, path, body, answer.text)
            if answer.is_error:
                assert answer.headers["content-type"] == "application/problem+json", (method, path)
                assert answer.json()["detail"]


async def test_what_a_service_was_told_is_never_told_again(
    api: httpx2.AsyncClient, platform: Platform
) -> None:
    canary = "canary-value-of-a-secret"
    made = await api.post(
        "/connections",
        json={
            "integration": "hello",
            "settings": {"reply_url": "http://127.0.0.1:9/"},
            "secrets": {"signing_key": canary},
        },
    )
    id_ = made.json()["connection"]["id"]
    body = {"id": "m1", "room": "kitchen", "from": "ada", "text": f"my key is {canary}"}
    given = {"body": base64.b64encode(json.dumps(body).encode()).decode()}
    taken = await api.post(f"/connections/{id_}/replay", json=given)
    assert taken.json()["result"] == "accepted"
    shown = made.text
    for method, path in requests():
        # Numbers are not given without gaps, so a few of each.
        for number in "1234" if method == "GET" else "":
            answer = await api.get(path.replace("nobody", id_).replace("987654321", number))
            shown += answer.text
    assert canary not in shown
    assert "my key is" in shown


async def test_what_one_process_is_told_every_process_masks(data_dir: Path, postgres_url: str) -> None:
    settings = Settings(data_dir=data_dir, database_url=postgres_url, sandbox="off")
    roles = frozenset({"web"})
    async with open_app(settings, roles=roles) as one, open_app(settings, roles=roles) as other:
        transport = httpx2.ASGITransport(app=control_app(one))
        async with (
            httpx2.AsyncClient(transport=transport, base_url="http://gofer/api/v1") as api,
            patiently(30),
        ):
            while "a-new-secret" in other.redactor.redact("a-new-secret"):
                await api.put("/secrets", json={"name": "token", "value": "a-new-secret"})
                await asyncio.sleep(0.05)


async def test_an_answer_reaches_its_question(api: httpx2.AsyncClient, platform: Platform) -> None:
    made = await api.post(
        "/connections", json={"integration": "hello", "settings": {"reply_url": "http://127.0.0.1:9/"}}
    )
    await _say(api, made.json()["connection"]["id"])
    (job,) = (await claim(platform.database, owner="w", lease=30, limits={AGENT: 1}))[AGENT]
    await platform.database.write(lambda c: finish_run(c, platform.vault, job, Wait("Red or blue?")))
    (question,) = (await api.get("/questions")).json()["questions"]
    assert (question["question"], question["job_id"]) == ("Red or blue?", job.id)
    assert (await api.post(f"/questions/{question['id']}/answer", json={"text": "blue"})).is_success
    assert (await api.post(f"/questions/{question['id']}/answer", json={"text": "red"})).status_code == 409
    assert (await api.get("/questions")).json()["questions"] == []
    assert (await api.get(f"/jobs/{job.id}")).json()["job"]["state"] == "ready"


async def _say(api: httpx2.AsyncClient, connection_id: str, id_: str = "m1") -> Any:
    body = json.dumps({"id": id_, "room": "kitchen", "from": "ada", "text": "hello"}).encode()
    given = {"body": base64.b64encode(body).decode()}
    return (await api.post(f"/connections/{connection_id}/replay", json=given)).json()
