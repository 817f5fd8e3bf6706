"""Saying something: the same way as the web chat, in the name of the member who asks."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Connection, select
from starlette.requests import Request

from gofer.app import Platform
from gofer.errors import Conflict, Malformed
from gofer.jobs.kinds import ANSWER
from gofer.jobs.notifications import JOBS
from gofer.runs.posts import Post, submit_post
from gofer.runtimes.hops import check_no_hop_waits
from gofer.runtimes.requests import say_for_hop
from gofer.runtimes.safeguards import check_posts
from gofer.store.ids import new_id
from gofer.store.tables import connections, jobs
from gofer.web.api.http import MAX_ID, WHOLE, WORKSPACE, ApiAnswer, RequestModel, platform_of
from gofer.web.api.idempotency import HEADER
from gofer.web.api.participants import hop_of
from gofer.web.auth import Visitor, visitor_of
from gofer.web.auth.members import digest, first_owner
from gofer.web.chat.posts import ChatPost, take_or_find
from gofer.web.chat.rooms import INTEGRATION, Room, choosable, find_room, open_room, web_connection
from gofer.web.queries.agents import no_agent
from gofer.web.queries.conversations import find_conversation
from gofer.web.queries.runtimes import agent_spec


class NewMessage(RequestModel):
    """Something to say."""

    text: str = Field(min_length=1, max_length=100_000, pattern=r"\S")


class AnswerMessage(NewMessage):
    """Something to say in a conversation; an external agent names the trigger and hop that it answers."""

    trigger: Annotated[int, Field(ge=1, le=MAX_ID), WHOLE] | None = Field(
        default=None, description="For a token of an external agent: the trigger that this answers."
    )
    hop: Annotated[int, Field(ge=1, le=1000), WHOLE] | None = Field(
        default=None, description="The hop of the trigger. One answer to it is sent; a late one is kept."
    )


class FirstMessage(NewMessage):
    """Something that begins a conversation."""

    agent: str = Field(
        default="", max_length=100, description="Who should answer; whoever listens when empty."
    )


class NewQuestion(NewMessage):
    """Something to ask a person."""

    choices: list[Annotated[str, Field(min_length=1, max_length=60)]] = Field(
        default_factory=list,
        max_length=8,
        description="Answers to choose from, as buttons where there are any.",
    )
    expires_after: Annotated[int, Field(ge=60, le=30 * 86400), WHOLE] | None = Field(
        default=86400, description="Seconds after which nobody need answer any more."
    )


async def begin(request: Request, given: FirstMessage) -> ApiAnswer:
    """Say something in a new conversation of one's own."""
    platform = platform_of(request)
    visitor = await _speaker(platform, visitor_of(request))
    agent = await _chosen_agent(request, given.agent)
    room_id = await _new_room(platform, visitor)
    return await _say(request, visitor, room_id, given.text, agent)


async def say_in_room(request: Request, text: str, *, room_id: str, agent: str) -> tuple[Visitor, str, int]:
    """Say something in a conversation of one's own, or in a new one; returns who said it, where, and its number.
    Raises Conflict when it was not kept as a message."""
    platform = platform_of(request)
    visitor = await _speaker(platform, visitor_of(request))
    agent = await _chosen_agent(request, agent)
    room_id = room_id or await _new_room(platform, visitor)
    room = await platform.database.read(_room, conversation_id=room_id, member_id=visitor.member_id)
    taken = await take_or_find(platform, visitor, room, ChatPost(id=_mark(request), text=text, agent=agent))
    if taken.seq is None:
        raise Conflict("It was not taken as a message.")
    return visitor, taken.conversation_id or room_id, taken.seq


async def _chosen_agent(request: Request, wanted: str) -> str:
    """The agent that is to answer; a bound token's own. Raises NotFound."""
    bound = visitor_of(request).agent
    if bound and wanted not in ("", bound):
        raise no_agent(wanted)
    agent = wanted or bound
    if agent and agent not in await choosable(platform_of(request)):
        raise no_agent(agent)
    return agent


async def _new_room(platform: Platform, visitor: Visitor) -> str:
    connection = await web_connection(platform)
    return await platform.database.write(
        open_room, vault=platform.vault, connection_id=connection.account.id, member_id=visitor.member_id
    )


async def say(request: Request, given: AnswerMessage) -> ApiAnswer:
    """Say something in a conversation one has in the web chat; a token of an agent, in any of the agent's."""
    platform = platform_of(request)
    hop = hop_of(given.trigger, given.hop)
    if visitor_of(request).agent and hop is not None:
        return await _answer_hop(request, request.path_params["id"], given.text, hop)
    if hop is not None:
        raise Malformed("trigger: only a token that is bound to an external agent answers a trigger.")
    if visitor_of(request).agent:
        return await post(request, request.path_params["id"], Post(given.text))
    visitor = await _speaker(platform, visitor_of(request))
    return await _say(request, visitor, request.path_params["id"], given.text)


async def ask(request: Request, given: NewQuestion) -> ApiAnswer:
    """Ask the people of a conversation something. The job ends when one of them has answered."""
    life = float(given.expires_after) if given.expires_after is not None else None
    asked = Post(given.text, asks=True, choices=tuple(given.choices), expires_after=life)
    return await post(request, request.path_params["id"], asked)


async def _answer_hop(request: Request, conversation_id: str, text: str, hop: tuple[int, int]) -> ApiAnswer:
    """An external agent's answer: sent once, and kept but never sent when it comes too late."""
    platform, agent = platform_of(request), visitor_of(request).agent

    def say(connection: Connection) -> dict[str, Any]:
        find_conversation(connection, conversation_id, visitor_of(request))
        check_posts(connection, conversation_id, agent, platform.settings.posts_per_minute)
        return say_for_hop(
            connection, platform.vault, conversation_id=conversation_id, agent=agent, hop=hop, text=text
        )

    told = await platform.database.write(say)
    platform.signals.wake(JOBS)
    said = {"conversation_id": conversation_id, "seq": None, **told}
    return ApiAnswer(said, location=f"/jobs/{told['job_id']}")


async def post(request: Request, conversation_id: str, post: Post) -> ApiAnswer:
    """Make the job that says or asks something, in an agent's name if the token is bound to one."""
    platform, agent = platform_of(request), visitor_of(request).agent
    external = bool(agent) and (await agent_spec(platform, agent)).runtime is not None
    job_id = await platform.database.write(
        _post,
        platform=platform,
        conversation_id=conversation_id,
        post=post,
        agent=agent,
        request=request,
        most=platform.settings.posts_per_minute if external else None,
    )
    platform.signals.wake(JOBS)
    said = {"conversation_id": conversation_id, "seq": None, "job_id": job_id, "result": "accepted"}
    return ApiAnswer(said, location=f"/jobs/{job_id}")


def _post(
    connection: Connection,
    platform: Platform,
    conversation_id: str,
    post: Post,
    agent: str,
    request: Request,
    most: int | None = None,
) -> int:
    find_conversation(connection, conversation_id, visitor_of(request))
    if most is not None:
        check_posts(connection, conversation_id, agent, most)
        if not post.asks:
            check_no_hop_waits(connection, conversation_id, agent)
    key = request.headers.get(HEADER)
    whose = f"{visitor_of(request).member_id}:{agent}:{conversation_id}"
    return submit_post(
        connection,
        platform.vault,
        post,
        workspace_id=WORKSPACE,
        conversation_id=conversation_id,
        agent=agent,
        unique_key=f"post:{digest(f'{whose}:{key}')}" if key is not None else None,
    )


async def _speaker(platform: Platform, visitor: Visitor) -> Visitor:
    """The member; the command line speaks for the first owner."""
    if visitor.member_id:
        return visitor
    owner = await platform.database.write(first_owner)
    return Visitor(owner.id, owner.name, "owner", "socket")


async def _say(request: Request, visitor: Visitor, room_id: str, text: str, agent: str = "") -> ApiAnswer:
    platform = platform_of(request)
    room = await platform.database.read(_room, conversation_id=room_id, member_id=visitor.member_id)
    taken = await take_or_find(platform, visitor, room, ChatPost(id=_mark(request), text=text, agent=agent))
    # A repeat may have been taken in by the conversation that the first one began.
    where = taken.conversation_id or room_id
    job_id = await platform.database.read(_job, conversation_id=where)
    said = {"conversation_id": where, "seq": taken.seq, "job_id": job_id, "result": taken.result}
    location = f"/jobs/{job_id}" if job_id is not None else f"/conversations/{where}"
    return ApiAnswer(said, location=location)


def _room(connection: Connection, conversation_id: str, member_id: str) -> Room:
    """One's own room; raises NotFound, or Conflict for a conversation that is held elsewhere."""
    where = find_conversation(connection, conversation_id)["connection_id"]
    held_by = select(connections.c.integration).where(connections.c.id == where)
    if connection.execute(held_by).scalar() not in (None, INTEGRATION):
        raise Conflict(f"This conversation is held at {where}; say it there.")
    return find_room(connection, conversation_id, member_id)


def _mark(request: Request) -> str:
    """Made from the Idempotency-Key if there is one, so that intake itself knows a repeat."""
    key = request.headers.get(HEADER)
    return digest(key)[:40] if key is not None else new_id("said").replace("_", "-")


def _job(connection: Connection, conversation_id: str) -> int | None:
    query = (
        select(jobs.c.id)
        .where(jobs.c.conversation_id == conversation_id, jobs.c.kind == ANSWER)
        .order_by(jobs.c.id.desc())
        .limit(1)
    )
    return connection.execute(query).scalar()
