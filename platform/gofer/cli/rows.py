"""`gofer rows`: rows of the database that somebody else than Gofer wrote, and that are refused for it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from gofer.cli.client import LONGEST_ANSWER, call
from gofer.cli.exit_codes import USAGE, CommandFailed
from gofer.cli.output import Shown, count, group, table

app = group("Rows that are refused because somebody other than Gofer wrote them.")


@app.command("list")
def list_rows() -> Shown:
    """List the refused rows with their contents.

    \b
    gofer rows list
    """
    found = call("GET", "/rows", timeout=LONGEST_ANSWER)
    rows = [(each["table"], each["key"], json.dumps(each["says"])) for each in found["rows"]]
    return found, lambda: table(("table", "key", "says"), rows, empty="No row is refused.")


@app.command()
def accept(
    of: Annotated[str, typer.Argument(metavar="TABLE", help="The row's table.", show_default=False)] = "",
    key: Annotated[str, typer.Argument(help="The row's key.", show_default=False)] = "",
    everything: Annotated[bool, typer.Option("--all", help="Every row that is refused now.")] = False,
) -> Shown:
    """Accept a row as it is, after you have looked at it with `gofer rows list`. The audit log records it.

    \b
    gofer rows accept member member_k3v9
    gofer rows accept --all
    """
    if everything == bool(of and key):
        raise CommandFailed("Name a table and a key, or say --all.", USAGE)
    named = [{"table": of, "key": key}] if key else _refused()
    accepted = []
    while named:
        done = call("POST", "/rows/accept", json={"rows": named}, timeout=LONGEST_ANSWER)
        accepted += done["accepted"]
        named = _refused() if everything else []
    return {"accepted": accepted}, f"Accepted {count(len(accepted), 'row')}."


def _refused() -> list[dict[str, str]]:
    found = call("GET", "/rows", timeout=LONGEST_ANSWER)["rows"]
    return [{"table": each["table"], "key": each["key"]} for each in found]
