"""`gofer tokens`: tokens with which programs use the API."""

from __future__ import annotations

from typing import Annotated

import typer

from gofer.cli.client import call
from gofer.cli.output import Shown, ago, group, refusable, table

app = group("Tokens for programs that use the API.")


@app.command("list")
def list_tokens() -> Shown:
    """List tokens.

    \b
    gofer tokens list
    """
    found = call("GET", "/tokens")
    rows = [
        (
            refusable(each["id"], each),
            each["name"],
            each["member"],
            " ".join([*each["scopes"], *([f"(agent {each['agent']})"] if each["agent"] else [])])
            or each["scope"],
            ago(each["expires_at"]) if each["expires_at"] else "never",
            ago(each["used_at"]) if each["used_at"] else "never",
        )
        for each in found["tokens"]
    ]
    titles = ("token", "for", "member", "scope", "ends", "used")
    return found, lambda: table(titles, rows, empty="No tokens.")


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="A name that says what it is for.", show_default=False)],
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="read (the default), write or admin; or for one noun only, such as jobs:write. Repeatable."
        ),
    ] = None,
    member: Annotated[
        str, typer.Option(help="The member that it belongs to. By default the first owner.")
    ] = "",
    agent: Annotated[
        str,
        typer.Option(help="Bind it to an agent: it sees only that agent's things and speaks in its name."),
    ] = "",
    days: Annotated[int, typer.Option(help="Days that it is valid; 0 is for ever.")] = 90,
) -> Shown:
    """Create a token and print it, once.

    \b
    gofer tokens add ci --scope write --days 30
    gofer tokens add board --scope jobs:read --scope costs:read
    gofer tokens add coder --scope write --agent reviewer
    """
    given = scope or ["read"]
    plain = len(given) == 1 and ":" not in given[0]
    what = {"scope": given[0]} if plain else {"scopes": given}
    made = call(
        "POST", "/tokens", json={"name": name, "member": member, "agent": agent, "days": days or None, **what}
    )
    return made, made["token"]


@app.command()
def revoke(
    id: Annotated[str, typer.Argument(help="The token's id, from the list.", show_default=False)],
) -> Shown:
    """Revoke a token, at once.

    \b
    gofer tokens revoke token_k3v9
    """
    return call("DELETE", f"/tokens/{id}"), f"{id} is revoked."
