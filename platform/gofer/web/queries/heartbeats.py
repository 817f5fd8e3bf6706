"""An agent's heartbeat: whether it is on, what it looks for, what it found, and where it is muted."""

from __future__ import annotations

import asyncio
from typing import Any

from sqlalchemy import Connection, select
from starlette.requests import Request

from gofer.agent.prices import MICROS
from gofer.app import Platform
from gofer.errors import NotFound
from gofer.heartbeat.findings import RECOMMENDATIONS, HeartbeatWatch, clock, home_of
from gofer.heartbeat.records import set_muted, spent_today
from gofer.runs.agent_files import AgentFiles, AgentSpec, in_force
from gofer.runs.agent_writer import switch_heartbeat
from gofer.runs.heartbeat_settings import HeartbeatItem
from gofer.store.tables import agents, conversations, heartbeat_findings, participants
from gofer.web.queries import platform_of, rows
from gofer.web.queries.agents import agents_directory, changing_agents, no_agent

MAX_SHOWN = 50


async def heartbeat_of(platform: Platform, name: str) -> dict[str, Any]:
    """One agent's; raises NotFound for an agent that cannot answer."""
    spec, items, problems = await asyncio.to_thread(_from_files, AgentFiles.of(platform.settings), name)
    timezone = platform.settings.timezone
    stored = await platform.database.read(_stored, spec=spec, timezone=timezone)
    settings = spec.heartbeat.model_dump(mode="json")
    listed = [{"when": _when(item), "text": item.text} for item in items]
    return {"name": name, **settings, "timezone": timezone, "items": listed, "problems": problems, **stored}


def _from_files(files: AgentFiles, name: str) -> tuple[AgentSpec, tuple[HeartbeatItem, ...], list[str]]:
    found = {spec.name: spec for spec in in_force(files.look())}
    if name not in found:
        raise no_agent(name)
    listed = files.heartbeat_list(found[name])
    return found[name], listed.items, list(listed.problems)


def _when(item: HeartbeatItem) -> str:
    """When an item is due, as the file says it."""
    if item.interval:
        unit = next(
            (seconds, letter)
            for seconds, letter in ((86400, "d"), (3600, "h"), (60, "m"))
            if item.interval % seconds == 0
        )
        return f"every {item.interval // unit[0]}{unit[1]}"
    names = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
    day = item.day.isoformat() if item.day else ",".join(names[number] for number in item.weekdays)
    return f"{day} {item.minute // 60:02}:{item.minute % 60:02}".strip()


def _stored(connection: Connection, spec: AgentSpec, timezone: str) -> dict[str, Any]:
    agent_id = connection.execute(select(agents.c.id).where(agents.c.name == spec.name)).scalar()
    if agent_id is None:
        return {"spent_today": 0.0, "home": "", "muted": [], "found": []}
    watch = HeartbeatWatch(agent_id, spec.name, spec.heartbeat, (), timezone, clock(connection))
    columns = ("id", "conversation_id", "code", "subject", "recommendation", "state", "reason", "found_at")
    found = (
        select(*(heartbeat_findings.c[column] for column in columns), heartbeat_findings.c.settled_at)
        .where(heartbeat_findings.c.agent_id == agent_id)
        .order_by(heartbeat_findings.c.found_at.desc())
        .limit(MAX_SHOWN)
    )
    muted = (
        select(participants.c.conversation_id, participants.c.muted_at)
        .join(conversations, conversations.c.id == participants.c.conversation_id)
        .where(participants.c.agent_id == agent_id, participants.c.muted_at.is_not(None))
        .order_by(participants.c.muted_at.desc())
        .limit(1000)
    )
    return {
        "spent_today": spent_today(connection, agent_id, timezone) / MICROS,
        "home": home_of(connection, watch),
        "muted": rows(connection, muted),
        "found": [
            {**each, "advice": RECOMMENDATIONS.get(each["code"], ("", ""))[1]}
            for each in rows(connection, found)
        ],
    }


async def switch(request: Request, name: str, *, enabled: bool) -> dict[str, Any]:
    """Switch an agent's heartbeat on or off in its file, and return the heartbeat; raises NotFound."""
    platform = platform_of(request)
    await heartbeat_of(platform, name)
    layered = platform.settings.agent_runtime_v1
    async with changing_agents(request):
        await asyncio.to_thread(
            switch_heartbeat, agents_directory(platform), name, enabled=enabled, layered=layered
        )
    return await heartbeat_of(platform, name)


async def mute(platform: Platform, name: str, conversation_id: str, *, muted: bool, by: str) -> None:
    """Let the agent's heartbeat be silent in a conversation, or speak again; raises NotFound."""
    await platform.database.write(_mute, name=name, conversation_id=conversation_id, muted=muted, by=by)


def _mute(connection: Connection, name: str, conversation_id: str, muted: bool, by: str) -> None:
    query = (
        select(agents.c.id)
        .join(participants, participants.c.agent_id == agents.c.id)
        .where(agents.c.name == name, participants.c.conversation_id == conversation_id)
    )
    agent_id = connection.execute(query).scalar()
    if agent_id is None:
        raise NotFound(
            f"{name[:40]} takes no part in a conversation {conversation_id[:60]!r}. `gofer conversations list` shows "
            "those there are."
        )
    set_muted(connection, agent_id, conversation_id, muted=muted, by=by)
