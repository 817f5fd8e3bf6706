"""Heartbeats over HTTP and on the command line: the switch, what was found, and where it is muted."""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx2
import pytest
from sqlalchemy import Connection, select

from gofer.heartbeat.records import set_muted
from gofer.store.db_time import now
from gofer.store.ids import new_id
from gofer.store.tables import agents, conversations, heartbeat_findings, participants
from gofer.web.auth.sessions import csrf_for
from support.web_server import Browser, House


@pytest.fixture(scope="module")
def api(house: House) -> httpx2.Client:
    return house.api(house.token(house.owner()))


@pytest.fixture(scope="module")
def room(house: House) -> str:
    """A conversation in which gofer takes part and has found something."""
    return str(house.write(_furnish))


def _furnish(connection: Connection) -> str:
    agent = connection.execute(select(agents.c.id).where(agents.c.name == "gofer")).scalar_one()
    workspace = connection.execute(select(agents.c.workspace_id)).scalars().first()
    room = {
        "id": new_id("conv"),
        "workspace_id": workspace,
        "kind": "chat",
        "title": "Kitchen",
        "last_seq": 0,
    }
    connection.execute(conversations.insert().values({**room, "created_at": now(), "model": ""}))
    part = {"id": new_id("part"), "conversation_id": room["id"], "agent_id": agent, "priority": 0}
    connection.execute(participants.insert().values({**part, "read_seq": 0, "wake_seq": 0, "epoch_seq": 0}))
    finding = {
        "id": new_id("find"), "agent_id": agent, "conversation_id": room["id"], "code": "question.unanswered",
        "subject": "question:q_1", "key": "key", "recommendation": "answer_question", "state": "nudged", "reason": "",
        "found_at": 1_800_000_000.0, "settled_at": 1_800_000_001.0,
    }  # fmt: skip
    connection.execute(heartbeat_findings.insert().values(finding))
    return str(room["id"])


def test_the_switch_is_an_owners_and_keeps_the_file(house: House, api: httpx2.Client) -> None:
    assert api.get("/agents/gofer/heartbeat").json()["enabled"] is False, "off until switched on"
    on = api.put("/agents/gofer/heartbeat", json={"enabled": True})
    assert on.status_code == 200, on.text
    assert (on.json()["enabled"], on.json()["every"], on.json()["budget"]) == (True, 30, 0.5)
    file = house.platform.settings.data_dir / "agents" / "gofer" / "agent.toml"
    file.write_text(f"# mine\n{file.read_text()}every = 60\n")
    assert api.put("/agents/gofer/heartbeat", json={"enabled": False}).json()["every"] == 60
    assert "# mine" in file.read_text()
    file.write_text("heartbeat = { enabled = true }\n")
    refused = api.put("/agents/gofer/heartbeat", json={"enabled": False})
    assert refused.status_code == 409, "written in another way; nothing is lost"
    assert file.read_text() == "heartbeat = { enabled = true }\n"
    file.write_text("")
    assert api.get("/agents/nobody/heartbeat").status_code == 404
    assert api.put("/agents/nobody/heartbeat", json={"enabled": True}).status_code == 404
    assert not (house.platform.settings.data_dir / "agents" / "nobody").exists()
    viewer = house.api(house.token(house.member("vera", "viewer", password="")))
    assert viewer.get("/agents/gofer/heartbeat").status_code == 200
    assert viewer.put("/agents/gofer/heartbeat", json={"enabled": True}).status_code == 403


def test_a_mute_is_shown_and_taken_back(house: House, api: httpx2.Client, room: str) -> None:
    path = "/agents/gofer/heartbeat/mute"
    muted = api.put(path, json={"conversation_id": room})
    assert [each["conversation_id"] for each in muted.json()["muted"]] == [room]
    assert api.put(path, json={"conversation_id": room, "muted": False}).json()["muted"] == []
    assert api.put(path, json={"conversation_id": "conv_gone"}).status_code == 404
    (found,) = api.get("/agents/gofer/heartbeat").json()["found"]
    assert (found["code"], found["state"]) == ("question.unanswered", "nudged")
    assert found["advice"].startswith("Answer the question")


def test_the_agents_page_has_the_switch_the_problems_and_the_mutes(
    house: House, api: httpx2.Client, room: str
) -> None:
    owner = house.browser(accept="text/html")
    owner.follow(house.link(house.owner()))
    house.write(partial(_mute, room=room))
    folder = house.platform.settings.data_dir / "agents" / "gofer"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agent.toml").write_text("")
    (folder / "HEARTBEAT.md").write_text("- 09:00: Look at <b>this</b>.\n- soon: never\n")
    page = owner.get("/agents/gofer").text
    assert "Switch it on" in page
    assert "Look at &lt;b&gt;this&lt;/b&gt;." in page
    assert "HEARTBEAT.md line 2 is not in force" in page
    assert "question.unanswered" in page
    assert room in page
    _press(owner, "/agents/gofer/heartbeat", {"enabled": "yes"})
    assert api.get("/agents/gofer/heartbeat").json()["enabled"] is True
    _press(owner, "/agents/gofer/heartbeat/unmute", {"conversation": room})
    assert api.get("/agents/gofer/heartbeat").json()["muted"] == []
    findings = api.get("/doctor").json()["findings"]
    assert any("HEARTBEAT.md line 2" in each["line"] for each in findings)
    assert "HEARTBEAT.md line 2" in api.get("/agents/gofer").json()["problem"]


def _mute(connection: Connection, room: str) -> None:
    agent = connection.execute(select(agents.c.id).where(agents.c.name == "gofer")).scalar_one()
    set_muted(connection, agent, room, muted=True, by="test")


def _press(browser: Browser, path: str, fields: dict[str, Any]) -> None:
    done = browser.post(path, csrf=csrf_for(browser.cookie), **fields)
    assert done.status_code in (200, 303), done.text
