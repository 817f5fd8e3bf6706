"""The instance itself: its settings, its processes, the doctor's findings and the last lines of its log."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from functools import partial
from typing import Any

from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from gofer import __version__
from gofer.errors import Conflict, NotFound
from gofer.releases.lifecycle import open_home, release_states, roll_back
from gofer.settings import PREFIX, Settings
from gofer.store import migrations
from gofer.supervision import say_event, supervised_events
from gofer.web.auth import actor
from gofer.web.dashboard.checks import Checks
from gofer.web.dashboard.endpoints import page
from gofer.web.dashboard.render import platform_of, redirect, render
from gofer.web.queries.instance import list_processes
from gofer_supervisor.home import HomeError

LEVELS = ("debug", "info", "warning", "error")
MAX_LINES = 300
HIDDEN = "set, not shown"
UNKNOWN = dict.fromkeys(
    (
        *("revision", "source", "signed_by", "checked", "schema"),
        *("approved_by", "declined_by", "change", "taken_back"),
    ),
    "",
)
"""What the manifest of a release may not say."""
PLAIN_EVENT = {"last_lines": (), "build": "", "happened_at": 0.0}
"""What an event of the supervisor may not say."""


@page("operator")
async def settings(request: Request) -> Response:
    """Every setting, where it comes from, and the processes that run by them."""
    platform = platform_of(request)
    found = await platform.database.read(_read)
    return render(
        request,
        "settings.html",
        settings=_settings_table(platform.settings),
        **found,
        version=__version__,
        database="SQLite" if platform.database.dialect == "sqlite" else "PostgreSQL",
        url=platform.url,
        pid=os.getpid(),
        owner=platform.owner,
    )


@page("viewer")
async def levels(request: Request) -> Response:
    """How long people wait, what waits, what fails, and what heartbeats cost."""
    return render(request, "levels.html", **await request.app.state.levels.read())


@page("operator")
async def versions(request: Request) -> Response:
    """What ran when, and why it ended, as the supervisor saw it."""
    platform = platform_of(request)
    happened = await platform.database.read(supervised_events, limit=MAX_LINES)
    home = open_home(platform.settings)
    manifests = await asyncio.to_thread(home.manifests) if platform.settings.build else {}
    states = await asyncio.to_thread(release_states, home)
    before = manifests.get(platform.settings.build, {}).get("previous", "")
    return render(
        request,
        "versions.html",
        happened=[{**PLAIN_EVENT, **event, "said": say_event(event)} for event in happened],
        version=__version__,
        build=platform.settings.build,
        releases=[
            {**UNKNOWN, **each, "state": states.get(build, "")} for build, each in reversed(manifests.items())
        ],
        before=before if before in manifests else "",
    )


@page("operator")
async def release(request: Request) -> Response:
    """One release: where it is from, what was changed for it, and who approved it."""
    home = open_home(platform_of(request).settings)
    try:
        manifest = await asyncio.to_thread(home.manifest, request.path_params["build"])
    except HomeError as error:
        raise NotFound(str(error)) from error
    state = (await asyncio.to_thread(release_states, home)).get(str(manifest["build"]), "")
    return render(request, "release.html", release={**UNKNOWN, **manifest, "state": state})


@page("owner")
async def take_back(request: Request) -> Response:
    """Have the supervisor run the release before the current one again."""
    platform = platform_of(request)
    if not platform.settings.build:
        raise Conflict("Gofer is not run by `gofer up`, so there is no other release to run.")
    await asyncio.to_thread(partial(roll_back, open_home(platform.settings), by=actor(request)))
    return redirect("/versions", "Asked for. The release before runs again in a moment.")


def _read(connection: Connection) -> dict[str, Any]:
    return {"processes": list_processes(connection), "schema": migrations.current(connection)}


def _settings_table(settings: Settings) -> list[dict[str, Any]]:
    return [
        {
            "name": f"{PREFIX}{name.upper()}",
            "value": _value(getattr(settings, name), shown=field.repr and not name.endswith("_url")),
            "help": field.description or "",
            "set": name in settings.model_fields_set,
        }
        for name, field in type(settings).model_fields.items()
    ]


def _value(value: Any, *, shown: bool) -> str:
    """What may be told: addresses may hold a password."""
    if value in ("", None):
        return ""
    text = str(value)
    if shown or (text.startswith("http") and "@" not in text):
        return text
    return HIDDEN


@page("viewer")
async def doctor(request: Request) -> Response:
    """What the doctor last found."""
    checks: Checks = request.app.state.checks
    findings = [dataclasses.asdict(each) for each in checks.findings]
    return render(request, "doctor.html", findings=findings, examined_at=checks.examined_at)


@page("viewer")
async def examine(request: Request) -> Response:
    """Have the doctor make the round now."""
    checks: Checks = request.app.state.checks
    await checks.examine()
    return redirect("/doctor")


@page("operator")
async def logs(request: Request) -> Response:
    """The last lines of this process."""
    least = request.query_params.get("level", "info")
    least = least if least in LEVELS else "info"
    sought = request.query_params.get("q", "").strip().lower()
    lines = [
        told
        for line in reversed(platform_of(request).recent_lines.lines)
        if _rank(line.get("level")) >= _rank(least)
        and sought in (told := _line(line))["text"].lower() + told["event"].lower()
    ][:MAX_LINES]
    return render(request, "logs.html", lines=lines, level=least, levels=LEVELS, q=sought)


def _rank(level: Any) -> int:
    return LEVELS.index(level) if level in LEVELS else len(LEVELS)


def _line(line: dict[str, Any]) -> dict[str, str]:
    rest = {name: value for name, value in line.items() if name not in ("event", "level", "timestamp")}
    return {
        "at": str(line.get("timestamp", "")),
        "level": str(line.get("level", "")),
        "event": str(line.get("event", "")),
        "text": " ".join(f"{name}={value}" for name, value in rest.items() if not name.startswith("_")),
    }
