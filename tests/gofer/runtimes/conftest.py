"""A server with an external agent, a host that a test plays, and an agent in its terminal that a test plays as well."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import Connection, select, update

from gofer.store.tables import hops, jobs, runtimes
from support.patience import Deadline
from support.web_server import House, cheap_passwords

NAMES = itertools.count(1)
FILE = """
runtime = "tmux"
[external]
fallback = "{fallback}"
ack_within = 30
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house") / "data"
    folder.mkdir(mode=0o700)
    (folder / "agents").mkdir()
    (folder / "agents" / "pane.toml").write_text(FILE.format(fallback="gofer"))
    (folder / "agents" / "alone.toml").write_text(FILE.format(fallback=""))
    (folder / "agents" / "other.toml").write_text(FILE.format(fallback=""))
    (folder / "agents" / "friend.toml").write_text(FILE.format(fallback="") + "trusted = true\n")
    (folder / "agents" / "coder.toml").write_text(FILE.format(fallback="").replace("tmux", "acp"))
    with cheap_passwords():
        house = House(folder)
        yield house
        house.close()


@dataclass
class Scene:
    """One external agent, its owner's API, its host's and its own."""

    house: House
    agent: str
    runtime: str
    owner: Any
    host: Any
    program: Any
    heartbeat: dict[str, Any] = field(default_factory=dict)

    def announce(self, **values: Any) -> Any:
        self.heartbeat = {**self.heartbeat, **values}
        return self.host.put(f"/runtimes/{self.runtime}", json=self.heartbeat)

    def say(self, text: str = "please look at this", agent: str = "") -> tuple[str, int]:
        """A person asks the agent in a new conversation; returns the conversation and the Trigger."""
        said = self.owner.post("/messages", json={"text": text, "agent": agent or self.agent}).json()
        return said["conversation_id"], said["job_id"]

    def orders(self, wait: int = 10) -> list[dict[str, Any]]:
        found = self.host.get("/runtimes/orders", params={"host": self.heartbeat["host"], "wait": wait})
        assert found.status_code == 200, found.text
        return list(found.json()["orders"])

    def order(self) -> dict[str, Any]:
        (one,) = self.orders()
        return one

    def report(self, order: dict[str, Any], status: str, reason: str = "", **values: Any) -> dict[str, Any]:
        said = {"status": status, "reason": reason, **values}
        answer = self.host.post(f"/runtimes/orders/{order['id']}", json=said)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def post(self, order: dict[str, Any], text: str) -> dict[str, Any]:
        said = {"text": text, "trigger": order["trigger"], "hop": order["hop"]}
        answer = self.program.post(f"/conversations/{order['conversation']}/messages", json=said)
        assert answer.status_code == 202, answer.text
        return dict(answer.json())

    def acknowledge(self, order: dict[str, Any], **values: Any) -> Any:
        said = {"trigger": order["trigger"], "hop": order["hop"], **values}
        return self.program.post(f"/conversations/{order['conversation']}/acknowledge", json=said)

    def job(self, job_id: int) -> dict[str, Any]:
        return dict(self.owner.get(f"/jobs/{job_id}").json())

    def hops(self, job_id: int) -> list[tuple[str, str, str]]:
        return [(each["action"], each["state"], each["reason"]) for each in self.job(job_id)["hops"]]

    def until(self, look: Callable[[], Any], seconds: float = 15) -> Any:
        deadline = Deadline(seconds)
        while not (found := look()):
            assert deadline.left > 0, "it did not happen"
            time.sleep(0.03)
        return found

    def ended(self, job_id: int, state: str = "done") -> dict[str, Any]:
        self.until(lambda: self.job(job_id)["job"]["state"] in ("done", "dead", "cancelled"))
        story = self.job(job_id)
        assert story["job"]["state"] == state, story["hops"]
        return story

    def replies(self, conversation: str) -> list[str]:
        """What agents said in a conversation, in order."""
        found = self.owner.get(f"/conversations/{conversation}/messages", params={"after": 0}).json()[
            "messages"
        ]
        return [each["text"] for each in found if each["author"].startswith("agent:")]

    def pass_time(self, job_id: int, seconds: float) -> None:
        """Let a hop's deadline and the job's sleep come sooner by so many seconds."""

        def move(connection: Connection) -> None:
            connection.execute(
                update(hops)
                .where(hops.c.job_id == job_id)
                .values(deadline=hops.c.deadline - seconds, ended_at=hops.c.ended_at - seconds)
            )
            connection.execute(update(jobs).where(jobs.c.id == job_id).values(run_at=jobs.c.run_at - seconds))

        self.house.write(move)

    def age(self, seconds: float) -> None:
        """Let the host's last announcement be so many seconds ago."""
        moved = {"seen_at": runtimes.c.seen_at - seconds, "active_at": runtimes.c.active_at - seconds}
        self.house.write(
            lambda c: c.execute(update(runtimes).where(runtimes.c.name == self.runtime).values(**moved))
        )

    def count(self, table: Any, *conditions: Any) -> int:
        return len(self.house.read(lambda c: c.execute(select(table).where(*conditions)).all()))


def furnish(
    house: House,
    agent: str = "pane",
    *,
    kind: str = "tmux",
    url: str = "",
    secret: str = "",
    **heartbeat: Any,
) -> Scene:
    """Register a runtime, announce it, and give its agent a token."""
    owner_id = house.owner()
    owner = house.api(house.token(owner_id))
    runtime = f"rt-{next(NAMES)}"
    callback = {"callback_url": url, "callback_secret": secret} if url else {}
    made = owner.post("/runtimes", json={"name": runtime, "agent": agent, "kind": kind, **callback})
    assert made.status_code == 201, made.text
    host = house.api(house.token(owner_id, "write", scopes={"runtimes": "write"}))
    token = owner.post("/tokens", json={"name": "pane", "scope": "write", "agent": agent}).json()["token"]
    scene = Scene(house, agent, runtime, owner, host, house.api(token))
    if url:
        return scene
    scene.announce(agent=agent, kind=kind, host=f"laptop-{runtime}", state="live", session="s1", **heartbeat)
    return scene


@pytest.fixture
def scene(house: House) -> Iterator[Scene]:
    scene = furnish(house)
    yield scene
    scene.owner.delete(f"/runtimes/{scene.runtime}")
