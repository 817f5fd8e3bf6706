"""Runtimes, their orders, and the participants of conversations."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, func, select

from gofer.app import Platform
from gofer.errors import ConfigError, Conflict, NotFound
from gofer.jobs.control import answer_to
from gofer.runs.agent_files import AgentFiles, AgentSpec
from gofer.runs.answer import TRIGGER
from gofer.runs.posts import ASKED, Post, read_post, submit_post
from gofer.runtimes import hops as hop_rows
from gofer.runtimes import records, requests
from gofer.runtimes.triggers import chain_rules, fallback_of, safeguard_rules, stand_in_key
from gofer.runtimes.words import read_order
from gofer.settings import Settings
from gofer.store.bootstrap import FIRST_AGENT, FIRST_WORKSPACE
from gofer.store.tables import agents, events, hops, jobs, participants, runtimes
from gofer.vault.envelope import Vault
from gofer.vault.errors import Tampered
from gofer.web.auth import Visitor
from gofer.web.queries.agents import no_agent
from gofer.web.queries.conversations import find_conversation

LIVE_ACTION = {"tmux": "deliver", "acp": "prompt"}
"""What a live hop asks of a host, by the kind of its runtime."""


async def agent_spec(platform: Platform, name: str) -> AgentSpec:
    """An agent as its file says; the first agent needs none. Raises NotFound."""
    try:
        return await asyncio.to_thread(AgentFiles.of(platform.settings).get, name)
    except NotFound:
        if name == FIRST_AGENT:
            return AgentSpec(name=name)
        raise no_agent(name) from None
    except ConfigError as error:
        raise Conflict(str(error)) from None


async def external_spec(platform: Platform, name: str, kind: str) -> AgentSpec:
    """An external agent that is reached in this way; raises Conflict for any other."""
    spec = await agent_spec(platform, name)
    if spec.runtime is None:
        raise Conflict(
            f'The agent {name} is one of Gofer\'s own. Write runtime = "{kind}" into its agent.toml to have it run '
            "elsewhere."
        )
    if spec.runtime != kind:
        raise Conflict(f'The file of the agent {name} says runtime = "{spec.runtime}", not {kind!r}.')
    return spec


def describe(row: Any, settings: Settings) -> dict[str, Any]:
    """A runtime for people and hosts."""
    every = settings.runtime_heartbeat
    plain = ("id", "name", "agent", "kind", "host", "program", "session", "can_resume", "can_spawn")
    return {
        **{each: getattr(row, each) for each in plain},
        "member": row.member or "",
        "state": records.state_of(row, every),
        "seen_at": row.seen_at,
        "active_at": row.active_at,
        "crashes": records.facts_of(row, every).crashes,
        "not_tried_until": records.not_tried_until(row, settings.runtime_crashes),
        "callback_url": row.callback_url,
        "created_at": row.created_at,
        "heartbeat_every": every,
    }


def list_all(connection: Connection, settings: Settings) -> list[dict[str, Any]]:
    """Every runtime, by name."""
    return [describe(row, settings) for row in records.list_runtimes(connection)]


def count_runtimes(connection: Connection, every: float) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    """How many runtimes are in each state, and how many hops that are kept ended how."""
    found = [records.state_of(row, every) for row in records.list_runtimes(connection)]
    kept = select(hops.c.action, hops.c.state, func.count()).group_by(hops.c.action, hops.c.state)
    ended = {(action, state): int(count) for action, state, count in connection.execute(kept)}
    return {state: found.count(state) for state in records.STATES}, ended


def show_one(connection: Connection, name: str, settings: Settings) -> dict[str, Any]:
    """A runtime with its last hops; raises NotFound."""
    row = records.find_runtime(connection, name)
    query = select(hops).where(hops.c.runtime_id == row.id).order_by(hops.c.created_at.desc()).limit(20)
    return {
        **describe(row, settings),
        "hops": [tell_hop(each, row.name) for each in connection.execute(query)],
    }


def tell_hop(row: Any, runtime: str, answered_by: int | None = None) -> dict[str, Any]:
    """A hop for people. `answered_by` is the job of the agent that stands in."""
    plain = (
        "number",
        "action",
        "state",
        "reason",
        "tries",
        "covers_to",
        "created_at",
        "delivered_at",
        "ended_at",
    )
    told = {each: getattr(row, each) for each in plain}
    return {"trigger": row.job_id, **told, "runtime": runtime, "answered_by": answered_by}


def hops_of_job(connection: Connection, job_id: int) -> list[dict[str, Any]]:
    """The hops of a Trigger, in order, with the names of their runtimes."""
    query = (
        select(hops, runtimes.c.name.label("runtime"))
        .outerjoin(runtimes, runtimes.c.id == hops.c.runtime_id)
        .where(hops.c.job_id == job_id)
        .order_by(hops.c.number)
    )
    found = connection.execute(query).all()
    return [tell_hop(row, row.runtime or "", _stands_in(connection, row)) for row in found]


def _stands_in(connection: Connection, hop: Any) -> int | None:
    """The job of the agent that answers instead, of a hop that was handed over."""
    if hop.action != "fallback":
        return None
    key = stand_in_key(hop.job_id, hop.fence)
    return connection.execute(select(jobs.c.id).where(jobs.c.unique_key == key)).scalar()


def kept_posts(
    connection: Connection, platform: Platform, job_id: int, *, words: bool = True
) -> list[dict[str, Any]]:
    """What came for a hop of a Trigger that was over: kept, and never sent. Without words the texts are None."""
    late = select(events.c.data).where(events.c.job_id == job_id, events.c.kind == hop_rows.LATE)
    hop_of = {data["post"]: data["hop"] for data in connection.execute(late.order_by(events.c.seq)).scalars()}
    found = connection.execute(select(jobs).where(jobs.c.id.in_(hop_of)).order_by(jobs.c.id)).all()
    return [
        {
            "hop": hop_of[row.id],
            "job": row.id,
            "created_at": row.created_at,
            "text": _kept_text(connection, platform, row) if words else None,
        }
        for row in found
    ]


def _kept_text(connection: Connection, platform: Platform, row: Any) -> str | None:
    try:
        return platform.redactor.redact(read_post(connection, platform.vault, row).text)
    except (NotFound, Tampered, KeyError, ValueError):
        return None


async def end_hops_of(platform: Platform, runtime_id: str) -> int:
    """Let the Triggers go on whose agent was told something and is not there any more; returns how many."""
    found = await platform.database.read(hop_rows.unanswered_orders, runtime_id=runtime_id)
    for order in found:
        await platform.database.write(hop_rows.end_unanswered, order=order)
    return len(found)


async def take_orders(
    platform: Platform, member_id: str, host: str, *, fresh: bool = False
) -> list[dict[str, Any]]:
    """Hand out the orders of a member's host, with what is to be delivered."""
    taken = await platform.database.write(
        _take, vault=platform.vault, member_id=member_id, host=host, fresh=fresh
    )
    return [await _order(platform, each) for each in taken]


def _take(
    connection: Connection, vault: Vault, member_id: str, host: str, *, fresh: bool
) -> list[dict[str, Any]]:
    found = []
    for hop, runtime in hop_rows.take_orders(connection, member_id, host, fresh=fresh):
        payload = connection.execute(select(jobs.c.payload).where(jobs.c.id == hop.job_id)).scalar_one()
        agent = connection.execute(select(agents.c.name).where(agents.c.id == hop.agent_id)).scalar_one()
        try:
            text, summary = read_order(connection, vault, hop)
        except NotFound:
            continue  # purged: its job is gone, or will be
        found.append(
            {
                "id": hop_rows.order_id(hop.job_id, hop.number),
                "trigger": hop.job_id,
                "hop": hop.number,
                "runtime": runtime.name,
                "agent": agent,
                "kind": runtime.kind,
                "action": LIVE_ACTION[runtime.kind] if hop.action == "live" else hop.action,
                "text": text,
                "summary": summary,
                "session": runtime.session,
                "conversation": hop.conversation_id,
                "force": bool(payload.get(TRIGGER, {}).get("force")),
                "lease": hop_rows.LEASE,
                "trace": str(payload.get(TRIGGER, {}).get("trace", "")),
            }
        )
    return found


async def _order(platform: Platform, order: Mapping[str, Any]) -> dict[str, Any]:
    settings = platform.settings
    try:
        external = (await agent_spec(platform, order["agent"])).external
    except (NotFound, Conflict):
        external = AgentSpec(name="gone").external
    quiet = {
        "quiet": settings.trigger_quiet,
        "look_every": settings.trigger_look_again,
        "at_most": settings.trigger_defer,
        "then": "deliver" if external.when_typing == "deliver" else "fail",
    }
    redacted = {name: platform.redactor.redact(order[name]) for name in ("text", "summary")}
    return {
        **order,
        **redacted,
        "quiet": quiet,
        "ack_within": external.ack_within,
        "answer_within": external.answer_within,
    }


async def report(
    platform: Platform, order: str, member_id: str, *, status: str, reason: str, session: str, text: str
) -> dict[str, Any]:
    """Keep what a host says of an order; raises NotFound for one that is not its."""
    hop_rows.check_reason(reason)
    agent = await platform.database.read(_agent_of, order=order)
    spec = await agent_spec(platform, agent)
    return await platform.database.write(
        _report,
        vault=platform.vault,
        order=order,
        member_id=member_id,
        spec=spec,
        said={"status": status, "reason": reason, "session": session},
        text=text,
    )


def _agent_of(connection: Connection, order: str) -> str:
    job_id, number = hop_rows.read_order_id(order)
    query = (
        select(agents.c.name)
        .join(hops, hops.c.agent_id == agents.c.id)
        .where(hops.c.job_id == job_id, hops.c.number == number)
    )
    found = connection.execute(query).scalar()
    if found is None:
        raise NotFound(f"There is no order {order[:40]!r} of yours.")
    return str(found)


def _report(
    connection: Connection,
    vault: Vault,
    order: str,
    member_id: str,
    spec: AgentSpec,
    said: dict[str, str],
    text: str,
) -> dict[str, Any]:
    row, runtime = hop_rows.find_order(connection, order, member_id)
    where = {"conversation_id": row.conversation_id, "agent": spec.name}
    hop = (row.job_id, row.number)
    if said["status"] == "acknowledged":
        within = spec.external.answer_within
        told = requests.acknowledge(connection, **where, seq=None, hop=hop, done=False, answer_within=within)
        ignored = str(told["reason"])
    elif said["status"] == "answered":
        kept = requests.say_for_hop(connection, vault, **where, hop=hop, text=text)
        ignored = str(kept["reason"])
    else:
        ignored = hop_rows.report(connection, row, runtime, **said, ack_within=spec.external.ack_within)
    state = connection.execute(
        select(hops.c.state).where(hops.c.job_id == row.job_id, hops.c.number == row.number)
    ).scalar_one()
    return {"id": order, "ignored": bool(ignored), "reason": ignored, "state": state}


async def ask(platform: Platform, order: str, member_id: str, **asked: Any) -> int:
    """Ask the people of an order's conversation something for its agent; returns the job that asks. Raises Conflict
    when the order is over."""
    agent = await platform.database.read(_agent_of, order=order)
    within = (await agent_spec(platform, agent)).external.answer_within
    return await platform.database.write(
        _ask, vault=platform.vault, order=order, member_id=member_id, answer_within=within, **asked
    )


def _ask(
    connection: Connection,
    vault: Vault,
    order: str,
    member_id: str,
    answer_within: float,
    text: str,
    choices: list[str],
    key: str,
) -> int:
    row, _ = hop_rows.find_order(connection, order, member_id)
    if row.state not in hop_rows.HANDED_OUT:
        raise Conflict(f"The order {order} is over ({row.state}).")
    # The agent is at work, and its time stands still while people are asked.
    within = answer_within + hop_rows.QUESTION_LIFE
    hop_rows.change(connection, row, hop_rows.ACKNOWLEDGED, was=hop_rows.HANDED_OUT, within=within)
    agent = connection.execute(select(agents.c.name).where(agents.c.id == row.agent_id)).scalar_one()
    return submit_post(
        connection,
        vault,
        Post(text, asks=True, choices=tuple(choices), expires_after=hop_rows.QUESTION_LIFE),
        workspace_id=FIRST_WORKSPACE,
        conversation_id=row.conversation_id,
        agent=agent,
        unique_key=f"ask:{order}:{vault.mac_key('hop').digest(key or text)[:32]}",
        for_order=order,
    )


def find_answer(connection: Connection, vault: Vault, job_id: int, member_id: str) -> dict[str, Any]:
    """What became of a question of a host; raises NotFound for one of somebody else."""
    row = connection.execute(select(jobs).where(jobs.c.id == job_id)).one_or_none()
    order = str(row.payload.get("order", "")) if row is not None else ""
    if row is None or not order:
        raise NotFound(f"There is no question {job_id} of yours.")
    hop_rows.find_order(connection, order, member_id, lock=False)
    given = answer_to(connection, vault, job_id, ASKED)
    ended = row.state in ("done", "dead", "cancelled")
    state = "answered" if given.text else "expired" if ended else "open"
    return {"question": job_id, "state": state, "answer": given.text}


def list_participants(
    connection: Connection, conversation_id: str, visitor: Visitor | None = None
) -> list[dict[str, Any]]:
    """The agents of a conversation that somebody may read, and how far each has read."""
    find_conversation(connection, conversation_id, visitor)
    query = (
        select(participants, agents.c.name.label("agent"))
        .join(agents, agents.c.id == participants.c.agent_id)
        .where(participants.c.conversation_id == conversation_id)
        .order_by(agents.c.name)
    )
    return [
        {
            "agent": row.agent,
            "read_seq": row.read_seq,
            "wake_seq": row.wake_seq,
            "ack_seq": row.ack_seq,
            "unread": requests.unread_of(row),
            "blocked_reason": row.blocked_reason if row.blocked_at is not None else None,
            "blocked_at": row.blocked_at,
        }
        for row in connection.execute(query).all()
    ]


async def with_kinds(platform: Platform, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Participants with how each is reached; null for Gofer's own."""
    told = []
    for each in found:
        try:
            kind: str | None = (await agent_spec(platform, each["agent"])).runtime
        except (NotFound, Conflict):
            kind = None
        told.append({**each, "runtime": kind})
    return told


async def trigger(
    platform: Platform, conversation_id: str, agent: str, wish: requests.TriggerWish
) -> dict[str, Any]:
    """Wake a participant; returns the envelope."""
    settings = platform.settings
    spec = await agent_spec(platform, agent)
    stands_in = await asyncio.to_thread(fallback_of, AgentFiles.of(settings), spec)
    return await platform.database.write(
        requests.trigger,
        conversation_id=conversation_id,
        agent=agent,
        kind=spec.runtime,
        fallback=spec.external.fallback,
        wish=wish,
        heartbeat=settings.runtime_heartbeat,
        chain=chain_rules(settings, fallback=stands_in is not None),
        safeguards=safeguard_rules(settings),
        wake_when_closed=spec.external.wake_when_closed,
    )
