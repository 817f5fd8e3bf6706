"""`gofer connections`: the configured accounts of integrations."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import socket
import sys
import webbrowser
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gofer.cli.client import Api, call, with_api
from gofer.cli.exit_codes import FAILED, USAGE, CommandFailed
from gofer.cli.input import may_prompt, prompt_secret, read_secret
from gofer.cli.output import AsJson, Shown, ago, facts, group, plain, show, table

app = group("Connections: the accounts of outside services that Gofer uses.")

Id = Annotated[str, typer.Argument(help="The connection's id or name.", show_default=False)]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting. Repeatable.")]
SecretFile = Annotated[
    list[str] | None,
    typer.Option(
        "--secret-file",
        metavar="NAME=PATH",
        help="A file that holds a secret; NAME=- reads it from stdin. Repeatable.",
    ),
]

HOW_TO_GIVE = (
    "Settings are given with --set NAME=VALUE and secrets with --secret-file NAME=PATH; "
    "`gofer connections integrations` lists them."
)


@app.command("list")
def list_connections() -> Shown:
    """List connections.

    \b
    gofer connections list
    """
    found = call("GET", "/connections")
    return found, lambda: _print(found["connections"])


def _print(connections: list[dict[str, Any]]) -> None:
    table(
        ("connection", "integration", "name", "state", "webhook"),
        [
            (
                each["id"],
                each["integration"],
                each["name"],
                "on" if each["enabled"] else "off",
                each["hook_url"] or each["hook_path"],
            )
            for each in connections
        ],
        empty="No connections yet. `gofer connections integrations` shows what can be connected.",
    )


@app.command()
def integrations() -> Shown:
    """List the services that can be connected, with their settings and secrets.

    \b
    gofer connections integrations
    """
    found = call("GET", "/integrations")
    return found, lambda: _print_integrations(found)


def _print_integrations(found: dict[str, Any]) -> None:
    for each in found["integrations"]:
        required = each["settings"].get("required", ())
        names = each["settings"].get("properties", {})
        settings = [f"{name} (needed)" if name in required else name for name in names]
        secrets = [f"{one['name']} ({_whence(one)})" for one in each["secrets"]]
        print(f"{each['name']}: {plain(each['summary'])}")
        facts([("  settings", ", ".join(settings)), ("  secrets", ", ".join(secrets))])
    for name, why in found["broken"].items():
        print(f"{name} could not be loaded: {plain(why)}")


def _whence(secret: dict[str, Any]) -> str:
    if secret["generated"]:
        return "made by Gofer if not given"
    return "optional" if secret["optional"] else "needed"


@app.command()
def add(
    integration: Annotated[str, typer.Argument(help="Which integration.", show_default=False)],
    name: Annotated[str, typer.Option(help="A name for the connection.")] = "",
    settings: Set = None,
    secret_files: SecretFile = None,
    as_json: AsJson = False,
) -> None:
    """Connect an account. Give secrets in files or through stdin; a terminal asks for them.

    \b
    gofer connections add hello --set reply_url=https://example.org/replies
    gofer connections add hello --set reply_url=http://127.0.0.1:9/ --secret-file signing_key=key.txt
    """
    wish = {"integration": integration, "name": name, "settings": _settings(settings)}
    secrets = _secrets(secret_files)

    async def work(api: Api) -> Any:
        missing = await _missing(api, integration, secrets) if may_prompt() else {}
        return await api.ask("POST", "/connections", json={**wish, "secrets": {**secrets, **missing}})

    try:
        made = with_api(work)
    except CommandFailed as error:
        if error.code == USAGE:
            raise CommandFailed(f"{error} {HOW_TO_GIVE}", USAGE) from None
        raise
    show(made, as_json, lambda: _print_one(made))
    _insist_on_health(made)


@app.command("sign-up")
def sign_up_for(
    integration: Annotated[str, typer.Argument(help="Which integration.", show_default=False)],
    name: Annotated[str, typer.Option(help="The account's name at the service.")] = "",
    owner: Annotated[str, typer.Option(help="The organisation that owns it, instead of you.")] = "",
    settings: Set = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    as_json: AsJson = False,
) -> None:
    """Create an account at a service in one click, and connect it: a GitHub App, with everything it needs.

    \b
    gofer connections sign-up github --name my-gofer
    gofer connections sign-up github --owner my-organisation --no-browser
    """

    wish = {"integration": integration, "name": name, "settings": _settings(settings), "owner": owner}
    made = with_api(lambda api: sign_up(api, wish, open_browser=browser and may_prompt()))
    show(made, as_json, lambda: _print_one(made))
    _insist_on_health(made)


def _settings(given: list[str] | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in given or ():
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise CommandFailed(f"A setting is given as name=value, not {each!r}.", USAGE)
        try:
            found[name] = json.loads(value) if value[:1] in ("[", "{") else value
        except ValueError:
            raise CommandFailed(f"The value of {name} begins like JSON but is none.", USAGE) from None
    return found


def _secrets(given: list[str] | None) -> dict[str, str]:
    found = {}
    for each in given or ():
        name, equals, path = each.partition("=")
        if not equals or not name or not path:
            # What was typed may be the secret itself, so it is not repeated.
            raise CommandFailed(
                "--secret-file wants name=path (or name=- for stdin); never the value itself.", USAGE
            )
        found[name] = read_secret(path)
    return found


async def _missing(api: Api, integration: str, given: dict[str, str]) -> dict[str, str]:
    """The secrets that nobody gave and Gofer cannot make up, asked of whoever sits at the terminal."""
    known = (await api.ask("GET", "/integrations"))["integrations"]
    fields: list[dict[str, Any]] = next(
        (each["secrets"] for each in known if each["name"] == integration), []
    )
    wanted = [
        field
        for field in fields
        if not (field["generated"] or field["optional"]) and field["name"] not in given
    ]
    return {field["name"]: prompt_secret(f"{field['name']} ({field['help']})") for field in wanted}


def _print_one(found: dict[str, Any]) -> None:
    connection = found["connection"]
    pairs = [
        ("connection", connection["id"]),
        ("integration", connection["integration"]),
        ("name", connection["name"]),
        ("state", "on" if connection["enabled"] else "off"),
        ("agent", connection["agent"] or "the default agent"),
        ("settings", connection["settings"]),
        ("secrets", ", ".join(found["secrets"])),
        ("webhook", connection["hook_url"] or connection["hook_path"]),
        ("deliveries", found["deliveries"]),
        ("last delivery", ago(found["last_delivery_at"])),
    ]
    if invitation := found.get("invitation"):
        pairs.append(("pairing", invitation))
    if health := found.get("health"):
        pairs.append(("health", health["line"]))
        if health["fix"]:
            pairs.append(("fix", health["fix"]))
    facts(pairs)


def _insist_on_health(found: dict[str, Any]) -> None:
    """Exit with an error when the connection was made but does not work yet, so that a script knows."""
    if found.get("health") and not found["health"]["ok"]:
        raise CommandFailed(
            f"The connection is kept, but its service says: {found['health']['line']}", FAILED
        )


@app.command("show")
def show_connection(id: Id) -> Shown:
    """Show a connection, with the names of its secrets but not their values.

    \b
    gofer connections show hello_k3v9
    """
    found = call("GET", f"/connections/{id}")
    return found, lambda: _print_one(found)


@app.command("set")
def set_settings(
    id: Id,
    settings: Annotated[list[str] | None, typer.Argument(help="name=value …")] = None,
    agent: Annotated[
        str | None,
        typer.Option(help="The agent that answers messages that fit no route; '' for the default agent."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change settings of a connection, or the agent that answers there.

    \b
    gofer connections set hello_k3v9 reply_url=https://example.org/replies
    gofer connections set hello_k3v9 --agent reviewer
    """
    wish: dict[str, Any] = {"settings": _settings(settings)} if settings else {}
    if agent is not None:
        wish["agent"] = agent
    if not wish:
        raise CommandFailed("Say what to change: name=value, or --agent NAME.", USAGE)
    _change(id, wish, as_json)


@app.command()
def enable(id: Id, as_json: AsJson = False) -> None:
    """Switch a connection on.

    \b
    gofer connections enable hello_k3v9
    """
    _change(id, {"enabled": True}, as_json)


@app.command()
def disable(id: Id, as_json: AsJson = False) -> None:
    """Switch a connection off. Its webhooks are refused, and its conversations stay.

    \b
    gofer connections disable hello_k3v9
    """
    _change(id, {"enabled": False}, as_json)


def _change(id: str, wish: dict[str, Any], as_json: bool) -> None:
    changed = call("PATCH", f"/connections/{id}", json=wish)
    show(changed, as_json, lambda: _print_one(changed))
    _insist_on_health(changed)


@app.command("test")
def check(id: Id, as_json: AsJson = False) -> None:
    """Test a connection at its service. Exit code 1 when it does not work.

    \b
    gofer connections test hello_k3v9
    """
    found = call("POST", f"/connections/{id}/test")
    health = found["health"]
    show(found, as_json, lambda: facts([("health", health["line"]), ("fix", health["fix"])]))
    if not health["ok"]:
        raise typer.Exit(FAILED)


@app.command()
def pair(id: Id, role: Annotated[str, typer.Option(help="owner or member.")] = "owner") -> Shown:
    """Print a code that makes a person an owner or a member of a connection.

    \b
    gofer connections pair telegram_k3v9
    """
    made = call("POST", f"/connections/{id}/pair", json={"role": role})
    return made, made["invitation"] or "People are not paired with this connection."


@app.command()
def remove(id: Id) -> Shown:
    """Remove a connection that has no conversations.

    \b
    gofer connections remove hello_k3v9
    """
    return call("DELETE", f"/connections/{id}"), f"{id} is removed."


if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

SIGN_UP_TIMEOUT = 1800.0
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Gofer</title>
<style>body{{font:16px/1.5 system-ui;max-width:42rem;margin:3rem auto;padding:0 1rem}}</style>{body}</html>"""


@dataclass
class Waiting:
    """A form on its way to a service and back."""

    begun: dict[str, Any]
    came: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    async def form(self, request: Request) -> Response:
        """What is asked for and why, and the button."""
        form = self.begun["form"]
        asks = "".join(f"<li><b>{escape(what)}</b> {escape(why)}" for what, why in form["asks"].items())
        fields = "".join(
            f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">'
            for name, value in form["fields"].items()
        )
        return _page(
            f"<h1>Connect Gofer</h1><p>The account that is made may:</p><ul>{asks}</ul>"
            f'<form method="post" action="{escape(form["url"])}">{fields}<button>Continue</button></form>'
        )

    async def back(self, request: Request) -> Response:
        """The service's answer. One that does not carry our state is somebody else's doing."""
        state, code = request.query_params.get("state", ""), request.query_params.get("code", "")
        if not code or not hmac.compare_digest(state.encode(), self.begun["state"].encode()):
            return _page("<h1>Refused</h1><p>This answer does not belong to this sign-up.</p>", 400)
        if not self.came.done():
            self.came.set_result(code)
        return _page("<h1>Thank you</h1><p>The rest is in your terminal.</p>")


def _page(body: str, status: int = 200) -> Response:
    from starlette.responses import HTMLResponse

    policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    headers = {
        "content-security-policy": policy,
        "referrer-policy": "no-referrer",
        "cache-control": "no-store",
    }
    return HTMLResponse(_PAGE.format(body=body), status, headers)


async def sign_up(api: Api, wish: dict[str, Any], *, open_browser: bool) -> Any:
    """Show the form, wait for the answer, and have the connection made."""
    from starlette.applications import Starlette
    from starlette.routing import Route

    from gofer.web.server import listening

    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setblocking(False)
        here = f"http://127.0.0.1:{listener.getsockname()[1]}"
        waiting = Waiting(await api.ask("POST", "/sign-ups", json={**wish, "back_url": f"{here}/back"}))
        app = Starlette(routes=[Route("/", waiting.form), Route("/back", waiting.back)])
        await stack.enter_async_context(listening(app, listener))
        print(
            f"Open {here} in a browser on this machine, and follow it. Waiting …", file=sys.stderr, flush=True
        )
        if open_browser:
            webbrowser.open(here)
        try:
            code = await asyncio.wait_for(waiting.came, SIGN_UP_TIMEOUT)
        except TimeoutError:
            raise CommandFailed("Nobody came back from there. Nothing was changed.", FAILED) from None
        finish = {"state": waiting.begun["state"], "code": code}
        return await api.ask("POST", "/sign-ups/finish", json=finish)
