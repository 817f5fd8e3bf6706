"""Goals: made, looked at and steered."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request

from gofer.errors import Malformed
from gofer.goals.records import refuse_if_full
from gofer.goals.requests import agents_elsewhere, runs_elsewhere
from gofer.sanitize import clean
from gofer.web.api.http import ApiAnswer, RequestModel, platform_of
from gofer.web.api.messages import say_in_room
from gofer.web.auth import actor, record_reading, visitor_of
from gofer.web.queries import goals, read_for
from gofer.web.queries.jobs import wake

PAGE = 50


class GoalFilter(RequestModel):
    """Which goals to list, newest first."""

    state: Literal["", "planning", "active", "blocked", "paused", "done", "failed", "cancelled"] = ""
    conversation: str = Field(default="", max_length=200)
    cursor: str = Field(default="", max_length=200, description="`next` of the page before.")
    limit: int = Field(default=PAGE, ge=1, le=200)


class GoalWish(RequestModel):
    """A goal to work on."""

    text: str = Field(min_length=1, max_length=8000, pattern=r"\S", description="What is wanted.")
    conversation: str = Field(
        default="", max_length=200, description="One of your own in the web chat; a new one when empty."
    )
    agent: str = Field(
        default="", max_length=100, description="Who should take it; whoever listens when empty."
    )
    dollars: float | None = Field(
        default=None, gt=0, le=10_000, description="What it may cost before it asks."
    )
    hours: float | None = Field(
        default=None, gt=0, le=8760, description="How long it may take. Then it ends with what is done."
    )
    approval: bool | None = Field(default=None, description="Whether an owner has to approve its plan first.")


class GoalWords(RequestModel):
    """Something to say about a goal: an answer to its question, or something new for its planner."""

    text: str = Field(min_length=1, max_length=4000, pattern=r"\S")


async def index(request: Request, query: GoalFilter) -> dict[str, Any]:
    """List goals."""
    wanted = {"state": query.state, "conversation_id": query.conversation, "cursor": query.cursor}
    found = await read_for(request, goals.list_goals, limit=query.limit, **wanted)
    await record_reading(request, None, "goals")
    more = found[-1]["id"] if len(found) == query.limit else None
    return {"goals": found, "next": more}


async def show(request: Request) -> dict[str, Any]:
    """Show a goal with its tasks."""
    found = await read_for(request, goals.show_goal, goal_id=request.path_params["id"])
    await record_reading(request, found["conversation_id"], found["id"])
    return found


async def add(request: Request, given: GoalWish) -> ApiAnswer:
    """Make a goal. It is asked for in the web chat, in the name of the member who asks."""
    platform = platform_of(request)
    if not clean(given.text).strip():
        raise Malformed("Say what is wanted: there is no word in it that can be read.")
    # Before anything is kept of it: a flood of wishes must not leave a flood of conversations.
    most = platform.settings.max_goals
    member = visitor_of(request).member_id
    full = partial(refuse_if_full, most=most, agent=given.agent, asked_by=member)
    await platform.database.read(full)
    elsewhere = await asyncio.to_thread(agents_elsewhere, platform.settings)
    if (wanted := given.agent or visitor_of(request).agent) in elsewhere:
        raise runs_elsewhere(wanted)
    visitor, conversation_id, seq = await say_in_room(
        request, f"/goal {given.text}", room_id=given.conversation, agent=given.agent
    )
    goal_id = await platform.database.write(
        goals.add_goal,
        platform=platform,
        visitor=visitor,
        conversation_id=conversation_id,
        seq=seq,
        text=given.text,
        dollars=given.dollars,
        hours=given.hours,
        approval=given.approval,
        elsewhere=elsewhere,
    )
    wake(platform)
    found = await read_for(request, goals.show_goal, goal_id=goal_id)
    return ApiAnswer(found, location=f"/goals/{goal_id}")


async def pause(request: Request) -> ApiAnswer:
    """Pause a goal: no further task begins. Tasks that run go on to their end."""
    return await _steer(request, "pause")


async def resume(request: Request) -> ApiAnswer:
    """Go on with a goal that was paused."""
    return await _steer(request, "resume")


async def cancel(request: Request) -> ApiAnswer:
    """Cancel a goal. Its running tasks are stopped at once."""
    return await _steer(request, "cancel")


async def _steer(request: Request, verb: str) -> ApiAnswer:
    goal_id = request.path_params["id"]
    state = await goals.steer_goal(
        platform_of(request), verb, goal_id, by=actor(request), visitor=visitor_of(request)
    )
    return ApiAnswer({"id": goal_id, "state": state}, location=f"/goals/{goal_id}")


async def tell(request: Request, given: GoalWords) -> ApiAnswer:
    """Say something about a goal."""
    goal_id = request.path_params["id"]
    became = await goals.tell_goal(request, goal_id, given.text)
    return ApiAnswer({"id": goal_id, "state": became}, location=f"/goals/{goal_id}")
