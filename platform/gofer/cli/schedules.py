"""`gofer schedules`: messages to an agent, or jobs, at regular times."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from gofer.cli.client import call
from gofer.cli.exit_codes import USAGE, CommandFailed
from gofer.cli.output import Shown, ago, group, table

app = group("Schedules: messages to an agent, or jobs, at regular times.")


@app.command("list")
def list_schedules() -> Shown:
    """List schedules.

    \b
    gofer schedules list
    """
    found = call("GET", "/schedules")
    rows = [
        (each["name"], each["cron"], each["timezone"], _work(each), each["missed"], _next(each))
        for each in found["schedules"]
    ]
    columns = ("schedule", "cron", "time zone", "work", "missed runs", "next")
    return found, lambda: table(columns, rows, empty="No schedules.")


def _next(schedule: dict[str, Any]) -> str:
    return ago(schedule["next_at"]) if schedule["enabled"] else "off"


def _work(schedule: dict[str, Any]) -> str:
    if not schedule["say"]:
        return str(schedule["kind"])
    return f"to {schedule['agent']}: {' '.join(schedule['say'].split())[:40]}"


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="A name for the schedule.", show_default=False)],
    cron: Annotated[
        str,
        typer.Argument(
            help="When: minute hour day month weekday, or @hourly, @daily, @weekly …", show_default=False
        ),
    ],
    say: Annotated[str, typer.Option(help="The message to the agent.")] = "",
    agent: Annotated[str, typer.Option(help="The agent that gets the message.")] = "",
    conversation: Annotated[
        str, typer.Option(help="The conversation to say it in: an id of `gofer conversations list`.")
    ] = "",
    kind: Annotated[str, typer.Option(help="Instead of a message: the kind of job to make.")] = "",
    payload: Annotated[str, typer.Option(help="The job's payload, a JSON object.")] = "{}",
    timezone: Annotated[str, typer.Option(help="Its time zone. By default the workspace's.")] = "",
    missed: Annotated[
        str, typer.Option(help="What to do about times missed while Gofer was off: skip, once or all.")
    ] = "once",
) -> Shown:
    """Add a schedule: a message to an agent, or a job.

    \b
    gofer schedules add standup '0 9 * * 1-5' --agent gofer --conversation conv_x8w2 --say 'What is open?'
    gofer schedules add nightly '0 3 * * *' --kind catch_up --payload '{"connection_id": "github_x8w2"}'
    """
    times = {"name": name, "cron": cron, "timezone": timezone, "missed": missed}
    if not say and not kind:
        raise CommandFailed("Say what to do: --say with --agent and --conversation, or --kind.", USAGE)
    if not say:
        wish = {**times, "kind": kind, "payload": _object(payload)}
        made = call("POST", "/schedules", json=wish)
    elif kind or not (agent and conversation):
        raise CommandFailed("--say wants --agent and --conversation, and no --kind.", USAGE)
    else:
        made = call(
            "POST", f"/conversations/{conversation}/schedules", json={**times, "agent": agent, "say": say}
        )
    return made, f"The schedule {name} is added."


def _object(payload: str) -> Any:
    try:
        value = json.loads(payload)
    except ValueError:
        raise CommandFailed("--payload wants a JSON object.", USAGE) from None
    return value


@app.command()
def remove(name: Annotated[str, typer.Argument(help="Its name or id.", show_default=False)]) -> Shown:
    """Remove a schedule. Jobs that it has made stay.

    \b
    gofer schedules remove nightly
    """
    return call("DELETE", f"/schedules/{name}"), f"The schedule {name} is removed."
