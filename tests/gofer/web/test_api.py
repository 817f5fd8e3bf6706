"""The API as a program uses it: pages, repeats, versions, jobs, members and tokens."""

from __future__ import annotations

import base64
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from sqlalchemy import Connection, select, update

from gofer.client import models
from gofer.jobs.queue import submit
from gofer.store import row_macs
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import agents, idempotency_keys, jobs, shells
from gofer.web.api.http import EmptyBody
from gofer.web.api.table import OPERATIONS
from support.patience import patience, until
from support.web_server import House


@pytest.fixture(scope="module")
def api(house: House) -> httpx2.Client:
    return house.api(house.token(house.owner()))


@pytest.fixture(scope="module")
def connection(api: httpx2.Client) -> str:
    wish = {"integration": "hello", "settings": {"reply_url": "http://127.0.0.1:9/"}}
    return str(api.post("/connections", json=wish).json()["connection"]["id"])


def dead_jobs(connection: Connection, count: int) -> list[int]:
    """Jobs that have ended badly, of a kind nobody works on."""
    made = [
        submit(connection, workspace_id=FIRST_WORKSPACE, kind="nothing", lane=f"dead-{n}", pool="nobody")
        for n in range(count)
    ]
    connection.execute(update(jobs).where(jobs.c.kind == "nothing").values(state="dead"))
    return [int(job_id or 0) for job_id in made]


# Lists.


def test_a_long_list_comes_page_by_page_each_row_once(house: House, api: httpx2.Client) -> None:
    made = house.write(dead_jobs, count=23)
    seen: list[int] = []
    cursor = ""
    while True:
        page = api.get("/jobs", params={"kind": "nothing", "limit": 5, "cursor": cursor}).json()
        seen += [job["id"] for job in page["jobs"]]
        if page["next"] is None:
            break
        cursor = page["next"]
    assert seen == sorted(made, reverse=True)


def test_conversations_and_their_messages_are_read(api: httpx2.Client, connection: str) -> None:
    for number in range(3):
        body = json.dumps(
            {"id": f"m{number}", "room": f"r{number}", "from": "ada", "text": f"hello {number}"}
        )
        given = {"body": base64.b64encode(body.encode()).decode()}
        assert api.post(f"/connections/{connection}/replay", json=given).json()["result"] == "accepted"
    first = api.get("/conversations", params={"limit": 2}).json()
    second = api.get("/conversations", params={"limit": 2, "cursor": first["next"]}).json()
    ids = [each["id"] for each in first["conversations"] + second["conversations"]]
    assert len(ids) == len(set(ids)) == 3
    said = [api.get(f"/conversations/{id_}/messages").json()["messages"][-1]["text"] for id_ in ids]
    assert said == ["hello 2", "hello 1", "hello 0"]
    assert api.get("/conversations", params={"cursor": "conv_gone"}).status_code == 404


# Repeats.


def test_a_repeated_request_is_answered_and_not_done_again(house: House, api: httpx2.Client) -> None:
    wish = {"name": "grace", "role": "viewer"}
    key = {"idempotency-key": "add-grace-1"}
    first = api.post("/members", json=wish, headers=key)
    again = api.post("/members", json=wish, headers=key)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["idempotency-replayed"] == "true"
    other = api.post("/members", json={**wish, "name": "heidi"}, headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency.reused")
    # Somebody else's keys are their own.
    another = house.api(house.token(house.member("ivan", "owner", password="")))
    assert another.post("/members", json={**wish, "name": "judy"}, headers=key).status_code == 201


def test_repeats_sent_at_once_are_done_once(api: httpx2.Client, house: House) -> None:
    tokens = [house.api(house.token(house.owner())) for _ in range(6)]

    def add(client: httpx2.Client) -> int:
        key = {"idempotency-key": "kim-at-once"}
        return client.post("/members", json={"name": "kim"}, headers=key).status_code

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(add, tokens))
    assert answers.count(201) >= 1
    assert set(answers) <= {201, 409}
    assert len([each for each in api.get("/members").json()["members"] if each["name"] == "kim"]) == 1


def test_a_request_that_was_refused_may_be_mended_under_its_key(api: httpx2.Client) -> None:
    key = {"idempotency-key": "mended"}
    assert api.post("/members", json={"name": "NOT A NAME"}, headers=key).status_code == 400
    assert api.post("/members", json={"name": "leo"}, headers=key).status_code == 201


def test_a_request_that_was_cut_off_is_not_guessed_about(house: House, api: httpx2.Client) -> None:
    key = {"idempotency-key": "cut-off"}
    api.post("/members", json={"name": "mia"}, headers=key)
    house.write(lambda c: c.execute(update(idempotency_keys).values(status=0)))
    answer = api.post("/members", json={"name": "mia"}, headers=key)
    assert (answer.status_code, answer.json()["code"]) == (409, "idempotency.unfinished")


def test_a_token_is_shown_once_also_to_who_repeats(api: httpx2.Client) -> None:
    key = {"idempotency-key": "a-token"}
    made = api.post("/tokens", json={"name": "ci", "scope": "read"}, headers=key)
    assert made.json()["token"].startswith("gofer_")
    again = api.post("/tokens", json={"name": "ci", "scope": "read"}, headers=key)
    assert (again.status_code, again.json()["code"]) == (409, "idempotency.told")
    assert made.json()["token"] not in api.get("/tokens").text


def test_keys_that_make_no_sense_are_refused(api: httpx2.Client) -> None:
    for key in ("", "a b", "x" * 201):
        assert api.post("/members", json={"name": "n"}, headers={"idempotency-key": key}).status_code == 400


# Versions.


def test_a_change_to_what_has_changed_is_refused(api: httpx2.Client, connection: str) -> None:
    path = f"/connections/{connection}"
    # A ping, as services send one first: what is noted is sealed with a key of the connection, which stays here.
    ping = {"body": base64.b64encode(b'{"id": "ping-1", "ping": true}').decode()}
    assert api.post(f"{path}/replay", json=ping).json()["result"] == "noted"
    assert "data_key" not in api.get(path).json()["connection"]
    seen = api.get(path).headers["etag"]
    changed = api.patch(path, json={"enabled": False}, headers={"if-match": seen})
    assert changed.status_code == 200
    late = api.patch(path, json={"enabled": True}, headers={"if-match": seen})
    assert (late.status_code, late.json()["code"]) == (412, "stale")
    assert api.get(path).json()["connection"]["enabled"] is False
    assert api.patch(path, json={"enabled": True}, headers={"if-match": changed.headers["etag"]}).is_success
    assert api.patch(path, json={"enabled": True}, headers={"if-match": "*"}).is_success


def test_agents_are_edited_one_after_the_other(house: House, api: httpx2.Client) -> None:
    built_in = api.get("/agents/gofer").json()
    assert 'model = "auto"' in built_in["toml"]
    assert built_in["spec"]["limits"]["job_dollars"] == 1
    assert api.get("/agents/nobody").status_code == 404
    made = api.put("/agents/scribe", json={"toml": "[[routes]]\n", "instructions": "Write."})
    assert made.status_code == 200, made.text
    assert house.hears("scribe")
    assert in_force(api) == {"gofer": True, "scribe": True}
    assert [each["name"] for each in api.get("/agents").json()["agents"] if each["default"]] == ["gofer"]
    seen = api.get("/agents/scribe").headers["etag"]
    assert made.headers["etag"] == seen
    mine = {"toml": 'model = "auto"\n', "instructions": "Write briefly."}
    assert api.put("/agents/scribe", json=mine, headers={"if-match": seen}).status_code == 200
    assert api.put("/agents/scribe", json=mine, headers={"if-match": seen}).status_code == 412
    assert api.delete("/agents/scribe", headers={"if-match": seen}).status_code == 412
    broken = api.put("/agents/scribe", json={"toml": "model = \n"})
    assert broken.status_code == 422
    assert "line 1" in broken.json()["detail"]
    assert api.delete("/agents/scribe").status_code == 200
    assert not house.hears("scribe")
    assert in_force(api) == {"gofer": True, "scribe": False}
    assert api.get("/agents/scribe").status_code == 404


def test_an_agents_folder_is_made_read_and_written(house: House, api: httpx2.Client) -> None:
    made = api.post("/agents", json={"name": "kim"})
    assert (made.status_code, made.headers["location"]) == (201, "/api/v1/agents/kim")
    assert api.post("/agents", json={"name": "kim"}).status_code == 409
    layers = {"IDENTITY": "# Voice\nCalm.", "USER": "# voice\nLoud."}
    put = {"toml": "", "instructions": "You listen.", "layers": layers}
    assert api.put("/agents/kim", json=put).status_code == 200
    shown = api.get("/agents/kim").json()
    assert (shown["folder"], shown["files"]["USER"]) == (True, "# voice\nLoud.")
    assert [each["file"] for each in shown["layers"]] == ["kim/AGENT.md", "kim/IDENTITY.md", "kim/USER.md"]
    (conflict,) = shown["conflicts"]
    assert (conflict["kept"], conflict["shadowed"]) == ("# Voice\nCalm.", "# voice\nLoud.")
    assert "Loud" not in shown["packet"]
    assert len(shown["digest"]) == 64
    soul = api.put("/agents/kim", json={**put, "layers": {"SOUL": "Anything goes."}})
    assert (soul.status_code, "whoever runs Gofer" in soul.json()["detail"]) == (403, True)
    for wrong in ({"layers": {"AGENT": ""}}, {"layers": {"../x": ""}}, {"layers": {"USER": "x" * 70_000}}):
        assert api.put("/agents/kim", json={"toml": "", **wrong}).status_code in (400, 422), wrong
    assert api.delete("/agents/kim").status_code == 200
    assert not (house.settings.data_dir / "agents" / "kim").exists()


def in_force(api: httpx2.Client) -> dict[str, bool]:
    return {each["name"]: each["in_force"] for each in api.get("/agents").json()["agents"]}


def test_one_unreadable_file_is_one_row_with_a_problem(house: House, api: httpx2.Client) -> None:
    folder = house.settings.data_dir / "agents"
    assert api.put("/agents/fine", json={"toml": ""}).status_code == 200
    (folder / "bin.toml").write_bytes(b"\xff\xfe")
    (folder / "dir.toml").mkdir()
    (folder / "Bad Name.toml").write_text("")
    browser = house.browser()
    browser.follow(house.link(house.owner()))
    try:
        found = {each["name"]: each["problem"] for each in api.get("/agents").json()["agents"]}
        assert found["fine"] == ""
        assert all(found[name] for name in ("bin", "dir", "Bad Name.toml"))
        page = browser.get("/agents").text
        assert "not UTF-8 text" in page
        assert "Bad Name.toml" in page
        assert browser.get("/agents/bin").status_code == 200
        assert api.get("/agents/bin").json()["problem"]
        assert api.put("/agents/dir", json={"toml": ""}).status_code == 409
    finally:
        (folder / "dir.toml").rmdir()
        (folder / "Bad Name.toml").unlink()
        assert api.delete("/agents/bin").status_code == 200
        assert api.delete("/agents/fine").status_code == 200


def test_schedules_are_added_changed_run_and_removed(api: httpx2.Client, connection: str) -> None:
    wish = {"name": "mornings", "cron": "0 9 * * mon", "kind": "catch_up", "timezone": "Europe/Berlin"}
    for nothing in ({}, {"connection_id": "hello_none"}, {"connection_id": 1}, {"connection": connection}):
        refused = api.post("/schedules", json={**wish, "payload": nothing})
        assert refused.status_code == 422, "it would make jobs that die"
        assert "connection_id" in refused.json()["detail"]
    wish["payload"] = {"connection_id": connection}  # type: ignore[assignment]
    unknown = api.post("/schedules", json={**wish, "kind": "nothing"})
    assert unknown.status_code == 400
    assert "catch_up, set_up" in unknown.json()["detail"]
    made = api.post("/schedules", json=wish)
    assert made.status_code == 201
    shown = api.get(made.headers["location"].removeprefix("/api/v1"))
    assert len(shown.json()["upcoming"]) == 5
    assert "Monday" in shown.json()["words"]
    path, seen = f"/schedules/{made.json()['id']}", shown.headers["etag"]
    changed = api.patch(path, json={"cron": "0 8 * * *"}, headers={"if-match": seen})
    assert changed.json()["next_at"] != shown.json()["next_at"]
    assert api.patch(path, json={"enabled": False}, headers={"if-match": seen}).status_code == 412
    assert api.patch(path, json={"cron": "nonsense"}).status_code == 422
    assert api.patch(path, json={"payload": {}}).status_code == 422
    assert api.patch(path, json={"timezone": "Mars/Olympus"}).status_code == 422
    ran = api.post(f"{path}/run")
    assert ran.status_code == 202
    job = api.get(ran.headers["location"].removeprefix("/api/v1")).json()["job"]
    assert job["kind"] == "catch_up"
    assert api.delete(path).status_code == 200
    assert api.get(path).status_code == 404


def test_a_schedule_says_something_to_an_agent_in_a_conversation(house: House, api: httpx2.Client) -> None:
    room = api.post("/messages", json={"text": "hello"}).json()["conversation_id"]
    wish = {"name": "standup", "cron": "0 9 1 1 *", "agent": "gofer", "say": "What is open?"}
    made = api.post(f"/conversations/{room}/schedules", json=wish)
    assert made.status_code == 201
    path = f"/schedules/{made.json()['id']}"
    shown = api.get(path)
    assert {name: shown.json()[name] for name in wish} == wish
    assert shown.json()["conversation_id"] == room
    assert "sealed" not in shown.text
    assert api.get("/schedules").json()["schedules"][0]["say"] == "What is open?"
    browser = house.browser()
    browser.follow(house.link(house.owner()))
    assert "What is open?" in browser.get("/schedules").text
    changed = api.patch(path, json={"say": "What is done?"}, headers={"if-match": shown.headers["etag"]})
    assert changed.json()["say"] == "What is done?"
    assert (
        api.patch(path, json={"say": "Never."}, headers={"if-match": shown.headers["etag"]}).status_code
        == 412
    )
    assert api.patch(path, json={"payload": {}}).status_code == 409
    assert api.post("/conversations/conv_gone/schedules", json={**wish, "name": "x"}).status_code == 404
    nobody = {**wish, "name": "x", "agent": "nobody"}
    assert api.post(f"/conversations/{room}/schedules", json=nobody).status_code == 404
    operator = house.api(house.token(house.owner(), scope="write"))
    assert operator.post(f"/conversations/{room}/schedules", json={**wish, "name": "x"}).status_code == 403
    assert api.delete(path).status_code == 200


# Jobs.


def test_several_jobs_are_redriven_and_cancelled_at_once(house: House, api: httpx2.Client) -> None:
    first, second, third = house.write(dead_jobs, count=3)
    done = api.post("/jobs/redrive", json={"ids": [first, second, 987654321]}).json()
    assert [each["id"] for each in done["done"]] == [first, second]
    assert "no job" in done["refused"]["987654321"]
    for wrong in ([True], ["1"], [1.5]):
        assert api.post("/jobs/redrive", json={"ids": wrong}).status_code == 400
    assert api.post("/jobs/redrive", json={"ids": [float(first)]}).status_code == 200
    refused = api.post("/jobs/redrive", json={"ids": [first, third]}).json()
    assert (len(refused["done"]), list(refused["refused"])) == (1, [str(first)])
    stopped = api.post("/jobs/cancel", json={"ids": [first, second, third]}).json()
    assert len(stopped["done"]) == 3
    one = api.post(f"/jobs/{first}/cancel")
    assert (one.status_code, one.headers["location"]) == (202, f"/api/v1/jobs/{first}")


def test_a_shell_is_closed_unless_it_is_in_use(house: House, api: httpx2.Client, connection: str) -> None:
    body = json.dumps({"id": "shelly", "room": "shelly", "from": "ada", "text": "hello"})
    given = {"body": base64.b64encode(body.encode()).decode()}
    conversation = api.post(f"/connections/{connection}/replay", json=given).json()["conversation_id"]
    row = {"conversation_id": conversation, "agent_id": "a", "record": {}, "trust": "owner", "used_at": 1.0}
    house.write(lambda c: row_macs.insert(c, shells, row))
    assert api.get("/shells", params={"conversation": conversation}).json()["shells"][0]["agent_id"] == "a"
    job = house.write(
        submit, workspace_id=FIRST_WORKSPACE, kind="nothing", lane="in-use", pool="nobody", agent_id="a",
    )  # fmt: skip
    in_use = {"state": "running", "conversation_id": conversation}
    house.write(lambda c: c.execute(update(jobs).where(jobs.c.id == job).values(**in_use)))
    assert api.delete(f"/shells/{conversation}/a").status_code == 409
    house.write(lambda c: c.execute(update(jobs).where(jobs.c.id == job).values(state="done")))
    assert api.delete(f"/shells/{conversation}/a").status_code == 200
    assert api.delete(f"/shells/{conversation}/a").status_code == 404
    # What was said is being answered, and a shell in use is not closed.
    answers = (jobs.c.kind == "answer") & (jobs.c.conversation_id == conversation)
    answering = select(jobs.c.id).where(answers, jobs.c.state != "done")
    until(lambda: house.read(lambda c: c.execute(answering).first()) is None)
    gofer = house.read(lambda c: c.execute(select(agents.c.id).where(agents.c.name == "gofer")).scalar())
    house.write(lambda c: row_macs.insert(c, shells, {**row, "agent_id": gofer}))
    shown = api.get(f"/shells/{conversation}/gofer").json()["shell"]
    assert (shown["agent"], shown["agent_id"]) == ("gofer", gofer)
    # The agent answers what came in; its shell can be closed when it has.
    until(lambda: api.delete(f"/shells/{conversation}/gofer").status_code == 200)


# Members and tokens.


def test_the_last_owner_cannot_be_removed_nor_lowered(house: House, tmp_path: Any) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    other = House(folder)
    try:
        owner = other.owner()
        api = other.api(other.token(owner))
        assert api.delete(f"/members/{owner}").status_code == 409
        assert api.patch(f"/members/{owner}", json={"role": "viewer"}).status_code == 409
        second = api.post("/members", json={"name": "zoe", "role": "owner"}).json()["id"]
        assert api.patch(f"/members/{owner}", json={"role": "viewer"}).status_code == 200
        assert other.api(other.token(second)).delete("/members/owner").status_code == 200
    finally:
        other.close()


def test_a_members_link_signs_them_in(house: House, api: httpx2.Client) -> None:
    api.post("/members", json={"name": "olga", "role": "operator"})
    made = api.post("/members/olga/link")
    assert made.status_code == 201
    browser = house.browser()
    assert browser.post(made.json()["url"].removeprefix(house.url)).status_code == 303
    assert browser.get("/api/v1/me").json()["name"] == "olga"


def test_nobody_makes_a_token_that_may_do_more_than_they(house: House, api: httpx2.Client) -> None:
    api.post("/members", json={"name": "peter", "role": "operator"})
    given = {"name": "p", "scope": "admin", "member": "peter"}
    assert api.post("/tokens", json=given).status_code == 403
    made = api.post("/tokens", json={**given, "scope": "write", "days": 1}).json()
    assert made["expires_at"] is not None
    peters = house.api(made["token"])
    assert peters.get("/me").json()["name"] == "peter"
    assert peters.get("/tokens").status_code == 403
    assert api.delete(f"/tokens/{made['id']}").status_code == 200
    assert peters.get("/me").status_code == 401


# Saying something.


def test_answers_to_commands_are_listed_where_they_were_given(house: House, api: httpx2.Client) -> None:
    conversation = api.post("/messages", json={"text": "/help"}).json()["conversation_id"]
    place = f"/conversations/{conversation}/messages"

    def listed(**query: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = api.get(place, params=query).json()["messages"]
        return found

    until(lambda: len(listed()) == 2)
    note, command = listed()
    assert (command["text"], command["reply"], command["event"]) == ("/help", None, "command")
    assert (note["author"], note["event"], note["seq"]) == ("gofer", "note", command["seq"])
    assert "/new" in note["text"]
    api.post(place, json={"text": "/help"})
    until(lambda: len(listed()) == 4)
    whole = listed()
    assert [each["seq"] for each in whole] == [2, 2, 1, 1]
    assert listed(limit=1) == whole[:2], "a page has the notes that follow its messages"
    assert listed(limit=1, cursor=2) == whole[2:]
    assert listed(after=1) == [whole[2], *reversed(whole[:2])]
    assert listed(cursor=1) == []


def test_a_message_is_answered_in_a_conversation_of_ones_own(house: House, api: httpx2.Client) -> None:
    key = {"idempotency-key": "hello-1"}
    said = api.post("/messages", json={"text": "What can you do?"}, headers=key)
    assert said.status_code == 202, said.text
    conversation, job = said.json()["conversation_id"], said.json()["job_id"]
    assert said.headers["location"] == f"/api/v1/jobs/{job}"
    with api.stream("GET", "/events", params={"job": job}) as events:
        assert '"done"' in [line for line in events.iter_lines() if line][-1]
    answer, question = api.get(f"/conversations/{conversation}/messages").json()["messages"]
    assert (question["text"], question["trust"]) == ("What can you do?", "owner")
    assert answer["author"].startswith("agent:")
    assert "offline" in answer["text"]
    # What is repeated is answered like before, also once its key is forgotten: intake knows it.
    house.write(lambda c: c.execute(idempotency_keys.delete()))
    again = api.post("/messages", json={"text": "What can you do?"}, headers=key).json()
    assert (again["conversation_id"], again["result"]) == (conversation, "repeat")
    more = api.post(f"/conversations/{conversation}/messages", json={"text": "$ echo hi"})
    assert more.json()["conversation_id"] == conversation
    another = house.api(house.token(house.member("rosa", "operator", password=""), "write"))
    assert another.post(f"/conversations/{conversation}/messages", json={"text": "hi"}).status_code == 404
    assert api.post("/messages", json={"text": "hi", "agent": "nobody"}).status_code == 404


def test_a_conversation_that_is_held_elsewhere_is_not_spoken_into(
    api: httpx2.Client, connection: str
) -> None:
    body = json.dumps({"id": "elsewhere", "room": "elsewhere", "from": "ada", "text": "hello"})
    given = {"body": base64.b64encode(body.encode()).decode()}
    held = api.post(f"/connections/{connection}/replay", json=given).json()["conversation_id"]
    answer = api.post(f"/conversations/{held}/messages", json={"text": "hi"})
    assert (answer.status_code, connection in answer.json()["detail"]) == (409, True)


# What makes no sense.


def test_bodies_that_are_too_large_or_of_another_kind_are_refused(house: House, api: httpx2.Client) -> None:
    # Refused by its head; its sender is heard out, and so gets to read why.
    for size in (1024 * 1024 + 1, 8 * 1024 * 1024):
        assert api.post("/members", content=b"x" * size).status_code == 413
    assert (
        api.post("/members", content=b"name=eve", headers={"content-type": "text/plain"}).status_code == 415
    )
    assert api.post("/members", content=b"x", headers={"content-encoding": "gzip"}).status_code == 415
    assert api.post("/members", content=b"{" * 100_000).status_code == 400
    assert api.post("/members", json={"name": "a\x00b"}).status_code == 400
    assert api.get("/connections/a%00b").status_code == 400
    assert api.get("/jobs", params={"kind": "a\x00b"}).status_code == 400
    assert api.put("/status").status_code == 405
    assert api.get(f"/jobs/{10**30}").status_code == 404


def test_a_chunked_body_without_end_is_answered_at_the_cap(house: House) -> None:
    token = house.token(house.owner())
    port = int(house.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=patience(20)) as sender:
        sender.sendall(
            b"POST /api/v1/members HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n"
            + f"authorization: Bearer {token}\r\n\r\n".encode()
        )
        for _ in range(100):
            sender.sendall(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
        assert sender.recv(100).startswith(b"HTTP/1.1 413")


def test_what_takes_nothing_is_told_nothing(api: httpx2.Client) -> None:
    for each in OPERATIONS:
        if each.body is EmptyBody:
            path = each.path.replace("{id:int}", "1").replace("{id}", "nobody")
            answer = api.request(each.method, path, json={"surprise": 1})
            assert (answer.status_code, "surprise" in answer.json()["detail"]) == (400, True), each.name


def test_over_the_network_a_backup_goes_where_backups_go(
    house: House, api: httpx2.Client, tmp_path: Any
) -> None:
    for path in (
        "/etc/cron.d/gofer",
        str(tmp_path / "copy.db"),
        f"{house.settings.data_dir}/backups/../x.db",
    ):
        assert api.post("/backup", json={"path": path}).status_code == 403
    (house.settings.data_dir / "backups").mkdir(exist_ok=True)
    assert api.post("/backup", json={"path": f"{house.settings.data_dir}/backups/x.db"}).status_code == 200


def test_every_answer_has_the_shape_that_is_documented(api: httpx2.Client) -> None:
    for each in OPERATIONS:
        if each.method != "GET" or "{" in each.path or each.stream:
            continue
        value = api.get(each.path).json()
        told = each.answer.model_validate(value).model_dump(mode="json")
        assert told == value, each.name


def test_shapes_of_rows_are_those_of_the_tables() -> None:
    from gofer.store import tables

    for shape, table, hidden in (
        (models.JobInFull, tables.jobs, set()),
        (models.Attempt, tables.attempts, set()),
        (models.Event, tables.events, {"sealed"}),
        (models.Reply, tables.replies, {"sealed"}),
        (models.Delivery, tables.deliveries, {"sealed", "message_digest"}),
        (models.Secret, tables.secrets, {"id", "workspace_id", "data_key", "sealed"}),
    ):
        assert set(shape.model_fields) == {column.name for column in table.columns} - hidden
    words = {"say", "agent", "conversation_id"}
    assert set(models.Schedule.model_fields) - words == {
        column.name for column in tables.schedules.columns if column.name != "mac"
    }
