"""Who may read and answer what is asked of owners: an owner, on a page, by the API or on the command line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sqlalchemy import Connection, select, update

from gofer.jobs.outcome import OWNERS, Draft, Wait
from gofer.jobs.queue import SERVICE, submit
from gofer.jobs.reply_planner import ask, plan_replies
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.messages import binding_of
from gofer.store.tables import JobState, ReplyState, conversations, jobs, questions, replies
from gofer.web.chat.rooms import open_room, web_connection
from gofer.web.queries.questions import FOR_OWNERS
from support.web_server import House, csrf_in

DIFF = "gofer proposes:\n```diff\n-Loud.\n+Calm.\n```"


def asked(house: House) -> tuple[str, int]:
    """An open question of owners, and its job."""
    connection_id = house.run(_web_connection(house))

    def make(connection: Connection) -> int:
        room = open_room(connection, house.platform.vault, connection_id, house_owner)
        connection.execute(update(conversations).where(conversations.c.id == room).values(private=False))
        job = submit(
            connection, workspace_id=FIRST_WORKSPACE, kind="proposal", lane=f"test:{room}", pool=SERVICE,
            conversation_id=room,
        )  # fmt: skip
        waiting = update(jobs).where(jobs.c.id == job).values(state=JobState.WAITING)
        connection.execute(waiting)
        claim: Any = SimpleNamespace(id=job, conversation_id=room, workspace_id=FIRST_WORKSPACE)
        ask(
            connection, house.platform.vault, claim, Wait(DIFF, "test", OWNERS, choices=("Approve", "Refuse"))
        )
        return int(job or 0)

    house_owner = house.owner()
    job = house.write(make)
    query = select(questions.c.id).where(questions.c.job_id == job)
    return str(house.read(lambda connection: connection.execute(query).scalar_one())), job


async def _web_connection(house: House) -> str:
    return (await web_connection(house.platform)).account.id


def test_only_an_owner_reads_and_answers_what_is_asked_of_owners(house: House) -> None:
    question, job = asked(house)
    owner = house.api(house.token(house.owner()))
    operator = house.api(house.token(house.member("olga", "operator"), scope="write"))
    (shown,) = owner.get("/questions", params={"job": job}).json()["questions"]
    assert (shown["question"], shown["asked_of"], shown["choices"]) == (DIFF, OWNERS, ["Approve", "Refuse"])
    (hidden,) = operator.get("/questions", params={"job": job}).json()["questions"]
    assert (hidden["question"], hidden["choices"]) == (FOR_OWNERS, [])
    narrow = house.api(house.token(house.owner(), scope="write"))
    agents = house.api(house.token(house.owner(), scope="write", agent="gofer"))
    assert agents.post(f"/questions/{question}/answer", json={"text": "Approve"}).status_code in (403, 404)
    for other in (operator, narrow):
        refused = other.post(f"/questions/{question}/answer", json={"text": "Approve"})
        assert (refused.status_code, refused.json()["detail"]) == (403, "Only an owner may answer this.")
    wrong = owner.post(f"/questions/{question}/answer", json={"text": "perhaps"})
    assert (wrong.status_code, wrong.json()["detail"]) == (400, "Answer with one of: Approve, Refuse.")
    assert owner.post(f"/questions/{question}/answer", json={"text": "refuse"}).status_code == 202
    assert owner.post(f"/questions/{question}/answer", json={"text": "Approve"}).status_code == 409
    answered = owner.get("/questions", params={"job": job, "all": True}).json()["questions"]
    assert [each["answer"] for each in answered] == ["Refuse"]


def test_who_is_no_longer_an_owner_does_not_answer_on_the_page(house: House) -> None:
    question, job = asked(house)
    member = house.member("otto", "owner")
    browser = house.browser()
    browser.follow(house.link(member))
    page = browser.get("/").text
    assert "+Calm." in page
    assert f"/questions/{question}/answer" in page
    assert house.api(house.token(house.owner())).patch(
        f"/members/{member}", json={"role": "operator"}
    ).is_success  # fmt: skip
    refused = browser.post(f"/questions/{question}/answer", csrf=csrf_in(page), text="Approve")
    assert refused.status_code == 403
    page = browser.get("/").text
    assert "+Calm." not in page
    assert f"/questions/{question}/answer" not in page
    assert "+Calm." not in browser.get(f"/runs/{job}").text


def test_what_a_job_says_elsewhere_is_not_on_the_page_of_its_conversation(house: House) -> None:
    connection_id, owner = house.run(_web_connection(house)), house.owner()
    member = house.member("mia", "operator")

    def make(connection: Connection) -> str:
        here, there = (
            open_room(connection, house.platform.vault, connection_id, who) for who in (member, owner)
        )
        job = submit(connection, workspace_id=FIRST_WORKSPACE, kind="x", lane="x", conversation_id=here)
        claim: Any = SimpleNamespace(
            id=job, conversation_id=here, workspace_id=FIRST_WORKSPACE, agent_id=None
        )
        drafts = [Draft(str(binding_of(connection, room, None)), (words,), "note") for room, words in (
            (here, "I have asked."), (there, "May I call her Mimi?"),
        )]  # fmt: skip
        plan_replies(connection, house.platform.vault, claim, tuple(drafts))
        connection.execute(update(jobs).where(jobs.c.id == job).values(state=JobState.DONE))
        connection.execute(update(replies).values(state=ReplyState.SENT, sent_at=1.0))
        return here

    room = house.write(make)
    browser = house.browser()
    browser.follow(house.link(member))
    page = browser.get(f"/chat/{room}").text
    assert "I have asked." in page
    assert "Mimi" not in page
