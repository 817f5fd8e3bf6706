"""/login, /logout and /link/{token}: signing in by password or by a one-time link, and out."""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from functools import partial
from typing import Any

from sqlalchemy import Connection, select
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from gofer.app import Platform
from gofer.errors import GoferError, Malformed, TooOften
from gofer.store import row_macs
from gofer.store.tables import members
from gofer.vault.envelope import Vault
from gofer.web.auth import login_throttle
from gofer.web.auth.audit import signed_in
from gofer.web.auth.guard import check_csrf, check_origin, set_cookie
from gofer.web.auth.members import NAME, Linked, change_member, find_member, linked, use_link
from gofer.web.auth.passwords import Passwords
from gofer.web.auth.principal import caller_of
from gofer.web.auth.sessions import LIFE, begin_session, end_session
from gofer.web.body import read_form
from gofer.web.problems import status_of

MAX_BODY = 16 * 1024
FIELDS = ("name", "password", "again", "next", "keep_tokens")
WRONG = "The name or the password is wrong."
USED = "This link was used already or is too old. On the server, `gofer link` makes a new one."


def routes(platform: Platform) -> list[Route]:
    """The routes for signing in and out."""
    entry = _Entry(platform)
    return [
        Route("/login", entry.show_login, methods=["GET"]),
        Route("/login", entry.login, methods=["POST"]),
        Route("/logout", entry.logout, methods=["POST"]),
        Route("/link/{token}", entry.show_link, methods=["GET"]),
        Route("/link/{token}", entry.follow_link, methods=["POST"]),
    ]


class _Entry:
    """The pages on which people sign in and out."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._passwords = Passwords()

    async def show_login(self, request: Request) -> Response:
        """Ask for a name and a password."""
        if caller_of(request).visitor is not None:
            return RedirectResponse(local_target(request.query_params.get("next", "")), 303)
        return _page(request, "login.html", next=local_target(request.query_params.get("next", "")))

    async def login(self, request: Request) -> Response:
        """Sign in by password."""
        check_origin(request, may_be_missing=True)
        form = await _form(request)
        name, target = form["name"].strip().lower(), local_target(form["next"])
        try:
            member_id = await self._identify(request, name, form["password"])
        except TooOften as error:
            response = _page(request, "login.html", 429, next=target, name=name, error=str(error))
            response.headers["retry-after"] = str(int(error.retry_after) + 1)
            return response
        if member_id is None:
            return _page(request, "login.html", 403, next=target, name=name, error=WRONG)
        return await self._signed_in(request, member_id, target, by="password")

    async def _identify(self, request: Request, name: str, password: str) -> str | None:
        caller, write = caller_of(request), self._platform.database.write
        member_id, stored = await self._platform.database.read(_password_of, name=name)
        device = device_of(self._platform.vault, request.headers, member_id, secure=caller.secure)
        tried: dict[str, Any] = {"name": name, "address": caller.address, "device": device}
        await write(partial(login_throttle.attempt, **tried))
        if not await self._passwords.fits(password, stored, known=bool(device)):
            return None
        await write(partial(login_throttle.clear_failures, **tried))
        return member_id

    async def logout(self, request: Request) -> Response:
        """Sign out."""
        caller = caller_of(request)
        response = RedirectResponse("/login", 303)
        if caller.session:
            await check_csrf(request)
            await self._platform.database.write(end_session, value=caller.session)
            set_cookie(response, "", secure=caller.secure, life=0)
            response.headers["clear-site-data"] = '"cache", "storage"'
        return response

    async def show_link(self, request: Request) -> Response:
        """Say whom the link is for; it is used by the button, so that a preview does not use it up."""
        found = await self._platform.database.read(linked, value=request.path_params["token"])
        if found is None:
            return _page(request, "login.html", 410, next="/", error=USED)
        return _page(request, "link.html", member=found)

    async def follow_link(self, request: Request) -> Response:
        """Sign in by the link, and set a password if one is given."""
        check_origin(request, may_be_missing=True)
        value = request.path_params["token"]
        form = await _form(request)
        found = await self._platform.database.read(linked, value=value)
        if found is None:
            return _page(request, "login.html", 410, next="/", error=USED)
        try:
            hashed = await self._chosen(form)
            done = await self._platform.database.write(
                _follow,
                value=value,
                name=form["name"],
                password=hashed,
                keep_tokens=bool(form["keep_tokens"]),
            )
        except GoferError as error:
            return _page(request, "link.html", status_of(error), member=found, error=str(error))
        if done is None:
            return _page(request, "login.html", 410, next="/", error=USED)
        return await self._signed_in(request, done.member_id, "/welcome", by="link")

    async def _chosen(self, form: dict[str, str]) -> str | None:
        if not form["password"]:
            return None
        if form["password"] != form["again"]:
            raise Malformed("The two passwords are not the same.")
        return await self._passwords.hashed(form["password"])

    async def _signed_in(self, request: Request, member_id: str, target: str, *, by: str) -> Response:
        """A fresh session, whatever the browser had before."""
        caller = caller_of(request)
        agent = request.headers.get("user-agent", "")
        value = await self._platform.database.write(
            _begin, old=caller.session, member_id=member_id, by=by, address=caller.address, agent=agent
        )
        response = RedirectResponse(target, 303)
        set_cookie(response, value, secure=caller.secure, life=int(LIFE))
        vault = self._platform.vault
        device = device_of(vault, request.headers, member_id, secure=caller.secure)
        set_device(response, vault, member_id, device, secure=caller.secure)
        return response


def _page(request: Request, template: str, status: int = 200, **facts: Any) -> Response:
    chosen = request.cookies.get("gofer_theme", "")
    shown = {"theme": chosen if chosen in ("light", "dark") else "", "error": "", "name": "", **facts}
    return HTMLResponse(request.app.state.renderer.html(template, **shown), status)


def _password_of(connection: Connection, name: str) -> tuple[str | None, str]:
    if not NAME.fullmatch(name):
        return None, ""
    row = connection.execute(select(members).where(members.c.name == name)).first()
    if row is None or not row_macs.fits(connection, members, row):
        return None, ""
    return row.id, row.password


def _follow(
    connection: Connection, value: str, name: str, password: str | None, keep_tokens: bool
) -> Linked | None:
    done = use_link(connection, value)
    if done is not None and password is not None:
        change_member(
            connection, done.member_id, name=name or None, password=password, keep_tokens=keep_tokens
        )
    return done


def _begin(connection: Connection, /, old: str, **session: Any) -> str:
    if old:
        end_session(connection, old)
    member_id = session.pop("member_id")
    name = find_member(connection, member_id).name
    signed_in(connection, member_id=member_id, name=name, address=session["address"], by=session["by"])
    return begin_session(connection, member_id, **session)


async def _form(request: Request) -> dict[str, str]:
    form = await read_form(request, max_bytes=MAX_BODY)
    return {name: str(form.get(name, "")) for name in FIELDS}


def local_target(target: str) -> str:
    """Where to go next, on this server only."""
    if not target.isprintable() or "\\" in target or not target.startswith("/") or target.startswith("//"):
        return "/"
    return target


PLAIN_COOKIE, SECURE_COOKIE = "gofer_device", "__Host-gofer_device"
DEVICE_LIFE = 365 * 86400
PURPOSE = "device cookie"
_VALUE = re.compile(r"([A-Za-z0-9_-]{16,40})\.([A-Za-z0-9_-]{43})")


def device_of(vault: Vault, headers: Headers, member_id: str | None, *, secure: bool) -> str:
    """The id of the browser if this member signed in with it before; else empty."""
    name = SECURE_COOKIE if secure else PLAIN_COOKIE
    for part in ";".join(headers.getlist("cookie")).split(";"):
        key, _, value = part.strip().partition("=")
        found = _VALUE.fullmatch(value) if key == name and member_id else None
        if found and vault.mac_key(PURPOSE).fits(_mac(found[2]), str(member_id), found[1]):
            return found[1]
    return ""


def set_device(response: Response, vault: Vault, member_id: str, device: str, *, secure: bool) -> None:
    """Let the browser show next time that this member signed in with it."""
    device = device or secrets.token_urlsafe(16)
    signed = base64.urlsafe_b64encode(vault.mac_key(PURPOSE).mac(member_id, device)).decode().rstrip("=")
    response.set_cookie(
        SECURE_COOKIE if secure else PLAIN_COOKIE,
        f"{device}.{signed}",
        max_age=DEVICE_LIFE,
        path="/",
        secure=secure,
        httponly=True,
        samesite="lax",
    )


def _mac(text: str) -> bytes | None:
    try:
        return base64.urlsafe_b64decode(text + "=")
    except (binascii.Error, ValueError):
        return None
