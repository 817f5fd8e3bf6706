"""Connecting: the App's manifest, what it may do and why, and how a connection is doing."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

from gofer.errors import ConfigError, Permanent, ServiceError, Temporary
from gofer.integration import ConnectionContext, Health
from gofer_github.access import Access
from gofer_github.client import Client, is_missing
from gofer_github.settings import Settings

PERMISSIONS = {
    "metadata": ("read", "GitHub asks every App for it: names of repositories, who may write to them"),
    "issues": ("write", "read issues, answer in one comment, put labels"),
    "pull_requests": ("write", "read and open pull requests, answer reviews, review, ask for reviews"),
    "contents": ("write", "clone, and push branches of its own"),
    "checks": ("write", "show its work as a check, read why others failed"),
    "actions": ("read", "read the logs of failing workflows"),
    "statuses": ("read", "read commit statuses, which some services set instead of checks"),
}
"""What the App asks for, and why. It does not ask for `workflows`: GitHub then refuses pushes that change them."""

OPTIONAL = frozenset({"statuses", "status"})
"""Permissions and events that an App made before they were asked for can do without."""
MAX_SHOWN = 5
"""Installations, and repositories of each, that are named."""
EVENTS = {
    "issues": "hear of new issues, labels and assignments",
    "issue_comment": "hear when somebody mentions it in a comment",
    "pull_request": "hear of new pull requests, and when its review is asked for",
    "pull_request_review": "hear what a review says",
    "pull_request_review_comment": "hear remarks on single lines, and answer there",
    "check_suite": "hear when the checks on its own branches fail",
    "status": "hear when a commit status on its own branches fails",
    "repository": "hear when a repository gets another name",
}
"""What the App listens to, and why."""


NOWHERE = "https://example.invalid/no-public-address"
"""Where webhooks go when we have no public address; the name is reserved and leads nowhere."""


def manifest(name: str, hook_url: str | None, redirect_url: str, homepage: str) -> dict[str, Any]:
    """What the one-click flow posts to GitHub: an App with the least it needs."""
    # Active although nobody is there: GitHub lists what it tried to deliver, and without a hook it tries nothing.
    hook = {"url": hook_url or NOWHERE, "active": True}
    return {
        "name": name,
        "url": homepage,
        "hook_attributes": hook,
        "redirect_url": redirect_url,
        "public": False,
        "default_permissions": {permission: level for permission, (level, _) in PERMISSIONS.items()},
        "default_events": list(EVENTS),
    }


def manifest_page(settings: Settings, state: str, organisation: str = "") -> str:
    """Where the manifest is posted to."""
    if organisation and not re.fullmatch(r"[A-Za-z0-9-]{1,39}", organisation):
        raise ConfigError(f"{organisation!r} cannot be an organisation's name.")
    owner = f"organizations/{organisation}/settings" if organisation else "settings"
    return f"{settings.web_url}/{owner}/apps/new?{urlencode({'state': state})}"


async def convert(settings: Settings, code: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Exchange the code GitHub came back with for the App: its settings and its secrets. Works once, for an hour."""
    if not code.isalnum() or len(code) > 200:
        raise Permanent("That is not a code of GitHub's.", reason="code")
    from github.Auth import Token

    made = await Client(settings.api_url, Token("none")).post(f"/app-manifests/{code}/conversions")
    learned = {"app_id": made["id"], "handle": made["slug"], "login": f"{made['slug']}[bot]"}
    return learned, {"private_key": made["pem"], "webhook_secret": made["webhook_secret"]}


async def set_up(access: Access, account: ConnectionContext) -> Health:
    """See that the credentials work, and learn our name."""
    settings = Settings.model_validate(account.settings)
    try:
        if settings.app_id is None:
            user = await (await access.to(account, "", {})).get("/user")
            line = f"A token of {user['login']}; without an App nothing missed can be fetched."
            return Health(True, line, learned={"login": user["login"]})
        app = await access.as_app(account).get("/app")
        health = _drift(app) or await _installed(access, account, app)
    except ServiceError as error:
        return _ill(error, account)
    learned = {"handle": app["slug"], "login": f"{app['slug']}[bot]", "permissions": app["permissions"]}
    return Health(health.ok, health.line, health.fix, learned)


async def health(access: Access, account: ConnectionContext) -> Health:
    """Whether GitHub still knows us, and whether permissions and events are those we need."""
    try:
        settings = Settings.model_validate(account.settings)
        if settings.app_id is None:
            user = await (await access.to(account, "", {})).get("/user")
            return Health(True, f"A token of {user['login']}.")
        app = await access.as_app(account).get("/app")
        return _drift(app) or await _installed(access, account, app)
    except ServiceError as error:
        return _ill(error, account)


def _drift(app: dict[str, Any]) -> Health | None:
    """What the App lacks, or has beyond its need; None when it is right."""
    missing = _missing(app.get("permissions", {}))
    unheard = [f"the event {event}" for event in EVENTS if event not in (*app.get("events", ()), *OPTIONAL)]
    if missing or unheard:
        lacks = ", ".join(missing + unheard)
        fix = "Add them in the App's settings, then accept them."
        return Health(False, f"The App {app['slug']} lacks {lacks}.", fix)
    if app.get("permissions", {}).get("workflows"):
        return Health(
            False, f"The App {app['slug']} may change workflows.", "Take the permission workflows away."
        )
    return None


def _missing(granted: dict[str, str]) -> list[str]:
    return [
        f"{name}: {level}"
        for name, (level, _) in PERMISSIONS.items()
        if name not in OPTIONAL
        and granted.get(name) not in ((level,) if level == "write" else ("read", "write"))
    ]


async def _installed(access: Access, account: ConnectionContext, app: dict[str, Any]) -> Health:
    """Where the App is installed, on which repositories, and whether what it asks for was accepted there."""
    settings = Settings.model_validate(account.settings)
    # An Enterprise Server has it elsewhere than the public one, and says where.
    page = app.get("html_url") or f"{settings.web_url}/apps/{app['slug']}"
    pages = f"{page}/installations/new"
    found = await access.as_app(account).pages("/app/installations", most=1)
    if not found:
        return Health(True, f"The App {app['slug']} is installed nowhere yet.", f"Install it: {pages}")
    lines = []
    for place in found[:MAX_SHOWN]:
        owner = place["account"]["login"]
        if place.get("suspended_at"):
            return Health(False, f"{owner} has suspended the App.", f"{owner} can resume it: {pages}")
        if missing := _missing(place.get("permissions", {})):
            line = f"{owner} has not accepted {', '.join(missing)} yet."
            return Health(False, line, f"{owner} accepts it at {pages}")
        lines.append(f"{owner} ({await _repositories(access, account, place['id'])})")
    more = f" and {len(found) - len(lines)} more" if len(found) > len(lines) else ""
    return Health(True, f"The App {app['slug']}, installed by {', '.join(lines)}{more}.")


async def _repositories(access: Access, account: ConnectionContext, installation: int) -> str:
    try:
        async with access.to_installation(account, installation) as client:
            answer = await client.get("/installation/repositories", per_page=MAX_SHOWN)
    except Permanent as error:
        if is_missing(error):
            return "repositories that it does not tell"
        raise
    names = [one["name"] for one in answer["repositories"][:MAX_SHOWN]]
    more = answer["total_count"] - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _ill(error: ServiceError, account: ConnectionContext) -> Health:
    if isinstance(error, Temporary):
        return Health(False, f"GitHub cannot say now: {error}")
    if isinstance(error, Permanent) and error.reason in ("github.credentials", "credentials"):
        name = "token" if Settings.model_validate(account.settings).app_id is None else "private_key"
        detail = "GitHub does not accept the key or token." if error.reason != "credentials" else str(error)
        return Health(False, detail, f"gofer secrets put {name} --owner {account.id}")
    return Health(False, str(error))
