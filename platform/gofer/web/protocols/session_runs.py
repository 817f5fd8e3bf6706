"""What a client of the session protocol is answered about runs and goals, and what it is told of them.

Each kind of message has a function here; `HANDLERS` is the list, and `ACTIONS` that of `agent.control`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, select

from gofer.errors import Conflict, Forbidden, NotFound
from gofer.goals.records import goals_in
from gofer.jobs.control import is_paused
from gofer.jobs.kinds import ANSWER, TASK
from gofer.store.events import Cursor
from gofer.store.ids import new_id
from gofer.store.tables import LIVE, JobState, events, in_state, jobs
from gofer.vault.envelope import Vault
from gofer.web.auth.principal import narrowed
from gofer.web.chat.posts import parse_post, take
from gofer.web.chat.rooms import Room
from gofer.web.chat.timeline import Reader
from gofer.web.protocols.session_messages import (
    MAX_LISTED,
    ClientMessage,
    Frame,
    Handler,
    Unanswerable,
    need,
    progress,
    say,
)
from gofer.web.queries.agents import clear_worker_load, worker_load
from gofer.web.queries.goals import list_goals, show_goal, steer_goal
from gofer.web.queries.jobs import events_of, steer_job, steer_jobs

if TYPE_CHECKING:
    from gofer.web.protocols.session import ClientSession

RUN_STATES = {
    JobState.RUNNING: "running",
    JobState.WAITING: "blocked",
    JobState.DONE: "completed",
    JobState.DEAD: "failed",
    JobState.CANCELLED: "cancelled",
}
"""Of a run; every other state is `queued`."""
TOLD = ("goal.planned", "goal.changed", "goal.blocked", "task.changed", "memory.event")
"""The kinds of events that every client is told of."""
FIGURES = ("accepted", "total", "dropped", "queued", "active")


async def _status(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    return [await _state_frame(session)]


async def _state_frame(session: ClientSession) -> Frame:
    states: list[Any] = []
    goal: Frame = {}
    if session.room is not None:
        read = partial(_at_work, vault=session.platform.vault, conversation_id=session.room.id)
        states, goal = await session.platform.database.read(read)
    active = sum(state == JobState.RUNNING for state, _ in states)
    queued = len(states) - active
    paused = any(is_paused(job) for job in states)
    phase = "paused" if paused else goal["state"] if goal.get("state") in ("blocked", "paused") else ""
    phase = phase or ("working" if active else "queued" if queued else "idle")
    return {
        "type": "agent.state",
        "phase": phase,
        "queuedTasks": queued,
        "activeTasks": active,
        "lastGoal": goal.get("text", ""),
    }


def _at_work(connection: Connection, vault: Vault, conversation_id: str) -> tuple[list[Any], Frame]:
    """The states and reasons of the runs and tasks that are not over, and the last goal."""
    query = select(jobs.c.state, jobs.c.reason).where(
        jobs.c.conversation_id == conversation_id,
        jobs.c.kind.in_((ANSWER, TASK)),
        in_state(*LIVE, JobState.BLOCKED),
    )
    goals = list_goals(connection, vault, conversation_id=conversation_id, limit=1)
    return list(connection.execute(query).all()), goals[0] if goals else {}


async def _heartbeat(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    return [progress("heartbeat", "ok", "The connection is alive.")]


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
    return [progress("control", "cancelled", "Everything that was under way is being stopped.")]


async def _debug(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    session.debug = True
    return [progress("control", "subscribed", "Every step is told as debug.event.")]


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
    frames += [frame for row in told for frame in _event_frames(row)]
    return place, frames


def _step(row: Any) -> Frame:
    """A step without words."""
    run_id = str(row.job_id or "")
    return {"type": "debug.event", "event_type": row.kind, "run_id": run_id, "payload": {"number": row.id}}


def _event_frames(row: Any) -> list[Frame]:
    data = row.data
    if row.kind == "task.changed":
        task, worker = str(data.get("task", "")), str(data.get("kind", ""))
        state = str(data.get("state", ""))
        return [{"type": "agent.status", "taskId": task, "worker": worker, "status": state, "message": ""}]
    if row.kind == "goal.blocked":
        why = str(data.get("reason") or "question")
        words = "Answer the question with chat.send."
        return [{"type": "agent.blocked", "taskId": str(data["goal"]), "reason": why, "suggestion": words}]
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


def load_frame(load: Mapping[str, Any]) -> Frame:
    """What an agent's workers have to do, as it is told when it changes."""
    prolonged, saturated = load["prolonged_saturation"], load["saturated"]
    status = "prolonged_saturation" if prolonged else "saturated" if saturated else "clear"
    words = "Tasks wait for a worker." if saturated else "No more tasks wait than can be worked on."
    return progress("backpressure", status, words, **_figures(load))


async def reconnect_frame(session: ClientSession) -> Frame:
    """The frame for a client that reconnects."""
    load = await worker_load(session.platform, session.agent)
    if load["saturated"]:
        return progress("reconnect", "backpressure_resumed", "Tasks wait for a worker.", **_figures(load))
    return progress("reconnect", "state_restored", "The session goes on where it was.")


def _figures(load: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(load[name]) for name in FIGURES}


async def _clear_saturation(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    """Drop the agent's tasks that no worker has begun. Whoever wanted them is told."""
    need(session, "workers_v1")
    visitor = session.visitor
    if not narrowed(visitor, "agents").may("operator"):
        raise Forbidden("This needs, of a token, the scope agents:write.")
    load = await clear_worker_load(session.platform, session.agent, by=visitor.name, fresh=False)
    return [progress("control", "saturation_cleared", "What waited was dropped.", **_figures(load))]


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
    await say(session, asked, f"/goal {text}")
    return [progress("goal", "accepted", "It is kept, and a plan follows.")]


async def _plan(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    goals = await _goals(session, live=False)
    if not goals:
        return [progress("plan", "empty", "There is no goal in this session.")]
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
        goals, runs = await _goals(session, live=True), await _live_runs(session)
        done, refused = await steer_jobs(session.platform, verb, runs, by=session.visitor.name)
        for goal_id in goals:
            await steer_goal(session.platform, verb, goal_id, by=session.visitor.name)
        if not goals and not done:
            why = next(iter(refused.values()), "Nothing is under way in this session.")
            raise Unanswerable("execution_failed", why)
        return [progress("control", status, f"{len(done)} runs and {len(goals)} goals.")]

    return steer


async def _live_runs(session: ClientSession) -> list[int]:
    if session.room is None:
        return []
    found = await session.platform.database.read(partial(_runs, room=session.room, limit=MAX_LISTED))
    return [int(run["run_id"]) for run in found if run["state"] in ("queued", "running", "blocked", "paused")]


def _steer_run(verb: str) -> Handler:
    """Pause or resume one run."""

    async def steer(session: ClientSession, asked: ClientMessage) -> list[Frame]:
        run = await _run(session, asked)
        await steer_job(session.platform, verb, int(run["run_id"]), by=session.visitor.name)
        return [{"type": "agent.run.ack", **await _run(session, asked)}]

    return steer


async def _run_start(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    room = await say(session, asked, asked.text("content", "text", "goal"))
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
        progress("runs", "empty", "There is no run in this session.")
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
            jobs.c.reason,
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
            "state": "paused" if is_paused(row) else RUN_STATES.get(JobState(row.state), "queued"),
            "step_count": row.turns,
            "checkpoint_seq": row.event_seq,
            "timestamp": int((row.finished_at or row.created_at) * 1000),
        }
        for row in connection.execute(query)
    ]


ACTIONS: dict[str, Handler] = {
    "state": _status,
    "status": _status,
    "heartbeat": _heartbeat,
    "cancel": _cancel,
    "pause": _steer("pause", "paused"),
    "resume": _steer("resume", "resumed"),
    "clear_saturation": _clear_saturation,
    "goal": _goal,
    "plan": _plan,
    "debug.subscribe": _debug,
}

HANDLERS: dict[str, Handler] = {
    "agent.status": _status,
    "agent.heartbeat": _heartbeat,
    "agent.control": _control,
    "agent.run.start": _run_start,
    "agent.run.step": _run_start,
    "agent.run.status": _run_status,
    "agent.run.list": _run_list,
    "agent.run.pause": _steer_run("pause"),
    "agent.run.resume": _steer_run("resume"),
    "agent.run.cancel": _run_cancel,
    "agent.run.events": _run_events,
}
