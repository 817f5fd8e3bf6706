"""Talking over OpenClaw's gateway protocol: sending, waiting for answers, stopping, and reading what was said."""

from __future__ import annotations

import asyncio
import base64
import binascii
from functools import partial
from typing import Annotated, Literal

from pydantic import Field
from sqlalchemy import Connection, select

from gofer.app import Platform
from gofer.errors import Conflict
from gofer.jobs.kinds import ANSWER
from gofer.store.ids import new_id
from gofer.store.tables import ASIDE, LIVE, JobState, in_state, jobs
from gofer.web.chat.endpoints import keep_content
from gofer.web.chat.posts import MAX_FILES, MAX_TEXT, ChatPost, check_post, take
from gofer.web.chat.rooms import Room
from gofer.web.protocols.gateway_client import GatewayCall, GatewayClient, Method
from gofer.web.protocols.gateway_follow import message_of, now_ms
from gofer.web.protocols.gateway_frames import READ, WRITE, Frame, Params, Text, invalid, response
from gofer.web.protocols.gateway_runs import (
    ABORTED,
    ERROR,
    IN_FLIGHT,
    OK,
    Run,
    RunState,
    answer_text,
    find_run,
    run_state,
    runs_of,
)
from gofer.web.queries import conversations as conversation_queries
from gofer.web.queries.jobs import steer_job

RUN_ID = r"^[^\x00-\x1f\x7f]{1,128}$"
MAX_HISTORY = 1000
WAIT_DEFAULT, MAX_WAIT = 30_000, 3_600_000
"""Milliseconds that `agent.wait` waits."""
LOOK_ANYWAY = 15.0
"""Seconds after which a run is looked at although nothing woke whoever waits for it."""
SHOWN_ASIDE = frozenset(ASIDE) - {"command"}
"""Events of messages that are not shown: what the platform noted for itself."""

RunId = Annotated[str, Field(pattern=RUN_ID)]
Key = Annotated[str, Field(min_length=1, max_length=512)]


class GatewayPost(ChatPost):
    """What a client says. Its id is the client's own key, of any form."""

    id: RunId


class SentFile(Params):
    """A file that comes with a message."""

    fileName: Annotated[str, Field(max_length=500)] | None = None
    mimeType: Annotated[str, Field(max_length=200)] | None = None
    content: str


class SendParams(Params):
    """`chat.send`"""

    sessionKey: Key
    message: str
    idempotencyKey: RunId
    agentId: Text | None = None
    attachments: list[SentFile] = Field(default_factory=list, max_length=MAX_FILES)
    queueMode: Literal["steer", "followup", "collect", "interrupt"] = "steer"


class SessionSendParams(Params):
    """`sessions.send` and `sessions.steer`"""

    key: Key
    message: str
    idempotencyKey: RunId | None = None
    agentId: Text | None = None
    attachments: list[SentFile] = Field(default_factory=list, max_length=MAX_FILES)


class AgentParams(Params):
    """`agent`"""

    message: Annotated[str, Field(min_length=1)]
    idempotencyKey: RunId
    agentId: Text | None = None
    sessionKey: Annotated[str, Field(max_length=512)] | None = None
    attachments: list[SentFile] = Field(default_factory=list, max_length=MAX_FILES)


class WaitParams(Params):
    """`agent.wait`"""

    runId: RunId
    timeoutMs: Annotated[int, Field(ge=0)] = WAIT_DEFAULT


class AbortParams(Params):
    """`chat.abort`"""

    sessionKey: Key
    agentId: Text | None = None
    runId: RunId | None = None


class SessionAbortParams(Params):
    """`sessions.abort`"""

    key: Key
    agentId: Text | None = None
    runId: RunId | None = None


class HistoryParams(Params):
    """`chat.history`"""

    sessionKey: Key
    agentId: Text | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_HISTORY)] = 200
    offset: Annotated[int, Field(ge=0, lt=2**31)] = 0
    maxChars: Annotated[int, Field(ge=1, le=500_000)] | None = None


# Sending.


async def chat_send(call: GatewayCall) -> Frame:
    """Take in what is said. Durable when this returns; said again under the same key, it is the same."""
    params: SendParams = call.params
    return await say(
        call.client,
        params.sessionKey,
        params.message,
        params.idempotencyKey,
        agent=params.agentId,
        files=params.attachments,
        interrupt=params.queueMode == "interrupt",
    )


async def session_send(call: GatewayCall) -> Frame:
    """`chat.send` under the names of the newer methods. What is said while a run goes on reaches that run."""
    params: SessionSendParams = call.params
    run_id = params.idempotencyKey or new_id("run")
    files = params.attachments
    return await say(call.client, params.key, params.message, run_id, agent=params.agentId, files=files)


async def agent_run(call: GatewayCall) -> Frame:
    """Have an agent answer: at once that it was taken in, and, under the same id, the answer when it is there."""
    params: AgentParams = call.params
    key = params.sessionKey or "main"
    run_id, agent, files = params.idempotencyKey, params.agentId, params.attachments
    await say(call.client, key, params.message, run_id, agent=agent, files=files)
    call.client.later(_answer_later(call, run_id))
    return {"runId": run_id, "status": "accepted", "acceptedAt": now_ms()}


async def _answer_later(call: GatewayCall, run_id: str) -> None:
    state, run = await _ended(call.client, run_id, MAX_WAIT / 1000)
    text = ""
    if run is not None and state.job_id is not None:
        text = await _text_of(call.client.platform, run, state.job_id)
    done = _waited(run_id, state)
    summary = "completed" if state.status == OK else text or state.status
    result = {"result": {"payloads": [{"text": text}]}} if state.status == OK else {}
    await call.client.socket.send_json(response(call.id, {**done, "summary": summary, **result}))


async def say(
    client: GatewayClient,
    key: str,
    text: str,
    run_id: str,
    *,
    agent: str | None = None,
    files: list[SentFile] | None = None,
    interrupt: bool = False,
) -> Frame:
    """Say something in a session, once."""
    if not text.strip() and not files:
        raise invalid("message or attachment required")
    if len(text) > MAX_TEXT:
        raise invalid(f"message: at most {MAX_TEXT} characters")
    session = await client.find_session(key, agent, run_id)
    room = await client.open_room(session)
    if session.earlier is not None and session.state is not None:
        _check_same(session.earlier, room)
        await client.follow(room, key)
        return _outcome(run_id, session.state)
    if interrupt:
        await stop_runs(client, room, None)
    kept = [await _keep(client.platform, room, file) for file in files or ()]
    await client.follow(room, key)
    given = check_post(GatewayPost, {"id": run_id, "text": text, "agent": session.agent, "files": kept})
    taken = await take(client.platform, client.visitor, room, given)
    return {"runId": run_id, "status": "started" if taken.result == "accepted" else IN_FLIGHT}


def _check_same(run: Run, room: Room) -> None:
    if run.conversation_id != room.id:
        raise invalid("idempotencyKey: it was used in another session")


async def _keep(platform: Platform, room: Room, file: SentFile) -> Frame:
    """Put a file into the room; raises GatewayError."""
    data = file.content.partition(";base64,")[2] if file.content.startswith("data:") else file.content
    try:
        content = await asyncio.to_thread(base64.b64decode, data, validate=True)
    except (binascii.Error, ValueError):
        raise invalid("attachments: content must be base64") from None
    kept = await keep_content(platform, room, file.fileName or "file", content, file.mimeType or "")
    return {"hash": kept["hash"], "name": kept["name"]}


async def _look(client: GatewayClient, run_id: str) -> tuple[Run | None, RunState]:
    """What was said under a key, and how it stands."""
    connection_id = await client.web_connection()
    if connection_id is None:
        return None, RunState(IN_FLIGHT)
    return await client.platform.database.read(
        partial(
            _run_now,
            connection_id=connection_id,
            member_id=client.visitor.member_id,
            run_id=run_id,
        )
    )


def _run_now(
    connection: Connection, connection_id: str, member_id: str, run_id: str
) -> tuple[Run | None, RunState]:
    run = find_run(connection, connection_id, member_id, run_id)
    return run, RunState(IN_FLIGHT) if run is None else run_state(connection, run)


def _outcome(run_id: str, state: RunState) -> Frame:
    """What to answer to something that was said before."""
    more = {"summary": state.reason or "failed"} if state.status == ERROR else {}
    return {"runId": run_id, "status": state.status, **more}


# Waiting.


async def agent_wait(call: GatewayCall) -> Frame:
    """Wait until a run is over."""
    params: WaitParams = call.params
    state, _ = await _ended(call.client, params.runId, min(params.timeoutMs, MAX_WAIT) / 1000)
    return _waited(params.runId, state)


def _waited(run_id: str, state: RunState) -> Frame:
    told: Frame = {"runId": run_id, "status": ERROR if state.status == ABORTED else state.status}
    if not state.over:
        return {"runId": run_id, "status": "timeout"}
    if state.started_at:
        told["startedAt"] = int(state.started_at * 1000)
    if state.ended_at is not None:
        told["endedAt"] = int(state.ended_at * 1000)
    if state.status == ABORTED:
        told |= {"stopReason": "aborted", "error": "It was stopped."}
    elif state.status == ERROR:
        told["error"] = state.reason or "It failed."
    return told


async def _ended(client: GatewayClient, run_id: str, timeout: float) -> tuple[RunState, Run | None]:
    """A run once it is over, or as it is after some time; raises GatewayError when there is none."""
    run, state = await _look(client, run_id)
    if run is None:
        raise invalid(f"unknown run: {run_id[:60]}")
    platform, deadline = client.platform, asyncio.get_running_loop().time() + timeout
    with platform.live.watching(run.conversation_id) as watcher:
        async with platform.follower.waking(run.conversation_id, watcher.wake):
            while not state.over:
                run, state = await _look(client, run_id)
                left = deadline - asyncio.get_running_loop().time()
                if state.over or left <= 0:
                    break
                await watcher.wait(min(left, LOOK_ANYWAY))
    return state, run


async def _text_of(platform: Platform, run: Run, job_id: int) -> str:
    return await platform.database.read(
        partial(
            answer_text,
            vault=platform.vault,
            redactor=platform.redactor,
            conversation_id=run.conversation_id,
            job_id=job_id,
        )
    )


# Stopping.


async def chat_abort(call: GatewayCall) -> Frame:
    """Stop a run, or everything that is under way in a session."""
    params: AbortParams = call.params
    stopped = await _abort(call.client, params.sessionKey, params.agentId, params.runId)
    return {"ok": True, "aborted": bool(stopped), "runIds": stopped}


async def session_abort(call: GatewayCall) -> Frame:
    """`chat.abort` under the name of the newer method."""
    params: SessionAbortParams = call.params
    stopped = await _abort(call.client, params.key, params.agentId, params.runId)
    first = stopped[0] if stopped else None
    return {"ok": True, "abortedRunId": first, "status": "aborted" if stopped else "no-active-run"}


async def _abort(client: GatewayClient, key: str, agent: str | None, run_id: str | None) -> list[str]:
    session = await client.find_session(key, agent)
    return [] if session.room is None else await stop_runs(client, session.room, run_id)


async def stop_runs(client: GatewayClient, room: Room, run_id: str | None) -> list[str]:
    """Stop the jobs at work in a room, or the one of a run; returns the runs that they answer."""
    found = await client.platform.database.read(partial(_live_runs, room=room))
    stopped: list[str] = []
    for job_id, runs in found.items():
        if run_id is not None and run_id not in runs:
            continue
        try:
            await steer_job(client.platform, "cancel", job_id, by=client.visitor.name)
        except Conflict:
            continue  # it is over already
        stopped += runs
    return stopped


def _live_runs(connection: Connection, room: Room) -> dict[int, list[str]]:
    query = select(jobs.c.id).where(
        jobs.c.conversation_id == room.id, jobs.c.kind == ANSWER, in_state(*LIVE, JobState.BLOCKED)
    )
    return runs_of(connection, room, connection.execute(query).scalars())


# Reading.


async def chat_history(call: GatewayCall) -> Frame:
    """What was said in a session, in order. The client is told of the session from here on."""
    params: HistoryParams = call.params
    session = await call.client.find_session(params.sessionKey, params.agentId)
    empty: Frame = {"sessionKey": params.sessionKey, "sessionId": "", "messages": []}
    if session.room is None:
        return empty
    await call.client.follow(session.room, params.sessionKey)
    return {**empty, **await call.client.platform.database.read(
        partial(history, platform=call.client.platform, room=session.room, params=params)
    )}  # fmt: skip


def history(connection: Connection, platform: Platform, room: Room, params: HistoryParams) -> Frame:
    """The last messages of a room, and the run that is under way."""
    conversation = conversation_queries.find_conversation(connection, room.id)
    found = conversation_queries.read_messages(
        connection, platform.vault, conversation, before=None, limit=params.limit + params.offset
    )
    prefix = f"{room.ref.partition(':')[0]}:"
    told = []
    for row, message in reversed(found[params.offset :]):
        if message is None or row.event in SHOWN_ASIDE:
            continue
        text = platform.redactor.redact(message.text)[: params.maxChars]
        role, more = "assistant", {}
        if row.connection_id is not None:
            role = "user"
            more = {"idempotencyKey": row.external_id.removeprefix(prefix)} if row.external_id else {}
        meta = {"id": f"{room.id}-{row.seq}", "seq": row.seq}
        told.append(message_of(text, role, row.created_at, __openclaw=meta, **more))
    under_way = [run for runs in _live_runs(connection, room).values() for run in runs]
    more = {"inFlightRun": {"runId": under_way[-1]}} if under_way else {}
    return {"sessionId": room.id, "messages": told, **more}


METHODS: dict[str, Method] = {
    "chat.send": Method(chat_send, SendParams, WRITE),
    "chat.abort": Method(chat_abort, AbortParams, WRITE),
    "chat.history": Method(chat_history, HistoryParams, READ),
    "sessions.send": Method(session_send, SessionSendParams, WRITE),
    "sessions.steer": Method(session_send, SessionSendParams, WRITE),
    "sessions.abort": Method(session_abort, SessionAbortParams, WRITE),
    "agent": Method(agent_run, AgentParams, WRITE),
    "agent.wait": Method(agent_wait, WaitParams, WRITE, waits=True),
}
