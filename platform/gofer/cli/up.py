"""`gofer up`: run Gofer under its supervisor, which starts it again and goes back to a release that worked."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from gofer.cli.exit_codes import CONFIGURATION, CommandFailed
from gofer.cli.serve import Host, Port

PACKAGES = ("gofer", "gofer_sandbox", "gofer_supervisor", "gofer_telegram", "gofer_github", "gofer_webchat")
"""What a release of Gofer is made of; a change in any of them is another build."""
ROLES = ("serve", "web", "worker")
STOP_MARGIN = 5.0
"""Seconds beyond GOFER_STOP_WITHIN that a process has to end in good order."""


def up(
    host: Host = None,
    port: Port = None,
    processes: Annotated[
        str, typer.Option(help="How many processes of which role: serve, or web=2,worker=1 on Postgres.")
    ] = "serve",
    probation: Annotated[
        float, typer.Option(min=0, help="Seconds that a new release has to work before it counts as good.")
    ] = 600,
) -> None:
    """Run Gofer under its supervisor, which keeps it running.

    \b
    gofer up
    gofer up --processes web=2,worker=1
    """
    from gofer.settings import load_settings, prepare_data_dir
    from gofer.store.migrations import newest

    settings = load_settings(host=host, port=port)
    prepare_data_dir(settings)
    counts = parse_processes(processes)
    if "serve" not in counts and settings.sqlite_path is not None:
        raise CommandFailed(
            "An SQLite file belongs to one process: use `gofer up` as it is, or set GOFER_DATABASE_URL to a "
            "Postgres database.",
            CONFIGURATION,
        )
    config = {
        "home": str(settings.home_path.absolute()),
        "release": installed_release(),
        "processes": counts,
        "host": settings.host,
        "port": settings.port,
        "schema": newest(),
        "rolling": settings.sqlite_path is None,
        "canary": True,
        "stop_within": settings.stop_within + STOP_MARGIN,
        "probation": probation,
    }
    supervise(config)


def parse_processes(text: str) -> dict[str, int]:
    """`web=2,worker` as numbers by role; raises CommandFailed."""
    counts: dict[str, int] = {}
    for part in text.split(","):
        given = re.fullmatch(r"\s*([a-z]+)\s*(?:=\s*([1-9][0-9]?))?\s*", part)
        if given is None or given[1] not in ROLES or given[1] in counts:
            raise CommandFailed(
                f"--processes: {part.strip()!r} is none of serve, web and worker, with a number such as web=2.",
                CONFIGURATION,
            )
        counts[given[1]] = int(given[2] or 1)
    if "serve" in counts and len(counts) > 1:
        raise CommandFailed("--processes: serve is web and worker in one; give it alone.", CONFIGURATION)
    return counts


def installed_release() -> dict[str, Any]:
    """The release that is installed here, by what its files hold."""
    from gofer import __version__

    digest = hashlib.sha256()
    for package in PACKAGES:
        found = find_spec(package)
        for place in sorted(Path(found.origin).parent.rglob("*")) if found and found.origin else ():
            if place.suffix in (".py", ".html", ".css", ".js", ".toml", ".md") and place.is_file():
                digest.update(f"{package} {place.name}\0".encode() + place.read_bytes())
    build = f"{__version__}-{digest.hexdigest()[:12]}"
    return {"build": build, "version": __version__, "python": sys.executable}


def supervise(config: dict[str, Any]) -> None:
    """Become the supervisor. It gets a fresh interpreter without our packages: it needs none, and stays small."""
    found = find_spec("gofer_supervisor")
    assert found is not None
    assert found.origin is not None
    source = str(Path(found.origin).parent.parent)
    start = (
        f"import sys; sys.path.insert(0, {source!r}); "
        "from gofer_supervisor.__main__ import main; sys.exit(main())"
    )
    command = [sys.executable, "-I", "-S", "-c", start, json.dumps(config)]
    os.execv(command[0], command)  # noqa: S606 - a list of ours
