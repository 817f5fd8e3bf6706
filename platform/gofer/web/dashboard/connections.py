"""Connections: how each is doing, what it needs, its settings; adding one, testing it, switching it on and off."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response

from gofer.connections.changes import (
    add_connection,
    change_settings,
    choose_connection_agent,
    find_connection,
    invite,
    switch_connection,
)
from gofer.connections.health import disconnect
from gofer.errors import Malformed
from gofer.integration import Integration
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.vault.redaction import Secret
from gofer.web.auth import actor
from gofer.web.auth.confirmation import check_confirmed
from gofer.web.dashboard.checks import Checks
from gofer.web.dashboard.endpoints import form_of, page, text_of
from gofer.web.dashboard.render import platform_of, redirect, refused_of, render
from gofer.web.queries.connections import agents_to_choose, apply_change, hook_url, read_connection


@page("viewer")
async def index(request: Request) -> Response:
    """What is connected, and what could be."""
    registry = platform_of(request).registry
    checks: Checks = request.app.state.checks
    offered = [
        {"name": name, "summary": each.summary, "sign_up": each.can_sign_up}
        for name, each in sorted(registry.integrations.items())
    ]
    broken = [{"name": name, "why": why} for name, why in sorted(registry.broken.items())]
    return render(
        request, "connections.html", connections=await checks.connections(), offered=offered, broken=broken
    )


@page("viewer")
async def show(request: Request) -> Response:
    """One, with its set-up and settings."""
    platform, connection_id = platform_of(request), request.path_params["id"]
    found = await platform.database.read(read_connection, connection_id=connection_id)
    connection_id = found["connection"]["id"]
    checks: Checks = request.app.state.checks
    known = {each["id"]: each for each in await checks.connections()}.get(connection_id, {})
    name = found["connection"]["integration"]
    integration = platform.registry.find(name)
    hook = hook_url(platform, connection_id) or f"/hooks/{connection_id}"
    return render(
        request,
        "connection.html",
        **found,
        health=known.get("health"),
        asked_at=known.get("asked_at"),
        hook=hook,
        fields=_typed_over(request, fields_of(integration, found["connection"]["settings"]))
        if integration
        else [],
        needs=_needs(integration, found["secrets"]) if integration else [],
        steps=_steps(name, hook, bool(platform.settings.public_url)),
        agents=await agents_to_choose(platform),
    )


def _steps(integration: str, hook: str, public: bool) -> list[str]:
    """What a person does, in order; each integration's page in the docs says more."""
    # GitHub lists what it tried to deliver, which is then fetched: it must have somewhere to try.
    app_hook = (
        hook if public else "https://example.invalid/, and active: without GOFER_PUBLIC_URL, Gofer fetches"
    )
    steps = {
        "telegram": [
            "In Telegram, talk to @BotFather, send /newbot and follow it.",
            "Paste the token it gives you under Secrets below as token.",
            "Press Test: the bot's name must appear.",
            "Press Invite, and send the bot the code it shows: that makes you its owner.",
        ],
        "github": [
            "Make a GitHub App in one click (Connections, Sign up), or by hand:",
            f"Its webhook URL is {app_hook}",
            "Put its id, private key and webhook secret under Secrets and Settings below.",
            "Install the App on the repositories it should hear.",
            "Press Test: the App's name must appear.",
        ],
    }
    return steps.get(integration, [f"Have the service post to {hook}", "Press Test."])


_PLAIN = ("string", "integer", "number")
_SPELT = {"api": "API", "url": "URL"}


def fields_of(integration: Integration, values: dict[str, Any]) -> list[dict[str, Any]]:
    """The settings as form fields: text, number, a tick, or JSON for anything deeper."""
    schema = integration.settings.model_json_schema()
    return [
        {
            "name": name,
            "title": _label(name),
            "help": field.get("description", ""),
            "kind": _kind(field),
            "options": field.get("enum", []),
            "value": _shown(values.get(name, field.get("default")), _kind(field)),
            "default": field.get("default"),
            "required": name in schema.get("required", ()),
        }
        for name, field in schema.get("properties", {}).items()
    ]


def _typed_over(request: Request, fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fields with what was typed into a form that is shown again."""
    refused = refused_of(request)
    if not refused.why:
        return fields
    return [{**field, "value": refused.typed.get(f"setting.{field['name']}", "")} for field in fields]


def _label(name: str) -> str:
    words = [_SPELT.get(word, word) for word in name.split("_")]
    return " ".join([words[0][:1].upper() + words[0][1:], *words[1:]])


def _kind(field: dict[str, Any]) -> str:
    if field.get("enum"):
        return "choice"
    # What may be null is left empty.
    (kept, *others) = [each for each in field.get("anyOf", [field]) if each.get("type") != "null"]
    if not others and kept.get("type") == "array" and kept.get("items", {}).get("type") in _PLAIN:
        return "list"
    kind = "" if others else kept.get("type", "")
    return {"boolean": "tick", "integer": "number", "number": "number", "string": "text"}.get(kind, "json")


def _shown(value: Any, kind: str) -> Any:
    if kind == "list":
        return ", ".join(map(str, value or ()))
    return json.dumps(value, ensure_ascii=False) if kind == "json" and value is not None else value


def settings_in(integration: Integration, form: FormData) -> dict[str, Any]:
    """The settings a form holds; what is left empty keeps its default."""
    given: dict[str, Any] = {}
    for field in fields_of(integration, {}):
        name = f"setting.{field['name']}"
        text = text_of(form, name)
        if field["kind"] == "tick":
            given[field["name"]] = bool(text)
        elif field["kind"] == "list":
            given[field["name"]] = [part.strip() for part in text.split(",") if part.strip()] or field[
                "default"
            ]
        elif field["kind"] == "json" and text.strip():
            given[field["name"]] = _json(field["name"], text)
        elif text.strip():
            given[field["name"]] = text.strip()
    return given


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise Malformed(f"{name}: must be JSON, such as [] or null.") from None


def _needs(integration: Integration, have: list[str]) -> list[dict[str, Any]]:
    return [{**dataclasses.asdict(field), "there": field.name in have} for field in integration.secrets]


@page("owner")
async def new(request: Request) -> Response:
    """A form for another connection."""
    integration = platform_of(request).registry.get(request.path_params["integration"])
    return render(
        request,
        "connection_new.html",
        integration={"name": integration.name, "summary": integration.summary},
        sign_up=integration.can_sign_up,
        fields=_typed_over(request, fields_of(integration, {})),
        needs=_needs(integration, []),
    )


@page("owner", form=new)
async def add(request: Request) -> Response:
    """Make it, and prepare its service."""
    check_confirmed(request)
    platform, form = platform_of(request), await form_of(request)
    integration = platform.registry.get(request.path_params["integration"])
    given = {field.name: text_of(form, f"secret.{field.name}").strip() for field in integration.secrets}
    connection_id = await platform.database.write(
        add_connection,
        vault=platform.vault,
        workspace_id=FIRST_WORKSPACE,
        integration=integration,
        name=text_of(form, "name").strip(),
        settings=settings_in(integration, form),
        secrets_given={name: Secret(value) for name, value in given.items() if value},
        by=actor(request),
    )
    return await apply_and_show(request, connection_id, "Added.", fresh=True)


@page("owner", form=show)
async def change(request: Request) -> Response:
    """Change its settings, or switch it on or off."""
    platform, form, connection_id = platform_of(request), await form_of(request), request.path_params["id"]
    change_it: Callable[..., None]
    if switch := text_of(form, "enabled"):
        change_it = partial(switch_connection, enabled=switch == "on")
    elif "agent" in form:
        there = await agents_to_choose(platform)
        change_it = partial(choose_connection_agent, agent=text_of(form, "agent"), there=there)
    else:
        check_confirmed(request)
        row = await platform.database.read(find_connection, connection_id=connection_id)
        integration = platform.registry.get(row.integration)
        change_it = partial(change_settings, integration=integration, settings=settings_in(integration, form))
    await platform.database.write(change_it, connection_id=connection_id, by=actor(request))
    await platform.agents_changed()
    words = {"on": "Switched on.", "off": "Switched off."}.get(switch, "Saved.")
    return await apply_and_show(request, connection_id, words)


async def apply_and_show(
    request: Request, connection_id: str, words: str, *, fresh: bool = False
) -> Response:
    """Prepare its service for a connection as it is now, and go to its page; of a new one, with a code for its owner
    where people are known by codes."""
    platform = platform_of(request)
    health = await apply_change(platform, connection_id)
    checks: Checks = request.app.state.checks
    checks.learned(connection_id, health)
    code = await invite(platform.database, platform.accounts, connection_id) if fresh and health.ok else ""
    # How it is doing stands on its page as well.
    told = f"{words} {code or health.line}"
    return redirect(f"/connections/{connection_id}", told, "ok" if health.ok else "warn")


@page("operator")
async def test(request: Request) -> Response:
    """Ask the service now."""
    platform, connection_id = platform_of(request), request.path_params["id"]
    await platform.database.read(find_connection, connection_id=connection_id)
    checks: Checks = request.app.state.checks
    health = await checks.ask(connection_id)
    said = health.line if health.ok or not health.fix else f"{health.line} Fix: {health.fix}"
    return redirect(f"/connections/{connection_id}", said, "ok" if health.ok else "bad")


@page("owner")
async def pair(request: Request) -> Response:
    """A code for a person to become an owner or member of it."""
    check_confirmed(request)
    platform, form, connection_id = platform_of(request), await form_of(request), request.path_params["id"]
    role = text_of(form, "role", "member")
    if role not in ("owner", "member"):
        raise Malformed("role: must be owner or member.")
    words = await invite(platform.database, platform.accounts, connection_id, role)  # type: ignore[arg-type]
    said = words or "This integration knows nobody by a code; who may do what is decided at the service."
    return redirect(f"/connections/{connection_id}", said)


@page("owner")
async def remove(request: Request) -> Response:
    """Remove one that has no conversations."""
    platform, connection_id = platform_of(request), request.path_params["id"]
    await disconnect(platform, connection_id, by=actor(request))
    return redirect("/connections", "Removed.")
