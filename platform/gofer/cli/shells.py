"""`gofer shells`: the sandboxed sessions that are kept."""

from __future__ import annotations

from typing import Annotated

import typer

from gofer.cli.client import call
from gofer.cli.output import Shown, ago, group, table

app = group("Shells: the sandboxed sessions of conversations.")

Conversation = Annotated[str, typer.Argument(help="The conversation's id.", show_default=False)]
Agent = Annotated[str, typer.Argument(help="The agent's name or id.", show_default=False)]


@app.command("list")
def list_shells(conversation: Annotated[str, typer.Option(help="Only of this conversation.")] = "") -> Shown:
    """List shells, the last used first.

    \b
    gofer shells list
    """
    found = call("GET", "/shells", params={"conversation": conversation} if conversation else {})
    rows = [
        (
            each["conversation_id"],
            each["agent"] or each["agent_id"],
            each.get("provider", ""),
            ago(each["used_at"]),
        )
        for each in found["shells"]
    ]
    columns = ("conversation", "agent", "sandbox", "used")
    return found, lambda: table(columns, rows, empty="No shells.")


@app.command("show")
def show_shell(
    conversation: Conversation,
    agent: Agent,
    path: Annotated[str, typer.Option(help="A directory in its workspace.")] = "",
) -> Shown:
    """Show a shell: the memory, processes and disk that it uses now, and the files in a directory.

    \b
    gofer shells show conv_k3v9 gofer
    """
    from gofer.cli.output import facts

    found = call("GET", f"/shells/{conversation}/{agent}", params={"path": path} if path else {})
    pairs = [(name, value) for name, value in {**found["shell"], **found}.items() if name != "shell"]
    return found, lambda: facts(pairs)


@app.command()
def close(conversation: Conversation, agent: Agent) -> Shown:
    """End a shell. Its processes end within a minute, once Gofer runs; its files stay for the next shell.

    \b
    gofer shells close conv_k3v9 gofer
    """
    from gofer.settings import load_settings
    from gofer.web.unix_socket import somebody_listens

    running = somebody_listens(load_settings().socket_path)
    gone = call("DELETE", f"/shells/{conversation}/{agent}")
    when = "within a minute" if running else "once Gofer runs: it does not run here now"
    return gone, f"The shell is closed. Its processes end {when}."
