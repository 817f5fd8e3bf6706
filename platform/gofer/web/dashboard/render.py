"""From a template to a response: what every page has, the headers it is sent with, and words for figures."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote
from zoneinfo import ZoneInfo

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from gofer.sanitize import plain_text
from gofer.web.auth import caller_of, csrf_of, visitor_of
from gofer.web.auth.principal import ROLES, Role
from gofer.web.dashboard.sanitize import inert, ticks, words
from gofer.web.queries import platform_of as platform_of
from gofer.web.static_files import StaticFiles

TEMPLATES = Path(__file__).parent / "templates"
OTHERS = [Path(__file__).parents[1] / part / "templates" for part in ("chat", "onboarding")]
REFUSED = "gofer.refused"
"""Where a request keeps the form that is shown again."""
FLASH_COOKIE = "gofer_said"
"""The cookie that carries one sentence over a redirect."""

NAVIGATION: tuple[tuple[str, tuple[tuple[str, str, Role], ...]], ...] = (
    ("", (("Overview", "/", "viewer"), ("Chat", "/chat", "operator"), ("Welcome", "/welcome", "operator"))),
    (
        "Work",
        (
            ("Runs", "/runs", "viewer"),
            ("Goals", "/goals", "viewer"),
            ("Conversations", "/conversations", "viewer"),
            ("Inbox", "/inbox", "viewer"),
            ("Shells", "/shells", "viewer"),
            ("Memory", "/memory", "viewer"),
            ("Schedules", "/schedules", "viewer"),
        ),
    ),
    (
        "Set up",
        (
            ("Connections", "/connections", "viewer"),
            ("Agents", "/agents", "viewer"),
            ("Runtimes", "/runtimes", "viewer"),
            ("Secrets", "/secrets", "operator"),
            ("Members", "/members", "viewer"),
            ("Settings", "/settings", "operator"),
        ),
    ),
    (
        "Watch",
        (
            ("Costs", "/costs", "viewer"),
            ("Service levels", "/levels", "viewer"),
            ("Audit", "/audit", "operator"),
            ("Logs", "/logs", "operator"),
            ("Versions", "/versions", "operator"),
            ("Doctor", "/doctor", "viewer"),
            ("Docs", "/docs", "viewer"),
        ),
    ),
)
"""Groups of pages: what each is called, where it is, and the least role that may see it."""


@dataclass(frozen=True, slots=True)
class FlashMessage:
    """What the last action has to say."""

    text: str
    tone: str = "ok"


@dataclass(frozen=True, slots=True)
class RefusedForm:
    """A form that made no sense: why, and what to fill it with again."""

    why: str
    status: int
    typed: dict[str, str]


class Renderer:
    """The templates of one app."""

    def __init__(self, static: StaticFiles, *, timezone: str) -> None:
        self._environment = Environment(
            loader=FileSystemLoader([TEMPLATES, *OTHERS]),
            autoescape=True,
            undefined=StrictUndefined,
            auto_reload=False,
            trim_blocks=True,
            lstrip_blocks=True,
            # Whatever is put into a page passes here: no template can forget it.
            finalize=_finalize,
        )
        self._environment.globals.update(static=static.url, icon=_icon, navigation=NAVIGATION)
        self._environment.filters.update(
            ago=partial(ago, zone=ZoneInfo(timezone)),
            money=money,
            size=size,
            span=span,
            count=count,
            words=words,
            ticks=ticks,
            plain_text=plain_text,
            spelt=_spelt,
            pretty=_pretty,
        )

    def html(self, template: str, **values: Any) -> str:
        """A page's text."""
        return self._environment.get_template(template).render(values)


def render(
    request: Request,
    template: str,
    status: int = 200,
    *,
    unmasked: Mapping[str, Any] | None = None,
    **values: Any,
) -> Response:
    """A page for whoever is signed in, with every known secret masked, but for what is shown this once."""
    renderer: Renderer = request.app.state.renderer
    said, visitor = _flash_message(request), visitor_of(request)
    refused = refused_of(request)
    shown_again = {"refused": refused.why, "typed": refused.typed}
    html = renderer.html(
        template,
        visitor=visitor,
        visitor_roles=[role for role in ROLES if visitor.may(role)],
        may_act=visitor.may("operator"),
        may_own=visitor.may("owner"),
        csrf=csrf_of(request),
        confirmed=visitor.via != "session" or caller_of(request).confirmed,
        theme=theme_of(request),
        here="/" + request.url.path.strip("/").partition("/")[0],
        said=said,
        **_masked(request, {**shown_again, **values}),
        **(unmasked or {}),
    )
    response = HTMLResponse(html, refused.status or status)
    if said is not None:
        response.delete_cookie(FLASH_COOKIE)
    return response


async def render_words(request: Request, template: str, **values: Any) -> Response:
    """A page with Markdown, rendered in a thread so that other requests do not wait."""
    return await asyncio.to_thread(render, request, template, **values)


def refused_of(request: Request) -> RefusedForm:
    """The refused form that this page shows again; an empty one on any other page."""
    refused: RefusedForm | None = request.scope.get(REFUSED)
    return refused or RefusedForm("", 0, {})


def render_alone(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    """A page for somebody who need not be signed in; its template extends `alone.html`."""
    renderer: Renderer = request.app.state.renderer
    return HTMLResponse(renderer.html(template, theme=theme_of(request), **values), status)


def redirect(path: str, said: str = "", tone: str = "ok") -> Response:
    """After an action: to a page, with a sentence to show there."""
    response = RedirectResponse(path, 303)
    if said:
        value = quote(json.dumps([said[:600], tone]))
        response.set_cookie(FLASH_COOKIE, value, max_age=30, httponly=True, samesite="lax")
    return response


def theme_of(request: Request) -> str:
    """`light` or `dark` as the visitor chose; empty to follow the system."""
    chosen = request.cookies.get("gofer_theme", "")
    return chosen if chosen in ("light", "dark") else ""


def _flash_message(request: Request) -> FlashMessage | None:
    try:
        text, tone = json.loads(unquote(request.cookies[FLASH_COOKIE]))
    except (KeyError, ValueError, TypeError):
        return None
    return FlashMessage(str(text)[:600], tone if tone in ("ok", "warn", "bad") else "ok")


def _masked(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    redactor = platform_of(request).redactor
    return {name: redactor.redact_value(value) for name, value in values.items()}


def _finalize(value: Any) -> Any:
    if value is None:
        return ""
    return inert(value) if type(value) is str else value


def _spelt(integration: str) -> str:
    """An integration's name as its makers write it."""
    return {"github": "GitHub", "webchat": "Web chat"}.get(integration, integration.capitalize())


def _pretty(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def _icon() -> Markup:
    return Markup(
        '<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2.2" stroke-linecap="round" '
        'stroke-linejoin="round" aria-hidden="true"><path d="M20 12a8 8 0 1 1-2.6-5.9"/><path d="M20 12h-6"/>'
        '<path d="m8.5 9.5 2.5 2.5-2.5 2.5"/></svg>'
    )


def absolute(at: float) -> str:
    """A moment for machines."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def ago(at: float | None, *, zone: tzinfo = UTC) -> Markup | str:
    """A moment relative to now, with the date and time on hover."""
    if not at:
        return "–"
    moment = datetime.fromtimestamp(at, UTC)
    machine = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    exact = moment.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S %Z")
    return Markup('<time class="nowrap" datetime="{}" title="{}" data-relative>{}</time>').format(
        machine, exact, relative(time.time() - at)
    )


def relative(seconds: float) -> str:
    """`3 min ago`, `in 2 h`, `now`."""
    size = abs(seconds)
    if size < 1:
        return "now"
    length, unit = next((length, unit) for length, unit in _UNITS if size >= length)
    text = f"{int(size // length)} {unit}"
    return f"in {text}" if seconds < 0 else f"{text} ago"


def span(seconds: float | None) -> str:
    """A length of time: `85 ms`, `4.2 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    if seconds < 86400:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
    return f"{seconds // 86400:.0f} d {seconds % 86400 // 3600:.0f} h"


def money(dollars: float | None) -> str:
    """Dollars, with as many places as small sums need."""
    if dollars is None:
        return "–"
    return f"${dollars:,.2f}" if dollars == 0 or dollars >= 1 else f"${dollars:.4f}"


def size(count: float | None) -> str:
    """Bytes."""
    if count is None:
        return "–"
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def count(number: int, one: str, many: str = "") -> str:
    """`1 run`, `3 runs`."""
    return str(escape(f"{number:,} {one if number == 1 else many or one + 's'}"))
