"""`gofer tokens`: programs' ways in."""

from __future__ import annotations

from typing import Annotated

import typer

from gofer.cli.calling import call
from gofer.cli.showing import AsJson, ago, show, table

app = typer.Typer(help="Tokens for programs that use the API.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_tokens(as_json: AsJson = False) -> None:
    """List tokens.

    \b
    gofer tokens list
    """
    found = call("GET", "/tokens")
    rows = [
        (
            each["id"],
            each["name"],
            each["member"],
            each["scope"],
            ago(each["used_at"]) if each["used_at"] else "never",
        )
        for each in found["tokens"]
    ]
    show(found, as_json, lambda: table(("token", "for", "member", "scope", "used"), rows, empty="No tokens."))


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="What it is for.", show_default=False)],
    scope: Annotated[str, typer.Option(help="read, write or admin.")] = "read",
    member: Annotated[str, typer.Option(help="Whose it is; the first owner's if nobody is named.")] = "",
    days: Annotated[int | None, typer.Option(help="How long it is valid; without end if not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, this once.

    \b
    gofer tokens add ci --scope write --days 90
    """
    made = call("POST", "/tokens", json={"name": name, "scope": scope, "member": member, "days": days})
    show(made, as_json, lambda: print(made["token"]))


@app.command()
def revoke(
    id: Annotated[str, typer.Argument(help="The token's id, from the list.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Revoke a token, at once.

    \b
    gofer tokens revoke token_k3v9
    """
    gone = call("DELETE", f"/tokens/{id}")
    show(gone, as_json, lambda: print(f"{id} is revoked."))
