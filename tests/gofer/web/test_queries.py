"""The dashboard and the API give the same answer to the same question."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx2
import pytest
from sqlalchemy import insert, select, update

from gofer.jobs.cron import tick
from gofer.jobs.queue import submit
from gofer.store import row_macs
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import agents, bindings, events, jobs, schedules, shells, spends, web_sessions
from gofer.web.auth import CSRF_HEADER
from gofer.web.auth.sessions import csrf_for
from support.web_server import Browser, House


@pytest.fixture(scope="module")
def api(house: House) -> httpx2.Client:
    return house.api(house.token(house.owner()))


@pytest.fixture(scope="module")
def owner(house: House) -> Browser:
    browser = house.browser(accept="text/html")
    browser.follow(house.link(house.owner()))
    return browser


@pytest.fixture(scope="module")
def connection(api: httpx2.Client) -> str:
    wish = {"integration": "hello", "settings": {"reply_url": "http://127.0.0.1:9/"}}
    return str(api.post("/connections", json=wish).json()["connection"]["id"])


@pytest.fixture(scope="module")
def conversation(api: httpx2.Client, connection: str) -> str:
    body = json.dumps({"id": "q1", "room": "q1", "from": "ada", "text": "hello"})
    given = {"body": base64.b64encode(body.encode()).decode()}
    return str(api.post(f"/connections/{connection}/replay", json=given).json()["conversation_id"])


def send(browser: Browser, path: str, **fields: str) -> httpx2.Response:
    return browser.post(path, csrf=csrf_for(browser.cookie), **fields)


def test_a_change_has_the_same_author_in_the_dashboard_and_in_the_api(house: House, owner: Browser) -> None:
    ids = [
        house.write(submit, workspace_id=FIRST_WORKSPACE, kind="nothing", lane=f"by-{n}", pool="nobody")
        for n in range(2)
    ]
    assert send(owner, f"/runs/{ids[0]}/cancel").status_code == 303
    headers = {CSRF_HEADER: csrf_for(owner.cookie)}
    assert owner.client.post(f"/api/v1/jobs/{ids[1]}/cancel", headers=headers).status_code == 202

    def authors(connection: Any) -> list[str]:
        query = select(events.c.data).where(events.c.job_id.in_(ids), events.c.kind == "job.cancel_requested")
        return [data["by"] for data in connection.execute(query).scalars()]

    assert house.read(authors) == ["owner", "owner"]


def test_the_dashboard_makes_no_token_that_may_do_more_than_its_member(house: House) -> None:
    house.member("paula", "operator")
    paula = house.browser(accept="text/html")
    paula.login("paula")
    assert send(paula, "/tokens", name="more", scope="admin", life="7").status_code == 403
    assert send(paula, "/tokens", name="mine", scope="write", life="7").status_code == 200


def test_a_session_that_has_ended_is_not_listed(house: House, owner: Browser) -> None:
    member = house.member("ida", "viewer")
    house.browser().login("ida")
    assert "ida<span" in owner.get("/members").text
    mine = web_sessions.c.member_id == member
    house.write(lambda c: c.execute(update(web_sessions).where(mine).values(seen_at=1.0)))
    assert "ida<span" not in owner.get("/members").text


def test_a_schedule_named_in_the_address_is_removed(
    house: House, owner: Browser, api: httpx2.Client, connection: str
) -> None:
    schedule = {"name": "nightly", "cron": "0 3 * * *", "kind": "catch_up"}
    made = api.post("/schedules", json={**schedule, "payload": {"connection_id": connection}})
    assert made.status_code == 201
    assert send(owner, "/schedules/nightly/switch", enabled="off").status_code == 303
    assert api.get("/schedules/nightly").json()["enabled"] is False
    assert send(owner, "/schedules/nightly/remove").status_code == 303
    assert api.get("/schedules/nightly").status_code == 404


def test_a_schedule_without_a_time_left_is_shown(
    house: House, owner: Browser, api: httpx2.Client, connection: str
) -> None:
    schedule = {"name": "over", "cron": "0 3 * * *", "kind": "catch_up"}
    api.post("/schedules", json={**schedule, "payload": {"connection_id": connection}})
    over = schedules.c.name == "over"
    house.write(lambda c: c.execute(update(schedules).where(over).values(next_at=float("inf"))))
    house.write(tick)
    assert "<strong>over</strong>" in owner.get("/schedules").text
    (shown,) = [each for each in api.get("/schedules").json()["schedules"] if each["name"] == "over"]
    assert shown["enabled"] is False


def test_a_shell_is_closed_by_its_agents_name(house: House, owner: Browser, conversation: str) -> None:
    gofer = house.read(lambda c: c.execute(select(agents.c.id).where(agents.c.name == "gofer")).scalar())
    row = {"conversation_id": conversation, "agent_id": gofer, "record": {}, "trust": "owner", "used_at": 1.0}
    house.write(lambda c: row_macs.insert(c, shells, row))
    answer = jobs.c.conversation_id == conversation
    house.write(lambda c: c.execute(update(jobs).where(answer).values(state="done")))
    assert owner.get(f"/shells/{conversation}/gofer").status_code == 200
    assert send(owner, f"/shells/{conversation}/gofer/close").status_code == 303
    assert owner.get(f"/shells/{conversation}/gofer").status_code == 404


def test_a_conversation_with_two_places_is_listed_and_counted_once(
    house: House, owner: Browser, api: httpx2.Client, connection: str, conversation: str
) -> None:
    place = {"conversation_id": conversation, "connection_id": connection}
    spend = {
        "workspace_id": FIRST_WORKSPACE, "agent_id": "a", "conversation_id": conversation, "settled": True,
        "connection_id": connection, "job_id": 1, "key": "q", "model": "m", "day": "2026-01-01",
        "micros": 2_000_000,
    }  # fmt: skip
    house.write(lambda c: c.execute(insert(bindings).values(id="bind_second", ref="second", **place)))
    house.write(lambda c: c.execute(insert(spends).values(**spend)))
    listed = [each["id"] for each in api.get("/conversations").json()["conversations"]]
    assert listed.count(conversation) == 1
    assert owner.get("/conversations").text.count(f'href="/conversations/{conversation}"') == 1
    costs = api.get("/costs").json()
    assert [each["dollars"] for each in costs["costs"] if each["agent_id"] == "a"] == [2.0]


def test_the_audit_page_finds_a_member_by_id(house: House, owner: Browser) -> None:
    assert "<td>owner<span" in owner.get("/audit", params={"name": house.owner()}).text
