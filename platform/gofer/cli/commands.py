"""Every command, in one list."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from gofer.cli.output import printing


def _say_version(asked: bool) -> None:
    if asked:
        printing(load(COMMANDS["version"]))(as_json=False)
        raise typer.Exit


def gofer(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """What may stand before a command."""


COMMANDS = {
    "serve": "serve.serve",
    "web": "serve.web",
    "up": "up.up",
    "worker": "serve.worker",
    "demo": "demo.demo",
    "say": "chat.say",
    "chat": "chat.chat",
    "status": "instance.status",
    "doctor": "instance.doctor",
    "version": "instance.version",
    "migrate": "instance.migrate",
    "selfcheck": "selfcheck.selfcheck",
    "replay": "deliveries.replay",
    "backup": "backup.backup",
    "restore": "backup.restore",
    "purge": "conversations.purge",
    "link": "link.link",
    "logs": "logs.logs",
    "costs": "costs.costs",
}
"""Commands of one word, and the functions that do them."""
NOUNS = (
    "connections", "secrets", "key", "jobs", "deliveries", "conversations", "questions", "schedules", "agents",
    "shells", "goals", "memory", "mcp", "runtimes", "members", "devices", "tokens", "audit", "rows", "update",
)  # fmt: skip
"""Groups of commands, each the `app` of the module of that name."""


def load(name: str) -> Any:
    """What a module of the command line holds, such as `jobs.app`. A command loads its own module alone."""
    module, _, attribute = name.partition(".")
    return getattr(import_module(f"gofer.cli.{module}"), attribute)


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """The app that understands the arguments of a call: with one command when they name it, or with all of them. To
    load all of them takes longer than most commands."""
    app = typer.Typer(
        name="gofer",
        help="Gofer takes work from where people talk and has an agent do it.",
        epilog="Begin with `gofer demo`, then `gofer serve`. Settings are GOFER_* variables: docs/operations.md.",
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(gofer)
    named = arguments[0] if arguments and arguments[0] in {*COMMANDS, *NOUNS} else None
    for name, command in COMMANDS.items():
        if named in (None, name):
            app.command(name)(printing(load(command)))
    for name in NOUNS:
        if named in (None, name):
            app.add_typer(load(f"{name}.app"), name=name)
    return app
