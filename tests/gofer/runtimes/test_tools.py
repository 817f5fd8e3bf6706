"""The MCP tools about external agents, called by the library's own client: by the agent, by members, and by those who
may not."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from gofer.store.tables import conversations, goals, replies
from support.mcp_client import called, with_client

from .conftest import Scene

UNKNOWN = "conv_aaaaaaaaaaaaaaaa"
ENVELOPE = {"action", "job", "runtime", "reason", "trace"}


def token_of(client: Any) -> str:
    return str(client.headers["authorization"]).removeprefix("Bearer ")


def operator(scene: Scene, **values: Any) -> str:
    member = scene.house.member(f"op-{scene.runtime}", "operator", password="")
    return scene.house.token(member, "write", **values)


def test_an_agent_reads_acknowledges_and_answers_with_its_tools(scene: Scene) -> None:
    conversation, trigger = scene.say("by the tools")
    scene.announce(can_resume=True)
    house, its, here = scene.house, token_of(scene.program), {"conversation_id": conversation}
    (own,) = called(house, its, "list_participants", **here)["participants"]
    assert (own["agent"], own["runtime"], own["unread"], own["ack_seq"]) == ("pane", "tmux", 1, None)
    first = scene.order()
    said = {**here, "trigger": trigger, "hop": 1}
    assert called(house, its, "acknowledge", **said) == {
        "conversation_id": conversation, "ack_seq": 1, "ignored": False, "reason": ""
    }  # fmt: skip
    (own,) = called(house, its, "list_participants", **here)["participants"]
    assert (own["unread"], own["ack_seq"]) == (0, 1)
    scene.report(first, "failed", "runtime.crashed")
    second = scene.order()
    assert (second["action"], second["hop"]) == ("resume", 2)
    late = called(house, its, "post_message", **said, text="Old words.")
    assert (late["result"], late["reason"]) == ("kept", "hop.failed")
    assert called(house, its, "acknowledge", **said)["ignored"] is True, "an older hop acknowledges nothing"
    new = called(house, its, "post_message", **{**said, "hop": 2}, text="New words.")
    assert new["result"] == "accepted"
    again = called(house, its, "post_message", **{**said, "hop": 2}, text="New words.")
    assert (again["result"], again["job_id"]) == ("repeat", new["job_id"])
    scene.ended(trigger)
    scene.until(lambda: scene.replies(conversation))
    scene.until(lambda: scene.job(late["job_id"])["job"]["state"] == "done")
    assert [text.count("New words.") for text in scene.replies(conversation)] == [1]
    assert scene.hops(trigger) == [("live", "failed", "runtime.crashed"), ("resume", "answered", "")]


def test_a_member_wakes_an_agent_once_and_is_told_what_is_done(scene: Scene) -> None:
    conversation, asked = scene.say("then again")
    scene.post(scene.order(), "The first.")
    scene.ended(asked)
    house, member = scene.house, scene.house.token(scene.house.owner(), "write")
    wish = {"conversation_id": conversation, "agent": "pane", "reason": "look again"}
    assert called(house, operator(scene), "trigger_participant", **wish)["status"] == 404, "it is private"
    made = called(house, member, "trigger_participant", **wish, idempotency_key="wake-1")
    assert made.keys() >= ENVELOPE
    assert (made["action"], made["runtime"], made["reason"]) == ("enqueued", scene.runtime, "session.live")
    assert called(house, member, "trigger_participant", **wish, idempotency_key="wake-1") == made
    other = called(
        house, member, "trigger_participant", **{**wish, "reason": "else"}, idempotency_key="wake-1"
    )
    assert (other["status"], other["code"]) == (422, "idempotency.reused")
    for token in (member, token_of(scene.program)):
        again = called(house, token, "trigger_participant", **wish)
        assert again.keys() >= ENVELOPE
        assert (again["action"], again["job"]) == ("already_pending", made["job"])
    order = scene.order()
    assert (order["trigger"], order["trace"]) == (made["job"], made["trace"])
    its = {"conversation_id": conversation, "trigger": order["trigger"], "hop": order["hop"]}
    assert called(house, token_of(scene.program), "acknowledge", **its, done=True)["ignored"] is False
    scene.ended(made["job"])
    assert scene.hops(made["job"]) == [("live", "read", "")]
    scene.until(lambda: scene.replies(conversation))
    assert len(scene.replies(conversation)) == 1, "it had nothing more to say"
    scene.owner.post(f"/conversations/{conversation}/close", json={"closed": True})
    closed = called(house, member, "trigger_participant", **wish)
    assert (closed["action"], closed["job"], closed["reason"]) == ("refused", None, "conversation.closed")


def test_the_tools_are_refused_to_strangers_and_wrong_scopes(scene: Scene) -> None:
    conversation, trigger = scene.say("not for everybody")
    order = scene.order()
    house, member = scene.house, operator(scene)
    stranger = house.token(house.owner(), "write", agent="other")
    hop = {"trigger": trigger, "hop": 1}
    wishes: dict[str, dict[str, Any]] = {
        "list_participants": {},
        "trigger_participant": {"agent": "pane"},
        "acknowledge": hop,
        "post_message": {**hop, "text": "mine!"},
    }
    for name, wish in wishes.items():
        hidden = called(house, stranger, name, conversation_id=conversation, **wish)
        unknown = called(house, stranger, name, conversation_id=UNKNOWN, **wish)
        assert (hidden["status"], hidden["code"]) == (404, "not_found"), name
        assert hidden["detail"].replace(conversation, UNKNOWN) == unknown["detail"], name
    here = {"conversation_id": conversation}
    assert called(house, member, "acknowledge", **here, **hop)["status"] == 403
    assert called(house, member, "post_message", **here, **hop, text="x")["status"] == 400
    for nobody in ("nobody", "other"):
        assert called(house, member, "trigger_participant", **here, agent=nobody)["status"] == 404
    reading = house.token(house.owner(), "read", scopes={"conversations": "read"})

    async def try_hidden(client: Client) -> None:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert "list_participants" in names
        for name in ("trigger_participant", "acknowledge", "post_message"):
            assert name not in names
            with pytest.raises(MCPError, match="There is no tool"):
                await client.call_tool(name, {**here, **wishes[name]})

    with_client(house, reading, try_hidden)
    assert scene.hops(trigger) == [("live", "taken", "")], "nothing of it counted"
    scene.post(order, "Not for everybody.")


def test_a_goal_for_an_external_agent_is_refused_when_it_is_asked_for(scene: Scene) -> None:
    why = "pane runs elsewhere, so it plans no goals. Give the goal to an agent of Gofer's own."
    before = scene.count(conversations)
    asked = scene.owner.post("/goals", json={"text": "Tidy the attic.", "agent": "pane"})
    assert (asked.status_code, asked.json()["detail"]) == (409, why)
    told = called(scene.house, token_of(scene.owner), "start_goal", goal="Tidy the attic.", agent="pane")
    assert (told["status"], told["detail"]) == (409, why)
    assert scene.count(conversations) == before, "nothing is kept of it"
    conversation, trigger = scene.say("hello")
    scene.post(scene.order(), "Hello.")
    scene.ended(trigger)
    here = f"/conversations/{conversation}/messages"
    assert scene.owner.post(here, json={"text": "/goal Tidy the attic."}).status_code == 202
    scene.until(lambda: scene.count(replies, replies.c.conversation_id == conversation) == 2)
    browser = scene.house.browser()
    browser.follow(scene.house.link(scene.house.owner()))
    assert "pane runs elsewhere, so it plans no goals." in browser.get(f"/chat/{conversation}").text
    assert scene.count(goals) == 0
