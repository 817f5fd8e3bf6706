"""The Goals pages: a board by state, and one goal with its tasks and their runs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import Malformed
from gofer.web.auth import actor, record_reading, visitor_of
from gofer.web.dashboard.endpoints import form_of, page, text_of
from gofer.web.dashboard.render import platform_of, redirect, render
from gofer.web.queries import goals, read_for
from gofer.web.queries.questions import list_questions

SAID = {"pause": "Paused.", "resume": "Going on.", "cancel": "Cancelled. What ran of it is stopped."}


@page("viewer")
async def index(request: Request) -> Response:
    """Every goal, by state."""
    platform = platform_of(request)
    found = await read_for(request, goals.board)
    await record_reading(request, None, "goals")
    return render(request, "goals.html", board=platform.redactor.redact_value(found))


@page("viewer")
async def show(request: Request) -> Response:
    """One goal."""
    platform, goal_id = platform_of(request), request.path_params["id"]
    found = await read_for(request, goals.show_goal, goal_id=goal_id)
    await record_reading(request, found["conversation_id"], goal_id)
    asked = await read_for(request, list_questions, limit=100)
    mine = [question for question in asked if question["job_id"] == found["job_id"]]
    shown = platform.redactor.redact_value(found)
    steps = [task for task in shown["tasks"] if task["number"]]
    others = [task for task in shown["tasks"] if not task["number"]]
    return render(
        request,
        "goal.html",
        goal=shown,
        steps=steps,
        others=others,
        questions=platform.redactor.redact_value(mine),
        live=found["finished_at"] is None,
    )


@page("operator")
async def change(request: Request) -> Response:
    """Pause, resume, cancel, or say something."""
    platform, form, goal_id = platform_of(request), await form_of(request), request.path_params["id"]
    verb = request.path_params["verb"]
    if verb == "tell":
        told = await goals.tell_goal(request, goal_id, text_of(form, "text").strip())
        return redirect(f"/goals/{goal_id}", "Answered." if told == "answered" else "Noted for the planner.")
    if verb not in goals.VERBS:
        raise Malformed("A goal can be paused, resumed, cancelled, or told something.")
    await goals.steer_goal(platform, verb, goal_id, by=actor(request), visitor=visitor_of(request))
    return redirect(f"/goals/{goal_id}", SAID[verb])
