"""A Telegram group with one of Gofer's agents and an agent in a pane of a real tmux: each question has one answer,
whoever gives it, and what comes too late goes nowhere."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import select

from gofer.client.mcp_api import RemoteApi
from gofer.runtime_host.configuration import HostSettings
from gofer.runtime_host.host import RuntimeHost
from gofer.runtime_host.state import StateFolder
from gofer.store.tables import hops, jobs
from gofer.web.auth.members import first_owner
from gofer.web.auth.sessions import new_token
from gofer_standins.telegram import Telegram
from support.patience import eventually, patience
from support.terminals import AGENT, Terminals, needs_tmux, terminals
from telegram.house import House, open_house

pytestmark = needs_tmux

FILE = """
runtime = "tmux"
[external]
fallback = "gofer"
ack_within = 20
[[routes]]
connection = "telegram"
trigger = "name"
"""
ANSWER = """
import json, re, sys, urllib.request
url, token, words = sys.argv[1:]
where, trigger, hop = re.search(r'conversation_id "(\\S+)", trigger (\\d+) and hop (\\d+)', sys.stdin.read()).groups()
def send(path, **said):
    said |= {"trigger": int(trigger), "hop": int(hop)}
    headers = {"authorization": "Bearer " + token, "content-type": "application/json"}
    whole = f"{url}/api/v1/conversations/{where}/{path}"
    urllib.request.urlopen(urllib.request.Request(whole, json.dumps(said).encode(), headers))
send("acknowledge")
send("messages", text=words)
"""
"""What an agent in a pane does with Gofer's tools, without a library."""


ONCE = 'test ! -e "$0" && touch "$0" && exec "$@"'
"""Resumes a session once, and never again."""


class Group:
    """The group, the pane and the host."""

    def __init__(self, house: House, desk: Terminals, folder: Path) -> None:
        self.house, self.desk, self.folder = house, desk, folder
        self.telegram = house.telegram
        self.url = house.platform.settings.public_url
        self.clients = contextlib.AsyncExitStack()

    async def token(self, **values: Any) -> str:
        write = self.house.platform.database.write
        member = (await write(first_owner)).id
        return (await write(partial(new_token, member_id=member, name="test", **values)))[1]

    async def api(self, **values: Any) -> httpx2.AsyncClient:
        headers = {"authorization": f"Bearer {await self.token(**values)}"}
        return await self.clients.enter_async_context(
            httpx2.AsyncClient(base_url=f"{self.url}/api/v1", headers=headers, timeout=patience(40))
        )

    async def answering(self, words: str) -> list[str]:
        """The command with which an agent answers."""
        script = self.folder / "answer.py"
        script.write_text(ANSWER)
        token = await self.token(scope="write", agent="reviewer")
        return [sys.executable, "-I", str(script), self.url, token, words]

    @contextlib.asynccontextmanager
    async def host(self, **runtime: Any) -> AsyncIterator[RuntimeHost]:
        given = {
            "kind": "tmux",
            "agent": "reviewer",
            "program": AGENT.name,
            "socket": self.desk.socket,
            **runtime,
        }
        settings = HostSettings.model_validate({"host": "desk", "runtimes": {"reviewer-pane": given}})
        api = RemoteApi(await self.api(scope="write", scopes={"runtimes": "write"}))
        host = RuntimeHost(settings, api, StateFolder(self.folder / "host"), print)
        stop = asyncio.Event()
        running = asyncio.create_task(host.run(stop))
        try:
            yield host
        finally:
            stop.set()
            await running

    async def trail(self) -> list[list[tuple[str, str]]]:
        """The hops of every Trigger: what was tried, and what became of it."""
        rows = await self.house.rows(select(hops).order_by(hops.c.job_id, hops.c.number))
        found: dict[int, list[tuple[str, str]]] = {}
        for row in rows:
            found.setdefault(row.job_id, []).append((row.action, row.state))
        return list(found.values())


@pytest.fixture
def desk() -> Any:
    with terminals() as made:
        yield made


async def test_a_group_sees_one_answer_to_each_question_whoever_gives_it(
    telegram: Telegram, tmp_path: Path, desk: Terminals, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"QUIET": "0.2", "LOOK_AGAIN": "0.1", "DEFER": "5"}.items():
        monkeypatch.setenv(f"GOFER_TRIGGER_{name}", value)
    monkeypatch.setenv("GOFER_RUNTIME_HEARTBEAT", "2")
    agents = tmp_path / "data" / "agents"
    agents.mkdir(parents=True)
    (agents / "reviewer.toml").write_text(FILE)
    room = telegram.world.add_group("Team")
    settings: dict[str, Any] = {"groups": {str(room.id): {}}}
    async with open_house(telegram, tmp_path / "data", webhook=True, **settings) as house:
        group = Group(house, desk, tmp_path)
        async with group.clients:
            ann, _ = await house.owner()
            name = f"@{telegram.bot.username}"
            owner = await group.api(scope="admin")
            made = {"name": "reviewer-pane", "agent": "reviewer", "kind": "tmux"}
            assert (await owner.post("/runtimes", json=made)).status_code == 201
            desk.agent("reviewer", "--answer", *await group.answering("I have looked at it."))
            again = [sys.executable, "-I", str(AGENT), str(desk.log("again")), "--answer"]
            spawn = [*again, *await group.answering("A new session has looked.")]
            resumed = [*again, *await group.answering("The session goes on.")]
            resume = ["sh", "-c", ONCE, str(tmp_path / "resumed"), *resumed]
            async with group.host(pane="desk:reviewer", resume=resume, spawn=spawn):
                # One of Gofer's own agents answers here, and the other one in its pane.
                telegram.phones.say(ann, room, f"{name} hello")
                await house.answers(room, 1)
                asked = telegram.phones.say(ann, room, f"{name} reviewer, look at the change")
                said = await house.answers(room, 2)
                assert said[1].endswith("I have looked at it.")
                last = room.by_bot(telegram.bot.id)[-1]
                assert last["reply_to_message"]["message_id"] == asked["message_id"]
                (told,) = desk.told("reviewer")
                assert "look at the change" in told["pasted"][0]
                assert told["keys"] == ""
                # The pane is killed: its session is resumed.
                desk.run("kill-window", "-t", "desk:reviewer")
                telegram.phones.say(ann, room, f"{name} reviewer, and this one?")
                said = await house.answers(room, 3)
                assert said[2].endswith("The session goes on.")
                # That one is killed too and cannot be resumed: a new session answers.
                desk.run("kill-session", "-t", "gofer")
                telegram.phones.say(ann, room, f"{name} reviewer, and the next?")
                said = await house.answers(room, 4)
                assert said[3].endswith("A new session has looked.")
                await house.settled()
            # The host is gone as well: one of Gofer's own agents stands in.
            await eventually(partial(_is_away, owner), within=30)
            telegram.phones.say(ann, room, f"{name} reviewer, are you there?")
            said = await house.answers(room, 5)
            await house.settled()
            trail = await group.trail()
            assert trail[0] == [("live", "answered")]
            assert trail[1][-1] == ("resume", "answered")
            assert trail[2][-3:] == [("resume", "failed"), ("resume", "failed"), ("spawn", "answered")]
            assert trail[3] == [("fallback", "handed_over")]
            # The killed one comes back late.
            late = await _say_late(group, owner)
            assert set(late) == {"kept"}
            await house.settled()
            assert len(telegram.said(room)) == 5
            assert not any("too late" in text for text in telegram.said(room))


async def _is_away(owner: httpx2.AsyncClient) -> bool:
    found = (await owner.get("/runtimes/reviewer-pane")).json()
    return bool(found["state"] == "offline")


async def _say_late(group: Group, owner: httpx2.AsyncClient) -> list[str]:
    """Answer what others have answered meanwhile: a hop that failed, and a Trigger that was handed over."""
    rows = await group.house.rows(select(hops).where(hops.c.state.in_(("failed", "handed_over"))))
    program = await group.api(scope="write", agent="reviewer")
    results = []
    for row in rows:
        said = {"text": "too late", "trigger": row.job_id, "hop": row.number}
        answer = await program.post(f"/conversations/{row.conversation_id}/messages", json=said)
        results.append(str(answer.json()["result"]))
    await eventually(partial(_only_three_were_sent, group), within=20)
    return results


async def _only_three_were_sent(group: Group) -> bool:
    """Once their jobs have run, posts that came too late say so."""
    return await group.house.count(jobs, jobs.c.kind == "post", jobs.c.reason == "") == 3
