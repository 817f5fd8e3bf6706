"""`gofer runtimes`: agents that somebody runs elsewhere, and waking them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gofer.cli.client import call, server_client
from gofer.cli.exit_codes import USAGE, CommandFailed
from gofer.cli.output import Shown, ago, facts, group, plain, table

if TYPE_CHECKING:
    from gofer.runtime_host.configuration import HostSettings

app = group("Runtimes: external agents, and waking them.")
Name = Annotated[str, typer.Argument(help="The runtime's name.", show_default=False)]
Conversation = Annotated[str, typer.Argument(help="The conversation's id.", show_default=False)]
Agent = Annotated[str, typer.Argument(help="The agent's name.", show_default=False)]
HOP = ("hop", "what", "runtime", "state", "reason", "began", "seconds")


@app.command("list")
def list_runtimes() -> Shown:
    """List runtimes.

    \b
    gofer runtimes list
    """
    found = call("GET", "/runtimes")
    rows = [
        (
            each["name"],
            each["agent"],
            each["kind"],
            each["state"] + (", crashed too often" if each["not_tried_until"] else ""),
            each["host"],
            each["member"],
            ago(each["seen_at"]) if each["seen_at"] else "never",
        )
        for each in found["runtimes"]
    ]
    columns = ("runtime", "agent", "kind", "state", "host", "member", "seen")
    empty = "No runtimes. Add one: gofer runtimes add NAME --agent AGENT --kind tmux"
    return found, lambda: table(columns, rows, empty=empty)


@app.command()
def add(
    name: Name,
    agent: Annotated[str, typer.Option(help="The external agent it runs.", show_default=False)],
    kind: Annotated[str, typer.Option(help="tmux, acp or callback, as in the agent's file.")] = "tmux",
    member: Annotated[str, typer.Option(help="Whose host may announce it. By default the first owner.")] = "",
    url: Annotated[str, typer.Option(help="For a callback: where requests go.")] = "",
    secret: Annotated[str, typer.Option(help="For a callback: the name of the secret that signs them.")] = "",
) -> Shown:
    """Register a runtime. From then on its member's host may announce it.

    \b
    gofer runtimes add reviewer-pane --agent reviewer --kind tmux
    gofer runtimes add bot --agent bot --kind callback --url https://bot.example/gofer --secret bot_key
    """
    asked = {"name": name, "agent": agent, "kind": kind, "member": member}
    if url or secret:
        asked |= {"callback_url": url, "callback_secret": secret}
    made = call("POST", "/runtimes", json=asked)
    then = "" if kind == "callback" else " Now run its host: gofer runtimes host"
    return made, f"{name} is registered for {plain(made['member'])}.{then}"


@app.command("show")
def show_runtime(name: Name) -> Shown:
    """Show a runtime with its last hops.

    \b
    gofer runtimes show reviewer-pane
    """
    found = call("GET", f"/runtimes/{name}")

    def shown() -> None:
        names = ("name", "agent", "kind", "state", "host", "program", "session", "member", "crashes")
        facts([(each, found[each]) for each in names])
        if found["not_tried_until"]:
            again = f"It crashed too often and is tried again {ago(found['not_tried_until'])}"
            print(f"{again}; sooner with: gofer runtimes drain {name} --off")
        print("\nLast hops")
        table(("trigger", *HOP), [(each["trigger"], *hop_row(each)) for each in found["hops"]], empty="None.")

    return found, shown


def hop_row(each: dict[str, Any]) -> tuple[Any, ...]:
    """A hop as a row of a table."""
    lasted = f"{each['ended_at'] - each['created_at']:.1f}" if each["ended_at"] else "-"
    began = ago(each["created_at"])
    state = each["state"] + (f" to job {each['answered_by']}" if each["answered_by"] else "")
    return each["number"], each["action"], each["runtime"], state, each["reason"], began, lasted


@app.command()
def drain(
    name: Name,
    off: Annotated[bool, typer.Option("--off", help="Give it work again, also after crashes.")] = False,
) -> Shown:
    """Give a runtime no new work. It finishes what it is doing.

    \b
    gofer runtimes drain reviewer-pane
    gofer runtimes drain reviewer-pane --off
    """
    done = call("POST", f"/runtimes/{name}/drain", json={"on": not off})
    return done, f"{name} is {done['state']}."


@app.command()
def remove(name: Name) -> Shown:
    """Forget a runtime. Questions to its agent go to the fallback.

    \b
    gofer runtimes remove reviewer-pane
    """
    return call("DELETE", f"/runtimes/{name}"), f"{name} is forgotten."


@app.command()
def trigger(
    conversation: Conversation,
    agent: Agent,
    reason: Annotated[str, typer.Option(help="The reason; required with --force.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Wake it even if it is blocked or somebody types.")
    ] = False,
) -> Shown:
    """Wake an external agent that takes part in a conversation.

    \b
    gofer runtimes trigger conv_k3v9 reviewer
    gofer runtimes trigger conv_k3v9 reviewer --force --reason 'the deadline is tonight'
    """
    asked = {"agent": agent, "reason": reason, "force": force}
    done = call("POST", f"/conversations/{conversation}/trigger", json=asked)
    told = [done["action"], f"job {done['job']}" if done["job"] else "", done["reason"]]
    return done, ", ".join(part for part in told if part)


@app.command()
def participants(conversation: Conversation) -> Shown:
    """List the agents of a conversation, and how far each has read.

    \b
    gofer runtimes participants conv_k3v9
    """
    found = call("GET", f"/conversations/{conversation}/participants")
    rows = [
        (
            each["agent"],
            each["runtime"] or "Gofer's own",
            each["unread"],
            each["ack_seq"],
            each["blocked_reason"],
        )
        for each in found["participants"]
    ]
    columns = ("agent", "runtime", "unread", "acknowledged", "blocked")
    return found, lambda: table(columns, rows, empty="No agents.")


@app.command()
def unblock(conversation: Conversation, agent: Agent) -> Shown:
    """Let an agent that was blocked in a conversation be woken again.

    \b
    gofer runtimes unblock conv_k3v9 reviewer
    """
    done = call("POST", f"/conversations/{conversation}/unblock", json={"agent": agent})
    return done, f"{agent} may be woken again in {conversation}."


@app.command()
def host(
    file: Annotated[
        Path | None, typer.Option(help="The host's file. By default ~/.config/gofer/runtimes.toml.")
    ] = None,
    url: Annotated[str, typer.Option(help="A Gofer elsewhere; its token is in GOFER_TOKEN.")] = "",
    token: Annotated[str, typer.Option(envvar="GOFER_TOKEN", hidden=True)] = "",
    parent: Annotated[int, typer.Option(hidden=True)] = 0,
) -> None:
    """Reach the agents that run here: announce them, take orders, type into terminals. Run it as their own user.

    \b
    gofer runtimes host
    GOFER_TOKEN=gofer_… gofer runtimes host --url https://gofer.example.org --file ~/runtimes.toml
    """
    from gofer.runtime_host.configuration import read_file

    settings = read_file(file or usual_file())
    where = url or settings.url
    if where and not token:
        raise CommandFailed(
            "Set GOFER_TOKEN to a token of that server: gofer tokens add host --scope runtimes:write", USAGE
        )
    # Neither an agent nor a tmux server that is started from here may find it in its environment.
    os.environ.pop("GOFER_TOKEN", None)
    # Agents' nonsense would make the protocol's library print tracebacks.
    logging.getLogger().addHandler(logging.NullHandler())
    asyncio.run(_host(settings, where, token, parent))


def usual_file() -> Path:
    """Where the host's file is unless somebody says otherwise."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "gofer" / "runtimes.toml"


async def _host(settings: HostSettings, url: str, token: str, parent: int) -> None:
    from gofer.client.mcp_api import RemoteApi
    from gofer.runtime_host.host import RuntimeHost
    from gofer.runtime_host.state import StateFolder
    from gofer.settings import load_settings
    from gofer.web.unix_socket import somebody_listens

    def tell(words: str) -> None:
        print(plain(words), file=sys.stderr, flush=True)

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    watching = asyncio.create_task(_end_with(parent, stop)) if parent else None
    folder, here = StateFolder(settings.state_folder), load_settings()
    while parent and not stop.is_set() and not somebody_listens(here.socket_path):  # noqa: ASYNC110
        await asyncio.sleep(0.2)  # the server that has started this one is about to
    with folder.held():
        async with server_client(here, url, token, {}) as client:
            made = RuntimeHost(settings, RemoteApi(client), folder, tell)
            tell(f"This is {made.name} with {', '.join(settings.runtimes)}. End it with Ctrl-C.")
            await made.run(stop)
    if watching is not None:
        watching.cancel()


async def _end_with(parent: int, stop: asyncio.Event) -> None:
    """End with the process that has started this one, however it ends."""
    while os.getppid() == parent:  # noqa: ASYNC110 # nobody tells when it ends
        await asyncio.sleep(2)
    stop.set()
