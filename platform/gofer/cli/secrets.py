"""`gofer secrets`: put in, listed by name, removed. A value never comes out."""

from __future__ import annotations

from typing import Annotated

import typer

from gofer.cli.client import call
from gofer.cli.exit_codes import FAILED, CommandFailed
from gofer.cli.input import may_prompt, prompt_secret, read_secret
from gofer.cli.output import AsJson, Shown, ago, group, show, table

app = group("Secrets: set, list and delete them. A value is never shown.")

Name = Annotated[str, typer.Argument(help="The secret's name.", show_default=False)]
Owner = Annotated[
    str, typer.Option("--owner", help="The connection that it belongs to. By default the workspace.")
]


@app.command("list")
def list_secrets() -> Shown:
    """List the names of all secrets.

    \b
    gofer secrets list
    """
    found = call("GET", "/secrets")
    rows = [(each["name"], each["owner"], ago(each["created_at"])) for each in found["secrets"]]
    return found, lambda: table(("secret", "connection", "set"), rows, empty="No secrets.")


@app.command()
def put(
    name: Name,
    owner: Owner = "",
    file: Annotated[str, typer.Option(help="The file that holds the value; - is stdin.")] = "-",
    as_json: AsJson = False,
) -> None:
    """Set or replace a secret. The value comes from stdin or a file, never from an argument.

    \b
    gofer secrets put anthropic_key < key.txt
    gofer secrets put signing_key --owner hello_k3v9 --file key.txt
    """
    value = prompt_secret(name) if file == "-" and may_prompt() else read_secret(file)
    done = call("PUT", "/secrets", json={"name": name, "owner": owner, "value": value})
    show(done, as_json, lambda: print(f"The secret {name} is kept."))
    if done["health"] and not done["health"]["ok"]:
        raise CommandFailed(f"It is kept, but the service says: {done['health']['line']}", FAILED)


@app.command()
def delete(name: Name, owner: Owner = "") -> Shown:
    """Delete a secret.

    \b
    gofer secrets delete anthropic_key
    """
    return call("DELETE", "/secrets", params={"name": name, "owner": owner}), f"The secret {name} is deleted."
