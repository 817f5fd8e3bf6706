"""What somebody says in private: they and owners read it, and nobody else, by whichever door they come."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Connection, select, update

from gofer.identity import WEB_CHAT, link, new_link
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import conversations, deliveries, goals, jobs
from support.patience import until
from support.web_server import House

SECRET = "quetzal-in-the-cupboard"
OPEN = "bread-is-at-noon"


@dataclass(frozen=True)
class Talk:
    """A conversation with what belongs to it."""

    id: str
    job: int
    delivery: int
    goal: str


def _talk(house: House, conversation_id: str) -> Talk:
    def read(connection: Connection) -> tuple[Any, Any, Any]:
        wanted = (
            select(jobs.c.id).where(jobs.c.conversation_id == conversation_id).order_by(jobs.c.id),
            select(deliveries.c.id).where(deliveries.c.conversation_id == conversation_id),
            select(goals.c.id).where(goals.c.conversation_id == conversation_id),
        )
        job, delivery, goal = (connection.execute(query.limit(1)).scalar() for query in wanted)
        return job, delivery, goal

    until(lambda: house.read(read)[0] is not None)
    job, delivery, goal = house.read(read)
    return Talk(conversation_id, job, delivery or 0, goal or "none")


def hello(house: House, name: str, room: str, author: str, text: str) -> str:
    """Somebody says something at a connection; where it is."""
    api = house.api(house.token(house.owner(), "admin"))
    new = {"integration": "hello", "name": name, "settings": {"reply_url": "http://127.0.0.1:9/"}}
    made = api.post("/connections", json={**new, "secrets": {"signing_key": "k" * 40}}).json()
    body = json.dumps({"id": f"{name}-1", "room": room, "from": author, "text": text}).encode()
    given = {"body": base64.b64encode(body).decode()}
    taken = api.post(f"/connections/{made['connection']['id']}/replay", json=given).json()
    return str(taken["conversation_id"])


@pytest.fixture(scope="module")
def people(house: House) -> dict[str, str]:
    return {
        "owner": house.owner(),
        "priya": house.member("priya", "operator"),
        "otto": house.member("otto", "operator"),
        "vito": house.member("vito", "viewer"),
    }


@pytest.fixture(scope="module")
def private(house: House, people: dict[str, str]) -> Talk:
    """Priya's, in the web chat, with a goal, a memory, a rule and words about them."""
    api = house.api(house.token(people["priya"], "write"))
    said = api.post("/messages", json={"text": f"remember the {SECRET}"}).json()
    asked = api.post("/goals", json={"text": f"feed the {SECRET}", "conversation": said["conversation_id"]})
    assert asked.status_code == 201, asked.text
    noted = api.post(
        f"/conversations/{said['conversation_id']}/memories", json={"text": f"the {SECRET} is green"}
    )
    assert noted.status_code == 201, noted.text
    owner = house.api(house.token(people["owner"], "admin"))
    wish = {"name": "daily", "cron": "0 9 * * *", "agent": "gofer", "say": f"water the {SECRET}"}
    made = owner.post(f"/conversations/{said['conversation_id']}/schedules", json=wish)
    assert made.status_code == 201, made.text
    return _talk(house, said["conversation_id"])


@pytest.fixture(scope="module")
def elsewhere(house: House, people: dict[str, str]) -> Talk:
    """Priya's as well, on another service where she is known as pri."""
    there = hello(house, "alone", "pri", "pri", f"the {SECRET} sleeps")

    def join(connection: Connection) -> None:
        connection.execute(update(conversations).where(conversations.c.id == there).values(private=True))
        code = new_link(
            connection, workspace_id=FIRST_WORKSPACE, integration=WEB_CHAT, subject=people["priya"]
        )
        assert code is not None
        assert link(
            connection,
            workspace_id=FIRST_WORKSPACE,
            connection_id=WEB_CHAT,
            integration="hello",
            subject="pri",
            code=code,
        )

    house.write(join)
    return _talk(house, there)


@pytest.fixture(scope="module")
def group(house: House) -> Talk:
    return _talk(house, hello(house, "group", "kitchen", "pri", OPEN))


API = (
    "/conversations/{id}",
    "/conversations/{id}/messages",
    "/conversations/{id}/rules",
    "/conversations/{id}/participants",
    "/conversations/{id}/memories?query=quetzal",
    "/jobs/{job}?words=true",
    "/events?conversation={id}",
    "/events?job={job}",
    "/conversations/{id}/live",
    "/deliveries/{delivery}",
    "/goals/{goal}",
    "/schedules/daily",
)
LISTS = (
    "/conversations",
    "/questions",
    "/questions?all=true",
    "/goals",
    "/schedules",
    "/memories",
    "/memories?query=quetzal",
    "/jobs",
    "/deliveries",
    "/shells",
)
PAGES = (
    "/conversations/{id}",
    "/conversations/{id}/messages/1",
    "/runs/{job}",
    "/runs/{job}/events",
    "/inbox/{delivery}",
    "/inbox/simulate?like={delivery}",
    "/goals/{goal}",
    "/shells/{id}/gofer",
    "/shells/{id}/gofer/inside",
)
PAGE_LISTS = ("/", "/runs?kind=all", "/conversations", "/inbox", "/goals", "/memory", "/schedules", "/shells")


def at(door: str, talk: Talk) -> str:
    return door.format(id=talk.id, job=talk.job, delivery=talk.delivery, goal=talk.goal)


@pytest.mark.parametrize("who", ["otto", "vito"])
@pytest.mark.parametrize("where", ["private", "elsewhere"])
def test_nobody_else_reads_it(
    house: House, people: dict[str, str], request: pytest.FixtureRequest, who: str, where: str
) -> None:
    talk: Talk = request.getfixturevalue(where)
    api, browser = house.api(house.token(people[who], "write" if who == "otto" else "read")), house.browser()
    browser.login(who)
    for door in API:
        if where == "private" or "daily" not in door:
            with api.stream("GET", at(door, talk)) as answer:  # some never end where they are not refused
                assert answer.status_code == 404, door
    for door in PAGES:
        if who == "otto" or "simulate" not in door:
            answer = browser.get(at(door, talk))
            assert (answer.status_code, SECRET in answer.text) == (404, False), door
    for door in LISTS:
        answer = api.get(door)
        assert (answer.status_code, SECRET in answer.text) == (200, False), door
    for door in PAGE_LISTS:
        answer = browser.get(door)
        assert (answer.status_code, SECRET in answer.text) == (200, False), door
    assert talk.id not in {each["id"] for each in api.get("/conversations").json()["conversations"]}


def test_nobody_else_speaks_there_or_steers_it(
    house: House, people: dict[str, str], private: Talk, elsewhere: Talk
) -> None:
    otto = house.api(house.token(people["otto"], "write"))
    for talk in (private, elsewhere):
        for path, body in (
            ("messages", {"text": "what did she say?"}),
            ("questions", {"text": "what did she say?"}),
            ("trigger", {"agent": "gofer"}),
            ("memories", {"text": "she said nothing"}),
        ):
            assert otto.post(f"/conversations/{talk.id}/{path}", json=body).status_code in (404, 409), path
    for verb in ("pause", "cancel"):
        assert otto.post(f"/goals/{private.goal}/{verb}", json={}).status_code == 404
    assert otto.post(f"/goals/{private.goal}/messages", json={"text": "stop"}).status_code == 404


@pytest.mark.parametrize("who", ["owner", "priya"])
def test_she_and_an_owner_do(
    house: House, people: dict[str, str], private: Talk, elsewhere: Talk, who: str
) -> None:
    api = house.api(house.token(people[who], "admin"))
    for talk in (private, elsewhere):
        assert SECRET in api.get(f"/conversations/{talk.id}/messages").text
        assert SECRET in api.get(f"/deliveries/{elsewhere.delivery}").text
        assert talk.id in {each["id"] for each in api.get("/conversations").json()["conversations"]}
    for door in ("/goals", "/schedules", f"/goals/{private.goal}"):
        assert SECRET in api.get(door).text, door


def test_an_owners_token_that_only_reads_is_a_viewers(
    house: House, people: dict[str, str], private: Talk
) -> None:
    api = house.api(house.token(people["owner"], "read"))
    assert api.get(f"/conversations/{private.id}/messages").status_code == 404


@pytest.mark.parametrize("who", ["owner", "priya", "otto", "vito"])
def test_what_is_said_in_a_group_everybody_reads(
    house: House, people: dict[str, str], group: Talk, who: str
) -> None:
    api = house.api(house.token(people[who], "read"))
    assert OPEN in api.get(f"/conversations/{group.id}/messages").text
    assert OPEN in api.get(f"/deliveries/{group.delivery}").text


def test_the_stream_of_all_events_leaves_them_out(
    house: House, people: dict[str, str], private: Talk, elsewhere: Talk, group: Talk
) -> None:
    """All that happened, up to what came last in the group."""
    seen: dict[str, str] = {}
    places: dict[str, set[str]] = {}
    for who, scope in (("owner", "admin"), ("otto", "write"), ("vito", "read")):
        api = house.api(house.token(people[who], scope))  # type: ignore[arg-type]
        with api.stream("GET", "/events?after=0.0") as stream:
            read = []
            for line in stream.iter_lines():
                read.append(line)
                if group.id in line:
                    break
        seen[who] = "\n".join(read)
        data = [json.loads(line.removeprefix("data: ")) for line in read if line.startswith("data: ")]
        places[who] = {each["conversation_id"] for each in data}
    assert {private.id, elsewhere.id, group.id} <= places["owner"]
    for who in ("otto", "vito"):
        assert places[who] & {private.id, elsewhere.id, group.id} == {group.id}
        assert SECRET not in seen[who]


def test_whoever_follows_a_conversation_is_on_record(
    house: House, people: dict[str, str], group: Talk
) -> None:
    """The stream of a conversation has its words, too, and so have the form that is filled from a delivery."""
    api = house.api(house.token(house.member("fiona", "operator"), "write"))
    browser = house.browser()
    browser.login("fiona")
    audit = house.api(house.token(people["owner"], "admin"))

    def reads() -> list[str]:
        params = {"action": "words.read", "member": "fiona"}
        return [each["subject"] for each in audit.get("/audit", params=params).json()["entries"]]

    with api.stream("GET", f"/conversations/{group.id}/live?after=0.0") as stream:
        assert stream.status_code == 200
    assert reads() == [group.id]
    assert OPEN in browser.get(f"/inbox/simulate?like={group.delivery}").text
    assert reads() == [group.id, group.id], "by token and by page"
