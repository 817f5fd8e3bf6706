"""`gofer conversations` and `gofer purge`: where people talk, and forgetting what they said."""

from __future__ import annotations

from typing import Annotated

import typer

from gofer.cli.client import call
from gofer.cli.input import confirm
from gofer.cli.output import Shown, ago, group, table

app = group("Conversations: where people talk.")


@app.command("list")
def list_conversations(
    connection: Annotated[str, typer.Option(help="Only of this connection.")] = "",
    limit: Annotated[int, typer.Option(help="How many to list at most.")] = 50,
) -> Shown:
    """List conversations, the newest first.

    \b
    gofer conversations list
    """
    asked = {"connection": connection} if connection else {}
    found = call("GET", "/conversations", params={**asked, "limit": limit})
    rows = [
        (
            each["id"],
            each["kind"],
            "(purged)" if each["purged_at"] else each["title"],
            each["connection_id"],
            each["last_seq"],
            ago(each["created_at"]),
        )
        for each in found["conversations"]
    ]
    columns = ("conversation", "kind", "title", "connection", "messages", "began")
    return found, lambda: table(columns, rows, empty="No conversations.")


def purge(
    conversation: Annotated[str, typer.Argument(help="The conversation's id.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> Shown:
    """Destroy a conversation for ever: its key, messages, files and payloads.

    Backups made before still hold it: delete them, too.

    \b
    gofer purge conv_k3v9 --yes
    """
    if not yes:
        confirm(f"Destroy what was said in {conversation}, for good?")
    done = call("POST", f"/conversations/{conversation}/purge")
    said = f"{done['messages']} messages, {done['deliveries']} deliveries and {done['blobs']} files of"
    return done, f"{said} {conversation} are gone. Delete backups made before this."
