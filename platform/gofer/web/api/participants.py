"""The agents of a conversation: who takes part, who has read what, and waking one."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request

from gofer.errors import Forbidden, Malformed
from gofer.jobs.control import set_closed
from gofer.jobs.notifications import JOBS
from gofer.runtimes import requests
from gofer.runtimes.requests import TriggerWish
from gofer.web.api.http import MAX_ID, WHOLE, ApiAnswer, RequestModel, platform_of
from gofer.web.auth import actor, note, visitor_of
from gofer.web.queries import runtimes
from gofer.web.queries.conversations import find_conversation

Seq = Annotated[int, Field(ge=1, le=MAX_ID), WHOLE]
HopNumber = Annotated[int, Field(ge=1, le=1000), WHOLE]


class Acknowledgement(RequestModel):
    """That an agent has read something."""

    seq: Seq | None = Field(default=None, description="Up to which message it is read.")
    trigger: Seq | None = Field(default=None, description="The trigger that reported it.")
    hop: HopNumber | None = Field(default=None, description="The hop of the trigger.")
    done: bool = Field(default=False, description="Nothing is left to say: no answer follows.")


class TriggerBody(RequestModel):
    """Which agent to wake, and why."""

    agent: str = Field(min_length=1, max_length=100)
    reason: str = Field(default="", max_length=500, description="Why; required with force.")
    force: bool = Field(
        default=False, description="Although it is blocked or somebody types: for owners only."
    )


class ParticipantName(RequestModel):
    """An agent of the conversation."""

    agent: str = Field(min_length=1, max_length=100)


class Closing(RequestModel):
    """Whether a conversation is closed."""

    closed: bool = True


async def index(request: Request) -> dict[str, Any]:
    """The agents of a conversation, and how far each has read."""
    platform = platform_of(request)
    conversation_id, visitor = request.path_params["id"], visitor_of(request)
    found = await platform.database.read(
        runtimes.list_participants, conversation_id=conversation_id, visitor=visitor
    )
    return {"participants": await runtimes.with_kinds(platform, found)}


def hop_of(trigger: int | None, hop: int | None) -> tuple[int, int] | None:
    """The hop that a request names, if it does; raises Malformed for half a name."""
    if (trigger is None) != (hop is None):
        raise Malformed("trigger: give trigger and hop together, as they came with the text.")
    return (trigger, hop) if trigger is not None and hop is not None else None


async def acknowledge(request: Request, given: Acknowledgement) -> dict[str, Any]:
    """Say that the agent whose token this is has read something."""
    platform = platform_of(request)
    conversation_id, agent = request.path_params["id"], visitor_of(request).agent
    if not agent:
        raise Forbidden("Only an agent acknowledges what it has read: use a token that is bound to it.")
    await platform.database.read(
        find_conversation, conversation_id=conversation_id, visitor=visitor_of(request)
    )
    spec = await runtimes.agent_spec(platform, agent)
    told = await platform.database.write(
        requests.acknowledge,
        conversation_id=conversation_id,
        agent=agent,
        seq=given.seq,
        hop=hop_of(given.trigger, given.hop),
        done=given.done,
        answer_within=spec.external.answer_within,
    )
    platform.signals.wake(JOBS)
    return told


async def trigger(request: Request, given: TriggerBody) -> ApiAnswer:
    """Wake an external agent that takes part in a conversation."""
    platform = platform_of(request)
    visitor, conversation_id = visitor_of(request), request.path_params["id"]
    note(request, agent=given.agent, force=given.force, reason=given.reason)
    if given.force and (visitor.role != "owner" or visitor.agent):
        raise Forbidden("Only an owner forces a trigger.")
    if given.force and not given.reason.strip():
        raise Malformed("reason: say why, when you force a trigger; it is put on record.")
    await platform.database.read(find_conversation, conversation_id=conversation_id, visitor=visitor)
    wish = TriggerWish(visitor.agent or actor(request), given.reason, given.force, visitor.agent)
    told = await runtimes.trigger(platform, conversation_id, given.agent, wish)
    platform.signals.wake(JOBS)
    location = f"/jobs/{told['job']}" if told["job"] is not None else ""
    return ApiAnswer(told, location=location)


async def unblock(request: Request, given: ParticipantName) -> dict[str, Any]:
    """Let a blocked agent be woken again in a conversation."""
    platform = platform_of(request)
    note(request, agent=given.agent)
    conversation_id = request.path_params["id"]
    await platform.database.write(
        requests.unblock, conversation_id=conversation_id, agent=given.agent, by=actor(request)
    )
    return {"id": conversation_id}


async def close(request: Request, given: Closing) -> dict[str, Any]:
    """Close a conversation, or open it again: in a closed one no external agent is woken."""
    platform = platform_of(request)
    conversation_id = request.path_params["id"]
    if await platform.database.write(
        set_closed, conversation_id=conversation_id, closed=given.closed, by=actor(request)
    ):
        platform.signals.wake(JOBS)
    return {"id": conversation_id}
