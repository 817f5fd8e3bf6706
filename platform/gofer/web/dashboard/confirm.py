"""Confirming who one is before something is made that outlives the session."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gofer.errors import GoferError
from gofer.web.auth import csrf_of, require, visitor_of
from gofer.web.auth.confirmation import CONFIRM, confirm
from gofer.web.auth.login import local_target
from gofer.web.auth.members import find_member
from gofer.web.body import read_form
from gofer.web.dashboard.endpoints import text_of
from gofer.web.dashboard.render import platform_of, render_alone
from gofer.web.problems import status_of


@require("viewer")
async def show(request: Request) -> Response:
    """Ask for the password, or say how to get a link."""
    return await _page(request, request.query_params.get("next", ""))


@require("viewer")
async def done(request: Request) -> Response:
    """Take the password."""
    form = await read_form(request)
    target = text_of(form, "next")
    try:
        await confirm(platform_of(request), request, text_of(form, "password"))
    except GoferError as error:
        return await _page(request, target, str(error), status_of(error))
    return RedirectResponse(local_target(target), 303)


async def _page(request: Request, target: str, error: str = "", status: int = 200) -> Response:
    member = await platform_of(request).database.read(find_member, named=visitor_of(request).member_id)
    values = {"name": member.name, "has_password": bool(member.password), "csrf": csrf_of(request)}
    where = {"next": local_target(target), "action": CONFIRM}
    return render_alone(request, "confirm.html", status, error=error, **values, **where)
