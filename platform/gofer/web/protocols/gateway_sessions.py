"""Sessions over OpenClaw's gateway protocol: listing, beginning afresh, deleting, and being told of them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from pydantic import Field

from gofer.store.ids import new_id
from gofer.web.chat import rooms
from gofer.web.protocols.gateway_chat import HistoryParams, Key, history, say
from gofer.web.protocols.gateway_client import GatewayCall, GatewayClient, Method, NoParams
from gofer.web.protocols.gateway_follow import now_ms
from gofer.web.protocols.gateway_frames import ADMIN, READ, WRITE, Frame, Params, Text, invalid
from gofer.web.queries import conversations as conversation_queries

MAX_KEYS = 50
PREVIEWED, MAX_PREVIEWED = 12, 100
"""Messages in a preview."""


class ListParams(Params):
    """`sessions.list`"""

    limit: Annotated[int, Field(ge=1)] = rooms.MAX_ROOMS
    offset: Annotated[int, Field(ge=0, lt=2**31)] = 0
    agentId: Text | None = None
    search: Annotated[str, Field(max_length=500)] | None = None


class KeyParams(Params):
    """A session by its key."""

    key: Key
    agentId: Text | None = None


class PatchParams(KeyParams):
    """`sessions.patch`. Gofer keeps nothing else of what the protocol has here."""

    model: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    label: Any = None
    archived: Any = None
    pinned: Any = None
    thinkingLevel: Any = None


class PreviewParams(Params):
    """`sessions.preview`"""

    keys: Annotated[list[Key], Field(min_length=1, max_length=MAX_KEYS)]
    limit: Annotated[int, Field(ge=1)] = PREVIEWED
    maxChars: Annotated[int, Field(ge=20)] = 240


async def session_list(call: GatewayCall) -> Frame:
    """The member's sessions, the one used last first; those of the page /chat as well."""
    params: ListParams = call.params
    found = await _rows(call.client)
    if params.agentId:
        found = [row for row in found if row.get("agentId") == params.agentId]
    if params.search:
        wanted = params.search.lower()
        found = [row for row in found if wanted in f"{row['key']} {row['derivedTitle']}".lower()]
    shown = found[params.offset : params.offset + params.limit]
    return {"ts": now_ms(), "path": "", "count": len(shown), "defaults": {}, "sessions": shown}


async def _rows(client: GatewayClient) -> list[Frame]:
    connection = await rooms.find_web_connection(client.platform)
    if connection is None:
        return []
    platform, member_id = client.platform, client.visitor.member_id
    listed = await platform.database.read(
        partial(
            rooms.list_rooms,
            vault=platform.vault,
            redactor=platform.redactor,
            connection_id=connection.account.id,
            member_id=member_id,
        )
    )
    bound = client.visitor.agent
    rows = [_row(each) for each in listed]
    return [row for row in rows if not bound or row.get("agentId") == bound]


def _row(listed: rooms.Listed) -> Frame:
    page = listed.ref.partition(":")[2]
    agent, found, _ = page.partition(":")
    named = {"key": f"agent:{page}", "agentId": agent} if found else {"key": page}
    return {
        **named,
        "kind": "direct",
        "chatType": "direct",
        "sessionId": listed.id,
        "derivedTitle": listed.title,
        "updatedAt": int(listed.at * 1000),
    }


async def session_resolve(call: GatewayCall) -> Frame:
    """Whether there is such a session."""
    session = await call.client.find_session(call.params.key, call.params.agentId)
    if session.room is None:
        raise invalid(f"No session found: {call.params.key[:100]}")
    return {"ok": True, "key": call.params.key, "agentId": session.room.agent or session.agent or "main"}


async def session_preview(call: GatewayCall) -> Frame:
    """The last words of some sessions."""
    params: PreviewParams = call.params
    previews = []
    for key in params.keys:
        session = await call.client.find_session(key)
        items: list[Frame] = []
        if session.room is not None:
            limit = min(params.limit, MAX_PREVIEWED)
            wanted = HistoryParams(sessionKey=key, limit=limit, maxChars=min(params.maxChars, 10_000))
            read = partial(history, platform=call.client.platform, room=session.room, params=wanted)
            said = (await call.client.platform.database.read(read))["messages"]
            items = [{"role": each["role"], "text": each["content"][0]["text"]} for each in said]
        status = "missing" if session.room is None else "ok" if items else "empty"
        previews.append({"key": key, "status": status, "items": items})
    return {"ts": now_ms(), "previews": previews}


async def session_patch(call: GatewayCall) -> Frame:
    """Choose the model of a session, as an owner does with /model."""
    params: PatchParams = call.params
    if "model" not in params.model_fields_set:
        raise invalid("sessions.patch: Gofer changes the model of a session only")
    chosen = params.model or "default"
    await say(call.client, params.key, f"/model {chosen}", new_id("patch"), agent=params.agentId)
    return await _changed(call, "patch")


async def session_reset(call: GatewayCall) -> Frame:
    """Begin a session afresh. What was said stays recallable."""
    await say(call.client, call.params.key, "/new", new_id("reset"), agent=call.params.agentId)
    return await _changed(call, "reset")


async def _changed(call: GatewayCall, reason: str) -> Frame:
    session = await call.client.find_session(call.params.key, call.params.agentId)
    entry = {"sessionId": session.room.id if session.room else "", "updatedAt": now_ms()}
    told = {"sessionKey": call.params.key, "reason": reason, "ts": now_ms()}
    await call.client.send_event("sessions.changed", told)
    return {"ok": True, "key": call.params.key, "entry": entry}


async def session_delete(call: GatewayCall) -> Frame:
    """Destroy what was said in a session, everywhere."""
    session = await call.client.find_session(call.params.key, call.params.agentId)
    if session.room is not None:
        call.client.forget(session.room.id)
        await conversation_queries.purge(call.client.platform, session.room.id, by=call.client.visitor.name)
        await _changed(call, "delete")
    return {"ok": True, "key": call.params.key, "deleted": session.room is not None, "archived": []}


async def messages_subscribe(call: GatewayCall) -> Frame:
    """Have every message and tool of a session told, beside the runs."""
    session = await call.client.find_session(call.params.key, call.params.agentId)
    room = await call.client.open_room(session)
    (await call.client.follow(room, call.params.key)).wants_messages = True
    return {"subscribed": True, "key": call.params.key}


async def messages_unsubscribe(call: GatewayCall) -> Frame:
    """Have a session told no more."""
    session = await call.client.find_session(call.params.key, call.params.agentId)
    if session.room is not None:
        call.client.forget(session.room.id)
    return {"subscribed": False, "key": call.params.key}


async def session_subscribe(call: GatewayCall) -> Frame:
    """Changes of sessions are told to every client that makes them; there is nothing to switch on."""
    return {"subscribed": True}


METHODS: dict[str, Method] = {
    "sessions.list": Method(session_list, ListParams, READ),
    "sessions.resolve": Method(session_resolve, KeyParams, READ),
    "sessions.preview": Method(session_preview, PreviewParams, READ),
    "sessions.subscribe": Method(session_subscribe, NoParams, READ),
    "sessions.messages.subscribe": Method(messages_subscribe, KeyParams, WRITE),
    "sessions.messages.unsubscribe": Method(messages_unsubscribe, KeyParams, READ),
    "sessions.patch": Method(session_patch, PatchParams, WRITE),
    "sessions.reset": Method(session_reset, KeyParams, WRITE),
    "sessions.delete": Method(session_delete, KeyParams, ADMIN, audited=True),
}
