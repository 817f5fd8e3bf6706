"""A form that makes no sense is shown again with what was typed; a message that is long, with a link to the whole."""

from __future__ import annotations

import html

import pytest

from gofer.web.auth.sessions import csrf_for
from support.web_server import Browser, House

TITLE = f"<b>{'long ' * 12}"[:60] + "…"
VALUE = "a-value-that-never-comes-back"


@pytest.fixture(scope="module")
def owner(house: House) -> Browser:
    browser = house.browser(accept="text/html")
    browser.follow(house.link(house.owner()))
    return browser


@pytest.mark.parametrize(
    ("path", "fields", "said", "kept"),
    [
        (
            "/schedules",
            {
                "kind": "catch_up",
                "payload": '{"a": 1}',
                "name": "mornings",
                "cron": "every day",
                "missed": "skip",
            },
            "every day",
            [
                'value="mornings"',
                'value="every day"',
                'value="{"a": 1}"',
                '"skip" selected',
                'value="catch_up"',
            ],
        ),
        ("/secrets", {"name": "Not A Name!", "value": VALUE}, "name", ['value="Not A Name!"']),
        (
            "/connections/new/hello",
            {"name": "mine", "setting.reply_url": "nowhere", "secret.signing_key": VALUE},
            "reply_url",
            ['value="mine"', 'value="nowhere"'],
        ),
        ("/members", {"name": "x" * 200, "role": "viewer"}, "name", ["x" * 200, "<option selected>viewer"]),
        ("/tokens", {"name": "reader", "scope": "all", "life": "30"}, "token", ['value="reader"']),
    ],
)
def test_a_refused_form_keeps_what_was_typed(
    owner: Browser, path: str, fields: dict[str, str], said: str, kept: list[str]
) -> None:
    answer = owner.client.post(path, data={"csrf": csrf_for(owner.cookie), **fields})
    assert answer.status_code in (400, 409, 422)
    shown = html.unescape(answer.text)
    alert = shown.partition('role="alert"')[2].partition("</div>")[0]
    assert said.lower() in alert.lower()
    assert f'action="{path}"' in shown
    for piece in kept:
        assert piece in shown, piece
    assert VALUE not in shown


def test_connections_are_called_as_their_makers_call_them(owner: Browser) -> None:
    page = owner.get("/connections").text
    assert ">GitHub</h3>" in page
    assert ">Web chat</h3>" in page
    assert "Github" not in page


def test_a_long_message_is_cut_and_its_first_words_name_the_conversation_everywhere(
    house: House, owner: Browser
) -> None:
    room = owner.post("/chat", csrf=csrf_for(owner.cookie)).headers["location"]
    text = f"<b>{'long ' * 5_000}the end"
    token = {"x-gofer-csrf": csrf_for(owner.cookie)}
    said = owner.client.post(f"{room}/say", json={"id": "one-message", "text": text}, headers=token)
    assert said.status_code == 202
    place = room.replace("/chat/", "/conversations/")
    page = owner.get(place).text
    assert "25,010 characters" in page
    assert "the end" not in page
    whole = owner.get(f"{place}/messages/{said.json()['seq']}")
    assert f"{place}/messages/{said.json()['seq']}" in page
    assert (whole.text, whole.headers["content-type"]) == (text, "text/plain; charset=utf-8")
    assert owner.get(f"{place}/messages/999").status_code == 404
    assert owner.post("/chat", csrf=csrf_for(owner.cookie)).status_code == 303
    listed = house.api(house.token(house.owner())).get("/conversations").json()["conversations"]
    assert [each["title"] for each in listed] == [TITLE]
    for path in ("/conversations", place, "/schedules", "/runs"):
        shown = html.unescape(owner.get(path).text)
        assert TITLE in shown, path
        assert "chat with" not in shown, path
