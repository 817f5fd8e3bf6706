"""The heartbeat in a chat: silent while nothing is due, and then one message at most that says why and can be muted."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select, update

from gofer.app import open_app
from gofer.heartbeat.beats import Beats
from gofer.heartbeat.findings import clock
from gofer.heartbeat.records import spent_today
from gofer.identity import private_person
from gofer.jobs.control import answer
from gofer.jobs.queue import submit
from gofer.purge import purge_conversation
from gofer.runs.agent_files import AgentFiles
from gofer.settings import Settings
from gofer.store import row_macs
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.db_time import now
from gofer.store.ids import new_id
from gofer.store.tables import (
    agents,
    conversations,
    events,
    goals,
    heartbeat_findings,
    identities,
    jobs,
    messages,
    participants,
    questions,
    replies,
    spends,
    tasks,
)
from gofer.vault.envelope import Vault
from gofer.web.queries.service_levels import service_levels
from gofer_standins.anthropic import Anthropic, Reply, call, calls, say
from gofer_standins.telegram import Chat, Message, Telegram
from support.patience import eventually
from telegram.house import House, Process, open_house
from telegram.test_identity import answered_by, put

ON = '[heartbeat]\nenabled = true\nhours = "00:00-24:00"\n'


def asking(text: str = "Which branch?") -> Reply:
    return calls(call("ask_user", question=text))


def nudging(text: str = "You wanted to tell me the branch.", **more: Any) -> Reply:
    return say(json.dumps({"do": "nudge", "findings": [1], "text": text, **more}))


def silent() -> Reply:
    return say('{"do": "silent", "why": "nothing new"}')


def beats(house: House) -> Beats:
    platform = house.platform
    files = AgentFiles.of(platform.settings)
    return Beats(platform.database, files, platform.signals, platform.settings.timezone)


async def beat(house: House, **later: float) -> int:
    """Have the agent look now, or some seconds later."""
    looking = beats(house)
    at = await house.platform.database.read(clock)
    return await looking.look(looking.files.get("gofer"), at + later.get("seconds", 0))


async def grow_old(house: House, seconds: float = 7200) -> None:
    """Let the open questions have been asked a while ago."""

    def age(connection: Connection) -> None:
        row_macs.update(
            connection,
            questions,
            questions.c.answered_at.is_(None),
            {"asked_at": questions.c.asked_at - seconds},
        )

    await house.platform.database.write(age)


async def asked(house: House, telegram: Telegram, name: str = "Ann") -> tuple[Any, Chat]:
    """Somebody with whom the agent waits for an answer, since long ago."""
    person, chat = await house.owner(name)
    telegram.phones.say(person, chat, "Deploy it.")
    await eventually(lambda: any("Which branch?" in text for text in telegram.said(chat)), within=60)
    await house.jobs_in("waiting")
    await grow_old(house)
    return person, chat


def nudge_in(telegram: Telegram, chat: Chat) -> Message | None:
    found = [one for one in chat.by_bot(telegram.bot.id) if "Mute" in str(one.get("reply_markup"))]
    return found[-1] if found else None


async def nudged(telegram: Telegram, chat: Chat) -> Message:
    await eventually(lambda: nudge_in(telegram, chat) is not None, within=60)
    found = nudge_in(telegram, chat)
    assert found is not None
    return found


async def found(house: House) -> list[Any]:
    return await house.rows(select(heartbeat_findings).order_by(heartbeat_findings.c.found_at))


async def test_a_question_nobody_answered_is_nudged_once_and_says_why(
    telegram: Telegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    action = {"label": "Use main", "say": "Use the branch main."}
    model = Anthropic([asking(), nudging(actions=[action]), say("Deployed main.")])
    put(tmp_path / "data", {"gofer/agent.toml": ON})
    async with (
        answered_by(model, monkeypatch),
        open_house(telegram, tmp_path / "data", database_url=database_url) as house,
    ):
        ann, hers = await asked(house, telegram)
        assert await beat(house) == 1
        message = await nudged(telegram, hers)
        text = message["text"]
        assert text.startswith("You wanted to tell me the branch.")
        assert "a question has been open here since" in text
        assert "/mute" in text
        assert "Use the branch main." in text, "what a press says is in view"
        request = model.received[1]
        assert "Which branch?" in str(request["messages"]), "the findings are its whole context"
        assert "Deploy it." not in str(request["messages"])
        assert [tool["name"] for tool in request["tools"]] == ["earlier_answer", "recall"], "it only reads"
        assert await beat(house) == 0
        assert await beat(house, seconds=86400) == 0, "an unanswered nudge is not repeated"
        for kind in ("heartbeat.found", "heartbeat.nudged"):
            (event,) = await house.rows(select(events).where(events.c.kind == kind))
            assert event.data["code"] == "question.unanswered"
            assert event.data["recommendation_code"] == "answer_question"
            assert event.data["recommendation"].startswith("Answer the question")
        (row,) = await found(house)
        assert row.state == "nudged"
        (spend,) = await house.rows(select(spends).where(spends.c.key.startswith("heartbeat:")))
        assert spend.background
        assert spend.micros > 0
        telegram.phones.press(ann, message, "Use main")
        await eventually(lambda: telegram.said(hers)[-1] == "Deployed main.", within=60)
        (said,) = await house.rows(select(messages).where(messages.c.external_id.startswith("nudge-")))
        assert (said.author, said.trust) == (str(ann.id), "owner")
        whose = partial(private_person, conversation_id=said.conversation_id)
        assert await house.platform.database.read(whose) is not None, "it is hers after a press, too"
        await house.sent()
        (hour, _) = (await house.platform.database.read(partial(service_levels, timezone="UTC")))["windows"]
        assert hour["first_word"]["p95"] <= hour["answer"]["p95"], "the first word comes before the answer"
    assert model.refused == []


async def test_a_press_can_make_a_goal_in_the_pressers_name(
    telegram: Telegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    action = {"label": "Plan it", "say": "Move everything to main.", "goal": True}
    model = Anthropic([asking(), nudging(actions=[action])])
    put(tmp_path / "data", {"gofer/agent.toml": ON})
    async with answered_by(model, monkeypatch), open_house(telegram, tmp_path / "data") as house:
        ann, hers = await asked(house, telegram)
        await beat(house)
        message = await nudged(telegram, hers)
        assert "a goal, “Move everything to main.”" in message["text"]
        telegram.phones.press(ann, message, "Plan it")

        async def made() -> bool:
            return await house.count(goals) == 1

        await eventually(made, within=60)
        (goal,) = await house.rows(select(goals))
        assert (goal.asked_by, goal.trust) == (str(ann.id), "owner")


async def test_only_who_may_ask_may_press_and_a_lost_role_counts(
    telegram: Telegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    action = {"label": "Use main", "say": "Use the branch main."}
    model = Anthropic([asking(), nudging(actions=[action]), say("never said")])
    group = telegram.world.add_group("Team")
    put(tmp_path / "data", {"gofer/agent.toml": ON})
    async with (
        answered_by(model, monkeypatch),
        open_house(telegram, tmp_path / "data", groups={str(group.id): {}}) as house,
    ):
        ann, _ = await house.owner("Ann")
        eve = telegram.world.add_person("Eve")
        telegram.phones.say(ann, group, f"@{telegram.bot.username} deploy it")
        await house.jobs_in("waiting")
        await grow_old(house)
        assert await beat(house) == 1
        message = await nudged(telegram, group)
        telegram.phones.press(eve, message, "Mute")
        telegram.phones.press(eve, message, "Use main")
        await house.took_in(3)
        await _no_heartbeat_at_work(house)
        (row,) = await house.rows(select(participants))
        assert row.muted_at is None, "a stranger stops nothing"
        verb = partial(_press_and_lose, vault=house.platform.vault, author=str(ann.id))
        await house.platform.database.write(verb)
        await eventually(partial(_is_done, house), within=60)
        assert await house.count(messages, messages.c.external_id.startswith("nudge-")) == 0
        assert len(model.received) == 2


def _press_and_lose(connection: Connection, vault: Vault, author: str) -> None:
    """Somebody presses, and is nobody any more when the press is dealt with."""
    connection.execute(identities.delete().where(identities.c.subject == author))
    (open_one,) = connection.execute(
        select(questions.c.id)
        .join(jobs, jobs.c.id == questions.c.job_id)
        .where(jobs.c.kind == "nudge", questions.c.answered_at.is_(None))
    ).scalars()
    answer(connection, vault, open_one, "Use main", by=author, name="Ann", trust="owner")


async def _is_done(house: House) -> bool:
    return await house.count(jobs, jobs.c.kind == "nudge", jobs.c.state == "done") == 1


def researching(body: Any) -> Reply:
    """A model that has its heartbeat look into something, and the worker run that does."""
    if "your heartbeat" in str(body["messages"][0]):
        wish = {
            "title": "The branch",
            "instructions": "Find out which branch.",
            "rationale": "it saves a question",
        }
        return say(json.dumps({"do": "research", "findings": [1], **wish}))
    if "You are a worker" in str(body["system"]):
        return calls(call("finish_task", outcome="done", summary="The branch is main."))
    return asking()


async def test_something_is_looked_into_and_then_told_with_its_rationale(
    telegram: Telegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    model = Anthropic(researching)
    put(tmp_path / "data", {"gofer/agent.toml": ON})
    async with (
        answered_by(model, monkeypatch),
        open_house(telegram, tmp_path / "data", database_url=database_url) as house,
    ):
        _, hers = await asked(house, telegram)
        await beat(house)
        text = (await nudged(telegram, hers))["text"]
        assert "I looked into it by myself: The branch.\n\nThe branch is main." in text
        assert "it was looked into because: it saves a question" in text
        (task,) = await house.rows(select(tasks))
        assert (task.kind, task.state, task.goal_id) == ("research", "done", None)
        (worker,) = [body for body in model.received if "You are a worker" in str(body["system"])]
        names = {tool["name"] for tool in worker["tools"]}
        assert not names & {"bash", "write", "edit", "ask_user", "delegate"} - {"delegate"}, "it only reads"
        spent = await house.platform.database.read(partial(service_levels, timezone="UTC"))
        (line,) = spent["heartbeats"]
        assert line["calls"] == 2, "the run, and the worker's"
        shown = partial(spent_today, agent_id=task.agent_id, timezone="UTC")
        assert await house.platform.database.read(shown) == round(line["dollars"] * 1_000_000)


async def test_a_purged_conversation_takes_its_findings_and_nudges_along(
    telegram: Telegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Anthropic([asking(), nudging()])
    put(tmp_path / "data", {"gofer/agent.toml": ON})
    async with answered_by(model, monkeypatch), open_house(telegram, tmp_path / "data") as house:
        ann, hers = await asked(house, telegram)
        await beat(house)
        message = await nudged(telegram, hers)
        (row,) = await house.rows(select(participants))
        purge = partial(
            purge_conversation, vault=house.platform.vault, conversation_id=row.conversation_id, by="x"
        )
        await house.platform.database.write(purge)
        assert await found(house) == []
        telegram.phones.press(ann, message, "Mute")
        assert await beat(house) == 0
        assert await house.count(jobs, jobs.c.kind == "nudge", jobs.c.state == "cancelled") == 1


async def test_mute_lasts_until_somebody_takes_it_back(
    telegram: Telegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    model = Anthropic([asking(), nudging(), say("Fine."), asking(), say("never said")])
    put(tmp_path / "data", {"gofer/agent.toml": ON})
    async with (
        answered_by(model, monkeypatch),
        open_house(telegram, tmp_path / "data", database_url=database_url) as house,
    ):
        ann, hers = await asked(house, telegram)
        await beat(house)
        telegram.phones.press(ann, await nudged(telegram, hers), "Mute")
        await eventually(lambda: telegram.said(hers)[-1].startswith("Muted"), within=60)
        (row,) = await house.rows(select(participants))
        assert row.muted_at is not None
        telegram.phones.say(ann, hers, "main")
        await eventually(lambda: telegram.said(hers)[-1] == "Fine.", within=60)
        telegram.phones.say(ann, hers, "Deploy it again.")
        await house.jobs_in("waiting")
        await grow_old(house)
        assert await beat(house, seconds=2 * 86400) == 0
        telegram.phones.say(ann, hers, "/unmute")
        await eventually(lambda: "may write here again" in telegram.said(hers)[-1], within=60)
        assert await beat(house, seconds=2 * 86400) == 1


async def test_a_model_that_always_nudges_is_bounded(
    telegram: Telegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    model = Anthropic([asking(), *[nudging()] * 20])
    items = "".join(f"- every 1h: look at number {number}\n" for number in range(10))
    put(tmp_path / "data", {"gofer/agent.toml": ON, "gofer/HEARTBEAT.md": items})
    async with (
        answered_by(model, monkeypatch),
        open_house(telegram, tmp_path / "data", database_url=database_url) as house,
    ):
        _, hers = await asked(house, telegram)
        begun = []
        for _ in range(12):
            begun.append(await beat(house))
            await _no_heartbeat_at_work(house)
            await house.platform.database.write(partial(_move_back, seconds=1800))
        assert begun[:3] == [1, 0, 1], "one an hour"
        assert sum(begun) == 4, "four a day"
        assert len(model.received) == 1 + 4, "without a nudge that may be sent nothing is asked"
        await eventually(lambda: sum("/mute" in text for text in telegram.said(hers)) == 4, within=60)


def _move_back(connection: Connection, seconds: float) -> None:
    """Let time pass for everything that bounds look at. Every item is due again, and Ann reacts to every nudge."""
    values = {
        "settled_at": heartbeat_findings.c.settled_at - seconds,
        "found_at": heartbeat_findings.c.found_at - seconds,
        "key": heartbeat_findings.c.key + "'",
    }
    connection.execute(update(heartbeat_findings).values(**values))
    known = messages.c.trust.in_(("owner", "member")) & messages.c.author.not_like("agent:%")
    connection.execute(update(messages).where(known).values(created_at=now()))


async def _no_heartbeat_at_work(house: House) -> None:
    live = jobs.c.kind.in_(("heartbeat",)) & jobs.c.state.in_(("ready", "running"))

    async def idle() -> bool:
        return await house.count(jobs, live) == 0

    await eventually(idle, within=60)
    await house.sent()


async def test_what_a_private_conversation_waits_for_is_told_nowhere_else(
    telegram: Telegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Anthropic(
        [asking("Which branch? The secret one?"), asking("Which branch of the team?"), nudging(), nudging()]
    )
    group = telegram.world.add_group("Team")
    put(tmp_path / "data", {"gofer/agent.toml": ON})
    async with (
        answered_by(model, monkeypatch),
        open_house(telegram, tmp_path / "data", groups={str(group.id): {}}) as house,
    ):
        ann, hers = await asked(house, telegram)
        telegram.phones.say(ann, group, f"@{telegram.bot.username} deploy it")
        await eventually(lambda: len(telegram.said(group)) == 1, within=60)
        await house.jobs_in("waiting")
        await grow_old(house)
        assert await beat(house) == 2
        await nudged(telegram, hers)
        await nudged(telegram, group)
        for request in model.received[2:]:
            told = str(request["messages"])
            assert ("secret" in told) != ("team" in told), "each run knows one conversation"


async def test_nothing_is_said_while_somebody_waits_or_at_night_or_when_it_is_over(
    telegram: Telegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Anthropic([asking(), silent()])
    put(tmp_path / "data", {"gofer/agent.toml": ON})
    async with answered_by(model, monkeypatch), open_house(telegram, tmp_path / "data") as house:
        _, hers = await asked(house, telegram)
        (row,) = await house.rows(select(participants))
        looking = beats(house)
        at = await house.platform.database.read(clock)
        spec = looking.files.get("gofer")
        night = spec.heartbeat.model_copy(update={"hours": _hours_without(at)})
        assert await looking.look(spec.model_copy(update={"heartbeat": night}), at) == 0
        await house.platform.database.write(partial(_begin_run, conversation_id=row.conversation_id))
        assert await looking.look(spec, at) == 0, "a person waits for a run"
        assert await found(house) == []
        await house.platform.database.write(_end_run)
        assert await looking.look(spec, at) == 1
        await _no_heartbeat_at_work(house)
        assert [each.state for each in await found(house)] == ["quiet"]
        assert nudge_in(telegram, hers) is None


def _hours_without(at: float) -> str:
    hour = int(at // 3600 + 2) % 23
    return f"{hour:02}:00-{hour + 1:02}:00"


def _begin_run(connection: Connection, conversation_id: str) -> None:
    submit(
        connection, workspace_id=FIRST_WORKSPACE, kind="answer", lane="somebody", conversation_id=conversation_id,
        delay=1000,
    )  # fmt: skip


def _end_run(connection: Connection) -> None:
    connection.execute(update(jobs).where(jobs.c.lane == "somebody").values(state="done"))


POINTS = (
    "heartbeat.decided", "heartbeat.nudged", "heartbeat.delegated", "journal.appended:2", "nudge.said", "nudge.muted",
)  # fmt: skip
QUICK = {("heartbeat.decided", "sqlite"), ("heartbeat.nudged", "postgresql"), ("nudge.said", "sqlite")}


@pytest.mark.parametrize(
    ("point", "kind"),
    [
        pytest.param(point, kind, marks=() if (point, kind) in QUICK else pytest.mark.slow)
        for point in POINTS
        for kind in ("sqlite", "postgresql")
    ],
)
async def test_one_nudge_and_one_act_whenever_the_process_dies(
    telegram: Telegram,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    point: str,
    kind: str,
) -> None:
    url = "" if kind == "sqlite" else str(request.getfixturevalue("postgres_url"))
    action = {"label": "Use main", "say": "Use the branch main."}
    told = nudging(actions=[action])
    model = Anthropic(
        researching
        if point == "heartbeat.delegated"
        else lambda body: told if "your heartbeat" in str(body["messages"][0]) else say("Deployed main.")
    )
    data = tmp_path / "data"
    put(data, {"gofer/agent.toml": ON, "gofer/HEARTBEAT.md": "- every 366d: ask for the branch\n"})
    ann = telegram.world.add_person("Ann")
    hers = telegram.world.private(ann)
    environment = {"GOFER_DATABASE_URL": url} if url else {}
    async with answered_by(model, monkeypatch), Process(telegram, data, webhook=False) as process:
        environment |= {name: os.environ[name] for name in os.environ if name.startswith("GOFER_ANTHROPIC")}
        put(data, {"gofer/agent.toml": ON.replace("true", "false")})
        await process.start(**environment)
        telegram.phones.say(ann, hers, "/help")
        await eventually(lambda: len(telegram.said(hers)) == 1, within=60)
        await process.kill(15)
        await _take_part(Settings(data_dir=data, sandbox="off", database_url=url))
        put(data, {"gofer/agent.toml": ON})
        await process.start(GOFER_CRASH_AT=point, **environment)
        press = "Mute" if point in ("nudge.muted", "heartbeat.delegated") else "Use main"
        if not point.startswith("nudge"):
            await eventually(lambda: process.died, within=60)
            await process.start(**environment)
        telegram.phones.press(ann, await nudged(telegram, hers), press)
        if point.startswith("nudge"):
            await eventually(lambda: process.died, within=60)
            await process.start(**environment)
        last = "Muted" if press == "Mute" else "Deployed main."
        await eventually(lambda: telegram.said(hers)[-1].startswith(last), within=60)
        await process.kill(15)
    settings = Settings(data_dir=data, sandbox="off", database_url=url)
    async with open_app(settings, roles=frozenset()) as platform:
        (row,) = await platform.database.read(partial(_rows, query=select(heartbeat_findings)))
        assert row.state == "nudged"
        begun = await platform.database.read(partial(_rows, query=select(tasks)))
        assert [each.state for each in begun] == (["done"] if point == "heartbeat.delegated" else [])
        nudges = select(replies.c.id).join(jobs, jobs.c.id == replies.c.job_id).where(jobs.c.kind == "nudge")
        sent = await platform.database.read(partial(_rows, query=nudges))
        assert len(sent) == (2 if press == "Mute" else 1)
        said = select(messages.c.seq).where(messages.c.external_id.startswith("nudge-"))
        assert len(await platform.database.read(partial(_rows, query=said))) == (press != "Mute")
    assert sum("Why this came" in text for text in telegram.said(hers)) == 1


async def _take_part(settings: Settings) -> None:
    """Let the agent take part in the only conversation, as if it had answered there."""

    def join(connection: Connection) -> None:
        values = {
            "id": new_id("part"),
            "conversation_id": connection.execute(select(conversations.c.id)).scalar_one(),
            "agent_id": connection.execute(select(agents.c.id)).scalar_one(),
            "read_seq": 0, "wake_seq": 0, "epoch_seq": 0, "priority": 0,
        }  # fmt: skip
        connection.execute(participants.insert().values(**values))

    async with open_app(settings, roles=frozenset()) as platform:
        await platform.database.write(join)


def _rows(connection: Connection, query: Any) -> list[Any]:
    return list(connection.execute(query).all())
