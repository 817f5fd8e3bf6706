"""The Runtimes pages: external agents as their hosts announce them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import Malformed
from gofer.jobs.notifications import JOBS
from gofer.runtimes import records
from gofer.web.dashboard.endpoints import form_of, page
from gofer.web.dashboard.render import platform_of, redirect, render
from gofer.web.queries import runtimes


@page("viewer")
async def index(request: Request) -> Response:
    """The list."""
    platform = platform_of(request)
    found = await platform.database.read(runtimes.list_all, settings=platform.settings)
    return render(request, "runtimes.html", runtimes=found)


@page("viewer")
async def show(request: Request) -> Response:
    """One, with its last hops."""
    platform, name = platform_of(request), request.path_params["name"]
    found = await platform.database.read(runtimes.show_one, name=name, settings=platform.settings)
    return render(request, "runtime.html", runtime=found)


@page("owner")
async def change(request: Request) -> Response:
    """Drain it, give it work again, or forget it."""
    platform, name, verb = platform_of(request), request.path_params["name"], request.path_params["verb"]
    await form_of(request)
    if verb == "remove":
        await platform.database.write(records.remove, name=name)
        return redirect("/runtimes", f"{name} is forgotten.")
    if verb not in ("drain", "resume"):
        raise Malformed("A runtime can be drained, given work again, or removed.")
    await platform.database.write(records.drain, name=name, on=verb == "drain")
    platform.signals.wake(JOBS)
    return redirect(f"/runtimes/{name}", "It gets nothing new." if verb == "drain" else "It gets work again.")
