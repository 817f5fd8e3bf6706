"""One client of OpenClaw's gateway protocol: who it is, what it may ask for, and the sessions it is told of."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from gofer.app import Platform
from gofer.errors import TooBusy
from gofer.store.ids import new_id
from gofer.web.auth import Visitor
from gofer.web.chat import rooms
from gofer.web.chat.rooms import Room
from gofer.web.client_socket import ClientSocket
from gofer.web.protocols.gateway_follow import SessionFollower, now_ms
from gofer.web.protocols.gateway_frames import ClientInfo, Frame, Params, invalid
from gofer.web.protocols.session import KEY

MAX_FOLLOWED = 32
"""Sessions that one client is told of; the one it used longest ago is left for a new one."""
MAX_WAITING = 64
"""Requests of one client that wait for something."""
AGENTS_FOR = 5.0
"""Seconds for which a client's list of agents is good."""
_WITH_AGENT = re.compile(r"agent:([^:]{1,100}):(.+)")
_OF_PAGE = re.compile(r"room_[a-z0-9]{16}")
"""A conversation that was begun on the page /chat."""


@dataclass(frozen=True, slots=True)
class GatewayCredential:
    """What a client came with."""

    kind: Literal["token", "session", "device"]
    value: str = field(repr=False)
    device: str = ""
    """The id of the device whose token it is."""


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
    id: str = field(default_factory=lambda: new_id("conn"))
    _number: int = 0
    _followed: dict[str, tuple[SessionFollower, asyncio.Task[None]]] = field(default_factory=dict)
    """By conversation, the one used last at the end."""
    _waiting: set[asyncio.Task[None]] = field(default_factory=set)
    _connection_id: str | None = None
    _agents: tuple[float, list[str]] = (-AGENTS_FOR, [])

    async def send_event(self, event: str, payload: Frame) -> None:
        """Tell something. Events are numbered, so that a client sees whether one is missing."""
        self._number += 1
        frame = {"type": "event", "event": event, "payload": payload, "seq": self._number}
        await self.socket.send_json(frame)

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
        if not task.cancelled() and (error := task.exception()) and not self.socket.ended.done():
            self.socket.ended.set_exception(error)

    async def leave(self) -> None:
        """Stop everything that is done for this client."""
        tasks = [*self._waiting, *(task for _, task in self._followed.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Sessions.

    async def agents(self) -> list[str]:
        """The agents that this client may talk to, the default one first."""
        read_at, found = self._agents
        if time.monotonic() - read_at > AGENTS_FOR:
            found = await rooms.choosable(self.platform)
            self._agents = time.monotonic(), found
        bound = self.visitor.agent
        return [name for name in found if not bound or name == bound]

    async def find_session(self, key: str, agent: str | None = None) -> GatewaySession:
        """The session that a key names; raises GatewayError for a key or an agent that cannot be."""
        if _OF_PAGE.fullmatch(key):
            return GatewaySession(key, "", key, await self._room(key))
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
        page = f"{named}:{rest}"
        return GatewaySession(key, named, page, await self._room(page))

    async def web_connection(self) -> str | None:
        """The id of the web chat's connection, if there is one yet. It stays the same once it is there."""
        if self._connection_id is None:
            found = await rooms.find_web_connection(self.platform)
            self._connection_id = found.account.id if found is not None else None
        return self._connection_id

    async def _room(self, page: str) -> Room | None:
        connection_id = await self.web_connection()
        if connection_id is None:
            return None
        ref = f"{self.visitor.member_id}:{page}"
        found = await self.platform.database.read(
            partial(rooms.room_at, connection_id=connection_id, ref=ref)
        )
        bound = self.visitor.agent
        return None if found is not None and bound and found.agent != bound else found

    async def open_room(self, session: GatewaySession) -> Room:
        """The session's room, made if need be."""
        if session.room is not None:
            return session.room
        if not session.agent:
            raise invalid("There is no such session. It may have been purged.")
        await rooms.make_room(self.platform, self.visitor.member_id, session.page, session.agent)
        self._connection_id = None  # an owner may have removed it, and there is another one now
        room = await self._room(session.page)
        assert room is not None
        return room

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
