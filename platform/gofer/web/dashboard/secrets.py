"""Secrets: their names and when they were used; a value goes in and never comes out."""

from __future__ import annotations

import dataclasses

from starlette.requests import Request
from starlette.responses import Response

from gofer.vault.redaction import Secret
from gofer.web.auth import note
from gofer.web.auth.confirmation import check_confirmed
from gofer.web.dashboard.endpoints import form_of, page, text_of
from gofer.web.dashboard.render import platform_of, redirect, refused_of, render
from gofer.web.queries import connection_names
from gofer.web.queries.secrets import keep_secret, remove_secret, stored_secrets


@page("operator")
async def index(request: Request) -> Response:
    """The list, and a form to put one in."""
    platform = platform_of(request)
    found = await stored_secrets(platform)
    names = await platform.database.read(connection_names)
    given = {**request.query_params, **refused_of(request).typed}
    return render(
        request,
        "secrets.html",
        secrets=[dataclasses.asdict(each) for each in found],
        connections=names,
        name=given.get("name", ""),
        owner=given.get("owner", ""),
    )


@page("owner", form=index)
async def put(request: Request) -> Response:
    """Keep one, replacing the one there."""
    check_confirmed(request)
    platform, form = platform_of(request), await form_of(request)
    owner, name = text_of(form, "owner").strip(), text_of(form, "name").strip()
    note(request, owner=owner, name=name)
    health = await keep_secret(platform, owner=owner, name=name, value=Secret(text_of(form, "value")))
    if health is None:
        return redirect("/secrets", f"{name} is kept. It is in use from now on.")
    request.app.state.checks.learned(owner, health)
    return redirect(f"/connections/{owner}", f"{name} is kept. {health.line}", "ok" if health.ok else "warn")


@page("owner")
async def remove(request: Request) -> Response:
    """Delete one."""
    form = await form_of(request)
    owner, name = text_of(form, "owner"), text_of(form, "name")
    note(request, owner=owner, name=name)
    await remove_secret(platform_of(request), owner=owner, name=name)
    return redirect("/secrets", f"{name} is gone.")
