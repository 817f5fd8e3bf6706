"""Goals over HTTP: the API and the pages do the same, only for those who may, and never without bounds."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gofer.goals.records import MAX_A_MINUTE
from gofer.web.queries import goals as goal_queries
from support.patience import Deadline
from support.web_server import House, csrf_in


@pytest.fixture(scope="module")
def apis(house: House) -> dict[str, Any]:
    members = {
        "owner": house.owner(),
        "oscar": house.member("oscar", "operator", password=""),
        "vera": house.member("vera", "viewer", password=""),
    }
    return {name: house.api(house.token(member)) for name, member in members.items()}


def make(api: Any, text: str, **values: Any) -> dict[str, Any]:
    made = api.post("/goals", json={"text": text, **values})
    assert made.status_code == 201, made.text
    assert made.headers["location"].endswith(f"/goals/{made.json()['id']}")
    found: dict[str, Any] = made.json()
    return found


def until(api: Any, goal: str, state: str) -> dict[str, Any]:
    deadline = Deadline(20)
    while (found := api.get(f"/goals/{goal}").json())["state"] != state:
        assert deadline.left > 0, found
        time.sleep(0.05)
    return dict(found)


def test_a_goal_is_made_shown_and_steered_by_the_api(apis: dict[str, Any]) -> None:
    api = apis["owner"]
    made = make(api, "Sort the photographs", dollars=0.5)
    assert (made["text"], made["budget"], made["asked_by"] != "") == ("Sort the photographs", 0.5, True)
    assert made["id"] in [each["id"] for each in api.get("/goals").json()["goals"]]
    paused = api.post(f"/goals/{made['id']}/pause")
    assert (paused.status_code, paused.json()["state"]) == (202, "paused")
    assert api.get("/goals", params={"state": "paused"}).json()["goals"][0]["id"] == made["id"]
    assert api.post(f"/goals/{made['id']}/resume").status_code == 202
    assert api.post(f"/goals/{made['id']}/resume").status_code == 409
    assert api.post(f"/goals/{made['id']}/cancel").status_code == 202
    ended = until(api, made["id"], "cancelled")
    assert ended["finished_at"] is not None
    gone = api.post(f"/goals/{made['id']}/cancel")
    assert gone.status_code == 409
    assert "ended already" in gone.json()["detail"]


def test_what_is_said_in_the_chat_and_by_the_api_is_one_goal(apis: dict[str, Any]) -> None:
    api = apis["owner"]
    made = make(api, "Count the chairs")
    messages = api.get(f"/conversations/{made['conversation_id']}/messages").json()["messages"]
    assert [each["text"] for each in messages][:1] == ["/goal Count the chairs"]
    time.sleep(0.3)  # the command in the chat is handled as well
    found = api.get("/goals", params={"conversation": made["conversation_id"]}).json()["goals"]
    assert [each["id"] for each in found] == [made["id"]]


def test_what_is_told_to_a_goal_is_kept_with_who_said_it(apis: dict[str, Any]) -> None:
    made = make(apis["oscar"], "Paint the fence")
    apis["owner"].post(f"/goals/{made['id']}/pause")
    told = apis["oscar"].post(f"/goals/{made['id']}/messages", json={"text": "green, please"})
    assert (told.status_code, told.json()["state"]) == (202, "told")
    (word,) = apis["owner"].get(f"/goals/{made['id']}").json()["words"]
    assert (word["by"], word["trust"], word["text"]) == ("oscar", "member", "green, please")
    assert apis["oscar"].post(f"/goals/{made['id']}/messages", json={"text": "  "}).status_code == 400


def test_whoever_may_only_look_cannot_make_or_steer_goals(apis: dict[str, Any]) -> None:
    made = make(apis["owner"], "Water the plants")
    assert apis["vera"].post("/goals", json={"text": "anything"}).status_code == 403
    for verb in ("pause", "resume", "cancel"):
        assert apis["vera"].post(f"/goals/{made['id']}/{verb}").status_code == 403
    assert apis["vera"].get("/goals").status_code == 200
    assert apis["vera"].get(f"/goals/{made['id']}").status_code == 404, "it was asked for in private"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"text": ""}, 400),
        ({"text": "   "}, 400),
        ({"text": "\u200b \x01\x02"}, 400),
        ({"text": "x" * 9000}, 400),
        ({"text": "x", "dollars": -1}, 400),
        ({"text": "x", "agent": "nobody"}, 404),
        ({"text": "x", "conversation": "conv_nothing"}, 404),
        ({"text": "x", "colour": "red"}, 400),
        ({}, 400),
    ],
)
def test_bad_wishes_are_refused_in_words(apis: dict[str, Any], body: dict[str, Any], status: int) -> None:
    answer = apis["owner"].post("/goals", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["detail"]


def test_a_goal_that_asks_is_named_with_its_question(house: House, apis: dict[str, Any]) -> None:
    made = make(apis["owner"], "Paint the shed", approval=True, hours=2)
    assert 7100 < made["until"] - made["created_at"] < 7300
    deadline = Deadline(20)
    while not (
        asked := [
            each
            for each in apis["owner"].get("/questions").json()["questions"]
            if each["goal_id"] == made["id"]
        ]
    ):
        assert deadline.left > 0
        time.sleep(0.05)
    browser = house.browser()
    browser.follow(house.link(house.owner()))
    overview = browser.get("/").text
    assert f'<a href="/goals/{made["id"]}">{made["id"]}</a> asks' in overview
    assert asked[0]["job_id"] == made["job_id"]
    titles = {row["id"]: row["title"] for row in apis["owner"].get("/conversations").json()["conversations"]}
    assert titles[made["conversation_id"]] == "/goal Paint the shed"
    apis["owner"].post(f"/goals/{made['id']}/cancel")
    assert apis["owner"].post("/goals", json={"text": "x", "hours": 0}).status_code == 400


def test_the_board_counts_every_goal_and_shows_the_newest(
    house: House, apis: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(goal_queries, "MAX_EACH", 1)
    for text in ("Sort the nails", "Sort the screws"):
        until(apis["owner"], make(apis["owner"], text)["id"], "blocked")
    browser = house.browser()
    browser.follow(house.link(house.owner()))
    count = len(apis["owner"].get("/goals", params={"state": "blocked"}).json()["goals"])
    assert count >= 2
    page = browser.get("/goals").text
    assert f'Blocked <span class="muted small">{count}</span>' in page
    assert "Sort the screws" in page
    assert "Sort the nails" not in page
    assert "gofer goals list --state blocked" in page


def test_unknown_goals_are_not_found(apis: dict[str, Any]) -> None:
    for answer in (
        apis["owner"].get("/goals/goal_nothing"),
        apis["owner"].post("/goals/goal_nothing/pause"),
        apis["owner"].post("/goals/goal_nothing/messages", json={"text": "x"}),
        apis["owner"].get("/goals", params={"cursor": "goal_nothing"}),
    ):
        assert answer.status_code == 404, answer.text
    assert apis["owner"].get("/goals", params={"state": "lost"}).status_code == 400


def test_the_pages_show_the_board_and_one_goal_and_steer_it(house: House, apis: dict[str, Any]) -> None:
    made = make(apis["owner"], "Sweep the <b>yard</b>")
    browser = house.browser()
    browser.follow(house.link(house.owner()))
    board = browser.get("/goals").text
    assert "Sweep the &lt;b&gt;yard&lt;/b&gt;" in board
    page = browser.get(f"/goals/{made['id']}").text
    assert "Sweep the &lt;b&gt;yard&lt;/b&gt;" in page
    assert "Sweep the &lt;b&gt;yard" in browser.get("/").text, "goals under way are on the overview"
    token = csrf_in(page)
    assert browser.post(f"/goals/{made['id']}/pause", csrf=token).status_code == 303
    assert "Resume" in browser.get(f"/goals/{made['id']}").text
    assert browser.post(f"/goals/{made['id']}/tell", csrf=token, text="mind the cat").status_code == 303
    assert "mind the cat" in browser.get(f"/goals/{made['id']}").text
    assert browser.post(f"/goals/{made['id']}/cancel", csrf=token).status_code == 303
    until(apis["owner"], made["id"], "cancelled")
    assert browser.post(f"/goals/{made['id']}/explode", csrf=token).status_code == 400


def test_a_flood_of_goals_is_refused_with_a_sentence_and_when_to_try_again(apis: dict[str, Any]) -> None:
    api = apis["oscar"]
    first = make(api, "Number the seeds")
    answers = [
        api.post("/goals", json={"text": f"Seed {number}", "conversation": first["conversation_id"]})
        for number in range(MAX_A_MINUTE + 15)
    ]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) >= 15
    assert {answer.status_code for answer in answers} == {201, 429}
    assert int(refused[0].headers["retry-after"]) >= 1
    assert "goals" in refused[0].json()["detail"]
