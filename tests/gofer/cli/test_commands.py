"""Every command, beside a running server and without one: the same words, the same answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.command_line import SIGNING_KEY, Hello, Process, Terminal
from support.patience import until


@pytest.fixture(params=["beside a server", "without a server"])
def server(request: pytest.FixtureRequest, start: Callable[..., Process]) -> Iterator[Process | None]:
    if request.param == "without a server":
        yield None
        return
    process = start().wait_until_ready()
    yield process
    assert process.stop() == 0
    assert SIGNING_KEY not in process.text()
    assert "Traceback" not in process.text()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key.txt"
    path.write_text(SIGNING_KEY + "\n")
    return path


def test_the_life_of_a_connection_and_its_messages(
    server: Process | None, terminal: Terminal, hello: Hello, key_file: Path, tmp_path: Path, data_dir: Path
) -> None:
    made = terminal.json(
        *("connections", "add", "hello", "--name", "kitchen", "--set", f"reply_url={hello.service.url}"),
        *("--secret-file", f"signing_key={key_file}"),
    )
    id_ = made["connection"]["id"]
    assert terminal("connections", "list").count(id_) >= 1
    assert "signing_key" in terminal("connections", "show", id_)
    assert terminal.json("connections", "test", id_)["health"]["ok"]
    terminal("connections", "set", id_, f"reply_url={hello.service.url}?v=2")
    assert "?v=2" in terminal("connections", "show", "kitchen")
    terminal("connections", "disable", id_)
    assert "off" in terminal("connections", "list")
    terminal("connections", "enable", id_)

    captured = tmp_path / "captured.http"
    captured.write_bytes(b"content-type: application/json\n\n" + hello.service.message("m1", "kitchen", "hi"))
    taken = terminal.json("replay", str(captured), "--to", id_)
    assert taken["result"] == "accepted"
    assert "came before" in terminal("replay", str(taken["delivery_id"]))
    if server is not None:
        until(lambda: hello.replies_to("m1"))
        assert hello.post(server.url, id_, "m1").json() == {"result": "repeat"}
        until(lambda: {job["state"] for job in terminal.json("jobs", "list")["jobs"]} == {"done"})
        assert "attempt.finished" in terminal("jobs", "show", "1")
        terminal("jobs", "cancel", "1", fails=4)
        terminal("jobs", "redrive", "1", fails=4)
        assert hello.replies_to("m1") == ["m1"]
    else:
        answers = [job for job in terminal.json("jobs", "list")["jobs"] if job["kind"] == "answer"]
        assert [job["state"] for job in answers] == ["ready"]
        terminal("jobs", "cancel", str(answers[0]["id"]))

    raw = terminal("deliveries", "show", "1", "--raw")
    assert raw == captured.read_text()
    again = terminal.json("deliveries", "replay", "1", "--again")
    assert again["result"] == "accepted"
    assert [each["source"] for each in terminal.json("deliveries", "list")["deliveries"]] == ["replay"] * 2
    if server is not None:
        until(lambda: hello.replies_to("m1") == ["m1", "m1"])

    terminal("connections", "remove", id_, fails=4)
    conversation = taken["conversation_id"]
    assert "kitchen" in terminal("conversations", "list")
    shell = data_dir / "shells" / f"{conversation}-agent_x"
    shell.mkdir(parents=True)
    (shell / "notes.txt").write_text("hi")
    purged = terminal.json("purge", conversation, "--yes")
    assert not shell.exists()
    assert purged["messages"] >= 2
    assert "purged" in terminal("conversations", "list")
    terminal("deliveries", "show", "1", "--raw", fails=3)
    terminal("connections", "remove", id_)
    assert terminal.json("connections", "list") == {"connections": []}
    assert SIGNING_KEY not in terminal.shown


def test_secrets_keys_schedules_and_the_rest(
    server: Process | None, terminal: Terminal, key_file: Path
) -> None:
    terminal("secrets", "put", "anthropic_key", stdin="sk-a-value-never-shown\n")
    assert [each["name"] for each in terminal.json("secrets", "list")["secrets"]] == ["anthropic_key"]
    before = terminal.json("key", "show")["in_use"]
    rotated = terminal.json("key", "rotate")
    assert rotated["secrets"] == 2, "the one put in, and the root of the keys for MACs"
    assert terminal.json("key", "show")["in_use"] == rotated["key_id"] != before
    terminal("secrets", "delete", "anthropic_key")
    terminal("secrets", "delete", "anthropic_key", fails=3)

    made = terminal.json(
        *("connections", "add", "hello", "--set", "reply_url=http://127.0.0.1:9"),
        *("--secret-file", f"signing_key={key_file}"),
    )
    aim = json.dumps({"connection_id": made["connection"]["id"]})
    nightly = ("schedules", "add", "nightly", "0 3 * * *", "--kind", "catch_up", "--payload", aim)
    terminal(*nightly, "--timezone", "Europe/Berlin")
    terminal(*nightly, fails=4)
    assert "Europe/Berlin" in terminal("schedules", "list")
    terminal("schedules", "remove", "nightly")
    terminal("schedules", "remove", "nightly", fails=3)
    saying = ("--agent", "gofer", "--say", "What is open?", "--conversation")
    terminal("schedules", "add", "standup", "0 9 * * 1-5", *saying, "conv_nowhere", fails=3)

    assert terminal.json("questions", "list") == {"questions": []}
    terminal("questions", "answer", "q_none", "yes", fails=3)
    assert terminal.json("status")["serving"] is (server is not None)
    terminal("status", "--running", fails=0 if server is not None else 1)
    assert terminal.json("status", "--refusals") == {"refusals": []}
    findings = {each["check"]: each["severity"] for each in terminal.json("doctor")["findings"]}
    assert findings["database"] == findings["master key"] == "ok"
    assert findings["server"] == ("ok" if server is not None else "note")
    assert "sk-a-value-never-shown" not in terminal.shown


def test_goals_are_made_shown_and_steered_by_the_command_line(
    start: Callable[..., Process], terminal: Terminal
) -> None:
    start("serve")
    made = terminal.json("goals", "add", "Count the boats", "--dollars", "1")
    assert made["budget"] == 1
    assert "Count the boats" in terminal("goals", "list")
    terminal("goals", "pause", made["id"])
    assert "paused" in terminal("goals", "list", "--state", "paused")
    terminal("goals", "tell", made["id"], "also the canoes")
    terminal("goals", "resume", made["id"])
    assert terminal.json("goals", "show", made["id"])["words"][0]["text"] == "also the canoes"
    terminal("goals", "cancel", made["id"])
    assert "Count the boats" in terminal("goals", "show", made["id"])
