"""Messages of the session protocol, and what those about talking, agents and memory are answered.

Each kind of message has a function; `HANDLERS` is the list. Those about runs and goals are in `session_runs.py`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, select

from gofer.app import Platform
from gofer.errors import GoferError, Malformed, NotFound, StoreError, TooBusy, TooOften
from gofer.memory import records
from gofer.memory.audience import audience
from gofer.memory.recall import Results
from gofer.memory.scopes import conversation_scope
from gofer.runs.agent_files import AgentSpec
from gofer.settings import Settings
from gofer.store.ids import new_id
from gofer.store.tables import (
    conversations,
    participants,
)
from gofer.web.chat import rooms
from gofer.web.chat.posts import MAX_TEXT, parse_post, take
from gofer.web.chat.rooms import Room
from gofer.web.queries import conversations as conversation_queries
from gofer.web.queries.agents import list_agents
from gofer.web.queries.memories import list_memories

if TYPE_CHECKING:
    from gofer.web.protocols.session import ClientSession

Frame = dict[str, Any]
Handler = Callable[["ClientSession", "ClientMessage"], Awaitable[list[Frame]]]
MAX_LISTED = 100
UNIQUE_ID = re.compile(r"[A-Za-z0-9_-]{16,64}")
"""An id of this form is of one message only, so that sending it again does nothing. A shorter one may be a counter that
begins anew with each connection; it only names the answer."""


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


def capabilities(settings: Settings, agent: AgentSpec) -> tuple[str, ...]:
    """The parts of the instance that are switched on, and whether the agent has a heartbeat."""
    flags = {
        "agent_runtime_v1": settings.agent_runtime_v1,
        "memory_v1": settings.memory_v1,
        "workers_v1": settings.workers_v1,
        "heartbeat": agent.heartbeat.enabled,
    }
    return tuple(name for name, on in flags.items() if on)


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


async def _connect(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    hello = {"sessionKey": session.key, "agentId": session.agent}
    return [{"type": "connect.ack", **hello, "capabilities": list(session.capabilities)}]


async def _ping(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    return [{"type": "pong", "timestamp": int(time.time() * 1000)}]


# Talking.


async def _send(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    await say(session, asked, asked.text("content", "text", "goal"))
    return [progress("queue", "accepted", "It is kept, and will be answered.")]


async def say(session: ClientSession, asked: ClientMessage, text: str) -> Room:
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


def progress(phase: str, status: str, message: str, **more: Any) -> Frame:
    """How something goes."""
    return {"type": "agent.progress", "phase": phase, "status": status, "message": message, **more}


async def _new(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    session.begin_anew()
    return [{"type": "session.new", "sessionKey": session.key, "archived": True}]


async def _reset(session: ClientSession, asked: ClientMessage) -> list[Frame]:
    if session.room is not None:
        await say(session, asked, "/new")
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
    limit, full = asked.number("limit", 25), asked.flag("include_full", False)
    archived = asked.flag("include_archived", True)
    items: list[Frame] = []
    if session.room is not None:
        read = partial(_turns, session=session, room=session.room, limit=limit, archived=archived, full=full)
        items = await session.platform.database.read(read)
    return [{"type": "memory.recall", "items": items}]


async def _query(session: ClientSession, asked: ClientMessage) -> list[Frame]:
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
    chosen = select(conversations.c.agent_id).where(conversations.c.id == room.id)
    listening = select(participants.c.agent_id).where(participants.c.conversation_id == room.id)
    agents = [*connection.execute(chosen).scalars(), *connection.execute(listening).scalars()]
    return audience(connection, room.id, dict.fromkeys(filter(None, agents)))


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


def need(session: ClientSession, flag: str) -> None:
    """Raises Unanswerable when a part of the instance is switched off."""
    if flag not in session.capabilities:
        raise Unanswerable("unsupported_message_type", f"{flag} is switched off on this instance.")


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
    "memory.recall": _recall,
    "memory.query": _query,
}
