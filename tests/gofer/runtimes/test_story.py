"""The chain of a Trigger over HTTP: live, resume, spawn, fallback, dead letter, and one answer whatever happens."""

from __future__ import annotations

from typing import Any

from .conftest import Scene


def test_what_a_person_says_is_delivered_and_answered_once(scene: Scene) -> None:
    conversation, trigger = scene.say("please review the change")
    order = scene.order()
    assert (order["action"], order["trigger"], order["hop"]) == ("deliver", trigger, 1)
    assert order["conversation"] == conversation
    assert "please review the change" in order["text"]
    assert f"trigger {trigger} and hop 1" in order["text"]
    assert order["quiet"] == {"quiet": 20, "look_every": 5, "at_most": 60, "then": "fail"}
    assert scene.orders(wait=0) == [], "handed out once"
    assert scene.report(order, "delivered") == {
        "id": order["id"], "ignored": False, "reason": "", "state": "delivered"
    }  # fmt: skip
    assert scene.acknowledge(order).json()["ignored"] is False
    assert scene.post(order, "Looks good.")["result"] == "accepted"
    assert scene.post(order, "Looks good.")["result"] == "repeat"
    scene.ended(trigger)
    scene.until(lambda: scene.replies(conversation))
    assert [text for text in scene.replies(conversation) if "Looks good." in text] == scene.replies(
        conversation
    )
    assert len(scene.replies(conversation)) == 1
    assert scene.hops(trigger) == [("live", "answered", "")]


def test_a_session_that_is_gone_is_resumed_then_spawned_then_stood_in_for(scene: Scene) -> None:
    scene.announce(can_resume=True, can_spawn=True)
    conversation, trigger = scene.say("are you there?")
    first = scene.order()
    scene.report(first, "failed", "pane.gone")
    again = scene.order()
    assert (again["action"], again["hop"], again["session"]) == ("resume", 2, "s1")
    scene.report(again, "failed", "resume.failed")
    assert scene.order()["action"] == "resume"
    scene.report({**again, "id": f"{trigger}-3"}, "failed", "resume.failed")
    spawned = scene.order()
    assert (spawned["action"], spawned["hop"]) == ("spawn", 4)
    scene.report(spawned, "failed", "spawn.failed")
    scene.ended(trigger)
    actions = [action for action, _, _ in scene.hops(trigger)]
    assert actions == ["live", "resume", "resume", "spawn", "fallback"]
    scene.until(lambda: scene.replies(conversation))
    late = scene.post(first, "I am back!")
    assert (late["result"], late["reason"]) == ("kept", "hop.failed")
    assert scene.post(spawned, "I am back too!")["result"] == "kept"
    scene.until(lambda: scene.job(late["job_id"])["job"]["state"] == "done")
    assert scene.job(late["job_id"])["job"]["reason"] == "post.late"
    said = scene.replies(conversation)
    assert len(said) == 1
    assert "I am back" not in said[0]


def test_without_anybody_to_stand_in_a_dead_letter_says_so(house: Any) -> None:
    from .conftest import furnish

    scene = furnish(house, "alone")
    conversation, trigger = scene.say("hello?")
    scene.report(scene.order(), "failed", "pane.gone")
    story = scene.ended(trigger, "dead")
    assert [each["action"] for each in story["hops"]] == ["live", "dead_letter"]
    scene.until(lambda: scene.replies(conversation) or scene.job(trigger)["replies"])
    (reply,) = scene.job(trigger)["replies"]
    assert reply["kind"] == "error"
    assert scene.owner.post(f"/jobs/{trigger}/redrive", json={}).status_code == 202
    order = scene.order()
    assert (order["action"], order["hop"]) == ("deliver", 3)
    scene.post(order, "Here I am.")
    scene.ended(trigger)
    scene.until(lambda: any("Here I am." in text for text in scene.replies(conversation)))
