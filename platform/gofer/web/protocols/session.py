"""The session protocol: a WebSocket of JSON frames, on which a program talks to one agent in one session.

A session is a room of the web chat: what is sent is durable before it is acknowledged, and answers come from the
ledger, numbered, so that a client that comes back asks for what it missed. `docs/protocols/session.md` is the contract.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlalchemy import Connection
from starlette.websockets import WebSocket

from gofer.app import Platform
from gofer.errors import Forbidden, GoferError, Malformed, NotFound, StoreError, TooOften
from gofer.goals.load import reported_loads
from gofer.jobs.notifications import EVENTS
from gofer.store.events import Cursor
from gofer.store.ids import new_id
from gofer.strict_json import load_json
from gofer.web.auth import NotSignedIn, Visitor, check_still, visitor_of
from gofer.web.auth.principal import narrowed
from gofer.web.chat import rooms
from gofer.web.chat.follow import follow, read_now
from gofer.web.chat.rooms import Room
from gofer.web.chat.timeline import Timeline
from gofer.web.client_socket import Allowances, ClientSocket, ClientSockets
from gofer.web.problems import error_response
from gofer.web.protocols import session_messages, session_runs
from gofer.web.protocols.reply_numbers import (
    NumberedReply,
    ReplyPlace,
    all_replies_after,
    last_place,
    place_of,
    replies_after,
)
from gofer.web.protocols.session_messages import (
    ClientMessage,
    Handler,
    Unanswerable,
    capabilities,
    error_frame,
    need,
    refusal,
)
from gofer.web.protocols.session_runs import load_frame, log_frames, reconnect_frame

MAX_FRAME = 64 * 1024
"""Bytes of one frame from a client."""
MAX_CONNECTIONS = 2000
"""Of one member, on this process."""
WITHOUT_NEWS = 3600.0
"""Seconds after which a session is looked at although nothing woke it."""
BETWEEN_LOOKS = 1.0
"""Seconds at least between two looks at the load of agents."""
MAX_CALLS = 5000
"""Tool calls that a connection remembers having reported."""
KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+=-]{0,99}")
KEY_NAMES = ("session", "sessionId", "session_id", "sessionKey", "session-key")
HANDLERS: dict[str, Handler] = {**session_messages.HANDLERS, **session_runs.HANDLERS}
"""By the type of a message."""
NEEDED = (("agent.run.", "agent_runtime_v1"), ("memory.", "memory_v1"))
"""The flags without which messages are refused, by how their types begin."""
FAILURES = {
    "model.auth": "provider_auth_failed",
    "model.unavailable": "provider_unavailable",
    "model.retryable": "provider_unavailable",
    "model.timeout": "provider_timeout",
    "model.invalid": "provider_request_invalid",
    "model.context": "provider_request_invalid",
    "store.unavailable": "storage_unavailable",
    "cancelled": "runtime_cancelled",
    "limit.time": "runtime_timeout",
}
"""The codes of errors for the reasons of jobs that failed; any other one is `execution_failed`."""


@dataclass(eq=False)
class ClientSession:
    """One connection of a client."""

    platform: Platform
    socket: ClientSocket
    visitor: Visitor
    agent: str
    key: str
    capabilities: tuple[str, ...]
    """The parts of the instance that are switched on."""
    room: Room | None = None
    """None until something was said in it."""
    place: ReplyPlace = field(default_factory=ReplyPlace)
    debug: bool = False
    """Whether the client wants to be told every step."""
    log_place: Cursor = field(default_factory=Cursor)
    """How far in the log the client was told."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is a room, and when it is another one."""

    @property
    def ref(self) -> str:
        """What the web chat calls the room. It begins with the member's id, so that nobody can name another's."""
        return f"{self.visitor.member_id}:{self.agent}:{self.key}"

    async def send(self, frame: dict[str, Any]) -> None:
        """Send a frame with the number of the last answer."""
        numbered = {**frame, "seq": frame.get("seq", self.place.number)}
        await self.socket.send(json.dumps(numbered, ensure_ascii=False))

    async def find_room(self) -> Room | None:
        """The session's room, if anything was said in it."""
        connection = await rooms.find_web_connection(self.platform)
        if connection is None:
            return None
        return await self.platform.database.read(
            partial(rooms.room_at, connection_id=connection.account.id, ref=self.ref)
        )

    async def open_room(self) -> Room:
        """The session's room, made if need be."""
        if self.room is None:
            await rooms.make_room(
                self.platform, self.visitor.member_id, f"{self.agent}:{self.key}", self.agent
            )
            self.room = await self.find_room()
            self.begun.set()
        assert self.room is not None
        return self.room

    def begin_anew(self) -> None:
        """Go on under another key; the room that was left stays as it is."""
        self.key, self.room, self.place = new_key(), None, ReplyPlace()
        self.begun.set()


def new_key() -> str:
    """A key for a new session."""
    return new_id("session").replace("_", "-")


class SessionDoor:
    """The sessions of this process."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._sockets = ClientSockets(partial(check_still, platform, role="operator"))
        self._by_token = Allowances()
        self._sessions: dict[str, set[ClientSession]] = {}
        """By what the web chat calls their room: several clients may be in one session."""
        self._watch: asyncio.Task[None] | None = None

    async def socket(self, websocket: WebSocket) -> None:
        """The endpoint."""
        try:
            session, resumed = await self._entered(websocket)
            after = _number(websocket.query_params.get("after"))
            with self._sockets.entered(session.socket, session.visitor.member_id, most=MAX_CONNECTIONS):
                await websocket.accept()
                await self._converse(session, resumed, after)
        except GoferError as error:
            await websocket.send_denial_response(error_response(error))

    async def _entered(self, websocket: WebSocket) -> tuple[ClientSession, bool]:
        visitor = narrowed(visitor_of(websocket), "messages")
        if not visitor.may("operator") or not visitor.member_id:
            raise Forbidden("This needs the role operator and, of a token, the scope messages:write.")
        agent = websocket.path_params["agent"]
        if visitor.agent and visitor.agent != agent:
            raise NotFound(f"There is no agent called {agent[:40]!r}.")
        spec = await rooms.find_agent(self._platform, agent)
        key = given_key(dict(websocket.query_params))
        socket, parts = ClientSocket(websocket), capabilities(self._platform.settings, spec)
        session = ClientSession(self._platform, socket, visitor, agent, key or new_key(), parts)
        session.room = await session.find_room() if key else None
        return session, session.room is not None

    async def _converse(self, session: ClientSession, resumed: bool, after: int | None) -> None:
        async with session.socket.closing("session.socket_failed"):
            with self._together(session):
                await self._greet(session, resumed, after)
                await session.socket.run(self._tell(session), self._hear(session))

    @contextlib.contextmanager
    def _together(self, session: ClientSession) -> Iterator[None]:
        """Let the clients of one session know of each other."""
        ref = session.ref
        self._sessions.setdefault(ref, set()).add(session)
        if self._watch is None:
            self._watch = asyncio.create_task(self._watch_loads(), name="session-loads")
        try:
            yield
        finally:
            self._sessions[ref].discard(session)
            if not self._sessions[ref]:
                del self._sessions[ref]
            if not self._sessions:
                self._watch.cancel()
                self._watch = None

    async def _watch_loads(self) -> None:
        """Tell clients when the workers of their agent have too much to do, and when no longer."""
        told: dict[str, dict[str, Any]] = {}
        woken = self._platform.signals.subscribe(EVENTS)
        try:
            while True:
                with contextlib.suppress(StoreError):
                    await self._tell_loads(told)
                await asyncio.sleep(BETWEEN_LOOKS)
                await woken.wait(WITHOUT_NEWS)
        finally:
            self._platform.signals.unsubscribe(EVENTS, woken)

    async def _tell_loads(self, told: dict[str, dict[str, Any]]) -> None:
        open_ones = [each for group in self._sessions.values() for each in group]
        loads = await self._platform.database.read(
            partial(reported_loads, names={each.agent for each in open_ones})
        )
        changed = {name for name, load in loads.items() if load != told.get(name)}
        # While nothing is too much, how much there is is nobody's business.
        news = {name for name in changed if loads[name]["saturated"] or told.get(name, {}).get("saturated")}
        told.update(loads)
        frames = [each.send(load_frame(loads[each.agent])) for each in open_ones if each.agent in news]
        # One that does not read is closed, and nobody waits for it again.
        await asyncio.gather(*frames, return_exceptions=True)

    async def _greet(self, session: ClientSession, resumed: bool, after: int | None) -> None:
        if session.room is not None:
            where = partial(_start, conversation_id=session.room.id, after=after)
            session.place = await self._platform.database.read(where)
        hello = {"sessionKey": session.key, "agentId": session.agent}
        await session.send({"type": "session.ack", **hello, "capabilities": list(session.capabilities)})
        if resumed:
            await session.send(await reconnect_frame(session))

    # What the client is told.

    async def _tell(self, session: ClientSession) -> None:
        while True:
            await self._await_room(session)
            session.begun.clear()
            room = session.room
            assert room is not None
            telling = asyncio.create_task(self._follow(session, room.id))
            left = asyncio.create_task(session.begun.wait())
            try:
                await asyncio.wait({telling, left}, return_when=asyncio.FIRST_COMPLETED)
                if telling.done():
                    telling.result()
            finally:
                for task in (telling, left):
                    task.cancel()
                await asyncio.gather(telling, left, return_exceptions=True)

    async def _await_room(self, session: ClientSession) -> None:
        while session.room is None:
            await session.begun.wait()
            session.begun.clear()

    async def _follow(self, session: ClientSession, conversation_id: str) -> None:
        now: Timeline = await self._platform.database.read(
            partial(read_now, platform=self._platform, conversation_id=conversation_id)
        )
        session.log_place = now.cursor
        calls: dict[str, str] = {}
        while missed := await self._platform.database.read(partial(self._replies, session, conversation_id)):
            await self._send_replies(session, missed)
        async for news in follow(
            self._platform,
            conversation_id,
            now.cursor,
            look_anyway=WITHOUT_NEWS,
            more=partial(self._more, session, conversation_id),
        ):
            if not isinstance(news, Timeline):
                await session.send(_live_frame(news))
                continue
            # The timeline has all calls of a run again whenever one of them changes.
            for item in news.items:
                if item["kind"] == "step" and calls.get(item["id"]) != item["status"]:
                    calls[item["id"]] = item["status"]
                    await session.send(_tool_event(item))
            for oldest in list(calls)[:-MAX_CALLS]:
                del calls[oldest]
            replies, session.log_place, frames = news.more
            await self._send_replies(session, replies)
            for frame in frames:
                await session.send(frame)

    def _replies(
        self, session: ClientSession, conversation_id: str, connection: Connection
    ) -> list[NumberedReply]:
        """What was answered after the last number, or the first hundred of it."""
        platform = self._platform
        return replies_after(connection, platform.vault, platform.redactor, conversation_id, session.place)

    def _more(
        self, session: ClientSession, conversation_id: str, connection: Connection, news: Timeline
    ) -> tuple[list[NumberedReply], Cursor, list[dict[str, Any]]]:
        """Answers, and what the log has of plans, tasks and memory, and every step for a client that asked for it."""
        platform = self._platform
        replies = all_replies_after(
            connection, platform.vault, platform.redactor, conversation_id, session.place
        )
        return replies, *log_frames(connection, session, conversation_id)

    async def _send_replies(self, session: ClientSession, replies: list[NumberedReply]) -> None:
        """Send answers in order, each once."""
        for reply in replies:
            for frame in reply_frames(reply):
                await session.send(frame)
            session.place = reply.place

    # What the client says.

    async def _hear(self, session: ClientSession) -> None:
        while True:
            await self._answer(session, await session.socket.receive())

    async def _answer(self, session: ClientSession, message: Any) -> None:
        for frame in await self._answers(session, message):
            await session.send(frame)

    async def _answers(self, session: ClientSession, message: Any) -> list[dict[str, Any]]:
        try:
            asked = read_frame(message)
        except Malformed as error:
            return [error_frame("", "invalid_envelope", str(error))]
        try:
            if not self._by_token.spend(session.visitor.token_id or session.visitor.member_id):
                raise TooOften("Too many messages with this token.", retry_after=1)
            await check_still(self._platform, session.socket.websocket, "operator")
            frames = await answer(session, asked)
        except NotSignedIn:
            raise
        except GoferError as error:
            return [refusal(asked.id, error)]
        self._tell_others(session)
        return frames

    def _tell_others(self, session: ClientSession) -> None:
        """Let other clients in the session know that it has begun."""
        for other in self._sessions.get(session.ref, ()):
            if other.room is None and session.room is not None:
                other.room = session.room
                other.begun.set()


def given_key(query: dict[str, str]) -> str:
    """The session that a client names, by any of the names that are in use; raises Malformed."""
    key = next((query[name] for name in KEY_NAMES if query.get(name)), "")
    if key and not KEY.fullmatch(key):
        raise Malformed(
            "session: at most 100 letters, digits and . _ : @ / + = -, beginning with a letter or digit."
        )
    return key


def read_frame(message: Any) -> ClientMessage:
    """What a client sent; raises Malformed."""
    text = message.get("text")
    if text is None:
        raise Malformed("Send text frames: each is one JSON object.")
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) > MAX_FRAME:
        raise Malformed(f"A frame may have {MAX_FRAME} bytes at most.")
    value = load_json(raw)
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise Malformed("A frame is a JSON object with a type.")
    inside = value.get("payload")
    fields = {**inside, **value} if isinstance(inside, dict) else value
    given = next((fields[name] for name in ("id", "request_id") if fields.get(name) is not None), "")
    if not isinstance(given, str | int):
        raise Malformed("id: must be a text or a number.")
    return ClientMessage(value["type"], str(given)[:200], fields)


async def answer(session: ClientSession, asked: ClientMessage) -> list[dict[str, Any]]:
    """What to answer to one message; raises GoferError. An unknown kind never closes the connection."""
    handler = HANDLERS.get(asked.type)
    if handler is None:
        raise Unanswerable("unsupported_message_type", f"{asked.type[:60]!r} is not supported.")
    for prefix, flag in NEEDED:
        if asked.type.startswith(prefix):
            need(session, flag)
    return [{"request": asked.id, **frame} for frame in await handler(session, asked)]


def reply_frames(reply: NumberedReply) -> list[dict[str, Any]]:
    """An answer as a client gets it. What failed is said in words too: old clients know no other frame."""
    asked = {"question": reply.question, "choices": list(reply.choices)} if reply.question else {}
    said = {
        "type": "session.receive",
        "seq": reply.number,
        "content": reply.text,
        "memoryId": reply.memory_id,
        "role": "assistant",
        "timestamp": int(reply.at * 1000),
        **asked,
    }
    frames = [said]
    if reply.question:
        blocked = {"taskId": str(reply.job_id), "reason": "question", "suggestion": "Answer with chat.send."}
        frames.append({"type": "agent.blocked", "seq": reply.number, **blocked})
    if reply.kind == "error":
        code = FAILURES.get(reply.stopped_by or reply.reason, "execution_failed")
        frames.append({**error_frame("", code, reply.text), "seq": reply.number})
    return frames


def _tool_event(item: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "tool.event",
        "run_id": str(item["job"]),
        "callId": item["call"],
        "name": item["name"],
        "status": item["status"],
        "title": item["title"],
        "output": item["output"],
        "exitCode": item["exit_code"],
    }


def _live_frame(frame: dict[str, Any]) -> dict[str, Any]:
    """What is being said, as it is said."""
    if frame["type"] == "text":
        run, kind, more = frame["job"], "text.delta", {}
    else:
        _, run, call = frame["item"].split("-", 2)
        kind, more = "tool.delta", {"callId": call}
    payload = {"text": frame["text"], "whole": frame["whole"], **more}
    return {"type": "agent.run.event", "run_id": str(run), "event_type": kind, "payload": payload}


def _start(connection: Connection, conversation_id: str, after: int | None) -> ReplyPlace:
    if after is None:
        return last_place(connection, conversation_id)
    return place_of(connection, conversation_id, after)


def _number(given: str | None) -> int | None:
    if given is None:
        return None
    if not re.fullmatch("[0-9]{1,15}", given):
        raise Malformed("after: must be the seq of the last frame that was seen.")
    return int(given)
