"""Runtimes of external agents: the registry, and the orders that hosts carry out."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request

from gofer.app import Platform
from gofer.errors import Forbidden, Malformed, NotFound
from gofer.jobs.notifications import JOBS
from gofer.runs.external_settings import RuntimeKind
from gofer.runtimes import records
from gofer.runtimes.hops import over_orders
from gofer.web.api.http import ApiAnswer, RequestModel, path_number, platform_of
from gofer.web.api.idempotency import HEADER
from gofer.web.auth import Visitor, note, record_order, visitor_of
from gofer.web.auth.members import find_member, first_owner
from gofer.web.queries import runtimes

MAX_WAIT, LOOK_EVERY = 30, 2.0
"""Seconds that a host may wait for orders, and between two looks when no signal comes."""
NAME = r"^[a-z0-9][a-z0-9._-]{0,59}$"
TAKEN = ("orders", "questions")
"""What follows `/runtimes/` in addresses of ours, and is no runtime's name."""
Word = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]


class RuntimeName(StringConvertor):
    """A runtime's name in an address: `PUT /runtimes/orders` is no announcement of one."""

    regex = rf"(?!(?:{'|'.join(TAKEN)})(?:/|$))[^/]+"


register_url_convertor("runtime", RuntimeName())


class NewRuntime(RequestModel):
    """A runtime to register."""

    name: str = Field(
        pattern=NAME,
        description="a-z, 0-9, dots and dashes; at most 60 characters; neither `orders` nor `questions`.",
    )
    agent: str = Field(min_length=1, max_length=100, description="The external agent it runs.")
    kind: RuntimeKind
    member: str = Field(
        default="", max_length=200, description="Whose host may announce it; one's own when empty."
    )
    callback_url: str = Field(default="", max_length=2000, description="For a callback: where requests go.")
    callback_secret: str = Field(
        default="", max_length=100, description="For a callback: the name of the secret that signs them."
    )

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str) -> str:
        if name in TAKEN:
            raise ValueError(f"{name} is an address of the API; call the runtime something else")
        return name


class RuntimeAnnouncement(RequestModel):
    """What a host says of a runtime, again and again."""

    agent: str = Field(min_length=1, max_length=100)
    kind: Literal["tmux", "acp"]
    host: str = Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")
    state: Literal["live", "idle", "offline"] = Field(
        description="offline: the host is here, the session is not."
    )
    session: Word = ""
    program: Word = ""
    can_resume: bool = False
    can_spawn: bool = False
    crashed: bool = Field(default=False, description="A session that was alive has just died by itself.")
    gone: bool = Field(
        default=False, description="Its process is not there: what it was told it will not answer."
    )


class Draining(RequestModel):
    """Whether a runtime gets nothing new."""

    on: bool = True


class OrderQuery(RequestModel):
    """Whose orders, and how long to wait for one."""

    host: str = Field(default="", max_length=200, description="The name that the host announces.")
    wait: int = Field(default=0, ge=0, le=MAX_WAIT, description="Seconds.")
    fresh: bool = Field(
        default=False, description="The host has just started: also what it had taken before."
    )
    working: str = Field(
        default="",
        max_length=1500,
        pattern=r"^([0-9]{1,18}-[0-9]{1,4}(,|$))*$",
        description="The orders that the host is carrying out, with commas: which of them are over is told at once.",
    )


class OrderReport(RequestModel):
    """What became of an order."""

    status: Literal["delivered", "deferred", "failed", "acknowledged", "answered", "unknown"]
    reason: str = Field(default="", max_length=60, description="A code such as runtime.gone.")
    session: Word = ""
    text: str = Field(default="", max_length=100_000, description="answered: the agent's words.")


class OrderQuestion(RequestModel):
    """Something that an agent asks people before it goes on."""

    text: str = Field(min_length=1, max_length=10_000, pattern=r"\S")
    choices: list[Annotated[str, Field(min_length=1, max_length=60)]] = Field(
        default_factory=list, max_length=8
    )


async def index(request: Request) -> dict[str, Any]:
    """List runtimes."""
    platform = platform_of(request)
    found = await platform.database.read(runtimes.list_all, settings=platform.settings)
    return {"runtimes": found}


async def show(request: Request) -> dict[str, Any]:
    """One runtime with its last hops."""
    platform, name = platform_of(request), request.path_params["name"]
    return await platform.database.read(runtimes.show_one, name=name, settings=platform.settings)


async def add(request: Request, new: NewRuntime) -> ApiAnswer:
    """Register a runtime. From then on its member's host may announce it."""
    platform = platform_of(request)
    note(request, name=new.name, agent=new.agent, kind=new.kind)
    _check_callback(new)
    if new.callback_secret:
        await _check_secret(platform, new.callback_secret)
    await runtimes.external_spec(platform, new.agent, new.kind)
    await platform.agents_changed()
    member_id = await _member(request, new.member)
    row = await platform.database.write(
        records.register,
        name=new.name,
        agent=new.agent,
        kind=new.kind,
        member_id=member_id,
        callback_url=new.callback_url,
        callback_secret=new.callback_secret,
    )
    told = runtimes.describe(row, platform.settings)
    return ApiAnswer(told, location=f"/runtimes/{new.name}")


def _check_callback(new: NewRuntime) -> None:
    given = bool(new.callback_url), bool(new.callback_secret)
    if new.kind != "callback":
        if any(given):
            raise Malformed("callback_url: only a runtime of the kind callback has one.")
        return
    if not all(given):
        raise Malformed(
            "callback_url: a callback needs callback_url and callback_secret, the name of a secret "
            "(gofer runtimes add … --url URL --secret NAME)."
        )
    try:
        parts = urlsplit(new.callback_url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.username
    except ValueError:
        fits = False
    if not fits:
        raise Malformed(
            "callback_url: should begin with https:// or http://, name a host and hold no password."
        )


async def _check_secret(platform: Platform, name: str) -> None:
    try:
        await platform.secret(name)
    except NotFound:
        raise NotFound(
            f"There is no secret {name[:60]!r}. Keep it first: gofer secrets put {name[:60]}"
        ) from None


async def _member(request: Request, named: str = "") -> str:
    """The id of the member that is meant; one's own, or the first owner's for the command line."""
    platform, visitor = platform_of(request), visitor_of(request)
    if named:
        return str((await platform.database.read(find_member, named=named)).id)
    return visitor.member_id or str((await platform.database.write(first_owner)).id)


def _host(request: Request) -> Visitor:
    """A host, which is a program: a browser's page must not take its orders."""
    visitor = visitor_of(request)
    if visitor.via == "session":
        raise Forbidden("Hosts come with a token: gofer tokens add host --scope runtimes:write")
    return visitor


async def announce(request: Request, said: RuntimeAnnouncement) -> dict[str, Any]:
    """Announce a runtime: the host is here, and this is how its session is."""
    _host(request)
    platform = platform_of(request)
    announcement = records.Announcement(**said.model_dump(exclude={"gone"}))
    name, member_id = request.path_params["name"], await _member(request)
    every = platform.settings.runtime_heartbeat
    row = await platform.database.write(
        records.announce, name=name, member_id=member_id, said=announcement, every=every
    )
    if said.gone and await runtimes.end_hops_of(platform, row.id):
        platform.signals.wake(JOBS)
    return runtimes.describe(row, platform.settings)


async def drain(request: Request, given: Draining) -> dict[str, Any]:
    """Give a runtime nothing new, or end that."""
    platform, name = platform_of(request), request.path_params["name"]
    await _check_owned(request, name)
    row = await platform.database.write(records.drain, name=name, on=given.on)
    platform.signals.wake(JOBS)
    return runtimes.describe(row, platform.settings)


async def remove(request: Request) -> dict[str, Any]:
    """Forget a runtime."""
    platform, name = platform_of(request), request.path_params["name"]
    await _check_owned(request, name)
    await platform.database.write(records.remove, name=name)
    return {"id": name}


async def _check_owned(request: Request, name: str) -> None:
    row = await platform_of(request).database.read(records.find_runtime, name=name)
    is_owner = visitor_of(request).role == "owner"
    records.check_owned(row, await _member(request), is_owner=is_owner)


async def orders(request: Request, query: OrderQuery) -> dict[str, Any]:
    """Take the orders for a host's runtimes, each under a lease; wait for one when there is none."""
    _host(request)
    platform = platform_of(request)
    member_id = await _member(request)
    woken = platform.signals.subscribe(JOBS)
    until = time.monotonic() + query.wait
    try:
        found: list[dict[str, Any]] = []
        over: list[str] = []
        working = [each for each in query.working.split(",") if each]
        # A host that died has left its request behind: what it took nobody would carry out until the lease ends.
        while not await request.is_disconnected():
            found = await runtimes.take_orders(platform, member_id, query.host, fresh=query.fresh)
            if working:
                over = await platform.database.read(over_orders, member_id=member_id, given=working)
            left = until - time.monotonic()
            if found or over or left <= 0:
                break
            await woken.wait(min(left, LOOK_EVERY))
    finally:
        platform.signals.unsubscribe(JOBS, woken)
    for each in found:
        await record_order(request, each["conversation"])
    return {"orders": found, "over": over}


async def report(request: Request, said: OrderReport) -> dict[str, Any]:
    """Say what became of an order. What comes for one that is over changes nothing, and is answered so."""
    _host(request)
    platform = platform_of(request)
    note(request, status=said.status, reason=said.reason)
    if said.status == "answered" and not said.text.strip():
        raise Malformed("text: an answer has words.")
    told = await runtimes.report(
        platform,
        request.path_params["id"],
        await _member(request),
        status=said.status,
        reason=said.reason,
        session=said.session,
        text=said.text,
    )
    platform.signals.wake(JOBS)
    return told


async def ask(request: Request, given: OrderQuestion) -> ApiAnswer:
    """Ask the people of an order's conversation something for its agent."""
    _host(request)
    platform = platform_of(request)
    asked = {"text": given.text, "choices": given.choices, "key": request.headers.get(HEADER, "")}
    job_id = await runtimes.ask(platform, request.path_params["id"], await _member(request), **asked)
    platform.signals.wake(JOBS)
    told = {"question": job_id, "state": "open", "answer": ""}
    return ApiAnswer(told, location=f"/runtimes/questions/{job_id}")


async def question(request: Request) -> dict[str, Any]:
    """What became of a question."""
    _host(request)
    platform, job_id = platform_of(request), path_number(request)
    member_id = await _member(request)
    return await platform.database.read(
        runtimes.find_answer, vault=platform.vault, job_id=job_id, member_id=member_id
    )
