"""`gofer members`: who may sign in."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from gofer.cli.client import call
from gofer.cli.exit_codes import USAGE, CommandFailed
from gofer.cli.input import confirm, may_prompt, prompt_secret, read_secret
from gofer.cli.output import Shown, ago, group, refusable, table

app = group("Members: who may sign in.")

Name = Annotated[str, typer.Argument(help="The member's name.", show_default=False)]
Role = Annotated[
    str, typer.Option(help="owner (everything), operator (works with runs) or viewer (only reads).")
]


@app.command("list")
def list_members() -> Shown:
    """List members.

    \b
    gofer members list
    """
    found = call("GET", "/members")
    rows = [
        (
            each["name"],
            refusable(each["role"], each),
            "password" if each["has_password"] else "link",
            ago(each["signed_in_at"]) if each["signed_in_at"] else "never",
        )
        for each in found["members"]
    ]
    titles = ("member", "role", "signs in by", "last")
    return found, lambda: table(titles, rows, empty="Nobody yet.")


@app.command()
def add(name: Name, role: Role = "viewer") -> Shown:
    """Add a member. `gofer link NAME` prints the link for their first sign-in.

    \b
    gofer members add anna --role operator
    """
    made = call("POST", "/members", json={"name": name, "role": role})
    return made, f"{made['name']} is {made['role']}. Let them in: gofer link {made['name']}"


@app.command("role")
def set_role(name: Name, role: Annotated[str, typer.Argument(show_default=False)]) -> Shown:
    """Change what a member may do, from their next request on.

    \b
    gofer members role anna owner
    """
    made = _change(name, role=role)
    return made, f"{made['name']} is {made['role']}."


@app.command()
def password(
    name: Name,
    file: Annotated[str, typer.Option(help="The file that holds it; - is stdin.")] = "-",
    keep_tokens: Annotated[bool, typer.Option("--keep-tokens", help="Do not end their tokens.")] = False,
) -> Shown:
    """Set a member's password. This ends their sessions, and their tokens if they had a password before.

    It comes from stdin or a file, never from an argument.

    \b
    gofer members password owner
    """
    asked = file == "-" and may_prompt()
    value = prompt_secret("password") if asked else read_secret(file)
    if asked and prompt_secret("the same again") != value:
        raise CommandFailed("The two are not the same. Nothing was changed.", USAGE)
    made = _change(name, password=value, keep_tokens=keep_tokens)
    return made, f"{made['name']} has a new password."


@app.command()
def remove(
    name: Name, yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False
) -> Shown:
    """Remove a member, with their sessions and tokens.

    \b
    gofer members remove anna --yes
    """
    if not yes:
        confirm(f"Remove {name}?")
    return call("DELETE", f"/members/{quote(name, safe='')}"), f"{name} is gone."


def _change(name: str, **values: Any) -> Any:
    return call("PATCH", f"/members/{quote(name, safe='')}", json=values)
