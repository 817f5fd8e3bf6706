"""Every command, in one list."""

from __future__ import annotations

import typer

from gofer.cli import (
    backup,
    connections,
    conversations,
    deliveries,
    demo,
    instance,
    jobs,
    key,
    questions,
    schedules,
    secrets,
    serve,
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

for name, command in {
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
}.items():
    app.command(name)(command)

for name, noun in {
    "connections": connections.app,
    "secrets": secrets.app,
    "key": key.app,
    "jobs": jobs.app,
    "deliveries": deliveries.app,
    "conversations": conversations.app,
    "questions": questions.app,
    "schedules": schedules.app,
}.items():
    app.add_typer(noun, name=name)
