"""Schedules, questions and the configuration over OpenClaw's gateway protocol."""

from __future__ import annotations

import base64
import json

import pytest

from gofer.errors import GoferError
from gofer.web.protocols.gateway_control import CronTimes, answer_for, cron_line
from protocols.gateway_client import GatewayClient, checker, gateway
from support.patience import until
from support.web_server import House

CRON = {"kind": "cron", "expr": "0 9 * * *", "tz": "Europe/Vienna"}
TURN = {"kind": "agentTurn", "message": "$ echo good morning"}


def test_schedules_are_added_run_and_removed(house: House, token: str) -> None:
    with gateway(house, token) as client:
        target = "session:agent:gofer:mornings"
        job = client.ask(
            "cron.add", name="morning", schedule=CRON, payload=TURN, sessionTarget=target, wakeMode="now"
        )
        checker("CronJob").validate(job)
        listed = client.ask("cron.list")["jobs"]
        assert [each["name"] for each in listed] == ["morning"]
        checker("CronJob").validate(listed[0])
        client.ask("chat.history", sessionKey="agent:gofer:mornings")
        assert client.ask("cron.run", id=job["id"])["ok"] is True
        told = client.event("chat", sessionKey="agent:gofer:mornings", state="final")
        assert "good morning" in json.dumps(told)
        assert told["runId"].startswith("job-")
        assert client.ask("cron.remove", jobId=job["id"])["removed"] is True
        assert client.ask("cron.list", includeDisabled=True)["jobs"] == []
        assert client.refused("cron.remove", id=job["id"]).code == "INVALID_REQUEST"
        assert client.refused("cron.run").code == "INVALID_REQUEST"
    audit = house.api(token).get("/audit").json()["entries"]
    assert {"gateway.cron.add", "gateway.cron.run", "gateway.cron.remove"} <= {
        each["action"] for each in audit
    }


def test_only_owners_change_schedules(house: House) -> None:
    operator = house.token(house.member("orla", "operator", password=""), "write")
    with gateway(house, operator) as client:
        assert client.ask("cron.list")["jobs"] == []
        given = {"name": "mine", "schedule": CRON, "payload": TURN}
        assert client.refused("cron.add", **given).code == "FORBIDDEN"


@pytest.mark.parametrize(
    ("every", "line"),
    [
        (300_000, "*/5 * * * *"),
        (7_200_000, "0 */2 * * *"),
        (86_400_000, "0 0 * * *"),
        (61_000, ""),
        (420_000, ""),
    ],
)
def test_spans_become_cron_lines_where_they_can(every: int, line: str) -> None:
    given = CronTimes(kind="every", everyMs=every)
    if line:
        assert cron_line(given) == line
    else:
        with pytest.raises(GoferError):
            cron_line(given)


def test_what_a_schedule_cannot_be_is_refused(house: House, token: str) -> None:
    with gateway(house, token) as client:
        for change in (
            {"schedule": {"kind": "at", "at": "2026-01-01T00:00:00Z"}},
            {"schedule": {"kind": "cron", "expr": "not a line"}},
            {"payload": {"kind": "command", "argv": ["rm"]}},
            {"payload": {"kind": "agentTurn", "message": " "}},
            {"sessionKey": "agent:nobody:main"},
        ):
            given = {"name": "odd", "schedule": CRON, "payload": TURN, **change}
            assert client.refused("cron.add", **given).code == "INVALID_REQUEST"


def ask_question(house: House, token: str, client: GatewayClient, key: str) -> str:
    """Have a question asked in a session; returns its id."""
    client.say("$ echo begun", f"{key}-begun", key)
    room = client.ask("chat.history", sessionKey=key)["sessionId"]
    asked = house.api(token).post(
        f"/conversations/{room}/questions", json={"text": "May I deploy?", "choices": ["yes", "no"]}
    )
    assert asked.status_code in (201, 202), asked.text
    told = client.until(lambda frame: "May I deploy?" in json.dumps(frame))
    assert told["payload"]["state"] == "final"
    return str(client.ask("exec.approval.list")[-1]["id"])


def test_a_secret_shows_neither_in_a_schedule_nor_in_a_question(house: House, token: str) -> None:
    """Also one that became a secret after it was said, and in disguise."""
    value = "kestrel-harbour-9171-quartz"
    words = f"use {value} or {base64.b64encode(value.encode()).decode()}"
    with gateway(house, token) as client:
        job = client.ask("cron.add", name="key", schedule=CRON, payload={**TURN, "message": words})
        client.say("$ echo begun", "key-begun", "agent:gofer:key")
        room = client.ask("chat.history", sessionKey="agent:gofer:key")["sessionId"]
        asked = {"text": words, "choices": [f"yes {value}", "no"]}
        house.api(token).post(f"/conversations/{room}/questions", json=asked)
        until(lambda: client.ask("exec.approval.list"))
        house.api(token).put("/secrets", json={"name": "late", "value": value})
        question = client.ask("exec.approval.list")[-1]
        shown = [client.ask("cron.list"), question, client.ask("exec.approval.get", id=question["id"])]
        assert client.ask("exec.approval.resolve", id=question["id"], decision="allow-once") == {"ok": True}
        client.ask("cron.remove", id=job["id"])
    for form in words.split()[1::2]:
        assert form not in json.dumps(shown)


def test_approvals_are_questions(house: House, token: str) -> None:
    with gateway(house, token) as client:
        question = ask_question(house, token, client, "agent:gofer:approvals")
        shown = client.ask("exec.approval.get", id=question)
        assert "May I deploy?" in shown["request"]["command"]
        waiting = client.send("exec.approval.waitDecision", {"id": question})
        assert (
            client.refused("exec.approval.resolve", id=question, decision="perhaps").code == "INVALID_REQUEST"
        )
        assert client.ask("exec.approval.resolve", id=question, decision="deny") == {"ok": True}
        assert client.response(waiting)["decision"] == "deny"
        again = client.refused("exec.approval.resolve", id=question, decision="allow-once")
        assert again.code == "APPROVAL_NOT_FOUND"
        assert client.refused("exec.approval.get", id="nothing").code == "APPROVAL_NOT_FOUND"


@pytest.mark.parametrize(
    ("decision", "choices", "said"),
    [
        ("allow-once", ["yes", "no"], "yes"),
        ("deny", ["yes", "no"], "no"),
        ("allow-once", ["Allow always", "Allow", "Deny"], "Allow"),
        ("allow-always", ["Allow", "Allow always", "Deny"], "Allow always"),
        ("deny", [], "no"),
        ("allow-once", [], "yes"),
    ],
)
def test_decisions_are_choices(decision: str, choices: list[str], said: str) -> None:
    assert answer_for(decision, choices) == said


def test_the_configuration_tells_no_secret(house: House, token: str) -> None:
    with gateway(house, token) as client:
        found = client.ask("config.get")
        assert "gofer" in json.loads(found["raw"])["agents"]["list"][0]["id"]
        assert token not in json.dumps(found)
        assert client.refused("config.patch", raw="{}").code == "INVALID_REQUEST"
