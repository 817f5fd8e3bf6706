"""What a page must not be able to do: enter another's room, flood, stall, smuggle in what acts."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gofer import live
from gofer.agent.tools import bash
from gofer.live import MAX_OUTPUT
from gofer.web import client_socket, event_source, server
from gofer.web.auth import guard
from gofer.web.auth.sessions import end_session
from gofer.web.chat import socket as chat_socket
from support.patience import Deadline, patience
from support.web_server import House
from webchat.visiting import Line, Visit


@pytest.fixture(scope="module")
def other(house: House) -> Visit:
    """Another member, with a room of their own."""
    return Visit(house, house.member("otto", "operator", password=""))


def refused(visit: Visit, **headers: str) -> int:
    with pytest.raises(InvalidStatus) as caught, visit.line(**headers):
        pass
    return int(caught.value.response.status_code)


def test_nobody_enters_without_being_known_and_from_our_own_page(visit: Visit) -> None:
    assert refused(visit, Cookie="") == 401
    assert refused(visit, Cookie="gofer_session=forged") == 401
    assert refused(visit, Origin="https://evil.example") == 403
    assert refused(visit, Origin="null") == 403


def test_a_room_is_its_members_alone(visit: Visit, other: Visit) -> None:
    stranger = other.browser.client
    assert stranger.get(f"/chat/{visit.room}").status_code == 404
    assert stranger.get(f"/chat/{visit.room}/live").status_code == 404
    said = {"id": "intruder-0001", "text": "let me in"}
    headers = {"x-gofer-csrf": other.csrf}
    assert stranger.post(f"/chat/{visit.room}/say", json=said, headers=headers).status_code == 404
    other_room, other.room = other.room, visit.room
    try:
        assert refused(other) == 404
    finally:
        other.room = other_room


def test_who_may_only_look_may_not_talk(house: House) -> None:
    viewer = house.browser()
    viewer.follow(house.link(house.member("vera", "viewer", password="")))
    assert viewer.get("/chat").status_code == 403


def test_an_operator_is_a_member_to_agents(house: House, other: Visit) -> None:
    with other.line() as line:
        line.say("$ echo an operator may")
        assert "an operator may" in line.answers()[0]


def test_a_change_needs_the_pages_own_wish(visit: Visit) -> None:
    said = {"id": "forged-000001", "text": "hello"}
    client = visit.browser.client
    assert client.post(f"/chat/{visit.room}/say", json=said).status_code == 403
    headers = {"x-gofer-csrf": visit.csrf, "origin": "https://evil.example"}
    assert client.post(f"/chat/{visit.room}/say", json=said, headers=headers).status_code == 403


@pytest.mark.parametrize(
    "frame",
    ["", "{", "[]", "null", '{"id": 5}', '{"id": "x"}', '{"id": "long-enough-1"}', "[" * 5000,
     '{"id": "long-enough-1", "text": "x", "surprise": 1}', '{"id": "long-enough-1", "files": [{"hash": "../.."}]}'],
    ids=lambda frame: repr(frame[:20]),
)  # fmt: skip
def test_nonsense_is_answered_with_a_reason_and_the_line_stays(visit: Visit, frame: str) -> None:
    with visit.line() as line:
        line.connection.send(frame)
        line.until(lambda: any(each["type"] == "refused" and each["final"] for each in line.frames))
        line.told("taken", line.say("/help"))


def test_a_file_that_never_came_is_refused(visit: Visit) -> None:
    with visit.line() as line:
        id_ = line.say("look", files=[{"hash": "a" * 64, "name": "none.txt"}])
        assert "none.txt did not arrive" in line.told("refused", id_)["detail"]


def test_a_flood_is_cut_off_and_others_do_not_notice(visit: Visit, owner: Visit) -> None:
    calm = owner.new_room()
    with calm.line() as neighbour, visit.line() as line:
        with contextlib.suppress(ConnectionClosed):
            for _ in range(400):
                line.connection.send("{}")
        assert closed(line) == 4429
        neighbour.say("$ echo undisturbed")
        assert "undisturbed" in neighbour.answers()[0]


def closed(line: Line) -> int:
    """The code the server ended the line with."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            line.connection.recv(timeout=patience(20))
    return line.connection.close_code or 0


def test_too_large_a_message_ends_the_line(visit: Visit) -> None:
    with visit.line() as line:
        with contextlib.suppress(ConnectionClosed):
            line.connection.send(json.dumps({"id": "large-message", "text": "x" * 600_000}))
        assert closed(line) == 1009


def test_no_more_pages_than_enough(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_socket, "MAX_CONNECTIONS", 1)
    with visit.line() as first:
        first.until(lambda: first.frames)
        with visit.line() as second:
            assert closed(second) == 4409
        answer = visit.browser.client.get(f"/chat/{visit.room}/live?after={visit.cursor}")
        assert (answer.status_code, answer.json()["code"]) == (503, "busy")


UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@contextlib.contextmanager
def deaf(visit: Visit, wishes: str) -> Iterator[socket.socket]:
    """A browser that opens a line, or a stream of events, and never reads."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = visit.house.url.removeprefix("http://").split(":")
    raw.connect((host, int(port)))
    head = (
        f"GET /chat/{visit.room}/live?after={visit.cursor} HTTP/1.1\r\nHost: {host}:{port}\r\n"
        f"Origin: {visit.house.url}\r\nCookie: gofer_session={visit.browser.cookie}\r\n"
        f"{wishes}\r\n"
    )
    raw.sendall(head.encode())
    try:
        yield raw
    finally:
        raw.close()


def test_who_does_not_read_is_cut_off_and_others_do_not_wait(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_socket, "SEND_TIMEOUT", 0.3)
    monkeypatch.setattr(event_source, "SEND_TIMEOUT", 0.3)
    monkeypatch.setattr(server, "READ_TIMEOUT", 0.3)
    # More than the kernel holds for a reader that does not read.
    monkeypatch.setattr(live, "MAX_OUTPUT", 10_000_000)
    monkeypatch.setattr(bash, "MUCH", 10_000_000)
    with visit.line() as line, deaf(visit, UPGRADE), deaf(visit, ""):
        line.say(
            "$ for i in $(seq 60); do head -c 100000 /dev/zero | tr '\\0' x; echo; sleep 0.02; done; echo over"
        )
        line.answers()
        deadline = Deadline(20)
        sockets = next(
            route.endpoint.__self__  # type: ignore[attr-defined]
            for route in visit.house.app.routes
            if getattr(route, "name", "") == "socket"
        )
        while sockets._sockets.open[visit.member_id] > 1:
            assert deadline.left > 0, "it still holds its place"
            line.until(lambda: True)
            time.sleep(0.05)


def test_signing_out_ends_the_line(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    visit = Visit(house, house.member("lena", "operator", password=""))
    with visit.line() as talking:
        visit.browser.client.post("/logout", data={"csrf": visit.csrf})
        talking.say("am I still here?")
        assert closed(talking) == 4403
    assert refused(visit) == 401
    monkeypatch.setattr(guard, "LOOK_AGAIN", 0.05)
    visit = Visit(house, visit.member_id)
    stream = visit.browser.client.stream("GET", f"/chat/{visit.room}/live?after={visit.cursor}")
    with visit.line() as listening, stream as sse:
        listening.until(lambda: listening.frames)
        house.write(end_session, value=visit.browser.cookie)
        assert closed(listening) == 4403
        assert any(row.startswith("data:") for row in sse.iter_lines())


def test_what_prints_without_end_floods_nobody(visit: Visit) -> None:
    with visit.line() as line:
        line.say("$ timeout 1 yes 'a line of some length, again and again'")
        line.answers()
        sizes = [len(frame["text"]) for frame in line.frames if frame["type"] == "output"]
    assert sizes
    assert max(sizes) <= MAX_OUTPUT
    assert len(sizes) < 100


# Things that would act.

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b]0;title\x07\x1b[31mred\u202egnp.exe"


def test_hostile_words_are_inert_wherever_they_are_shown(visit: Visit) -> None:
    with visit.line() as line:
        line.say(f"$ printf '%s' {json.dumps(HOSTILE)}; printf '\\033[2J\\033]8;;http://evil\\007'")
        line.answers()
        shown = "".join(line.items.values()) + visit.shown()
        live = "".join(frame["text"] for frame in line.frames if frame["type"] in ("text", "output"))
    assert "<script>alert" not in shown
    assert "<img src=x" not in shown
    for acting in ("\x1b", "\x07", "\u202e"):
        assert acting not in shown
        assert acting not in live


def test_links_that_act_are_none(visit: Visit) -> None:
    text = "[a](javascript:alert(1)) ![b](http://evil.example/x.png) <a href='data:text/html,x'>c</a>"
    with visit.line() as line:
        line.say(f"$ cat <<'END'\n{text}\nEND")
        line.answers()
        shown = "".join(line.items.values())
    assert 'href="javascript' not in shown
    assert "<img" not in shown
    assert 'href="data:' not in shown
