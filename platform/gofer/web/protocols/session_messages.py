"""What a client of the session protocol may send, and what it is answered.

Each kind of message has a function here; `HANDLERS` is the whole list. An unknown kind is answered with an error that
names it, and never closes the connection.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, select

from gofer.app import Platform
from gofer.errors import Conflict, GoferError, Malformed, NotFound, StoreError, TooBusy, TooOften
from gofer.goals.records import goals_in
from gofer.jobs.kinds import ANSWER, TASK
from gofer.memory import records
from gofer.memory.audience import audience
from gofer.memory.recall import Results
from gofer.memory.scopes import conversation_scope
from gofer.store.events import Cursor
from gofer.store.ids import new_id
from gofer.store.tables import (
    LIVE,
    JobState,
    conversations,
    events,
    in_state,
    jobs,
    participants,
)
from gofer.vault.envelope import Vault
from gofer.web.chat import rooms
from gofer.web.chat.posts import MAX_TEXT, parse_post, take
from gofer.web.chat.rooms import Room
from gofer.web.chat.timeline import Reader
from gofer.web.queries import conversations as conversation_queries
from gofer.web.queries.agents import list_agents
from gofer.web.queries.goals import list_goals, show_goal, steer_goal
from gofer.web.queries.jobs import events_of, steer_job
from gofer.web.queries.memories import list_memories

if TYPE_CHECKING:
    from gofer.web.protocols.session import ClientSession

Frame = dict[str, Any]
Handler = Callable[["ClientSession", "ClientMessage"], Awaitable[list[Frame]]]
MAX_LISTED = 100
UNIQUE_ID = re.compile(r"[A-Za-z0-9_-]{16,64}")
"""An id of this form is of one message only, so that sending it again does nothing. A shorter one may be a counter that
begins anew with each connection; it only names the answer."""
RUN_STATES = {
    JobState.RUNNING: "running",
    JobState.WAITING: "blocked",
    JobState.DONE: "completed",
    JobState.DEAD: "failed",
    JobState.CANCELLED: "cancelled",
}
"""Of a run; every other state is `queued`."""


@dataclass(frozen=True, slots=True)
class ClientMessage:
    """One message of a client. Its fields may stand at the top or under `payload`."""

    type: str
    id: str
    fields: Frame

    def text(self, *names: str) -> str:
        """The first of some fields that is there; raises Malformed when it is no text."""
        found = next((self.fields[name] for name in names if self.fields.get(name) is not None), "")
        if not isinstance(found, str):
            raise Malformed(f"{names[0]}: must be a text.")
        return found

    def number(self, name: str, default: int) -> int:
        """A number from 1 to `MAX_LISTED`; raises Malformed."""
        found = self.fields.get(name, default)
        if isinstance(found, bool) or not isinstance(found, int) or found < 1:
            raise Malformed(f"{name}: must be a number from 1 on.")
        return min(found, MAX_LISTED)

    def flag(self, name: str, default: bool) -> bool:
        """Yes or no; raises Malformed."""
        found = self.fields.get(name, default)
        if not isinstance(found, bool):
            raise Malformed(f"{name}: must be true or false.")
        return found

    def texts(self, name: str) -> list[str]:
        """A list of texts; raises Malformed."""
        found = self.fields.get(name) or []
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise Malformed(f"{name}: must be a list of texts.")
        return found[:MAX_LISTED]


class Unanswerable(GoferError):
    """An error of the protocol, with its code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def capabilities(platform: Platform) -> list[str]:
    """The parts of the instance that are switched on."""
    settings = platform.settings
    flags = {"agent_runtime_v1": settings.agent_runtime_v1, "memory_v1": settings.memory_v1}
    return [name for name, on in flags.items() if on]


def error_frame(request: str, code: str, message: str) -> Frame:
    """An error. The connection goes on."""
    return {"type": "error", "request": request, "code": code, "message": message}


def refusal(request: str, error: GoferError) -> Frame:
    """An error of ours as one of the protocol's."""
    codes: dict[type[GoferError], str] = {
        Malformed: "invalid_envelope",
        TooBusy: "queue_saturated",
        TooOften: "queue_saturated",
        StoreError: "storage_unavailable",
    }
    code = error.code if isinstance(error, Unanswerable) else None
    found = code or next(
        (code for kind, code in codes.items() if isinstance(error, kind)), "execution_failed"
    )
    frame = error_frame(request, found, str(error))
    wait = getattr(error, "retry_after", None)
    return frame if wait is None else {**frame, "retryAfterMs": int(wait * 1000)}


async def answer(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    """What to answer to one message; raises GoferError."""
    handler = HANDLERS.get(asked.type)
    if handler is None:
        raise Unanswerable("unsupported_message_type", f"{asked.type[:60]!r} is not supported.")
    return [{"request": asked.id, **frame} for frame in await handler(session, asked)]


def _now_ms() -> int:
    return int(time.time() * 1000)


async def _connect(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    hello = {"sessionKey": session.key, "agentId": session.agent}
    return [{"type": "connect.ack", **hello, "capabilities": capabilities(session.platform)}]


async def _ping(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    return [{"type": "pong", "timestamp": _now_ms()}]


# Talking.


async def _send(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    await _say(session, asked, asked.text("content", "text", "goal"))
    return [_progress("queue", "accepted", "It is kept, and will be answered.")]


async def _say(session: ClientSession, asked: ClientMessage, text: str) -> Room:
    """Take in what was said. Durable when this returns."""
    if not text.strip():
        raise Unanswerable("missing_content", "There is nothing in it.")
    if len(text) > MAX_TEXT:
        raise Malformed(f"content: at most {MAX_TEXT} characters.")
    room = await session.open_room()
    unique = asked.id.replace("_", "-") if UNIQUE_ID.fullmatch(asked.id) else new_id("m").replace("_", "-")
    given = parse_post({"id": unique, "text": text, "agent": "" if room.agent else session.agent})
    await take(session.platform, session.visitor, room, given)
    return room


def _progress(phase: str, status: str, message: str, **more: Any) -> Frame:
    return {"type": "agent.progress", "phase": phase, "status": status, "message": message, **more}


async def _new(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    session.begin_anew()
    return [{"type": "session.new", "sessionKey": session.key, "archived": True}]


async def _reset(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    if session.room is not None:
        await _say(session, asked, "/new")
    return [{"type": "session.reset", "sessionKey": session.key, "archived": True}]


async def _restore(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    agent = _own_agent(session, asked)
    connection = await rooms.find_web_connection(session.platform)
    found = None
    if connection is not None:
        read = partial(_last_session, session=session, connection_id=connection.account.id, agent=agent)
        found = await session.platform.database.read(read)
    return [{"type": "session.restore.response", "found": found is not None, "session": found}]


def _last_session(
    connection: Connection, session: ClientSession, connection_id: str, agent: str
) -> Frame | None:
    """The session of this member with an agent in which something was said last."""
    room = rooms.last_room(connection, connection_id, f"{session.visitor.member_id}:{agent}:")
    if room is None:
        return None
    scopes = [conversation_scope(room.id)]
    summaries = list_memories(connection, session.platform.vault, scopes=scopes, kind="summary", limit=1)
    return {
        "session_key": room.ref.split(":", 2)[2],
        "agent_id": agent,
        "last_active_ms": int(room.at * 1000),
        "message_count": room.messages,
        "summary": summaries[0]["gist"] if summaries else "",
    }


async def _history(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    _own_agent(session, asked)
    limit = asked.number("limit", 50)
    found: list[Frame] = []
    if session.room is not None:
        read = partial(_said, platform=session.platform, room=session.room, limit=limit)
        found = await session.platform.database.read(read)
    return [{"type": "session.history.response", "sessionKey": session.key, "messages": found}]


def _said(connection: Connection, platform: Platform, room: Room, limit: int) -> list[Frame]:
    conversation = conversation_queries.find_conversation(connection, room.id)
    rows = conversation_queries.read_messages(
        connection, platform.vault, conversation, before=None, limit=limit
    )
    return [
        {
            "role": _role(row),
            "content": platform.redactor.redact(message.text),
            "timestamp": int(row.created_at * 1000),
            "memoryId": records.turn_id(room.id, row.seq),
        }
        for row, message in reversed(rows)
        if message is not None
    ]


def _role(row: Any) -> str:
    return "assistant" if row.connection_id is None else "user"


# Agents.


async def _agents(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    found = [_agent_facts(each) for each in (await _choosable(session)).values()]
    return [{"type": "agent.list.response", "agents": found}]


async def _agent(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    name = asked.text("agent_id", "agentId") or session.agent
    found = (await _choosable(session)).get(name)
    if found is None:
        raise NotFound(f"There is no agent called {name[:40]!r}.")
    return [{"type": "agent.info", **_agent_facts(found), "model": found["model"]}]


async def _choosable(session: ClientSession) -> dict[str, Frame]:
    found = await list_agents(session.platform)
    bound = session.visitor.agent
    return {name: each for name, each in found.items() if each["in_force"] and (not bound or name == bound)}


def _agent_facts(agent: Frame) -> Frame:
    spec = agent["spec"] or {}
    return {
        "id": agent["name"],
        "name": agent["name"],
        "description": str(spec.get("description") or ""),
        "is_default": agent["default"],
        "identity_loaded": not agent["problem"],
    }


def _own_agent(session: ClientSession, asked: ClientMessage) -> str:
    """The agent that a message names, which has to be the one that the client talks to."""
    name = asked.text("agent_id", "agentId") or session.agent
    if name != session.agent:
        raise NotFound(f"This connection talks to {session.agent}. Connect to /v1/agents/{name[:40]}/stream.")
    return name


# Memory.


async def _recall(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    _need(session, "memory_v1")
    limit, full = asked.number("limit", 25), asked.flag("include_full", False)
    archived = asked.flag("include_archived", True)
    items: list[Frame] = []
    if session.room is not None:
        read = partial(_turns, session=session, room=session.room, limit=limit, archived=archived, full=full)
        items = await session.platform.database.read(read)
    return [{"type": "memory.recall", "items": items}]


async def _query(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    _need(session, "memory_v1")
    topic, limit = asked.text("topic"), asked.number("limit", 25)
    kind, archived = asked.text("kind"), asked.flag("include_archived", True)
    if kind not in ("", "summary", "entry"):
        raise Malformed("kind: must be summary or entry.")
    wanted = asked.texts("memoryIds") + ([asked.text("memoryId")] if asked.text("memoryId") else [])
    if session.room is None:
        return [{"type": "memory.query", "items": []}]
    scopes = await session.platform.database.read(partial(_scopes, room=session.room))
    if wanted:
        items = await session.platform.database.read(
            partial(_by_id, session=session, ids=wanted, scopes=scopes)
        )
        degraded: tuple[str, ...] = ()
    elif topic.strip():
        results: Results = await session.platform.recall.search(scopes, topic, limit)
        items, degraded = [_item(session, each.memory) for each in results.found], tuple(results.degraded)
    else:
        read = partial(_turns, session=session, room=session.room, limit=limit, archived=archived, full=True)
        items, degraded = await session.platform.database.read(read), ()
    kept = [item for item in items if not kind or item["kind"] == kind]
    frames: list[Frame] = [{"type": "memory.query", "items": kept[:limit]}]
    if degraded:
        words = "Some memories cannot be searched now. `gofer doctor` says why."
        frames.append(error_frame(asked.id, "memory_degraded", words))
    return frames


def _scopes(connection: Connection, room: Room) -> tuple[str, ...]:
    agent = select(conversations.c.agent_id).where(conversations.c.id == room.id)
    return audience(connection, room.id, connection.execute(agent).scalar())


def _by_id(
    connection: Connection, session: ClientSession, ids: list[str], scopes: tuple[str, ...]
) -> list[Frame]:
    found = []
    for each in ids:
        try:
            found.append(
                _item(session, records.resolve(connection, session.platform.vault, each, scopes=scopes))
            )
        except NotFound:
            continue  # the same as for an id that was never given
    return found


def _item(session: ClientSession, memory: records.Memory) -> Frame:
    redact = session.platform.redactor.redact
    if memory.kind == "summary":
        return _summary(
            memory.id, memory.valid_from, redact(memory.text), memory.source.conversation_id or ""
        )
    return _entry(memory.id, "user" if memory.kind == "turn" else "memory", redact(memory.text), True)


def _summary(memory_id: str, at: float, text: str, source: str) -> Frame:
    facts = {"source": "memory", "id": memory_id, "source_id": source, "created_at_ms": int(at * 1000)}
    return {"kind": "summary", **facts, "text": text}


def _entry(memory_id: str, role: str, content: str, active: bool) -> Frame:
    state = "active" if active else "tombstone"
    entry = {"source": "session", "id": memory_id, "role": role, "state": state, "related_to": None}
    return {"kind": "entry", **entry, "content": content}


def _turns(
    connection: Connection, session: ClientSession, room: Room, limit: int, archived: bool, full: bool
) -> list[Frame]:
    """The last turns of the session, those before a new beginning as tombstones, and the summaries of what was left out
    of the prompt."""
    platform = session.platform
    epoch = select(func.max(participants.c.epoch_seq)).where(participants.c.conversation_id == room.id)
    since = int(connection.execute(epoch).scalar() or 0)
    conversation = conversation_queries.find_conversation(connection, room.id)
    rows = conversation_queries.read_messages(
        connection, platform.vault, conversation, before=None, limit=limit
    )
    items = []
    for row, message in reversed(rows):
        if message is None or (row.seq <= since and not archived):
            continue
        text = platform.redactor.redact(message.text)
        shown = text if full else text[:200]
        items.append(_entry(records.turn_id(room.id, row.seq), _role(row), shown, row.seq > since))
    scopes = [conversation_scope(room.id)] if archived else []
    made = list_memories(connection, platform.vault, scopes=scopes, kind="summary", limit=5)
    words = [
        _summary(each["id"], each["at"], platform.redactor.redact(each["text"]), room.id) for each in made
    ]
    return [*words, *items][-limit:]


def _need(session: ClientSession, flag: str) -> None:
    if flag not in capabilities(session.platform):
        raise Unanswerable("unsupported_message_type", f"{flag} is switched off on this instance.")


# Runs.


async def _status(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    return [await _state_frame(session)]


async def _state_frame(session: ClientSession) -> Frame:
    states: list[str] = []
    goal: Frame = {}
    if session.room is not None:
        read = partial(_at_work, vault=session.platform.vault, conversation_id=session.room.id)
        states, goal = await session.platform.database.read(read)
    active = states.count(JobState.RUNNING)
    queued = len(states) - active
    phase = goal["state"] if goal.get("state") in ("blocked", "paused") else ""
    phase = phase or ("working" if active else "queued" if queued else "idle")
    return {
        "type": "agent.state",
        "phase": phase,
        "queuedTasks": queued,
        "activeTasks": active,
        "lastGoal": goal.get("text", ""),
    }


def _at_work(connection: Connection, vault: Vault, conversation_id: str) -> tuple[list[str], Frame]:
    """The states of the runs and tasks that are not over, and the last goal."""
    query = select(jobs.c.state).where(
        jobs.c.conversation_id == conversation_id,
        jobs.c.kind.in_((ANSWER, TASK)),
        in_state(*LIVE, JobState.BLOCKED),
    )
    goals = list_goals(connection, vault, conversation_id=conversation_id, limit=1)
    return list(connection.execute(query).scalars()), goals[0] if goals else {}


async def _heartbeat(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    return [_progress("heartbeat", "ok", "The connection is alive.")]


async def _control(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    action = asked.text("action")
    handler = ACTIONS.get(action)
    if handler is None:
        raise Unanswerable("unsupported_message_type", f"The action {action[:40]!r} is not supported.")
    return await handler(session, asked)


async def _cancel(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    if session.room is not None:
        given = parse_post({"id": new_id("stop").replace("_", "-"), "stop": True})
        await take(session.platform, session.visitor, session.room, given)
    for goal_id in await _goals(session, live=True):
        await steer_goal(session.platform, "cancel", goal_id, by=session.visitor.name)
    return [_progress("control", "cancelled", "Everything that was under way is being stopped.")]


async def _debug(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    session.debug = True
    return [_progress("control", "subscribed", "Every step is told as debug.event.")]


TOLD = ("goal.planned", "goal.changed", "goal.blocked", "task.changed", "worker.saturated", "memory.event")
"""The kinds of events that every client is told of."""


def log_frames(
    connection: Connection, session: ClientSession, conversation_id: str
) -> tuple[Cursor, list[Frame]]:
    """What to tell of the events after the place that a client has reached, and the place after them."""
    platform = session.platform
    reader = Reader(connection, platform.vault, platform.redactor, conversation_id)
    rows = reader.rows_after(session.log_place)
    place = Cursor(rows[-1].tx, rows[-1].id) if rows else session.log_place
    frames = [_step(row) for row in rows] if session.debug else []
    told = [row for row in rows if row.kind in TOLD]
    plans = dict.fromkeys(str(row.data["goal"]) for row in told if row.data.get("goal"))
    frames += [_plan_frame(show_goal(connection, platform.vault, goal_id)) for goal_id in plans]
    frames += [frame for row in told for frame in _told(row)]
    return place, frames


def _step(row: Any) -> Frame:
    """A step without words."""
    run_id = str(row.job_id or "")
    return {"type": "debug.event", "event_type": row.kind, "run_id": run_id, "payload": {"number": row.id}}


def _told(row: Any) -> list[Frame]:
    data = row.data
    if row.kind == "task.changed":
        task, worker = str(data.get("task", "")), str(data.get("kind", ""))
        state = str(data.get("state", ""))
        return [{"type": "agent.status", "taskId": task, "worker": worker, "status": state, "message": ""}]
    if row.kind == "goal.blocked":
        why = str(data.get("reason") or "question")
        words = "Answer the question with chat.send."
        return [{"type": "agent.blocked", "taskId": str(data["goal"]), "reason": why, "suggestion": words}]
    if row.kind == "worker.saturated":
        counts = {name: int(data[name]) for name in FIGURES if isinstance(data.get(name), int)}
        status = (
            "prolonged_saturation"
            if data.get("prolonged")
            else "saturated"
            if data.get("saturated")
            else "clear"
        )
        return [_progress("backpressure", status, "", **counts)]
    if row.kind == "memory.event":
        return [
            {
                "type": "memory.event",
                "event": str(data.get("what", "")),
                "status": "ok",
                "count": 1,
                "message": str(data.get("reason", "")),
                "memoryId": str(data.get("id", "")),
            }
        ]
    return []


FIGURES = ("accepted", "total", "dropped", "queued", "active")


def _plan_frame(goal: Frame) -> Frame:
    tasks = [
        {"id": each["id"], "title": each["title"], "status": each["state"]}
        for each in goal["tasks"]
        if each["number"] > 0
    ]
    return {
        "type": "agent.plan",
        "goal": goal["text"],
        "goal_id": goal["id"],
        "state": goal["state"],
        "tasks": tasks,
    }


async def _goal(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    text = asked.text("goal", "content", "text")
    if not text.strip():
        raise Unanswerable("missing_content", "Say what is wanted: goal.")
    await _say(session, asked, f"/goal {text}")
    return [_progress("goal", "accepted", "It is kept, and a plan follows.")]


async def _plan(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    goals = await _goals(session, live=False)
    if not goals:
        return [_progress("plan", "empty", "There is no goal in this session.")]
    read = partial(show_goal, vault=session.platform.vault, goal_id=goals[0])
    return [_plan_frame(await session.platform.database.read(read))]


async def _goals(session: ClientSession, *, live: bool) -> list[str]:
    """The goals of the session, the newest first."""
    if session.room is None:
        return []
    read = partial(goals_in, conversation_id=session.room.id, live=live, limit=MAX_LISTED)
    return [goal.id for goal in await session.platform.database.read(read)]


def _steer(verb: str, status: str) -> Handler:
    """Pause or resume what is under way in the session."""

    async def steer(session: ClientSession, asked: ClientMessage) -> list[Frame]:
        goals = await _goals(session, live=True)
        if not goals:
            raise Unanswerable("execution_failed", "There is no goal under way. A run can only be cancelled.")
        for goal_id in goals:
            await steer_goal(session.platform, verb, goal_id, by=session.visitor.name)
        return [_progress("control", status, f"{len(goals)} under way.")]

    return steer


async def _run_start(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    room = await _say(session, asked, asked.text("content", "text", "goal"))
    found = await session.platform.database.read(partial(_runs, room=room, limit=1))
    if not found:
        raise Unanswerable("execution_failed", "It was taken in, but no run has begun.")
    return [{"type": "agent.run.ack", **found[0]}]


async def _run_status(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    return [{"type": "agent.run.state", **await _run(session, asked)}]


async def _run_list(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    found: list[Frame] = []
    if session.room is not None:
        read = partial(_runs, room=session.room, limit=asked.number("limit", 20))
        found = await session.platform.database.read(read)
    return [{"type": "agent.run.state", **each} for each in found] or [
        _progress("runs", "empty", "There is no run in this session.")
    ]


async def _run_cancel(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    run = await _run(session, asked)
    with contextlib.suppress(Conflict):  # it is over already
        await steer_job(session.platform, "cancel", int(run["run_id"]), by=session.visitor.name)
    return [{"type": "agent.run.ack", **await _run(session, asked)}]


async def _run_events(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    run = await _run(session, asked)
    read = partial(
        events_of, platform=session.platform, job_id=int(run["run_id"]), limit=asked.number("limit", 100)
    )
    found = await session.platform.database.read(read)
    return [
        {
            "type": "agent.run.event",
            "run_id": run["run_id"],
            "event_type": each["kind"],
            "payload": {"at": each["at"], "number": each["seq"], **_plain(each["data"])},
        }
        for each in found
    ]


def _plain(data: Frame) -> Frame:
    """What a client needs of an event: no prompts, which are long, and nothing that is only for the loop."""
    return {
        name: value
        for name, value in data.items()
        if name in ("name", "status", "reason", "outcome", "turn", "code")
    }


async def _run(session: ClientSession, asked: ClientMessage) -> Frame:
    """The run that a message names, or the last one; raises NotFound."""
    wanted = asked.text("run_id", "runId")
    if wanted and not re.fullmatch("[0-9]{1,18}", wanted):
        raise NotFound("There is no such run in this session.")
    found: list[Frame] = []
    if session.room is not None:
        read = partial(_runs, room=session.room, limit=1, job_id=int(wanted) if wanted else None)
        found = await session.platform.database.read(read)
    if not found:
        raise NotFound("There is no such run in this session.")
    return found[0]


def _runs(connection: Connection, room: Room, limit: int, job_id: int | None = None) -> list[Frame]:
    """The runs of a session, the newest first."""
    turns = (
        select(func.count())
        .where(events.c.job_id == jobs.c.id, events.c.kind == "turn.finished")
        .scalar_subquery()
    )
    query = (
        select(
            jobs.c.id,
            jobs.c.state,
            jobs.c.event_seq,
            jobs.c.created_at,
            jobs.c.finished_at,
            turns.label("turns"),
        )
        .where(jobs.c.conversation_id == room.id, jobs.c.kind == ANSWER)
        .order_by(jobs.c.id.desc())
        .limit(limit)
    )
    if job_id is not None:
        query = query.where(jobs.c.id == job_id)
    return [
        {
            "run_id": str(row.id),
            "state": RUN_STATES.get(JobState(row.state), "queued"),
            "step_count": row.turns,
            "checkpoint_seq": row.event_seq,
            "timestamp": int((row.finished_at or row.created_at) * 1000),
        }
        for row in connection.execute(query)
    ]


HANDLERS: dict[str, Handler] = {
    "connect": _connect,
    "ping": _ping,
    "chat.send": _send,
    "session.send": _send,
    "session.new": _new,
    "session.reset": _reset,
    "session.restore": _restore,
    "session.history": _history,
    "agent.list": _agents,
    "agent.get": _agent,
    "agent.status": _status,
    "agent.heartbeat": _heartbeat,
    "agent.control": _control,
    "memory.recall": _recall,
    "memory.query": _query,
    "agent.run.start": _run_start,
    "agent.run.step": _run_start,
    "agent.run.status": _run_status,
    "agent.run.list": _run_list,
    "agent.run.cancel": _run_cancel,
    "agent.run.events": _run_events,
}

ACTIONS: dict[str, Handler] = {
    "state": _status,
    "status": _status,
    "heartbeat": _heartbeat,
    "cancel": _cancel,
    "pause": _steer("pause", "paused"),
    "resume": _steer("resume", "resumed"),
    "goal": _goal,
    "plan": _plan,
    "debug.subscribe": _debug,
}
