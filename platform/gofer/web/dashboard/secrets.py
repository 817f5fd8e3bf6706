"""Secrets: their names and when they were used; a value goes in and never comes out."""

from __future__ import annotations

import dataclasses
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from gofer.connections.changes import find_connection
from gofer.connections.health import set_up
from gofer.secrets.secret_store import delete_secret, list_secrets, put_secret
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.vault.secret import Secret
from gofer.web.auth import note
from gofer.web.auth.confirmation import check_confirmed
from gofer.web.dashboard.endpoints import connection_names, form_of, page, text_of
from gofer.web.dashboard.render import go, platform_of, refused_of, render


@page("operator")
async def index(request: Request) -> Response:
    """The list, and a form to put one in."""
    platform = platform_of(request)
    await platform.uses.note()
    found = await platform.database.read(partial(list_secrets, workspace_id=FIRST_WORKSPACE))
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
    if owner:
        await platform.database.read(partial(find_connection, connection_id=owner))
    value = Secret(text_of(form, "value"))
    await platform.database.write(
        partial(
            put_secret,
            vault=platform.vault,
            workspace_id=FIRST_WORKSPACE,
            owner=owner,
            name=name,
            value=value,
        )
    )
    await platform.secrets_changed()
    if not owner:
        return go("/secrets", f"{name} is kept. It is in use from now on.")
    health = await set_up(platform, owner)
    request.app.state.checks.learned(owner, health)
    return go(f"/connections/{owner}", f"{name} is kept. {health.line}", "ok" if health.ok else "warn")


@page("owner")
async def remove(request: Request) -> Response:
    """Delete one."""
    platform, form = platform_of(request), await form_of(request)
    owner, name = text_of(form, "owner"), text_of(form, "name")
    note(request, owner=owner, name=name)
    await platform.database.write(
        partial(delete_secret, workspace_id=FIRST_WORKSPACE, owner=owner, name=name)
    )
    await platform.secrets_changed()
    return go("/secrets", f"{name} is gone.")
