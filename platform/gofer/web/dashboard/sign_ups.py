"""Having an account made at a service in one click: a form that the browser posts there, and the way back.

The answer is taken only in the browser that began it: the state it comes with must be the one in its cookie.
"""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from gofer.connections.setup_flow import SETUP_TIMEOUT, begin_setup, finish_setup
from gofer.errors import Malformed, Refused
from gofer.integration import Integration
from gofer.web.auth import POLICY, actor, audited, caller_of, visitor_of
from gofer.web.auth.confirmation import check_confirmed
from gofer.web.auth.members import digest
from gofer.web.dashboard.connections import apply_and_show, fields_of, settings_in
from gofer.web.dashboard.endpoints import form_of, page, text_of
from gofer.web.dashboard.render import platform_of, render

BACK = "/connections/sign-up/back"
COOKIE = "gofer_sign_up"
PLACES = ("api_url", "web_url")
"""What may be set beforehand, where an integration has it: which instance of the service is meant."""


@page("owner")
async def ask(request: Request) -> Response:
    """What the account shall be called, and whose it shall be."""
    integration = _integration(request)
    return render(
        request,
        "sign_up.html",
        integration={"name": integration.name, "summary": integration.summary},
        fields=[field for field in fields_of(integration, {}) if field["name"] in PLACES],
        public=platform_of(request).settings.public_url,
    )


@page("owner")
async def show(request: Request) -> Response:
    """What the account may do and why, and the button that has the browser post the form to the service."""
    check_confirmed(request)
    form, integration = await form_of(request), _integration(request)
    begun = begin_setup(
        platform_of(request),
        integration=integration.name,
        name=text_of(form, "name").strip(),
        settings=settings_in(integration, form),
        owner=text_of(form, "owner").strip(),
        back_url=_here(request) + BACK,
    )
    host = urlsplit(begun.form.url)
    response = render(
        request,
        "sign_up_sent.html",
        integration={"name": integration.name},
        asks=dict(begun.form.asks),
        host=host.netloc,
        # They go there as they are; nothing in them is one of our secrets.
        unmasked={"url": begun.form.url, "fields": dict(begun.form.fields)},
    )
    allowed = f"form-action 'self' {host.scheme}://{host.netloc}"
    response.headers["content-security-policy"] = POLICY.replace("form-action 'self'", allowed)
    secure = caller_of(request).secure
    response.set_cookie(
        COOKIE, digest(begun.state), max_age=int(SETUP_TIMEOUT), path=BACK, secure=secure, httponly=True,
        samesite="lax",
    )  # fmt: skip
    return response


@page("owner")
async def back(request: Request) -> Response:
    """The service's answer: the account is fetched and its keys are sealed before anything else happens."""
    state, code = request.query_params.get("state", ""), request.query_params.get("code", "")
    if not hmac.compare_digest(request.cookies.get(COOKIE, "").encode(), digest(state).encode()):
        raise Refused("This answer belongs to a sign-up that was not begun in this browser. Begin it again.")
    if not code:
        raise Malformed("The service sent no code. Begin the sign-up again.")

    async def finished() -> Response:
        made = await finish_setup(platform_of(request), state=state, code=code, by=actor(request))
        return await apply_and_show(request, made, "Connected.")

    # It is asked for by a link, for no service can do better; it is a change all the same.
    answer = await audited(request, visitor_of(request), finished)
    answer.delete_cookie(COOKIE, path=BACK)
    return answer


def _integration(request: Request) -> Integration:
    return platform_of(request).registry.get(request.path_params["integration"])


def _here(request: Request) -> str:
    """The address under which this browser reached us and to which it returns; the guard has checked the name."""
    scheme = "https" if caller_of(request).secure else "http"
    return f"{scheme}://{request.headers['host']}"
