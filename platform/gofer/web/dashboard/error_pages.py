"""Refusals in the right shape: a problem for machines; a browser on a page gets it as a page."""

from __future__ import annotations

import json
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gofer.web.auth.headers import ALWAYS
from gofer.web.auth.principal import Caller
from gofer.web.dashboard.render import NAVIGATION, render, render_alone
from gofer.web.problems import on_crash, problem

FOR_MACHINES = ("/api/", "/hooks/", "/healthz", "/readyz", "/metrics", "/static/")
PASSED_ON_HEADERS = ("retry-after", "allow", "connection")
TOO_LARGE = "What was sent is too large for this address. A file may have up to 20 MB."
HINTS = {
    403: "If it should be yours to do, an owner can change your role under Members.",
    404: "It may have been removed, or the address is mistyped.",
    429: "Wait a little, then try again.",
    500: "The log has the details: see Logs, or what the server printed.",
    503: "Nothing is lost. Try again in a moment; `gofer doctor` on the server says what is wrong.",
}


class Refusing:
    """ASGI middleware: turns a problem into a page where a person looks at it, and what is no problem yet into one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wrap an app."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        for_people = _is_for_people(scope)
        held: Message | None = None
        too_large = False

        async def pass_on(message: Message) -> None:
            nonlocal held, too_large
            if message["type"] == "http.response.start":
                too_large = _is_too_large(message)
                held = message if too_large or (for_people and _is_problem(message)) else None
            if held is None:
                await send(message)
            elif message["type"] == "http.response.body":
                body = bytes(problem(413, TOO_LARGE).body) if too_large else message.get("body", b"")
                answer = _page(scope, held, body) if for_people else problem(413, TOO_LARGE)
                await answer(scope, receive, send)

        await self._app(scope, receive, pass_on)


def _is_for_people(scope: Scope) -> bool:
    accepted = Headers(scope=scope).get("accept", "")
    return "text/html" in accepted and not scope["path"].startswith(FOR_MACHINES)


def _is_too_large(message: Message) -> bool:
    """Whether Starlette refused a body beyond a route's limit."""
    kind = Headers(raw=message["headers"]).get("content-type", "")
    return bool(message["status"] == 413 and kind.startswith("text/plain"))


def _is_problem(message: Message) -> bool:
    return Headers(raw=message["headers"]).get("content-type", "") == "application/problem+json"


def _page(scope: Scope, start: Message, body: bytes) -> Response:
    request, headers = Request(scope), Headers(raw=start["headers"])
    response = refusal(request, start["status"], **_words(body))
    response.headers.update({name: headers[name] for name in PASSED_ON_HEADERS if name in headers})
    return response


def _words(body: bytes) -> dict[str, str]:
    said = json.loads(body)
    return {"title": said["title"], "detail": said["detail"]}


def refusal(request: Request, status: int, *, title: str, detail: str) -> Response:
    """The page, in the dashboard's frame for those who are signed in."""
    values: dict[str, Any] = {
        "title": title,
        "detail": detail,
        "hint": HINTS.get(status, ""),
        "back": _back(request),
        "again": str(request.url.path) if status >= 500 and request.method == "GET" else "",
    }
    caller: Caller | None = request.scope.get("gofer.caller")
    if caller is None or caller.visitor is None:
        return render_alone(request, "error.html", status, layout="alone.html", **values)
    return render(request, "error.html", status, layout="base.html", **values)


def _back(request: Request) -> str:
    """The list that the page belongs to; empty for one that belongs to none, or is one."""
    start = "/" + request.url.path.strip("/").partition("/")[0]
    known = {path for _, entries in NAVIGATION for _, path, _ in entries}
    return start if start in known and (start != request.url.path or request.method != "GET") else ""


async def crash_page(request: Request, error: Exception) -> Response:
    """Starlette's handler for what nobody meant to raise; it stands outside of every middleware."""
    response = await on_crash(request, error)
    if _is_for_people(request.scope):
        values = {"layout": "alone.html", "hint": HINTS[500], "back": "", "again": ""}
        response = render_alone(request, "error.html", 500, **values, **_words(bytes(response.body)))
    response.headers.update(ALWAYS)
    return response
