"""Every command, in one list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from gofer.cli import (
    agents,
    backup,
    connections,
    conversations,
    deliveries,
    demo,
    instance,
    jobs,
    key,
    link,
    members,
    questions,
    schedules,
    secrets,
    serve,
    tokens,
)

app = typer.Typer(
    name="gofer",
    help="Gofer takes work from where people talk and has an agent do it.",
    epilog="Begin with `gofer demo`, then `gofer serve`. Settings are GOFER_* variables: docs/operations.md.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _say_version(asked: bool) -> None:
    if asked:
        instance.version()
        raise typer.Exit


@app.callback()
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
    "worker": serve.worker,
    "demo": demo.demo,
    "status": instance.status,
    "doctor": instance.doctor,
    "version": instance.version,
    "replay": deliveries.replay,
    "backup": backup.backup,
    "restore": backup.restore,
    "purge": conversations.purge,
    "link": link.link,
}
for name, command in COMMANDS.items():
    app.command(name)(command)

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
    "members": members.app,
    "tokens": tokens.app,
}
for name, noun in NOUNS.items():
    app.add_typer(noun, name=name)
