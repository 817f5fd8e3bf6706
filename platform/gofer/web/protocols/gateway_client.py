"""One client of OpenClaw's gateway protocol: who it is, what it may ask for, and the sessions it is told of."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import Connection

from gofer.app import Platform
from gofer.errors import TooBusy
from gofer.store.ids import new_id
from gofer.web.auth import Visitor
from gofer.web.chat import rooms
from gofer.web.chat.rooms import Room
from gofer.web.client_socket import ClientSocket
from gofer.web.protocols.gateway_follow import SessionFollower, now_ms
from gofer.web.protocols.gateway_frames import ADMIN, ClientInfo, Frame, Params, granted_scopes, invalid
from gofer.web.protocols.gateway_runs import Run, RunState, find_run, run_state
from gofer.web.protocols.session import KEY

if TYPE_CHECKING:
    from gofer.web.protocols.gateway_events import GatewayAnnouncer

MAX_FOLLOWED = 32
"""Sessions that one client gets events of; a new one replaces the least recently used."""
MAX_WAITING = 64
"""Requests of one client that wait for something."""
_WITH_AGENT = re.compile(r"agent:([^:]{1,100}):(.+)")
_OF_PAGE = re.compile(r"room_[a-z0-9]{16}")
"""A conversation that was begun on the page /chat."""


@dataclass(frozen=True, slots=True)
class GatewayCredential:
    """What a client came with."""

    kind: Literal["token", "session", "device"]
    value: str = field(repr=False)
    device: str = ""
    """The id of the paired device that it came with: it counts no longer than that is paired."""


@dataclass(frozen=True, slots=True)
class GatewaySession:
    """A session that a client names: a room of its member."""

    key: str
    """As the client wrote it."""
    agent: str
    page: str
    """What the web chat calls the room, after the member's id."""
    room: Room | None
    """None until something was said in it."""
    earlier: Run | None = None
    """What was said under the key that was asked about, …"""
    state: RunState | None = None
    """… and how it stands."""


@dataclass(eq=False)
class GatewayClient:
    """One connection of a client."""

    platform: Platform
    socket: ClientSocket
    visitor: Visitor
    credential: GatewayCredential
    version: int
    info: ClientInfo
    allowed: frozenset[str]
    """The scopes that its credential may have now."""
    scopes: tuple[str, ...]
    """Those of them that it was granted."""
    agent_names: Callable[[], Awaitable[list[str]]]
    """The agents there are, the default one first."""
    announcer: GatewayAnnouncer
    """Tells it what is of no session."""
    id: str = field(default_factory=lambda: new_id("conn"))
    greeted: bool = False
    """Whether it is connected. It gets no events before that."""
    ticked_at: float = field(default_factory=time.monotonic)
    _number: int = 0
    _followed: dict[str, tuple[SessionFollower, asyncio.Task[None]]] = field(default_factory=dict)
    """By conversation, the one used last at the end."""
    _waiting: set[asyncio.Task[None]] = field(default_factory=set)
    _connection_id: str | None = None

    async def send_event(self, event: str, payload: Frame, **more: Any) -> None:
        """Tell something. Events are numbered, so that a client sees whether one is missing."""
        await self.socket.send_json(self._event(event, payload, **more))

    def _event(self, event: str, payload: Frame, **more: Any) -> Frame:
        self._number += 1
        return {"type": "event", "event": event, "payload": payload, "seq": self._number, **more}

    async def tell(self, event: str, payload: Frame, **more: Any) -> None:
        """Tell something that others are told, too: whoever does not read it is cut off, and nobody waits for long."""
        try:
            await self.send_event(event, payload, **more)
        except Exception as error:  # noqa: BLE001 - it ends this connection, and no other
            self.socket.end(error)

    def tick(self) -> None:
        """Show that the line is alive; clients close one on which they hear nothing."""
        self.ticked_at = time.monotonic()
        self.socket.send_at_once(lambda: json.dumps(self._event("tick", {"ts": now_ms()})))

    def last_words(self) -> str:
        """What the client hears when the server stops."""
        return json.dumps(
            self._event("shutdown", {"reason": "The server is stopping. Connect again in a moment."})
        )

    @property
    def granted(self) -> tuple[str, ...]:
        """The scopes that it has now."""
        return granted_scopes(self.scopes, self.allowed)

    def reads(self, conversation_id: str | None) -> bool:
        """Whether it is told of a conversation: as an owner, or because it is in it."""
        return ADMIN in self.granted or conversation_id in self._followed

    def presence(self) -> Frame:
        """This client, as others may see it."""
        told = {"host": self.info.displayName or self.info.id, "mode": self.info.mode}
        return {**told, "version": self.info.version, "platform": self.info.platform, "ts": now_ms()}

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside the requests that follow; raises TooBusy when there is too much of it."""
        if len(self._waiting) >= MAX_WAITING:
            work.close()
            raise TooBusy("Too many of your requests wait. Let some of them end.", retry_after=1)
        task = asyncio.create_task(work)
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        task.add_done_callback(self._failed)

    def _failed(self, task: asyncio.Task[None]) -> None:
        """End the connection with what ended a part of it."""
        if not task.cancelled() and (error := task.exception()):
            self.socket.end(error)

    async def leave(self) -> None:
        """Stop everything that is done for this client."""
        tasks = [*self._waiting, *(task for _, task in self._followed.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Sessions.

    async def agents(self) -> list[str]:
        """The agents that this client may talk to, the default one first."""
        bound = self.visitor.agent
        return [name for name in await self.agent_names() if not bound or name == bound]

    async def find_session(self, key: str, agent: str | None = None, run_id: str = "") -> GatewaySession:
        """The session that a key names, and what was said under a run's id; raises GatewayError for a key or an agent
        that cannot be."""
        named, page = await self._place_of(key, agent)
        connection_id = await self.web_connection()
        if connection_id is None:
            return GatewaySession(key, named, page, None)
        room, run, state = await self.platform.database.read(
            partial(
                _room_and_run,
                connection_id=connection_id,
                member_id=self.visitor.member_id,
                page=page,
                run_id=run_id,
            )
        )
        bound = self.visitor.agent
        hidden = room is not None and bound and room.agent != bound
        return GatewaySession(key, named, page, None if hidden else room, run, state)

    async def _place_of(self, key: str, agent: str | None) -> tuple[str, str]:
        """The agent of a session, and what the web chat calls it after the member's id."""
        if _OF_PAGE.fullmatch(key):
            return "", key
        matched = _WITH_AGENT.fullmatch(key)
        named, rest = (matched[1], matched[2]) if matched else (agent or "main", key)
        if not KEY.fullmatch(rest):
            raise invalid(
                "sessionKey: at most 100 letters, digits and . _ : @ / + = -, beginning with a letter or digit"
            )
        there = await self.agents()
        if named not in there:
            # Clients call the agent main where they were told no other name.
            if named != "main" or not there:
                raise invalid(f"unknown agent id: {named[:40]}. agents.list shows those there are")
            named = there[0]
        return named, f"{named}:{rest}"

    async def web_connection(self) -> str | None:
        """The id of the web chat's connection, if there is one yet. It stays the same once it is there."""
        if self._connection_id is None:
            found = await rooms.find_web_connection(self.platform)
            self._connection_id = found.account.id if found is not None else None
        return self._connection_id

    async def open_room(self, session: GatewaySession) -> Room:
        """The session's room, made if need be."""
        if session.room is not None:
            return session.room
        if not session.agent:
            raise invalid("There is no such session. It may have been purged.")
        await rooms.make_room(self.platform, self.visitor.member_id, session.page, session.agent)
        self._connection_id = None  # an owner may have removed it, and there is another one now
        found = await self.find_session(session.key, session.agent)
        assert found.room is not None
        return found.room

    async def follow(self, room: Room, key: str) -> SessionFollower:
        """Tell the client of a session from now on."""
        if room.id in self._followed:
            self._followed[room.id] = self._followed.pop(room.id)
            follower = self._followed[room.id][0]
            follower.key = key
            return follower
        if len(self._followed) >= MAX_FOLLOWED:
            self._unfollow(next(iter(self._followed)))
        follower = SessionFollower(self.platform, room, key, self.version, self.send_event)
        await follower.begin()
        task = asyncio.create_task(follower.tell())
        task.add_done_callback(self._failed)
        self._followed[room.id] = follower, task
        return follower

    def _unfollow(self, conversation_id: str) -> None:
        _, task = self._followed.pop(conversation_id)
        task.cancel()

    def forget(self, conversation_id: str) -> None:
        """Tell the client no more of a session."""
        if conversation_id in self._followed:
            self._unfollow(conversation_id)


def _room_and_run(
    connection: Connection, connection_id: str, member_id: str, page: str, run_id: str
) -> tuple[Room | None, Run | None, RunState | None]:
    room = rooms.room_at(connection, connection_id, f"{member_id}:{page}")
    run = find_run(connection, connection_id, member_id, run_id) if run_id else None
    return room, run, None if run is None else run_state(connection, run)


@dataclass(frozen=True, slots=True)
class GatewayCall:
    """One request of a client."""

    client: GatewayClient
    id: str
    method: str
    params: Any


@dataclass(frozen=True, slots=True)
class Method:
    """Something that a client may ask for."""

    handler: Callable[[GatewayCall], Awaitable[Any]]
    params: type[Params]
    scope: str
    waits: bool = False
    """Whether it may last, so that what is asked meanwhile is answered."""
    audited: bool = False
    """Whether it is put on record who asked for it."""


class NoParams(Params):
    """Nothing."""
