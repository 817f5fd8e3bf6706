"""More goals than an agent can work on, paused, resumed and cancelled meanwhile: each ends once, nothing runs twice."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select, update

from gofer.goals.load import PROLONGED_AFTER
from gofer.goals.records import OVER
from gofer.store.encryption import conversation_key, unseal
from gofer.store.tables import agents, events, goals, replies, tasks
from gofer.web.auth.principal import Visitor
from gofer.web.chat.posts import ChatPost, take
from gofer.web.chat.rooms import Room, find_room, open_room, web_connection
from gofer_standins import loopback
from gofer_standins.anthropic import Anthropic, Reply, call, calls, fault, say
from support.async_bridge import Elsewhere
from support.both_databases import slow_on_postgres
from support.patience import Deadline
from support.web_server import House

database_url = slow_on_postgres
AT_ONCE, WAITING = 2, 3
STEPS = 3


class Players:
    """A model that plans three steps for every goal and works on each. Every answer of a worker is an effect."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        self.stalls = False
        """Whether workers begin to speak and never end."""
        self._lock = threading.Lock()

    def __call__(self, request: Mapping[str, Any]) -> Reply:
        offered = {tool["name"] for tool in request.get("tools", ())}
        words = json.dumps(request["messages"], ensure_ascii=False)
        if "submit_plan" in offered:
            (goal, *_) = re.findall(r"wish-\d+", words)
            made = [
                {"title": name, "kind": "research", "instructions": f"Do <{name}>.", "needs": []}
                for name in (f"{goal}-{letter}" for letter in "abc"[:STEPS])
            ]
            return calls(call("submit_plan", reply="On it.", tasks=made, keep=[], remember=[]))
        if "finish_task" not in offered:
            return say("That is all.")
        with self._lock:
            self.effects[re.findall(r"<(wish-\d+-[abc])>", words)[0]] += 1
        if self.stalls:
            return fault("stall")
        return calls(call("finish_task", outcome="done", summary="found it"), delay=0.02)


class Crowd:
    """A small house, its model, and an owner who wants much of one agent."""

    def __init__(self, house: House, players: Players) -> None:
        self.house, self.players = house, players
        self.api = house.api(house.token(house.owner()))
        self.wishes = 0
        self.most = 0

    def burst(self, count: int) -> list[str]:
        made = []
        for _ in range(count):
            self.wishes += 1
            answer = self.api.post("/goals", json={"text": f"wish-{self.wishes}"})
            assert answer.status_code == 201, answer.text
            made.append(str(answer.json()["id"]))
        return made

    def steer(self, goal_id: str, verb: str) -> None:
        """As a person would, who may be late."""
        answer = self.api.post(f"/goals/{goal_id}/{verb}")
        assert answer.status_code in (202, 409), answer.text

    def load(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.get("/agents/gofer/load").json()
        self.most = max(self.most, found["active"])
        return found

    def until(self, condition: Callable[[], Any]) -> Any:
        deadline = Deadline(40)
        while not (found := condition()):
            assert deadline.left > 0, (self.load(), self.states())
            time.sleep(0.05)
        return found

    def rows(self, query: Any) -> list[Any]:
        return self.house.read(lambda connection: list(connection.execute(query).all()))

    def states(self) -> dict[str, str]:
        return {row.id: row.state for row in self.rows(select(goals.c.id, goals.c.state))}

    def told(self) -> list[dict[str, Any]]:
        """What was told of the load, in order."""
        query = select(events.c.data).where(events.c.kind == "worker.saturated").order_by(events.c.id)
        return [dict(row.data) for row in self.rows(query)]

    def pass_time(self, seconds: float) -> None:
        """Let the saturation seem to have begun earlier."""

        def earlier(connection: Connection) -> bool:
            (load,) = connection.execute(select(agents.c.load)).scalars().all()
            if not load or load["saturated_at"] is None:
                return False
            moved = {**load, "saturated_at": load["saturated_at"] - seconds}
            connection.execute(update(agents).values(load=moved))
            return True

        self.until(lambda: self.house.write(earlier))

    def reported(self, job_id: int) -> bool:
        """Whether a goal's report was sent; fails if there are two."""
        query = select(replies.c.state).where(replies.c.job_id == job_id, replies.c.kind != "note")
        found = [row.state for row in self.rows(query)]
        assert len(found) < 2, found
        return found == ["sent"]

    def check(self) -> None:
        """Every goal in one final state and reported once, no effect twice, nothing left to do."""
        self.until(lambda: set(self.states().values()) <= OVER)
        for row in self.rows(select(goals)):
            self.until(partial(self.reported, row.job_id))
            ends = select(events.c.data).where(events.c.kind == "goal.changed", events.c.job_id == row.job_id)
            told = [each.data.get("state") for each in self.rows(ends)]
            assert [state for state in told if state in OVER] == [row.state]
        of_people = self.rows(select(tasks.c.state, tasks.c.finished_at).where(tasks.c.number > 0))
        assert all(each.finished_at is not None for each in of_people)
        assert max(self.players.effects.values()) == 1, "a task ran twice"
        assert sum(each.state == "done" for each in of_people) <= len(self.players.effects)
        rest = self.until(lambda: (found := self.load())["queued"] == found["active"] == 0 and found)
        assert (rest["saturated"], rest["prolonged_saturation"]) == (False, False)
        assert self.most <= AT_ONCE


@pytest.fixture
def crowd(database_url: str, data_dir: Path, elsewhere: Elsewhere) -> Iterator[Crowd]:
    (data_dir / "agents").mkdir()
    # Without a cap, or runs would wait for money that others have set aside.
    (data_dir / "agents" / "gofer.toml").write_text('name = "gofer"\n[limits]\nday_dollars = 0\n')
    players = Players()
    model = Anthropic(players)
    serving = loopback.serve(model.app)
    url = elsewhere.run(serving.__aenter__())
    bounds: dict[str, Any] = {"agent_tasks": AT_ONCE, "worker_slots": AT_ONCE + 1, "task_queue": WAITING}
    database = "" if database_url.startswith("sqlite") else database_url
    house = House(data_dir, anthropic_key=model.key, anthropic_base_url=url, database_url=database, **bounds)
    try:
        yield Crowd(house, players)
    finally:
        house.close()
        elsewhere.run(serving.__aexit__(None, None, None))


def test_bursts_under_mixed_pauses_and_cancels_lose_and_double_nothing(crowd: Crowd) -> None:
    dice = random.Random(22)
    cancelled: set[str] = set()
    for _ in range(2):
        made = crowd.burst(5)
        crowd.until(lambda: crowd.load()["saturated"])
        for _ in range(12):
            goal_id, verb = dice.choice(made), dice.choice(("pause", "pause", "resume", "cancel"))
            crowd.steer(goal_id, verb)
            cancelled |= {goal_id} if verb == "cancel" else set()
            crowd.load()
    for goal_id, state in crowd.states().items():
        if state == "paused":
            crowd.steer(goal_id, "resume")
    crowd.check()
    for goal_id, state in crowd.states().items():
        assert state == "done" or goal_id in cancelled, "whoever was not cancelled is done"
    whole = [number for number in range(1, crowd.wishes + 1) if crowd.players.effects[f"wish-{number}-c"]]
    assert whole, "some ran to their end"


def test_saturation_that_lasts_is_cleared_by_an_operator_and_every_goal_ends(crowd: Crowd) -> None:
    crowd.players.stalls = True
    made = crowd.burst(5)
    crowd.until(lambda: (found := crowd.load())["saturated"] and found["active"] == AT_ONCE)
    crowd.until(lambda: set(crowd.states().values()) == {"active"})  # planning does not wait for workers
    crowd.steer(made[0], "pause")
    crowd.steer(made[1], "cancel")
    crowd.until(lambda: (found := crowd.load())["saturated"] and found["active"] == AT_ONCE)
    crowd.pass_time(PROLONGED_AFTER + 1)
    crowd.until(lambda: any(each["prolonged_saturation"] for each in crowd.told()))
    assert crowd.load()["prolonged_saturation"]
    begun = {row.goal_id for row in crowd.rows(select(tasks.c.goal_id).where(tasks.c.state == "running"))}
    crowd.players.stalls = False
    cleared = crowd.api.post("/agents/gofer/load/clear", json={"fresh": True}).json()
    assert (cleared["total"], cleared["queued"], cleared["saturated"]) == (0, 0, False), (
        "what hangs still hangs"
    )
    assert any(each.get("cleared_by") for each in crowd.told())
    dropped = select(tasks.c.id).where(tasks.c.state == "dropped", tasks.c.goal_id != made[1])
    assert not crowd.rows(dropped), "no load, and nobody who clears it, takes a task out of a plan"
    for goal_id in begun:  # what they are in the middle of never ends by itself
        crowd.steer(goal_id, "cancel")
    for goal_id, state in crowd.states().items():
        if state == "paused":
            crowd.steer(goal_id, "resume")
    crowd.check()
    whole = set(made) - begun - {made[1]}
    assert {crowd.states()[goal_id] for goal_id in whole} == {"done"}
    mine = tasks.c.goal_id.in_(whole) & (tasks.c.number > 0)
    assert [row.state for row in crowd.rows(select(tasks.c.state).where(mine))] == ["done"] * STEPS * len(
        whole
    )


SENDERS = 4


@pytest.mark.parametrize(
    "count",
    [
        200,
        pytest.param(600, marks=pytest.mark.slow(long=True)),
        pytest.param(2000, marks=pytest.mark.chaos),
    ],
)
def test_a_flood_of_goals_begins_as_many_as_may_be_and_refuses_every_other_in_words(
    tmp_path: Path, count: int
) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    house = House(folder)
    try:
        people = [house.member(f"sender-{number}", "operator", password="") for number in range(SENDERS)]
        rooms = {member: house.run(_room(house, member)) for member in people}
        house.run(_flood(house, rooms, count // SENDERS))
        begun = _until_all_are_answered(house, count)
        assert len(begun) == house.settings.max_goals, "no more than an agent takes on"
        assert max(Counter(row.asked_by for row in begun).values()) <= house.settings.max_goals // 2
        api = house.api(house.token(house.owner()))
        chat = api.post("/messages", json={"text": "Are you there?"}).json()["conversation_id"]
        deadline = Deadline(20)
        while len(api.get(f"/conversations/{chat}/messages").json()["messages"]) < 2:
            assert deadline.left > 0, "a chat is not answered any more"
            time.sleep(0.05)
    finally:
        house.close()


async def _room(house: House, member: str) -> Room:
    platform = house.platform
    connection = await web_connection(platform)
    here = connection.account.id
    opened = partial(open_room, vault=platform.vault, connection_id=here, member_id=member)
    made = await platform.database.write(opened)
    return await platform.database.read(partial(find_room, conversation_id=made, member_id=member))


async def _flood(house: House, rooms: Mapping[str, Room], each: int) -> None:
    """Everybody at once, and each as fast as what they said is kept."""

    async def send(member: str) -> None:
        visitor = Visitor(member, member, "operator", "session")
        for number in range(each):
            post = ChatPost(id=f"flood-{number:08}", text=f"/goal Count the seeds of pot {number}")
            assert (await take(house.platform, visitor, rooms[member], post)).result == "accepted"

    async with asyncio.TaskGroup() as group:
        for member in rooms:
            group.create_task(send(member))


def _until_all_are_answered(house: House, count: int) -> list[Any]:
    """Until each message became a goal or was refused with a sentence that was delivered; returns the goals."""

    def read(connection: Connection) -> tuple[list[Any], list[str]]:
        made = list(connection.execute(select(goals)).all())
        of_goals = select(goals.c.job_id)
        query = select(replies).where(replies.c.state == "sent", replies.c.job_id.not_in(of_goals))
        keys: dict[str, Any] = {}
        said = []
        for row in connection.execute(query).all():
            where = row.conversation_id
            key = keys.get(where) or conversation_key(connection, house.platform.vault, where)
            keys[where] = key
            said.append(str(unseal(key, row.sealed, "reply", row.job_id, row.kind, row.part)["text"]))
        return made, said

    deadline = Deadline(count / 20)
    made, said = house.read(read)
    while len(made) + len(said) < count:
        assert deadline.left > 0, (len(made), len(said))
        time.sleep(0.3)
        made, said = house.read(read)
    assert len(made) + len(said) == count, "each was answered once"
    assert all("Ask again" in words for words in said), set(said)
    return made
