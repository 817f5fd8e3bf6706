"""Every command, in one list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from gofer.cli import (
    agents,
    audit,
    backup,
    chat,
    connections,
    conversations,
    costs,
    deliveries,
    demo,
    devices,
    goals,
    instance,
    jobs,
    key,
    link,
    logs,
    mcp,
    members,
    memory,
    questions,
    rows,
    runtimes,
    schedules,
    secrets,
    selfcheck,
    serve,
    shells,
    tokens,
    up,
    update,
)


def _say_version(asked: bool) -> None:
    if asked:
        instance.version()
        raise typer.Exit


def gofer(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """What may stand before a command."""


COMMANDS: dict[str, Callable[..., None]] = {
    "serve": serve.serve,
    "web": serve.web,
    "up": up.up,
    "worker": serve.worker,
    "demo": demo.demo,
    "say": chat.say,
    "chat": chat.chat,
    "status": instance.status,
    "doctor": instance.doctor,
    "version": instance.version,
    "migrate": instance.migrate,
    "selfcheck": selfcheck.selfcheck,
    "replay": deliveries.replay,
    "backup": backup.backup,
    "restore": backup.restore,
    "purge": conversations.purge,
    "link": link.link,
    "logs": logs.logs,
    "costs": costs.costs,
}
NOUNS = {
    "connections": connections.app,
    "secrets": secrets.app,
    "key": key.app,
    "jobs": jobs.app,
    "deliveries": deliveries.app,
    "conversations": conversations.app,
    "questions": questions.app,
    "schedules": schedules.app,
    "agents": agents.app,
    "shells": shells.app,
    "goals": goals.app,
    "memory": memory.app,
    "mcp": mcp.app,
    "runtimes": runtimes.app,
    "members": members.app,
    "devices": devices.app,
    "tokens": tokens.app,
    "audit": audit.app,
    "rows": rows.app,
    "update": update.app,
}


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """The app that understands the arguments of a call: with one command when they name it, or with all of them. To
    read the signatures of all takes longer than most commands."""
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
            app.command(name)(command)
    for name, noun in NOUNS.items():
        if named in (None, name):
            app.add_typer(noun, name=name)
    return app
