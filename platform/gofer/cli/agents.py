"""`gofer agents`: who answers, with which model and tools."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from gofer.cli.client import call
from gofer.cli.exit_codes import USAGE, CommandFailed
from gofer.cli.output import Shown, group, table

app = group("Agents: who answers, with which model and tools.")

Name = Annotated[str, typer.Argument(help="The agent's name.", show_default=False)]


@app.command("list")
def list_agents() -> Shown:
    """List agents.

    \b
    gofer agents list
    """
    found = call("GET", "/agents")
    rows = [
        (
            each["name"] + (" (default)" if each["default"] else ""),
            each["model"],
            _whence(each),
            each["problem"],
        )
        for each in found["agents"]
    ]
    return found, lambda: table(("agent", "model", "from", "problem"), rows, empty="No agents.")


def _whence(agent: dict[str, Any]) -> str:
    if agent["file"]:
        return "file"
    return "built in" if agent["in_force"] else "no file: hears nothing"


@app.command("show")
def show_agent(name: Name) -> Shown:
    """Show an agent's settings, its layers and the sections that are shadowed. For the built-in agent, show the file
    that it would have.

    \b
    gofer agents show reviewer
    """
    found = call("GET", f"/agents/{name}")
    return found, lambda: _print_agent(found)


def _print_agent(found: dict[str, Any]) -> None:
    print(found["toml"].rstrip("\n"))
    for layer in found["layers"]:
        print(f"\n==> {layer['name']} ({layer['file']})\n{layer['text'].rstrip()}")
    if found["problem"]:
        print(f"\nProblem: {found['problem']}")
    for each in found["conflicts"]:
        print(
            f"\nShadowed: the section {each['heading']!r} of {each['shadowed_in']}, by that of {each['kept_in']}. "
            f"In force:\n{_indented(each['kept'])}\nNot told to the agent:\n{_indented(each['shadowed'])}"
        )
    print(f"\nDigest of what it is told: {found['digest']}")


def _indented(text: str) -> str:
    return textwrap.indent(text, "    ")


@app.command()
def new(name: Name) -> Shown:
    """Make an agent: a folder with commented files for its settings and its four layers.

    \b
    gofer agents new reviewer
    """
    made = call("POST", "/agents", json={"name": name})
    return made, f"The agent {name} has a folder in the data directory: agents/{name}."


@app.command()
def put(
    name: Name,
    file: Annotated[
        Path, typer.Argument(help="A TOML file with its settings, or a folder.", show_default=False)
    ],
    instructions: Annotated[Path | None, typer.Option(help="A Markdown file with its instructions.")] = None,
) -> Shown:
    """Add or change an agent from files, for all runs that start from now on. docs/agents.md has every setting.

    A folder has agent.toml and the layers SOUL.md, AGENT.md, IDENTITY.md and USER.md; those it lacks are removed.
    Files of single people (users/) and others are not copied.

    \b
    gofer agents put reviewer reviewer.toml --instructions reviewer.md
    gofer agents put reviewer ./reviewer
    """
    if file.is_dir():
        if instructions is not None:
            raise CommandFailed("In a folder the instructions are AGENT.md. Leave --instructions out.", USAGE)
        wish: dict[str, Any] = {
            "toml": _read(file / "agent.toml"),
            "instructions": _read_if_there(file / "AGENT.md"),
            "layers": {layer: _read_if_there(file / f"{layer}.md") for layer in ("SOUL", "IDENTITY", "USER")},
        }
    else:
        wish = {"toml": _read(file), "instructions": None if instructions is None else _read(instructions)}
    return call("PUT", f"/agents/{name}", json=wish), f"The agent {name} is written."


@app.command()
def pull(
    name: Name,
    folder: Annotated[
        Path | None, typer.Argument(help="A folder that is not there yet; by default the agent's name.")
    ] = None,
) -> Shown:
    """Write an agent's own files into a folder here, to be changed and put back.

    \b
    gofer agents pull reviewer ./reviewer
    """
    target = folder or Path(name)
    found = call("GET", f"/agents/{name}")
    files = {"agent.toml": found["toml"], "AGENT.md": found["instructions"]}
    files |= {f"{layer}.md": text for layer, text in found["files"].items()}
    try:
        target.mkdir(parents=True)
        for file, text in files.items():
            if text:
                (target / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"{target} cannot be written: {error.strerror}.", USAGE) from None
    written = {
        "folder": str(target.absolute()),
        "files": sorted(file for file, text in files.items() if text),
        "problem": found["problem"],
    }
    words = f"The files of {name} are in {target}."
    return written, words + (f" Problem: {found['problem']}" if found["problem"] else "")


def _read_if_there(path: Path) -> str:
    return _read(path) if path.exists() else ""


def _read(path: Path) -> str:
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise CommandFailed(f"{path} cannot be read: it is not a file.", USAGE)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or 'not text'}.", USAGE
        ) from None


@app.command()
def heartbeat(
    name: Name,
    switch: Annotated[
        str,
        typer.Argument(help="on or off; by default only show it.", metavar="[on|off]", show_default=False),
    ] = "",
) -> Shown:
    """Show an agent's heartbeat, or switch it on or off.

    \b
    gofer agents heartbeat reviewer
    gofer agents heartbeat reviewer on
    """
    if switch not in ("", "on", "off"):
        raise CommandFailed(f"A heartbeat is on or off, not {switch!r}.", USAGE)
    path = f"/agents/{name}/heartbeat"
    found = call("PUT", path, json={"enabled": switch == "on"}) if switch else call("GET", path)
    return found, lambda: _print_heartbeat(found)


NO_HOME = (
    "the list has nowhere to be told. No owner has a private conversation with this agent, or `conversation` in its "
    "settings names one that it takes no part in."
)


def _print_heartbeat(found: dict[str, Any]) -> None:
    state = "on" if found["enabled"] else "off"
    print(
        f"The heartbeat of {found['name']} is {state}: every {found['every']} minutes, {found['hours']} "
        f"({found['timezone']}), ${found['spent_today']:.4f} of ${found['budget']:.2f} spent today."
    )
    for problem in found["problems"]:
        print(f"Problem: {problem}")
    for item in found["items"]:
        print(f"- {item['when']}: {item['text']}")
    if found["items"] and not found["home"]:
        print(f"Problem: {NO_HOME}")
    for each in found["muted"]:
        where = each["conversation_id"]
        print(f"Muted in {where}. Undo: gofer agents unmute {found['name']} {where}")
    rows = [(each["code"], each["conversation_id"], each["state"], each["reason"]) for each in found["found"]]
    table(("found", "conversation", "became", "reason"), rows, empty="It has found nothing lately.")


@app.command()
def load(
    name: Name,
    clear: Annotated[
        bool,
        typer.Option("--clear", help="Pause its goals and drop its delegated tasks."),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="With --clear: begin with a fresh working memory, as after /new.")
    ] = False,
) -> Shown:
    """Show the tasks of an agent's workers, or clear them.

    \b
    gofer agents load reviewer
    gofer agents load reviewer --clear --fresh
    """
    if fresh and not clear:
        raise CommandFailed("--fresh goes with --clear.", USAGE)
    path = f"/agents/{name}/load"
    found = call("POST", f"{path}/clear", json={"fresh": fresh}) if clear else call("GET", path)
    return found, lambda: _print_load(name, found)


def _print_load(name: str, found: dict[str, Any]) -> None:
    how = "saturated for a while" if found["prolonged_saturation"] else "saturated"
    print(
        f"{name}: {found['active']} tasks are worked on, {found['queued']} wait; {found['accepted']} taken on and "
        f"{found['dropped']} refused since it was last cleared.{f' It is {how}.' if found['saturated'] else ''}"
    )


Where = Annotated[str, typer.Argument(help="The conversation's id.", show_default=False)]


@app.command()
def mute(name: Name, conversation: Where) -> Shown:
    """Keep an agent's heartbeat from writing in a conversation.

    \b
    gofer agents mute reviewer conv_k3v9
    """
    return _mute(name, conversation, muted=True)


@app.command()
def unmute(name: Name, conversation: Where) -> Shown:
    """Let an agent's heartbeat write in a conversation again.

    \b
    gofer agents unmute reviewer conv_k3v9
    """
    return _mute(name, conversation, muted=False)


def _mute(name: str, conversation: str, *, muted: bool) -> Shown:
    given = {"conversation_id": conversation, "muted": muted}
    found = call("PUT", f"/agents/{name}/heartbeat/mute", json=given)
    words = "writes nothing there" if muted else "may write there again"
    return found, f"The heartbeat of {name} {words}."


@app.command()
def remove(name: Name) -> Shown:
    """Remove an agent's files; its conversations keep their history.

    \b
    gofer agents remove reviewer
    """
    return call("DELETE", f"/agents/{name}"), f"The agent {name} is removed."
