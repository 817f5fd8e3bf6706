"""What the pages' endpoints share: roles, form fields, query numbers, and errors as pages."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from urllib.parse import quote, urlsplit

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gofer.errors import GoferError, Malformed
from gofer.web.api.http import path_number
from gofer.web.auth import Role, require
from gofer.web.auth.confirmation import CONFIRM, Unconfirmed
from gofer.web.auth.guard import MAX_FIELDS, MAX_FILES
from gofer.web.body import read_form
from gofer.web.dashboard.error_pages import refusal
from gofer.web.dashboard.render import REFUSED, RefusedForm
from gofer.web.problems import TITLES, status_of

PER_PAGE = 50
SECRET_FIELDS = frozenset({"csrf", "value", "password"})
"""Fields that are never shown again."""

Endpoint = Callable[[Request], Awaitable[Response]]


def page(role: Role, form: Endpoint | None = None) -> Callable[[Endpoint], Endpoint]:
    """An endpoint for those with at least this role; what it raises becomes a page that says what to do.

    With `form`, the page whose form was sent, that page is shown again, with what was wrong and what was typed.
    """

    def around(endpoint: Endpoint) -> Endpoint:
        async def shown(request: Request) -> Response:
            try:
                _check_numbers(request)
                return await endpoint(request)
            except Unconfirmed:
                return redirect_to_confirm(request)
            except GoferError as error:
                if form is None or status_of(error) >= 500:
                    return error_page(request, error)
                request.scope[REFUSED] = RefusedForm(
                    str(error), status_of(error), _refill(await form_of(request))
                )
                # Without its guard: who may send a form may see it, and the request was checked.
                again: Endpoint = inspect.unwrap(form)
                return await again(request)

        return require(role)(shown)

    return around


def redirect_to_confirm(request: Request) -> Response:
    """Where one confirms who one is, and from there back to the page whose form was sent."""
    came = urlsplit(request.headers.get("referer", "")).path or "/"
    return RedirectResponse(f"{CONFIRM}?next={quote(came, safe='')}", 303)


def _check_numbers(request: Request) -> None:
    """Path ids beyond 64 bits are 404."""
    for name, value in request.path_params.items():
        if isinstance(value, int):
            path_number(request, name)


def error_page(request: Request, error: GoferError) -> Response:
    """The page for an error of ours."""
    status = status_of(error)
    request.scope.pop(REFUSED, None)
    return refusal(request, status, title=TITLES.get(status, "Error"), detail=str(error))


def _refill(form: FormData) -> dict[str, str]:
    """The fields that a refused form is filled with again: no secrets and no files."""
    return {
        name: value
        for name, value in form.items()
        if isinstance(value, str) and name not in SECRET_FIELDS and not name.startswith("secret.")
    }


async def form_of(request: Request) -> FormData:
    """The form that was sent."""
    return await read_form(request, max_files=MAX_FILES, max_fields=MAX_FIELDS)


def text_of(form: FormData, name: str, default: str = "") -> str:
    """A text field."""
    value = form.get(name, default)
    if not isinstance(value, str):
        raise Malformed(f"{name}: must be text, not a file.")
    return value.replace("\r\n", "\n")


def query_number(request: Request, name: str) -> int | None:
    """A number from the query; raises Malformed."""
    value = request.query_params.get(name, "")
    if not value:
        return None
    if not value.isascii() or not value.isdigit() or len(value) > 18:
        raise Malformed(f"{name}: must be a number.")
    return int(value)
