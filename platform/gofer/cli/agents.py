"""`gofer agents`: who answers, with which model and tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gofer.cli.client import call
from gofer.cli.exit_codes import USAGE, CommandFailed
from gofer.cli.output import AsJson, show, table

app = typer.Typer(
    help="Agents: who answers, with which model and tools.", no_args_is_help=True, rich_markup_mode=None
)

Name = Annotated[str, typer.Argument(help="The agent's name.", show_default=False)]


@app.command("list")
def list_agents(as_json: AsJson = False) -> None:
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
    show(found, as_json, lambda: table(("agent", "model", "from", "problem"), rows, empty="No agents."))


def _whence(agent: dict[str, Any]) -> str:
    if agent["file"]:
        return "file"
    return "built in" if agent["in_force"] else "no file: hears nothing"


@app.command("show")
def show_agent(name: Name, as_json: AsJson = False) -> None:
    """Show an agent's files. For the built-in agent, show the file that it would have.

    \b
    gofer agents show reviewer
    """
    found = call("GET", f"/agents/{name}")
    files = [text.rstrip("\n") for text in (found["toml"], found["instructions"]) if text]
    show(found, as_json, lambda: print(*files, sep="\n\n"))


@app.command()
def put(
    name: Name,
    file: Annotated[Path, typer.Argument(help="A TOML file with its settings.", show_default=False)],
    instructions: Annotated[Path | None, typer.Option(help="A Markdown file with its instructions.")] = None,
    as_json: AsJson = False,
) -> None:
    """Add or change an agent from files, for all runs that start from now on. docs/agents.md has every setting.

    \b
    gofer agents put reviewer reviewer.toml --instructions reviewer.md
    """
    wish = {"toml": _read(file), "instructions": None if instructions is None else _read(instructions)}
    made = call("PUT", f"/agents/{name}", json=wish)
    show(made, as_json, lambda: print(f"The agent {name} is written."))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or 'not text'}.", USAGE
        ) from None


@app.command()
def remove(name: Name, as_json: AsJson = False) -> None:
    """Remove an agent's files; its conversations keep their history.

    \b
    gofer agents remove reviewer
    """
    gone = call("DELETE", f"/agents/{name}")
    show(gone, as_json, lambda: print(f"The agent {name} is removed."))
