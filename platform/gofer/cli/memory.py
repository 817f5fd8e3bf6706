"""`gofer memory`: what agents remember."""

from __future__ import annotations

from typing import Annotated

import typer

from gofer.cli.client import call
from gofer.cli.exit_codes import USAGE, CommandFailed
from gofer.cli.output import AsJson, show, table

app = typer.Typer(help="Memory: what agents remember.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def rules(
    conversation: Annotated[str, typer.Argument(help="The conversation's id.", show_default=False)],
    revoke: Annotated[str, typer.Option(help="The id of a rule to take back.")] = "",
    restore: Annotated[str, typer.Option(help="The id of a revoked rule to bring back.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show a conversation's standing rules, or take one back.

    Every run reads them word for word, however often its prompt is shortened.

    \b
    gofer memory rules conv_k3v9
    gofer memory rules conv_k3v9 --revoke mem_7f3k
    """
    if revoke and restore:
        raise CommandFailed("Give --revoke or --restore, not both.", USAGE)
    place = f"/conversations/{conversation}/rules"
    if revoke or restore:
        found = call("POST", f"{place}/{revoke or restore}/{'revoke' if revoke else 'restore'}")
    else:
        found = call("GET", place)
    rows = [
        (
            each["id"],
            "revoked" if each["revoked"] else "in force",
            each["author"],
            each["message_seq"],
            each["text"],
        )
        for each in found["rules"]
    ]
    columns = ("rule", "state", "said by", "message", "text")
    show(found, as_json, lambda: table(columns, rows, empty="No standing rules."))
