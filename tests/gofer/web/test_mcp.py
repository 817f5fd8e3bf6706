"""Gofer as an MCP server: the library's own client over HTTP, whoever calls, and however they misbehave."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from sqlalchemy import Connection, select

from gofer.store.tables import audit_entries, jobs
from gofer.web import mcp
from gofer.web.api.http import MAX_BODY
from gofer.web.auth.audit import READ
from support.mcp_client import called, with_client
from support.patience import eventually, patience, until
from support.web_server import House

ALL = [
    *(
        "list_conversations",
        "read_conversation",
        "post_message",
        "acknowledge",
        "list_participants",
        "trigger_participant",
        "ask_person",
        "recall",
        "remember",
    ),
    *("run_agent", "list_jobs", "get_job", "cancel_job"),
    *("list_goals", "get_goal", "start_goal", "cancel_goal"),
]
UNKNOWN = "conv_aaaaaaaaaaaaaaaa"


def furnished(folder: Path) -> Path:
    """A data directory with two agents."""
    agents = folder / "agents"
    agents.mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    (agents / "helper.toml").write_text('model = "offline/offline"\ndefault = true\n')
    (agents / "reviewer.toml").write_text('model = "offline/offline"\n')
    return folder


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    house = House(furnished(tmp_path_factory.mktemp("house") / "data"))
    yield house
    house.close()


@pytest.fixture(scope="module")
def owner(house: House) -> str:
    return house.token(house.owner())


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_task_is_given_to_an_agent_and_its_answer_comes_back(house: House, owner: str, mode: str) -> None:
    steps: list[str] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        steps.append(message or "")

    async def work(client: Client) -> None:
        assert [tool.name for tool in (await client.list_tools()).tools] == ALL
        wish = {"task": "Say hello.", "agent": "helper", "wait": 60}
        done = (await client.call_tool("run_agent", wish, progress_callback=report)).structured_content
        assert done["state"] == "done"
        assert "offline" in done["answer"]
        assert any("attempt" in step for step in steps)
        page = {"conversation_id": done["conversation_id"], "limit": 1}
        first = (await client.call_tool("read_conversation", page)).structured_content
        second = (
            await client.call_tool("read_conversation", {**page, "after": int(first["next"])})
        ).structured_content
        assert [first["messages"][0]["text"], second["messages"][0]["text"]] == ["Say hello.", done["answer"]]
        listed = await client.list_resources()
        about = await client.read_resource(f"gofer://conversations/{done['conversation_id']}")
        assert f"gofer://conversations/{done['conversation_id']}" in [
            str(each.uri) for each in listed.resources
        ]
        assert "Say hello." in about.contents[0].text  # type: ignore[union-attr]
        run = await client.read_resource(f"gofer://jobs/{done['id']}")
        assert json.loads(run.contents[0].text)["job"]["state"] == "done"  # type: ignore[union-attr]
        with pytest.raises(MCPError):
            await client.read_resource("gofer://conversations/../../etc/passwd")

    with_client(house, owner, work, mode=mode)


def test_what_is_asked_twice_with_one_key_is_done_once_also_after_a_restart(tmp_path: Path) -> None:
    folder = furnished(tmp_path / "data")
    wish = {"task": "Once.", "agent": "helper", "wait": 60, "idempotency_key": "task-1"}
    house = House(folder)
    try:
        token = house.token(house.owner())
        first = called(house, token, "run_agent", **wish)
    finally:
        house.close()
    house = House(folder)
    try:
        assert called(house, token, "run_agent", **wish)["id"] == first["id"]
        other = called(house, token, "run_agent", **{**wish, "task": "Another."})
        assert (other["code"], other["status"]) == ("idempotency.reused", 422)
        made = house.read(lambda c: c.execute(select(jobs.c.id).where(jobs.c.kind == "answer")).all())
        assert len(made) == 1
    finally:
        house.close()


def test_everything_works_on_both_databases(data_dir: Path, database_url: str) -> None:
    (data_dir / "agents").mkdir(mode=0o700)
    (data_dir / "agents" / "helper.toml").write_text('model = "offline/offline"\ndefault = true\n')
    house = House(data_dir, database_url=database_url)
    try:
        token = house.token(house.owner())
        wish = {"task": "The launch is on Friday.", "agent": "helper", "wait": 60, "idempotency_key": "once"}
        done = called(house, token, "run_agent", **wish)
        assert (done["state"], called(house, token, "run_agent", **wish)["id"]) == ("done", done["id"])
        where = {"conversation_id": done["conversation_id"]}
        (listed,) = called(house, token, "list_conversations")["conversations"]
        said = called(house, token, "read_conversation", **where)["messages"]
        assert (listed["id"], said[0]["text"]) == (done["conversation_id"], "The launch is on Friday.")
        called(house, token, "remember", **where, text="It needs nine crates.")
        (found,) = called(house, token, "recall", **where, query="crates")["memories"]
        assert found["text"] == "It needs nine crates."
        agent = house.token(house.owner(), "write", agent="helper")
        posted = called(house, agent, "post_message", **where, text="Two findings.")
        until(lambda: called(house, agent, "get_job", job_id=posted["job_id"])["state"] == "done")
        asked = called(house, agent, "ask_person", **where, question="Ship?", choices=["Yes"], wait=0)
        until(lambda: called(house, token, "get_job", job_id=asked["id"])["state"] == "waiting")
        ended = called(house, agent, "cancel_job", job_id=asked["id"])
        assert "detail" not in ended, ended
        until(lambda: called(house, token, "get_job", job_id=asked["id"])["state"] == "cancelled")
        states = {job["id"]: job["state"] for job in called(house, agent, "list_jobs")["jobs"]}
        assert (states[done["id"]], states[asked["id"]]) == ("done", "cancelled")
    finally:
        house.close()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_server_promises_what_it_does_and_no_more(house: House, owner: str, mode: str) -> None:
    async def work(client: Client) -> None:
        offers = client.server_capabilities
        assert offers.tools is not None
        assert offers.resources is not None
        changes = (offers.tools.list_changed, offers.resources.list_changed, offers.resources.subscribe)
        assert not any(changes), "it keeps no sessions, so it tells nobody"
        assert (offers.prompts, offers.logging, offers.completions) == (None, None, None)
        for ask in ("prompts/list", "resources/subscribe", "subscriptions/listen", "completion/complete"):
            wrong = {"jsonrpc": "2.0", "id": 1, "method": ask, "params": {"uri": "gofer://jobs/1"}}
            sent = house.api(owner).post(f"{house.url}/mcp", json=wrong, headers=ACCEPT)
            assert ("error" in sent.text, "result" in sent.text) == (True, False)

    with_client(house, owner, work, mode=mode)


ACCEPT = {"accept": "application/json, text/event-stream"}


# Who may do what.


def test_nobody_gets_in_without_a_token(house: House) -> None:
    ping = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    browser = house.browser()
    browser.follow(house.link(house.owner()))
    stranger = httpx2.Client(base_url=house.url)
    for client, headers in (
        (stranger, {}),
        (stranger, {"authorization": "Bearer gofer_wrong"}),
        (browser.client, {}),  # a page of ours, or one that rides on its cookie
    ):
        answer = client.post("/mcp", json=ping, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
    stranger.close()


def test_a_token_is_offered_what_its_scopes_allow_and_nothing_else_exists(house: House) -> None:
    reading = house.token(house.owner(), "read")
    narrow = house.token(house.owner(), scopes={"jobs": "read"})

    async def names(client: Client) -> list[str]:
        return [tool.name for tool in (await client.list_tools()).tools]

    looking = [
        "list_conversations", "read_conversation", "list_participants", "recall", "list_jobs", "get_job"
    ]  # fmt: skip
    looking += ["list_goals", "get_goal"]
    assert with_client(house, reading, names) == looking
    assert with_client(house, narrow, names) == ["list_jobs", "get_job"]

    async def try_hidden(client: Client) -> None:
        for name in ("run_agent", "no_such_tool"):
            with pytest.raises(MCPError, match="There is no tool"):
                await client.call_tool(name, {"task": "x"})

    with_client(house, narrow, try_hidden)


def test_a_token_of_an_agent_sees_what_is_that_agents_and_speaks_in_its_name(
    house: House, owner: str
) -> None:
    its = called(house, owner, "run_agent", task="For the reviewer.", agent="reviewer", wait=60)
    others = called(house, owner, "run_agent", task="For the helper.", agent="helper", wait=60)
    token = house.token(house.owner(), "write", agent="reviewer")
    seen = called(house, token, "list_conversations")["conversations"]
    assert its["conversation_id"] in [each["id"] for each in seen]
    assert others["conversation_id"] not in [each["id"] for each in seen]
    assert others["id"] not in [each["id"] for each in called(house, token, "list_jobs")["jobs"]]
    for name, wish in (
        ("read_conversation", {}),
        ("post_message", {"text": "x"}),
        ("ask_person", {"question": "x?"}),
    ):
        hidden = called(house, token, name, conversation_id=others["conversation_id"], **wish)
        unknown = called(house, token, name, conversation_id=UNKNOWN, **wish)
        assert hidden["detail"].replace(others["conversation_id"], UNKNOWN) == unknown["detail"]
        assert hidden["status"] == 404
    for name in ("get_job", "cancel_job"):
        assert called(house, token, name, job_id=others["id"])["detail"].startswith("There is no job")
    assert called(house, token, "run_agent", task="x", agent="helper")["status"] == 404
    posted = called(
        house, token, "post_message", conversation_id=its["conversation_id"], text="Two findings."
    )
    until(lambda: called(house, token, "get_job", job_id=posted["job_id"])["state"] == "done")
    said = called(house, token, "read_conversation", conversation_id=its["conversation_id"])["messages"][-1]
    assert (said["text"], said["author"].partition(":")[0], said["trust"]) == (
        "Two findings.",
        "agent",
        "stranger",
    )
    # The rest of the API is closed to it.
    assert house.api(token).get("/agents").status_code == 403
    assert house.api(token).get("/events").status_code == 403
    assert house.browser(authorization=f"Bearer {token}").get("/conversations").status_code in (303, 403)


def test_a_goal_is_started_once_looked_at_and_cancelled_by_who_may(house: House, owner: str) -> None:
    wish = {"goal": "Tidy the attic.", "agent": "helper", "idempotency_key": "attic-1"}
    begun = called(house, owner, "start_goal", **wish)
    assert called(house, owner, "start_goal", **wish)["id"] == begun["id"]
    listed = called(house, owner, "list_goals", conversation_id=begun["conversation_id"])
    assert [each["id"] for each in listed["goals"]] == [begun["id"]]
    assert called(house, owner, "get_goal", goal_id=begun["id"])["text"] == "Tidy the attic."
    looking = house.token(house.owner(), scopes={"goals": "read"})
    bound = house.token(house.owner(), "write", agent="reviewer")

    async def try_hidden(client: Client) -> None:
        with pytest.raises(MCPError, match="There is no tool"):
            await client.call_tool("cancel_goal", {"goal_id": begun["id"]})

    for token in (looking, bound):
        with_client(house, token, try_hidden)
    assert called(house, looking, "get_goal", goal_id=begun["id"])["id"] == begun["id"]
    unknown = called(house, owner, "cancel_goal", goal_id="goal_nobody/../x")
    assert (unknown["status"], unknown["code"]) == (404, "not_found")
    assert called(house, owner, "cancel_goal", goal_id=begun["id"])["state"] == "cancelled"
    # Its driver ends it, and says so where it was asked for.
    until(lambda: called(house, owner, "get_goal", goal_id=begun["id"])["state"] == "cancelled")


def test_a_person_is_asked_and_the_answer_comes_back_whenever_it_is_given(house: House, owner: str) -> None:
    where = called(house, owner, "run_agent", task="Hello.", agent="helper", wait=60)["conversation_id"]
    wish = {"conversation_id": where, "question": "Ship it?", "choices": ["Yes", "No"], "wait": 0}
    asked = called(house, owner, "ask_person", **wish, idempotency_key="ship")
    assert called(house, owner, "ask_person", **wish, idempotency_key="ship")["id"] == asked["id"]

    def open_question() -> str | None:
        found = called(house, owner, "get_job", job_id=asked["id"])
        return found["questions"][0]["id"] if found["state"] == "waiting" else None

    until(open_question)
    answered = house.api(owner).post(f"/questions/{open_question()}/answer", json={"text": "Yes"})
    assert answered.status_code == 202
    done = called(house, owner, "get_job", job_id=asked["id"], wait=60)
    assert (done["state"], done["questions"][0]["answer"]) == ("done", "Yes")


def test_what_is_remembered_in_a_conversation_is_recalled_there_and_nowhere_else(
    house: House, owner: str
) -> None:
    here = called(house, owner, "run_agent", task="The launch is on Friday.", agent="reviewer", wait=60)
    there = called(house, owner, "run_agent", task="Hello.", agent="reviewer", wait=60)
    token = house.token(house.owner(), "write", agent="reviewer")
    wish = {
        "conversation_id": here["conversation_id"],
        "text": "The budget is nine crates.",
        "idempotency_key": "note",
    }
    kept = called(house, token, "remember", **wish)
    assert called(house, token, "remember", **wish)["id"] == kept["id"]
    assert (kept["untrusted"], kept["trust"]) == (True, "stranger")

    def recalled(conversation: str, query: str) -> list[str]:
        found = called(house, token, "recall", conversation_id=conversation, query=query)["memories"]
        return [each["text"] for each in found]

    assert recalled(here["conversation_id"], "how many crates") == ["The budget is nine crates."]
    assert "The launch is on Friday." in recalled(here["conversation_id"], "launch friday")
    assert recalled(there["conversation_id"], "crates") == []
    helper = called(house, owner, "run_agent", task="Mine.", agent="helper", wait=60)["conversation_id"]
    assert called(house, token, "recall", conversation_id=helper, query="mine")["status"] == 404


def test_a_token_of_an_agent_sees_the_same_memories_by_every_door(house: House, owner: str) -> None:
    its = called(house, owner, "run_agent", task="Hello.", agent="reviewer", wait=60)["conversation_id"]
    others = called(house, owner, "run_agent", task="Hello.", agent="helper", wait=60)["conversation_id"]
    boss = house.api(owner)
    for scope, text in (
        (f"conversation:{its}", "The walrus is ours."),
        (f"conversation:{others}", "The walrus is theirs."),
        ("agent:helper", "The walrus is for everybody."),
    ):
        assert boss.post("/memories", json={"scope": scope, "text": text}).status_code == 201
    token = house.token(house.owner(), "admin", agent="reviewer")
    api = house.api(token)

    def texts(found: Any) -> list[str]:
        return [each["text"] for each in found["memories"]]

    assert texts(called(house, token, "recall", conversation_id=its, query="walrus")) == [
        "The walrus is ours."
    ]
    assert texts(api.get("/memories", params={"query": "walrus"}).json()) == ["The walrus is ours."]
    assert "The walrus is ours." in texts(api.get("/memories").json())
    assert all(each["scope"].startswith("conversation:") for each in api.get("/memories").json()["memories"])
    for scope in (f"conversation:{others}", "agent:helper", "agent:reviewer", f"conversation:{UNKNOWN}"):
        assert api.get("/memories", params={"query": "walrus", "scope": scope}).status_code == 404
        assert api.post("/memories", json={"scope": scope, "text": "x"}).status_code == 404
    (hidden,) = boss.get("/memories", params={"scope": f"conversation:{others}"}).json()["memories"]
    assert api.get(f"/memories/{hidden['id']}").status_code == 404
    noted = {"scope": f"conversation:{its}", "text": "It eats fish."}
    kept = api.post("/memories", json=noted).json()
    assert (kept["trust"], kept["conversation_id"]) == ("stranger", its)
    assert api.get(f"/memories/{kept['id']}").json()["text"] == "It eats fish."
    for path in (f"/memories/{kept['id']}/forget", "/memories/reindex", "/memories/import"):
        assert api.post(path, json={}).status_code == 403
    assert api.get("/memories/export").status_code == 403


def test_a_member_recalls_nothing_of_somebody_elses_private_conversation(house: House, owner: str) -> None:
    private = called(house, owner, "run_agent", task="A secret plan.", agent="helper", wait=60)
    clerk = house.token(house.member("ken", "operator", password=""), "write")
    where = private["conversation_id"]
    scope = {"scope": f"conversation:{where}"}
    assert house.api(clerk).get("/memories", params={**scope, "query": "plan"}).status_code == 404
    assert called(house, clerk, "recall", conversation_id=where, query="plan")["status"] == 404
    assert called(house, clerk, "read_conversation", conversation_id=where)["status"] == 404
    assert called(house, clerk, "remember", conversation_id=where, text="x")["status"] == 404
    assert called(house, owner, "recall", conversation_id=where, query="plan")["memories"]


def test_every_change_and_every_look_at_others_words_is_on_record(house: House) -> None:
    writer, boss = house.token(house.owner()), house.member("boss", "owner", password="")
    theirs = called(house, writer, "run_agent", task="A secret plan.", agent="helper", wait=60)
    token = house.token(boss, "admin")
    called(house, token, "read_conversation", conversation_id=theirs["conversation_id"])
    called(house, token, "cancel_job", job_id=theirs["id"])

    def recorded(connection: Connection) -> list[tuple[str, str, int]]:
        mine = select(audit_entries).where(audit_entries.c.member_id == boss).order_by(audit_entries.c.id)
        return [(row.action, row.subject, row.status) for row in connection.execute(mine)]

    assert house.read(recorded) == [
        (READ, theirs["conversation_id"], 200),
        ("jobs.cancel", str(theirs["id"]), 409),
    ]


# Bad input.


def test_a_page_of_another_site_a_foreign_name_and_a_huge_body_are_refused(house: House, owner: str) -> None:
    client = httpx2.Client(base_url=house.url, headers={"authorization": f"Bearer {owner}"})
    ping = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    assert client.post("/mcp", json=ping, headers={"origin": "https://evil.example"}).status_code == 403
    assert client.post("/mcp", json=ping, headers={"host": "evil.example"}).status_code == 421
    assert client.post("/mcp", content=b"x" * (MAX_BODY + 1)).status_code == 413
    for body in (
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"jsonrpc":"2.0","id":1e999,"method":"x"}',
        b"\xff\xfe{}",
    ):
        for version in ({}, {"mcp-protocol-version": "2026-07-28"}, {"mcp-protocol-version": "1999-01-01"}):
            answer = client.post(
                "/mcp",
                content=body,
                headers={
                    "content-type": "application/json",
                    "accept": "application/json, text/event-stream",
                    **version,
                },
            )
            assert 400 <= answer.status_code < 500, (body[:40], version, answer.status_code)
    client.close()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read_conversation", {}),
        ("read_conversation", {"conversation_id": ""}),
        ("read_conversation", {"conversation_id": "../jobs"}),
        ("read_conversation", {"conversation_id": "x", "limit": 10**9}),
        ("get_job", {"job_id": "1"}),
        ("get_job", {"job_id": 2**70}),
        ("get_job", {"job_id": 1, "also": True}),
        ("post_message", {"conversation_id": UNKNOWN, "text": "   "}),
        ("run_agent", {"task": "x", "idempotency_key": "with space"}),
        ("run_agent", {"task": "x" * 100_001}),
        ("list_jobs", {"state": "nonsense"}),
    ],
)
def test_wrong_arguments_get_an_error_that_says_what_is_wrong(
    house: House, owner: str, name: str, arguments: dict[str, Any]
) -> None:
    async def call(client: Client) -> Any:
        return await client.call_tool(name, arguments)

    answer = with_client(house, owner, call)
    assert answer.is_error
    assert len(answer.content[0].text) > 10
    assert "Traceback" not in answer.content[0].text


def test_a_token_that_calls_too_often_is_slowed_down_and_others_are_not(
    house: House, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The clock stands still: on a busy machine as many requests flow in again as are made.
    now = time.monotonic()
    monkeypatch.setattr(mcp, "time", SimpleNamespace(monotonic=lambda: now))
    hasty = httpx2.Client(
        base_url=house.url, headers={"authorization": f"Bearer {house.token(house.owner())}"}
    )
    # Refused before anything is parsed, so that many are quickly made.
    statuses = [hasty.post("/mcp", content=b"{").status_code for _ in range(mcp.MAX_CALLS + 10)]
    hasty.close()
    assert statuses.count(429) == 10
    assert called(house, owner, "list_jobs")["jobs"] is not None


def test_a_token_has_so_many_calls_under_way_and_no_more(house: House, owner: str) -> None:
    where = called(house, owner, "run_agent", task="Hello.", agent="helper", wait=60)["conversation_id"]
    token = house.token(house.owner())
    asked = called(house, token, "ask_person", conversation_id=where, question="Which?", wait=0)
    patient = {"name": "get_job", "arguments": {"job_id": asked["id"], "wait": 600}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": patient}

    async def crowd() -> list[int]:
        headers = {**ACCEPT, "authorization": f"Bearer {token}", "mcp-protocol-version": "2025-06-18"}
        async with httpx2.AsyncClient(base_url=house.url, headers=headers, timeout=patience(60)) as http:
            waiting = [
                asyncio.create_task(http.post("/mcp", json=message)) for _ in range(mcp.MAX_AT_ONCE + 5)
            ]
            await eventually(lambda: sum(each.done() for each in waiting) == 5)
            await asyncio.to_thread(called, house, owner, "cancel_job", job_id=asked["id"])
            return [each.status_code for each in await asyncio.gather(*waiting)]

    statuses = asyncio.run(crowd())
    assert (statuses.count(200), statuses.count(429)) == (mcp.MAX_AT_ONCE, 5)
    assert called(house, token, "list_jobs")["jobs"], "and then it may go on"


def test_nobody_keeps_a_stream_open_that_says_nothing(house: House, owner: str) -> None:
    client = httpx2.Client(base_url=house.url, headers={"authorization": f"Bearer {owner}", **ACCEPT})
    assert [client.get("/mcp").status_code, client.delete("/mcp").status_code] == [405, 405]
    client.close()


def test_a_key_of_somebody_else_opens_nothing_of_theirs(house: House, owner: str) -> None:
    wish = {"task": "Mine alone.", "agent": "helper", "wait": 60, "idempotency_key": "guessed"}
    mine = called(house, owner, "run_agent", **wish)
    eve = house.token(house.member("eve", "operator", password=""), "write")
    theirs = called(house, eve, "run_agent", **wish)
    assert theirs["conversation_id"] != mine["conversation_id"]
    bound = house.token(house.owner(), "write", agent="helper")
    again = called(house, bound, "run_agent", **wish)
    assert again.get("code") == "idempotency.reused" or again["id"] != mine["id"]
