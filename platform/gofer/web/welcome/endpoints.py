"""Every address of the welcome page and of the docs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from gofer.connecting import find_connection
from gofer.doctor import ask_compatible, ask_model, examine, look_around
from gofer.errors import GoferError, NotFound
from gofer.platform import Platform
from gofer.web.access import require, visitor_of
from gofer.web.access.confirmation import Unconfirmed, check_confirmed
from gofer.web.body import read_form
from gofer.web.pages.rendering import platform_of, render
from gofer.web.pages.serving import to_confirm
from gofer.web.problems import status_of
from gofer.web.welcome import doing, reading
from gofer.web.welcome.doing import Result
from gofer.web.welcome.state import OFFERED, state_of

MOST_FORM = 64 * 1024

Doing = Callable[[Request, Platform, dict[str, str]], Awaitable[Result]]


def routes() -> list[BaseRoute]:
    """What to put into an app."""
    # Their names are what the audit log calls them.
    forms = {
        ("/welcome/model", "welcome.keep_key"): model,
        ("/welcome/model/test", "welcome.test_key"): test_model,
        ("/welcome/telegram", "welcome.connect_telegram"): telegram,
        ("/welcome/github", "welcome.connect_github"): github,
        ("/welcome/{step}/{connection}/test", "welcome.test_connection"): test,
    }
    return [
        Route("/welcome", show, methods=["GET"]),
        Route("/welcome/checks", checks, methods=["GET"]),
        *(
            Route(path, form, methods=["POST"], name=name, max_body_size=MOST_FORM)
            for (path, name), form in forms.items()
        ),
        Route("/docs", contents, methods=["GET"]),
        Route("/docs/{name:path}", read, methods=["GET"]),
    ]


@require("viewer")
async def show(request: Request) -> Response:
    """The page, for those who can do something on it; whoever only looks is led to what there is to see."""
    if not visitor_of(request).may("operator"):
        return RedirectResponse("/", 303)
    return await _page(request)


async def _page(request: Request, result: Result | None = None, status: int = 200) -> Response:
    state = await state_of(platform_of(request), visitor_of(request).member_id)
    return render(
        request,
        "welcome/page.html",
        status,
        state=state,
        result=asdict(result) if result is not None else None,
    )


@require("viewer")
async def checks(request: Request) -> Response:
    """The doctor's round, for the page to put below itself."""
    platform = platform_of(request)
    around = await asyncio.to_thread(look_around, platform.settings, serving=True)
    findings = [*around, *await examine(platform)]
    template = "welcome/checks.html" if "hx-request" in request.headers else "welcome/checks_alone.html"
    return render(request, template, findings=[asdict(finding) for finding in findings])


def _form(step: str) -> Callable[[Doing], Callable[[Request], Awaitable[Response]]]:
    """A form of the page, for owners: what went wrong is said at its step."""

    def around(do: Doing) -> Callable[[Request], Awaitable[Response]]:
        @require("owner")
        async def done(request: Request) -> Response:
            form = await read_form(request)
            given = {name: str(value) for name, value in form.items()}
            try:
                result = await do(request, platform_of(request), given)
            except Unconfirmed:
                return to_confirm(request)
            except GoferError as error:
                return await _page(request, Result(step, False, str(error)), status_of(error))
            return await _page(request, result, 200 if result.ok else 422)

        return done

    return around


@_form("model")
async def model(request: Request, platform: Platform, form: dict[str, str]) -> Result:
    """Keep a key; ask the model only if its owner ticked that."""
    check_confirmed(request)
    return await doing.keep_key(platform, form)


@_form("model")
async def test_model(request: Request, platform: Platform, form: dict[str, str]) -> Result:
    """Ask the model one word, or a compatible server for its list; pressing the button is the consent."""
    asked = ask_compatible if form.get("provider") == "openai" else ask_model
    finding = await asked(platform)
    return Result("model", finding.severity == "ok", finding.line, finding.fix)


@_form("telegram")
async def telegram(request: Request, platform: Platform, form: dict[str, str]) -> Result:
    """Connect a bot."""
    check_confirmed(request)
    return await doing.connect_telegram(platform, form, visitor_of(request).name)


@_form("github")
async def github(request: Request, platform: Platform, form: dict[str, str]) -> Result:
    """Connect an App."""
    check_confirmed(request)
    return await doing.connect_github(platform, form, visitor_of(request).name)


@_form("")
async def test(request: Request, platform: Platform, form: dict[str, str]) -> Result:
    """Ask a service how its connection is doing."""
    step, connection_id = request.path_params["step"], request.path_params["connection"]
    row = await platform.database.read(partial(find_connection, connection_id=connection_id))
    if step not in OFFERED or row.integration != step:
        raise NotFound("There is no such connection.")
    return await doing.test_connection(platform, step, connection_id)


@require("viewer")
async def contents(request: Request) -> Response:
    """Every page of the docs."""
    return render(request, "welcome/contents.html", groups=reading.contents())


@require("viewer")
async def read(request: Request) -> Response:
    """One page of the docs."""
    shown = reading.page(request.path_params["name"])
    return render(request, "welcome/docs.html", title=shown.title, shown=shown)
