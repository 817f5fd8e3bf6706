"""`gofer logs`: the log that a server started on a terminal keeps in a file."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from gofer.cli.exit_codes import FAILED, CommandFailed
from gofer.cli.output import AsJson, plain

RANKS = {"debug": 0, "info": 1, "warning": 2, "error": 3, "critical": 3}
LOOK_EVERY = 0.3


def logs(
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=100_000, help="How many of the last lines to show.")
    ] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show new lines as they come.")] = False,
    level: Annotated[
        str, typer.Option(help="Lines of this level and above: debug, info, warning or error.")
    ] = "info",
    as_json: AsJson = False,
) -> None:
    """Show the log file. A server that logs to stderr has none: ask its service manager.

    \b
    gofer logs
    gofer logs --follow --level warning
    """
    from gofer.settings import load_settings

    if level not in RANKS:
        raise CommandFailed(f"There is no level {level!r}: debug, info, warning or error.", 2)
    path = load_settings().log_path
    if not path.is_file():
        raise CommandFailed(
            f"There is no log at {path}. It is written there by `gofer serve` on a terminal, or with "
            "GOFER_LOG_TO=file; a systemd unit's is in: journalctl -u gofer",
            FAILED,
        )
    kept = deque((line for line in _lines(path) if _rank(line) >= RANKS[level]), maxlen=lines)
    for line in kept:
        _print(line, as_json)
    if follow:
        for line in _followed(path):
            if _rank(line) >= RANKS[level]:
                _print(line, as_json)


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from file


def _followed(path: Path) -> Iterator[str]:
    """Lines as they are written, also to the next file when the log is rotated."""
    file = path.open(encoding="utf-8", errors="replace")
    file.seek(0, 2)
    part = ""
    while True:
        if piece := file.readline():
            part += piece
            if part.endswith("\n"):
                yield part
                part = ""
            continue
        if _replaced(path, file.fileno()):
            file.close()
            file = path.open(encoding="utf-8", errors="replace")
        else:
            time.sleep(LOOK_EVERY)


def _replaced(path: Path, descriptor: int) -> bool:
    import os

    try:
        return path.stat().st_ino != os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def _rank(line: str) -> int:
    return RANKS.get(_parsed(line).get("level", "info"), 1)


def _parsed(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {"event": line}
    return value if isinstance(value, dict) else {"event": line}


def _print(line: str, as_json: bool) -> None:
    if as_json:
        print(line.rstrip("\n"), flush=True)
        return
    found = _parsed(line)
    at, level, event = (str(found.pop(name, "")) for name in ("timestamp", "level", "event"))
    facts = " ".join(f"{name}={plain(value)}" for name, value in found.items())
    print(f"{plain(at)[:19]} {plain(level):<7} {plain(event)} {facts}".rstrip(), flush=True)
