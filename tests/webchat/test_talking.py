"""Talking on the page: through the real path, live, once, and still there after a reload."""

from __future__ import annotations

import json
import re
import time
from functools import partial
from typing import Any

import pytest
from sqlalchemy import func, select

from gofer.connections.changes import add_connection
from gofer.store import row_macs
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import (
    agents,
    bindings,
    connections,
    conversations,
    deliveries,
    events,
    jobs,
    messages,
    participants,
    replies,
    routes,
)
from gofer.web.chat import timeline
from support.nudging import nudge
from support.patience import until
from support.web_server import House, csrf_in
from webchat.visiting import Line, Visit


def count(house: House, table: object, **where: object) -> int:
    conditions = [getattr(table, "c")[name] == value for name, value in where.items()]  # noqa: B009
    query = select(func.count()).select_from(table).where(*conditions)  # type: ignore[arg-type]
    return int(house.read(lambda connection: connection.execute(query).scalar_one()))


def test_a_message_takes_the_same_path_as_any_and_is_answered_once(house: House, visit: Visit) -> None:
    with visit.line() as line:
        id_ = line.say("$ echo one; echo two >&2; exit 3")
        assert line.told("taken", id_)["seq"] == 1
        (answer,) = line.answers()
        assert "one" in answer
        (card,) = line.of("call")
        assert "exit 3" in card
    assert count(house, deliveries, conversation_id=visit.room) == 1
    assert count(house, jobs, conversation_id=visit.room, kind="answer") == 1
    assert count(house, replies, conversation_id=visit.room, state="sent") == 1
    query = select(messages.c.trust).where(messages.c.conversation_id == visit.room, messages.c.seq == 1)
    assert house.read(lambda connection: connection.execute(query).scalar_one()) == "owner"


def test_output_arrives_while_the_command_runs(visit: Visit) -> None:
    with visit.line() as line:
        line.say("$ echo printed early; sleep 0.7; echo printed late")
        early = line.until(lambda: next((f for f in line.frames if f["type"] == "output"), None))
        # The last letters may be held back until it is sure that no secret begins with them.
        assert "printed e" in early["text"]
        assert "late" not in early["text"]
        assert line.state == "working"
        line.answers()


def test_what_is_sent_again_after_a_lost_line_happens_once(house: House, visit: Visit) -> None:
    with visit.line() as line:
        id_ = line.say("$ echo once")
        line.told("taken", id_)
    with visit.line() as line:
        line.say("$ echo once", id=id_)
        line.told("taken", id_)
        line.answers()
    assert visit.post("/say", json={"id": id_, "text": "$ echo once"}).json()["result"] == "repeat"
    assert count(house, deliveries, conversation_id=visit.room) == 1
    assert count(house, replies, conversation_id=visit.room) == 1


def test_who_was_away_gets_what_was_missed_and_nothing_twice(visit: Visit) -> None:
    with visit.line() as line:
        line.say("$ echo first")
        line.answers()
        seen, place = dict(line.items), line.cursor
    with visit.line(place) as line:
        line.say("$ echo second")
        line.answers()
        assert not seen.keys() & line.items.keys()
        everything = seen | line.items
    with visit.line(place) as late:
        late.answers()
        assert late.items.keys() == everything.keys() - seen.keys()
    with visit.line(line.cursor) as current:
        current.until(lambda: current.frames)
        assert current.items == {}
    page = visit.shown()
    assert all(page.count(f'id="{id_}"') == 1 for id_ in everything)
    assert page.count('<li class="item') == len(everything)


def test_a_message_while_it_works_reaches_the_run(house: House, visit: Visit) -> None:
    with visit.line() as line:
        line.say("$ echo begun; sleep 1")
        line.until(lambda: any(frame["type"] == "output" for frame in line.frames))
        line.say("$ echo steered")
        (answer,) = line.answers()
        assert "steered" in answer
    assert count(house, jobs, conversation_id=visit.room, kind="answer") == 1


def test_what_a_schedule_says_is_shown_with_its_answer(house: House, visit: Visit) -> None:
    api = house.api(house.token(house.owner()))
    with visit.line() as line:
        line.say("hello")
        line.answers()
        wish = {"name": visit.room, "cron": "0 9 1 1 *", "agent": "gofer", "say": "$ echo by the clock"}
        made = api.post(f"/conversations/{visit.room}/schedules", json=wish)
        assert api.post(f"/schedules/{made.json()['id']}/run").status_code == 202
        assert "by the clock" in line.answers(2)[-1], "with the owner's trust, a line for the shell is run"
        assert "echo by the clock" in line.of("said")[-1]
    told = api.get("/deliveries").json()["deliveries"][0]
    again = api.post(f"/deliveries/{told['id']}/replay", json={})
    assert (told["event"], again.status_code) == ("schedule", 409)
    assert "Run the schedule again" in again.json()["detail"]
    assert ">Redeliver<" not in visit.browser.get(f"/inbox/{told['id']}").text


def test_stop_ends_the_run_and_says_so(visit: Visit) -> None:
    with visit.line() as line:
        line.say("$ echo begun; sleep 60")
        line.until(lambda: any(frame["type"] == "output" for frame in line.frames))
        line.say(stop=True)
        (answer,) = line.answers()
        assert "Stopped" in answer
        assert "Failed" not in answer, "it did what it was told"
        assert "failed" not in answer


def test_a_question_is_answered_by_a_button(visit: Visit) -> None:
    with visit.line() as line:
        asked = {"question": "Which colour?", "choices": ["red", "blue"]}
        line.say(f"$tool ask_user {json.dumps(asked)}")
        (question,) = line.until(lambda: line.state == "waiting" and line.of("reply"))
        assert ">blue</button>" in question
        assert "- blue" not in question
        pressed = question.split('data-question="')[1].split('"')[0]
        line.say(press={"question": pressed, "choice": 1})
        answers = line.answers(2)
        assert "blue" in answers[-1]
        settled = line.items[next(iter(i for i in line.items if i.startswith("reply")))]
        assert ("button" in settled, "Answered:</span> blue" in settled) == (False, True)


def test_a_nudge_has_buttons_that_say_something_and_mute(house: House, visit: Visit) -> None:
    with visit.line() as line:
        line.say("hello")
        line.answers()
        verb = partial(nudge, vault=house.platform.vault, conversation_id=visit.room)
        house.write(partial(verb, job_id=990001))
        *_, shown = line.until(lambda: len(line.of("reply")) >= 2 and line.of("reply"))
        assert all(f">{label}</button>" in shown for label in ("Use main", "Plan it", "Mute"))
        assert "Use the branch main." in shown, "what a press says is in view"
        question = shown.split('data-question="')[1].split('"')[0]
        line.say(press={"question": question, "choice": 0})
        line.until(lambda: any("Use the branch main." in said for said in line.of("said")))
        line.answers(3)
        house.write(partial(verb, job_id=990002))
        *_, shown = line.until(lambda: "Mute</button>" in line.of("reply")[-1] and line.of("reply"))
        line.say(press={"question": shown.split('data-question="')[1].split('"')[0], "choice": 2})
        line.until(lambda: any("Muted" in reply for reply in line.of("reply")))


def test_commands_are_answered_by_the_platform(visit: Visit) -> None:
    with visit.line() as line:
        line.say("/Status")  # phones begin with a capital letter
        (answer,) = line.until(lambda: line.of("reply"))
        assert "Run" in answer
        assert line.of("said")


def test_an_agent_is_chosen_with_the_first_message_and_stays(house: House, visit: Visit) -> None:
    folder = house.settings.data_dir / "agents"
    folder.mkdir(exist_ok=True)
    for name in ("gofer", "helper"):
        (folder / f"{name}.toml").write_text('model = "auto"\n')
    try:
        with visit.line() as line:
            refused = line.told("refused", line.say("hello", agent="nobody"))
            assert refused["final"]
            assert "nobody" in refused["detail"]
            until_known(visit, "helper")
            line.say("hello", agent="helper")
            line.answers()
            line.say("again", agent="gofer")
            line.answers(2)
    finally:
        for path in folder.iterdir():
            path.unlink()
    assert count(house, participants, conversation_id=visit.room) == 1
    assert "with helper" in visit.shown()
    assert "<strong>helper</strong>" in visit.shown(), "an answer names its agent where there are several"
    hearing = select(agents.c.name).join(routes, routes.c.agent_id == agents.c.id)
    for _ in range(100):  # without a file, the one that is built in hears everything again
        if house.read(lambda connection: connection.execute(hearing).scalars().all()) == ["gofer"]:
            return
        time.sleep(0.1)
    pytest.fail("an agent without a file still hears everything")


def test_a_second_agent_leaves_the_chat_to_the_first_until_somebody_chooses(
    house: House, visit: Visit
) -> None:
    api = house.api(house.token(house.owner()))
    made = api.put("/agents/scribe", json={"toml": '[[routes]]\nconnection = "hello"\n'})
    assert made.status_code == 200, made.text
    try:
        with visit.line() as line:
            line.say("$ echo one")
            line.answers()
            assert count(house, jobs, conversation_id=visit.room, kind="answer") == 1
            assert "<strong>gofer</strong>" in visit.shown()
            line.say("/agent scribe")
            line.answers(2)
            line.say("$ echo two")
            line.answers(3)
        assert "<strong>scribe</strong>" in visit.shown()
        assert "with scribe" in visit.shown()
    finally:
        api.delete("/agents/scribe")


def test_a_message_that_nobody_hears_is_said_there_and_on_the_overview(house: House, visit: Visit) -> None:
    api = house.api(house.token(house.owner()))
    made = api.put("/agents/gofer", json={"toml": "default = false\n"})
    assert made.status_code == 200, made.text
    try:
        with visit.line() as line:
            line.say("Anybody there?")
            (told,) = line.answers()
        assert "No agent answers messages here" in told
        assert f'Nobody answered in <a href="/conversations/{visit.room}"' in visit.browser.get("/").text
    finally:
        api.delete("/agents/gofer")


def test_a_run_that_a_limit_ended_is_called_stopped_in_every_list(house: House, visit: Visit) -> None:
    api = house.api(house.token(house.owner()))
    made = api.put("/agents/gofer", json={"toml": "[limits]\nsteps = 1\n"})
    assert made.status_code == 200, made.text
    try:
        with visit.line() as line:
            line.say("$ echo one")
            line.answers()
    finally:
        api.delete("/agents/gofer")
    (job,) = api.get("/jobs", params={"conversation": visit.room, "kind": "answer"}).json()["jobs"]
    assert (job["state"], bool(job["reason"])) == ("done", True)
    for path in ("/runs", f"/conversations/{visit.room}"):
        page = visit.browser.get(path).text
        row = re.search(rf'href="/runs/{job["id"]}".*?class="state ([^"]*)"[^>]*>([^<]*)<', page, re.S)
        assert row, path
        assert (row[1].strip(), row[2]) == ("warn", "stopped"), path
    failed = visit.browser.get("/").text.partition("Failed lately")[2]
    assert f'href="/runs/{job["id"]}"' in failed


def test_no_agent_is_made_up_from_the_address(visit: Visit) -> None:
    for path in ("/chat?agent=nope", f"/chat/{visit.room}?agent=nope"):
        answer = visit.browser.get(path)
        assert answer.status_code == 404
        assert "no agent called" in answer.text
    assert visit.browser.get("/chat?agent=gofer").status_code == 200


def test_looking_makes_nothing_and_the_first_message_makes_the_room(house: House) -> None:
    newcomer = house.browser()
    newcomer.follow(house.link(house.member("nora", "operator", password="")))
    before = count(house, conversations)
    for path in ("/chat", "/chat", "/chat?agent=gofer"):
        page = newcomer.get(path)
        assert (page.status_code, 'action="/chat"' in page.text) == (200, True)
    assert count(house, conversations) == before
    begun = newcomer.post("/chat", csrf=csrf_in(page.text), id="form-00000001", text="/help")
    assert begun.status_code == 303
    assert "/help" in newcomer.get(begun.headers["location"]).text
    assert newcomer.get("/chat").headers["location"] == begun.headers["location"]
    assert count(house, conversations) == before + 1


def test_two_tabs_have_two_conversations_and_one_that_asks_twice_has_one(visit: Visit) -> None:
    def begun(tab: str) -> Any:
        headers = {"accept": "application/json", "x-gofer-csrf": visit.csrf}
        return visit.browser.client.post("/chat", data={"id": tab}, headers=headers)

    first, again, other = (
        begun(tab).json()["room"] for tab in ("page-00000001", "page-00000001", "page-00000002")
    )
    assert first == again
    assert first != other
    assert begun("../etc").status_code == 400


def test_a_broken_file_leaves_the_agent_at_work_and_a_hopeless_one_says_whom_to_ask(
    house: House, visit: Visit
) -> None:
    path = house.settings.data_dir / "agents" / "gofer.toml"
    path.parent.mkdir(exist_ok=True)
    try:
        with visit.line() as line:
            path.write_text("model = \n")
            line.say("hello", agent="gofer")
            (answer,) = line.answers()
            assert "set up" not in answer
            path.write_text('model = "openai/gpt-5"\n')
            line.say("again")
            said = line.answers(2)[-1]
    finally:
        for each in path.parent.iterdir():
            each.unlink()
    assert "gofer doctor" in said
    assert "openai" not in said
    reply = select(replies.c.reply_to).where(replies.c.conversation_id == visit.room)
    assert all(house.read(lambda connection: connection.execute(reply).scalars().all()))
    ends = select(events.c.data).where(
        events.c.conversation_id == visit.room, events.c.kind == "attempt.finished"
    )
    details = [data.get("detail", "") for data in house.read(lambda c: c.execute(ends).scalars().all())]
    assert any("openai" in detail for detail in details)


def until_known(visit: Visit, agent: str) -> None:
    until(lambda: f">{agent}</option>" in visit.shown(), within=20)


def test_server_sent_events_where_no_socket_passes(visit: Visit) -> None:
    client = visit.browser.client
    assert visit.post("/say", json={"id": "posted-000001", "text": "$ echo by post"}).status_code == 202
    line = Line(None)  # type: ignore[arg-type]
    with client.stream("GET", f"/chat/{visit.room}/live", headers={"last-event-id": visit.cursor}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for row in stream.iter_lines():
            if row.startswith("data: "):
                line.take(json.loads(row[6:]))
            if line.state == "idle" and line.of("reply"):
                break
    assert "by post" in line.of("reply")[0]


def test_without_a_script_a_form_does_it(visit: Visit) -> None:
    fields = {"csrf": visit.csrf, "id": "form-0000001", "text": "/help"}
    done = visit.browser.client.post(f"/chat/{visit.room}/say", data=fields)
    assert done.status_code == 303
    assert "/help" in visit.shown()


def test_rooms_are_listed_by_their_first_words(visit: Visit) -> None:
    with visit.line() as line:
        line.say("$ echo a room with a view")
        line.answers()
    assert "$ echo a room with a view" in visit.shown().split("</aside>")[0]


def test_what_was_said_long_ago_is_a_click_away(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "PAGE", 2)
    with visit.line() as line:
        for number in (1, 2, 3):
            # By name: an agent that another test made may not be gone yet.
            line.say(f"message number {number}", agent="gofer")
            line.answers(number)
    page = visit.shown()
    assert [f"message number {number}" in page.split("</aside>")[1] for number in (1, 2, 3)] == [
        False,
        True,
        True,
    ]
    assert page.count('class="item reply"') == 2
    earlier = page.split("?before=")[1].split('"')[0]
    before = visit.browser.get(f"/chat/{visit.room}?before={earlier}").text.split("</aside>")[1]
    assert [f"message number {number}" in before for number in (1, 2, 3)] == [True, False, False]
    assert before.count('class="item reply"') == 1
    for odd in ("x", "²", "9" * 19):
        assert visit.browser.get(f"/chat/{visit.room}?before={odd}").status_code == 400, odd


def test_a_connection_for_a_page_of_ones_own_is_not_taken_for_the_chats(house: House, owner: Visit) -> None:
    elsewhere = house.write(
        add_connection,
        vault=house.platform.vault,
        workspace_id=FIRST_WORKSPACE,
        integration=house.platform.registry.get("webchat"),
        name="my page",
        settings={"reply_url": "http://127.0.0.1:9/replies"},
        secrets_given={},
        by="test",
    )
    here = connections.c.id == elsewhere
    house.write(lambda connection: row_macs.update(connection, connections, here, {"created_at": 0}))
    visit = owner.new_room()
    held = select(bindings.c.connection_id).where(bindings.c.conversation_id == visit.room)
    assert house.read(lambda connection: connection.execute(held).scalar()) != elsewhere
