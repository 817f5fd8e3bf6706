"""What commands print: data for machines, tables for people, and nothing a terminal could mistake for orders."""

from __future__ import annotations

import inspect
import json
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any

import typer

_UNQUOTED = re.compile(r"[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""Characters that JSON leaves as they are and a terminal may obey. They occur in strings alone, where they can be
escaped."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

COLOURS = {
    "ok": "green",
    "done": "green",
    "sent": "green",
    "running": "cyan",
    "ready": "cyan",
    "note": "cyan",
    "warning": "yellow",
    "scheduled": "yellow",
    "waiting": "yellow",
    "blocked": "yellow",
    "error": "red",
    "dead": "red",
    "failed": "red",
}


Shown = tuple[Any, str | Callable[[], None]]
"""What a command answers: data for `--json`, and a sentence or something that prints it for people."""


def group(purpose: str) -> CommandGroup:
    """A group of commands, such as those of `gofer jobs`."""
    return CommandGroup(help=purpose, no_args_is_help=True, rich_markup_mode=None)


class CommandGroup(typer.Typer):
    """Commands that return what they show."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Register a command; see `printing`."""
        register = super().command(name, **options)
        return lambda function: register(printing(function))


def printing(function: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the option `--json`, which prints what the function returns. One that has the option already
    prints by itself."""
    signature = inspect.signature(function)
    if signature.return_annotation != "Shown":
        return function

    @wraps(function)
    def command(*, as_json: bool, **given: Any) -> None:
        data, words = function(**given)
        show(data, as_json, words if callable(words) else lambda: print(words))

    option = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
    command.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*inspect.signature(function, eval_str=True).parameters.values(), option]
    )
    return command


def show(data: Any, as_json: bool, in_words: Callable[[], None]) -> None:
    """Print an answer the way it was asked for."""
    if as_json:
        text = json.dumps(data, indent=2, ensure_ascii=False, default=str)
        print(_UNQUOTED.sub(lambda found: f"\\u{ord(found[0]):04x}", text))
    else:
        in_words()


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str = "None.") -> None:
    """Print rows under their headings. Cells are never cut when the output is not a terminal."""
    if not rows:
        print(empty)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(plain(value), style=COLOURS.get(str(value), "")) for value in row))
    Console(width=None if sys.stdout.isatty() else 1000, highlight=False).print(drawn)


def refusable(value: str, row: Mapping[str, Any]) -> str:
    """A value of a row, with a word where Gofer does not act on the row because somebody else wrote it."""
    return f"{value} (refused: see gofer rows list)" if row.get("refused") else value


def facts(pairs: Sequence[tuple[str, Any]]) -> None:
    """Print names and values, one to a line."""
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        print(f"{name.ljust(width)}  {plain(value)}")


def plain(value: Any) -> str:
    """A value as text on one line; control characters of strangers stay without effect."""
    if value is None or value == "":
        return "-"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
    return "".join(" " if char in "\n\t" else _visible(char) for char in text)


def harmless(text: str) -> str:
    """Text of any length as it is, lines and tabs too, but for what a terminal would obey or hide."""
    return "".join(char if char in "\n\t" else _visible(char) for char in text)


def _visible(char: str) -> str:
    return "�" if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") else char


def count(number: int, thing: str) -> str:
    """A number with its noun: `1 job`, `2 jobs`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def ago(moment: float | None) -> str:
    """A time as people say it."""
    if moment is None:
        return "-"
    seconds = time.time() - moment
    words = _length(abs(seconds))
    return f"{words} ago" if seconds >= 0 else f"in {words}"


def _length(seconds: float) -> str:
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"
