"""The first five minutes: talk, give it a model, connect it; and the pages of docs/ to read on."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

import gofer
from gofer.app import Platform
from gofer.connections.changes import add_connection, find_connection, invite, remove_connection
from gofer.connections.health import health_of, set_up
from gofer.doctor import Finding, ask_compatible, ask_model, examine, look_around
from gofer.doctor.model import KEY_FIXES, look_at_model
from gofer.errors import GoferError, Malformed, NotFound
from gofer.jobs.notifications import JOBS
from gofer.runs.agent_files import AgentFiles
from gofer.secrets.secret_store import put_secret
from gofer.store.bootstrap import FIRST_AGENT, FIRST_WORKSPACE
from gofer.store.tables import bindings, connections, conversations, deliveries, secrets
from gofer.vault.redaction import Secret
from gofer.web.auth import require, visitor_of
from gofer.web.auth.confirmation import Unconfirmed, check_confirmed
from gofer.web.body import read_form
from gofer.web.dashboard.endpoints import redirect_to_confirm
from gofer.web.dashboard.render import platform_of, render
from gofer.web.dashboard.sanitize import words
from gofer.web.problems import status_of

__all__ = ["routes"]


MAX_FIELD = 20_000
COMPATIBLE = (
    "Kept, encrypted; not in use yet: it is for agents that name their model. On the page Agents, give one a line such "
    'as `model = "openai/gpt-5"`. `GOFER_OPENAI_BASE_URL` is for a server other than OpenAI\'s.'
)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of a step, for the page to show at it."""

    step: str
    ok: bool
    line: str
    fix: str = ""
    invitation: str = ""


def required_field(form: dict[str, str], name: str, what: str) -> str:
    """A field's value; raises Malformed when nothing usable is in it."""
    value = form.get(name, "").strip()
    if not value or len(value) > MAX_FIELD or "\x00" in value:
        raise Malformed(f"Give {what}.")
    return value


async def keep_key(platform: Platform, form: dict[str, str]) -> StepResult:
    """Seal a model key into the vault; with consent it is tried first, and one that does not work is not kept."""
    name = "openai_key" if form.get("provider") == "openai" else "anthropic_key"
    value = required_field(form, "key", "the key")
    if not value.isascii() or not value.isprintable() or " " in value:
        raise Malformed("That is no key: it has spaces or characters that no key has.")
    tried = await _tried(platform, name, value) if "test" in form else None
    if tried is not None and tried.severity != "ok":
        # Only a provider that refuses the key says anything about it.
        fix = "Check the key" if tried.fix in KEY_FIXES else tried.fix.rstrip(".")
        return StepResult(
            "model", False, f"Not kept: {tried.line}", f"{fix}; or keep the key without the test."
        )
    await platform.database.write(
        put_secret,
        vault=platform.vault,
        workspace_id=FIRST_WORKSPACE,
        owner="",
        name=name,
        value=Secret(value),
    )
    await platform.secrets_changed()
    word = tried.line if tried is not None else "It was not tested."
    if name != "anthropic_key":
        return StepResult("model", True, f"{COMPATIBLE} {word}")
    return StepResult("model", True, f"Kept, encrypted, and in use from the next message on. {word}")


async def _tried(platform: Platform, name: str, key: str) -> Finding:
    """Anthropic's model is asked one word; a compatible server, of which no model is known yet, for its list."""
    return await (
        ask_model(platform, {name: key}) if name == "anthropic_key" else ask_compatible(platform, key)
    )


async def connect_telegram(platform: Platform, form: dict[str, str], by: str) -> StepResult:
    """A bot by its token."""
    token = required_field(form, "token", "the bot's token")
    return await _connect(platform, "telegram", {}, {"token": Secret(token)}, by)


async def connect_github(platform: Platform, form: dict[str, str], by: str) -> StepResult:
    """An App by its id and key, or an account by a token."""
    if form.get("token", "").strip():
        return await _connect(
            platform, "github", {}, {"token": Secret(required_field(form, "token", "the token"))}, by
        )
    number = required_field(form, "app_id", "the App's id, or a token")
    if not (number.isascii() and number.isdigit()):
        raise Malformed("The App's id is a number; GitHub shows it in the App's settings.")
    given = {"private_key": Secret(required_field(form, "private_key", "the App's private key"))}
    if form.get("webhook_secret", "").strip():
        given["webhook_secret"] = Secret(form["webhook_secret"].strip())
    return await _connect(platform, "github", {"app_id": int(number)}, given, by)


async def _connect(
    platform: Platform, name: str, settings: dict[str, Any], secrets: dict[str, Secret], by: str
) -> StepResult:
    """Make a connection and prepare its service; one that cannot be prepared leaves nothing behind."""
    connection_id = await platform.database.write(
        add_connection,
        vault=platform.vault,
        workspace_id=FIRST_WORKSPACE,
        integration=platform.registry.get(name),
        name="",
        settings=settings,
        secrets_given=secrets,
        by=by,
    )
    await platform.secrets_changed()
    health = await set_up(platform, connection_id)
    if not health.ok:
        await platform.database.write(remove_connection, connection_id=connection_id, by=by)
        await platform.secrets_changed()
        # What a health line advises may name the connection, which is gone.
        return StepResult(
            name, False, f"Not connected: {health.line}", "" if connection_id in health.fix else health.fix
        )
    await platform.database.write(platform.start_inflow)
    platform.signals.wake(JOBS)
    words = await invite(platform.database, platform.accounts, connection_id)
    return StepResult(name, True, health.line, invitation=words)


async def test_connection(platform: Platform, step: str, connection_id: str) -> StepResult:
    """Ask the service how the connection is doing."""
    health = await health_of(platform, connection_id)
    return StepResult(step, health.ok, health.line, health.fix)


MAX_FORM = 64 * 1024

Doing = Callable[[Request, Platform, dict[str, str]], Awaitable[StepResult]]


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
            Route(path, form, methods=["POST"], name=name, max_body_size=MAX_FORM)
            for (path, name), form in forms.items()
        ),
        Route("/docs", contents, methods=["GET"]),
        Route("/docs/{name:path}", read, methods=["GET"]),
    ]


@require("viewer")
async def show(request: Request) -> Response:
    """The page, for operators and owners; viewers are redirected to the overview."""
    if not visitor_of(request).may("operator"):
        return RedirectResponse("/", 303)
    return await _page(request)


async def _page(request: Request, result: StepResult | None = None, status: int = 200) -> Response:
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
                return redirect_to_confirm(request)
            except GoferError as error:
                return await _page(request, StepResult(step, False, str(error)), status_of(error))
            return await _page(request, result, 200 if result.ok else 422)

        return done

    return around


@_form("model")
async def model(request: Request, platform: Platform, form: dict[str, str]) -> StepResult:
    """Keep a key; ask the model only if its owner ticked that."""
    check_confirmed(request)
    return await keep_key(platform, form)


@_form("model")
async def test_model(request: Request, platform: Platform, form: dict[str, str]) -> StepResult:
    """Ask the model one word, or a compatible server for its list; pressing the button is the consent."""
    asked = ask_compatible if form.get("provider") == "openai" else ask_model
    finding = await asked(platform)
    return StepResult("model", finding.severity == "ok", finding.line, finding.fix)


@_form("telegram")
async def telegram(request: Request, platform: Platform, form: dict[str, str]) -> StepResult:
    """Connect a bot."""
    check_confirmed(request)
    return await connect_telegram(platform, form, visitor_of(request).name)


@_form("github")
async def github(request: Request, platform: Platform, form: dict[str, str]) -> StepResult:
    """Connect an App."""
    check_confirmed(request)
    return await connect_github(platform, form, visitor_of(request).name)


@_form("")
async def test(request: Request, platform: Platform, form: dict[str, str]) -> StepResult:
    """Ask a service how its connection is doing."""
    step, connection_id = request.path_params["step"], request.path_params["connection"]
    row = await platform.database.read(find_connection, connection_id=connection_id)
    if step not in OFFERED or row.integration != step:
        raise NotFound("There is no such connection.")
    return await test_connection(platform, step, connection_id)


@require("viewer")
async def contents(request: Request) -> Response:
    """Every page of the docs."""
    return render(request, "welcome/contents.html", groups=docs_contents())


@require("viewer")
async def read(request: Request) -> Response:
    """One page of the docs."""
    shown = page(request.path_params["name"])
    return render(request, "welcome/docs.html", title=shown.title, shown=shown)


OFFERED = ("telegram", "github")
MODEL_KEYS = ("anthropic_key", "openai_key")


async def state_of(platform: Platform, member_id: str) -> dict[str, Any]:
    """What the page shows of each step."""
    known = await platform.database.read(_known, member_id=member_id)
    (model,) = await look_at_model(platform)
    settings = platform.settings
    given = {"anthropic_key": settings.anthropic_key, "openai_key": settings.openai_key}
    return {
        **known,
        "model": {
            "line": model.line,
            "real": model.severity == "ok",
            "by_environment": [name for name in MODEL_KEYS if given[name] and name not in known["keys"]],
        },
        "compatible": "openai_key" in known["keys"] or bool(settings.openai_key or settings.openai_base_url),
        "public_url": settings.public_url,
        "layered": settings.agent_runtime_v1,
        "folder": AgentFiles.of(settings).paths(FIRST_AGENT).settings.exists(),
    }


def _known(connection: Connection, member_id: str) -> dict[str, Any]:
    names = select(secrets.c.name).where(
        secrets.c.workspace_id == FIRST_WORKSPACE, secrets.c.owner == "", secrets.c.name.in_(MODEL_KEYS)
    )
    talked = (
        select(conversations.c.id)
        .join(bindings, bindings.c.conversation_id == conversations.c.id)
        .where(conversations.c.last_seq > 0, bindings.c.ref.startswith(f"{member_id}:", autoescape=True))
        .limit(1)
    )
    return {
        "keys": list(connection.execute(names).scalars()),
        "talked": connection.execute(talked).first() is not None,
        "connected": {name: _connected(connection, name) for name in OFFERED},
    }


def _connected(connection: Connection, integration: str) -> list[dict[str, Any]]:
    heard = (
        select(func.max(deliveries.c.received_at))
        .where(deliveries.c.connection_id == connections.c.id)
        .scalar_subquery()
    )
    query = (
        select(connections.c.id, connections.c.name, connections.c.enabled, heard.label("heard_at"))
        .where(connections.c.integration == integration)
        .order_by(connections.c.created_at)
    )
    return [dict(row._mapping) for row in connection.execute(query)]


_PAGE = re.compile(r"(?:[A-Za-z0-9-]+/){0,2}[A-Za-z0-9-]+\.md")
_FOLDERS = {
    "": "Using it",
    "integrations": "Integrations",
    "protocols": "Protocols",
    "decisions": "Why it is so",
}
_TABLE = '<div class="scroll" tabindex="0" role="region" aria-label="Table {}"><table>'


def folder() -> Path:
    """Where the docs are: in the installed package, or beside the source."""
    inside = Path(gofer.__file__).parent / "docs"
    return inside if inside.is_dir() else Path(gofer.__file__).parents[2] / "docs"


def names() -> list[str]:
    """Every page."""
    return sorted(path.relative_to(folder()).as_posix() for path in folder().rglob("*.md"))


@lru_cache(maxsize=1)
def docs_contents() -> dict[str, list[dict[str, str]]]:
    """Every page's name and title, by folder."""
    groups: dict[str, list[dict[str, str]]] = {title: [] for title in _FOLDERS.values()}
    for name in names():
        text = (folder() / name).read_text(encoding="utf-8")
        groups[_FOLDERS[name.rpartition("/")[0]]].append({"name": name, "title": _title(name, text)})
    return groups


def _title(name: str, text: str) -> str:
    found = re.search(r"^# (.*)$", text, re.M)
    return found[1] if found else name


@dataclass(frozen=True, slots=True)
class SetupPage:
    """One page, made from our own file by the same cleaning that everything passes."""

    title: str
    html: str

    def __html__(self) -> str:
        return self.html


@lru_cache(maxsize=64)
def page(name: str) -> SetupPage:
    """A page by its name; raises NotFound."""
    path = folder() / name
    if not _PAGE.fullmatch(name) or not path.is_file():
        raise NotFound("There is no such page.")
    text = path.read_text(encoding="utf-8")
    return SetupPage(_title(name, text), _with_places(str(words(text, breaks=False))))


def _with_places(html: str) -> str:
    """Headings that a link can lead to, and tables that the keyboard can scroll on a narrow screen."""
    number = itertools.count(1)
    html = re.sub("<table>", lambda _: _TABLE.format(next(number)), html).replace(
        "</table>", "</table></div>"
    )
    return re.sub(r"<h([23])>(.*?)</h\1>", _placed, html)


def _placed(heading: re.Match[str]) -> str:
    plain = re.sub(r"<[^>]*>", "", heading[2]).lower()
    place = re.sub(r"[^a-z0-9 -]", "", plain).replace(" ", "-")
    return f'<h{heading[1]} id="{place}">{heading[2]}</h{heading[1]}>'
