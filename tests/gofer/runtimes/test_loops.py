"""Two external agents in one conversation that answer nobody but each other are stopped, until a person says so."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from gofer.store.tables import jobs
from support.web_server import House, cheap_passwords

from .conftest import Scene, furnish

FILE = 'runtime = "tmux"\n[[routes]]\nalso = true\n'
TURNS = 3
LOOP = ("refused", "blocked.loop.no_progress")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("loops") / "data"
    (folder / "agents").mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    for name in ("ping", "pong"):
        (folder / "agents" / f"{name}.toml").write_text(FILE)
    with cheap_passwords():
        house = House(folder, trigger_turns=TURNS)
        yield house
        house.close()


class Pair:
    """Both agents, in one conversation that a person began."""

    def __init__(self, house: House) -> None:
        self.ping, self.pong = furnish(house, "ping"), furnish(house, "pong")
        self.words = itertools.count(1)
        begun = self.ping.owner.post("/messages", json={"text": "both of you, please"}).json()
        self.conversation = begun["conversation_id"]
        self.answer_person()

    def answer(self, scene: Scene) -> None:
        order = scene.order()
        assert scene.post(order, f"word {next(self.words)}")["result"] == "accepted"
        scene.ended(order["trigger"])

    def answer_person(self) -> None:
        for scene in (self.ping, self.pong):
            self.answer(scene)

    def say(self, text: str) -> None:
        said = self.ping.owner.post(f"/conversations/{self.conversation}/messages", json={"text": text})
        assert said.status_code == 202, said.text

    def wake(self, by: Any, agent: str, **values: Any) -> Any:
        return by.post(f"/conversations/{self.conversation}/trigger", json={"agent": agent, **values})

    def exchange(self, turns: int) -> None:
        """Each wakes the other and answers, in turns."""
        for waker, woken in itertools.islice(
            itertools.cycle([(self.ping, self.pong), (self.pong, self.ping)]), turns
        ):
            told = self.wake(waker.program, woken.agent).json()
            assert told["action"] == "enqueued", told
            self.answer(woken)


def test_two_agents_that_answer_only_each_other_are_stopped(house: House) -> None:
    pair = Pair(house)
    ping, pong, owner = pair.ping, pair.pong, pair.ping.owner
    pair.exchange(TURNS - 1)
    pair.say("go on")  # a person's word begins the count anew
    pair.answer_person()
    pair.exchange(TURNS)
    for waker, woken in ((ping, pong), (pong, ping)):
        told = pair.wake(waker.program, woken.agent).json()
        assert (told["action"], told["reason"], told["job"]) == (*LOOP, None)
    found = owner.get(f"/conversations/{pair.conversation}/participants").json()["participants"]
    blocked = {each["agent"]: each["blocked_reason"] for each in found if each["runtime"]}
    assert blocked == {"ping": "loop.no_progress", "pong": "loop.no_progress"}

    member = house.api(house.token(house.member("olga", "operator", password=""), "admin"))
    forced = {"force": True, "reason": "it is urgent"}
    for refused in (pair.wake(member, "ping", **forced), pair.wake(pong.program, "ping", **forced)):
        assert refused.status_code == 403
    assert pair.wake(owner, "ping", force=True).status_code == 400, "without a reason"
    assert pair.wake(owner, "ping", **forced).json()["action"] == "enqueued"
    order = ping.order()
    assert order["force"] is True
    assert ping.post(order, "only because I must")["result"] == "accepted"
    ping.ended(order["trigger"])
    audit = [each for each in owner.get("/audit").json()["entries"] if each["data"].get("force")]
    assert "it is urgent" in {each["data"]["reason"] for each in audit}
    again = pair.wake(owner, "ping").json()
    assert (again["action"], again["reason"]) == LOOP, "force lifts no block"

    unblock = f"/conversations/{pair.conversation}/unblock"
    assert pong.program.post(unblock, json={"agent": "pong"}).status_code in (403, 404), "not by an agent"
    assert member.post(unblock, json={"agent": "pong"}).status_code == 200
    assert member.post(unblock, json={"agent": "pong"}).status_code == 409
    assert pair.wake(ping.program, "pong").json()["action"] == "enqueued"
    pair.answer(pong)
    told = pair.wake(pong.program, "ping").json()
    assert (told["action"], told["reason"]) == LOOP, "the other one stays blocked"

    refusals = (jobs.c.conversation_id == pair.conversation, jobs.c.reason == LOOP[1])
    assert ping.count(jobs, *refusals) == 0
    pair.say("and now?")
    pair.answer(pong)
    ping.until(lambda: ping.count(jobs, *refusals) == 1)
    assert ping.orders(wait=0) == [], "a person's word alone does not lift a block"
