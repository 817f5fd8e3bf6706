"""Who an agent is in a chat: its layers, fixed for a run, and what it knows of a person only where they are alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gofer.agent.journal import JournalEvent
from gofer.runs.agent_files import AgentFiles
from gofer.runs.store_adapters import load_events
from gofer.store.tables import events, jobs, principals
from gofer_standins.anthropic import Anthropic, call, calls, say
from gofer_standins.loopback import serve as loopback
from gofer_standins.telegram import Telegram
from telegram.house import House, open_house


@asynccontextmanager
async def answered_by(model: Anthropic, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    async with loopback(model.app) as url:
        monkeypatch.setenv("GOFER_ANTHROPIC_KEY", model.key)
        monkeypatch.setenv("GOFER_ANTHROPIC_BASE_URL", url)
        yield


def put(data_dir: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = data_dir / "agents" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def system(model: Anthropic, number: int = -1) -> str:
    return "".join(block["text"] for block in model.received[number]["system"])


async def person_id(house: House, name: str) -> str:
    return str((await house.rows(select(principals.c.id).where(principals.c.name == name)))[0][0])


async def started(house: House) -> list[dict[str, Any]]:
    query = select(events.c.data).where(events.c.kind == "run.started").order_by(events.c.id)
    return [row.data for row in await house.rows(query)]


async def journal(house: House, number: int) -> list[JournalEvent]:
    (row, *_) = (await house.rows(select(jobs).where(jobs.c.kind == "answer").order_by(jobs.c.id)))[number:]
    read = partial(
        load_events, vault=house.platform.vault, conversation_id=row.conversation_id, job_id=row.id
    )
    return await house.platform.database.read(read)


async def test_what_is_known_of_a_person_is_told_only_where_they_are_alone(
    telegram: Telegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    model, data = Anthropic([say("Hello.")] * 4), tmp_path / "data"
    group = telegram.world.add_group("Team")
    put(
        data,
        {
            "gofer/SOUL.md": "# Limits\nNever gossip.",
            "gofer/AGENT.md": "# limits\nGossip.",
            "USER.md": "A team.",
        },
    )
    async with (
        answered_by(model, monkeypatch),
        open_house(telegram, data, database_url=database_url, groups={str(group.id): {}}) as house,
    ):
        ann, hers = await house.owner("Ann")
        bob = telegram.world.add_person("Bob")
        his = await house.let_in(bob, "member")
        eve = telegram.world.add_person("Eve")
        put(data, {f"gofer/users/{await person_id(house, 'Ann')}.md": "Ann is expecting a child."})
        telegram.methods.privacy = False
        telegram.phones.say(eve, group, "What do you know about Ann?")
        telegram.phones.say(ann, group, f"@{telegram.bot.username} hello")
        await house.answers(group, 1)
        telegram.phones.say(bob, his, "hello")
        await house.answers(his, 1)
        for number in (0, 1):
            assert "expecting" not in system(model, number), "neither in a group nor to another member"
            assert "A team." in system(model, number)
            assert "Never gossip." in system(model, number)
            assert "\nGossip." not in system(model, number)
        telegram.phones.say(ann, hers, "hello")
        await house.answers(hers, 1)
        assert "Ann is expecting a child." in system(model)
        named = [data["identity"] for data in await started(house)]
        assert named[2] not in ("", named[1]), "each run names what its agent was told"
        (digest,) = {event.data["digest"] for event in await journal(house, 0) if event.kind == "run.started"}
        files = AgentFiles(data / "agents")
        assert digest == files.packet(files.get("gofer")).digest


async def test_who_an_agent_is_does_not_change_in_the_middle_of_a_run(
    telegram: Telegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    asks = calls(call("ask_user", question="Which?", choices=["this", "that"]))
    model = Anthropic([asks, say("This, then."), say("Hello.")])
    put(data, {"gofer/AGENT.md": "You are the first."})
    async with answered_by(model, monkeypatch):
        async with open_house(telegram, data) as house:
            ann, hers = await house.owner("Ann")
            telegram.phones.say(ann, hers, "choose")
            await house.jobs_in("waiting")
        put(data, {"gofer/AGENT.md": "You are the second.", "SOUL.md": "More."})
        async with open_house(telegram, data) as house:
            telegram.phones.say(ann, hers, "this")
            await house.answers(hers, 2)
            assert system(model, 1) == system(model, 0), "byte for byte, after a restart too"
            telegram.phones.say(ann, hers, "hello")
            await house.answers(hers, 3)
            assert "You are the second." in system(model)
            assert len({data["identity"] for data in await started(house)}) == 2


async def test_an_agent_that_was_nobody_in_particular_stays_so_to_the_end_of_its_run(
    telegram: Telegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Anthropic([calls(call("ask_user", question="Which?", choices=[])), say("This, then.")])
    async with answered_by(model, monkeypatch), open_house(telegram, tmp_path / "data") as house:
        ann, hers = await house.owner("Ann")
        telegram.phones.say(ann, hers, "choose")
        await house.jobs_in("waiting")
        put(tmp_path / "data", {"SOUL.md": "Be somebody."})
        telegram.phones.say(ann, hers, "this")
        await house.answers(hers, 2)
        assert system(model, 1) == system(model, 0)


async def test_without_the_setting_an_agent_is_its_flat_files(
    telegram: Telegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = Anthropic([say("Hello.")]), tmp_path / "data"
    monkeypatch.setenv("GOFER_AGENT_RUNTIME_V1", "false")
    put(data, {"gofer.toml": 'instructions = "Be brief."', "SOUL.md": "Be long.", "other/AGENT.md": "Hm."})
    async with answered_by(model, monkeypatch), open_house(telegram, data) as house:
        ann, hers = await house.owner("Ann")
        telegram.phones.say(ann, hers, "hello")
        await house.answers(hers, 1)
        assert system(model).endswith("Be brief.")
