"""`gofer serve`, `gofer web`, `gofer worker`: the processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from gofer.cli.exit_codes import CONFIGURATION, USAGE, CommandFailed

Host = Annotated[str | None, typer.Option(help="The address to listen on (GOFER_HOST).")]
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a host of runtimes that has ended is started again, doubled each time."""
HOST_STOP_TIMEOUT = 40.0
Port = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one (GOFER_PORT)."),
]


def serve(
    host: Host = None,
    port: Port = None,
    demo: Annotated[bool, typer.Option("--demo", help="Play the demo before the very first start.")] = False,
    host_runtimes: Annotated[
        bool, typer.Option("--host-runtimes", help="Also run `gofer runtimes host`, for your own terminals.")
    ] = False,
) -> None:
    """Run the server: web and worker in one process.

    \b
    gofer serve
    gofer serve --port 9000
    gofer serve --host-runtimes
    GOFER_DATABASE_URL=postgresql://gofer@db/gofer gofer serve
    """
    if demo:
        _play_once(host, port)
    with _runtime_host() if host_runtimes else contextlib.nullcontext():
        _run(host, port, "web", "worker")


@contextlib.contextmanager
def _runtime_host() -> Iterator[None]:
    """Keep `gofer runtimes host` running beside the server, as a process of its own: nothing of the server's memory,
    settings or keys is in it, and it ends with the server. Raises ConfigError for a file that cannot work."""
    from gofer.cli.runtimes import usual_file
    from gofer.runtime_host.configuration import read_file
    from gofer.settings import load_settings

    read_file(usual_file())
    where = {"GOFER_DATA_DIR": str(load_settings().data_dir)}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GOFER_")}
    stop, running = threading.Event(), list[subprocess.Popen[bytes]]()
    keeper = threading.Thread(target=_keep_hosting, args=(kept | where, stop, running), daemon=True)
    keeper.start()
    try:
        yield
    finally:
        stop.set()
        until = time.monotonic() + HOST_STOP_TIMEOUT
        while keeper.is_alive():
            for process in running:
                process.terminate() if time.monotonic() < until else process.kill()
            keeper.join(0.5)


def _keep_hosting(
    environment: dict[str, str], stop: threading.Event, running: list[subprocess.Popen[bytes]]
) -> None:
    """Start the host, and start it again when it ends, unless it cannot work as it is."""
    command = [sys.executable, "-P", "-m", "gofer", "runtimes", "host", "--parent", str(os.getpid())]
    pause = FIRST_PAUSE
    while not stop.is_set():
        began = time.monotonic()
        running[:] = [subprocess.Popen(command, env=environment, start_new_session=True, cwd=Path.home())]
        if running[0].wait() in (USAGE, CONFIGURATION):
            return
        pause = FIRST_PAUSE if time.monotonic() - began > LONGEST_PAUSE else min(2 * pause, LONGEST_PAUSE)
        stop.wait(pause)


def _play_once(host: str | None, port: int | None) -> None:
    """Play the demo if this data directory has never been served from, and if serving could begin at all."""
    from gofer.serve import check_port
    from gofer.settings import load_settings, prepare_data_dir

    settings = load_settings(host=host, port=port)
    check_port(settings)
    prepare_data_dir(settings)
    played = settings.data_dir / "demo-played"
    if played.exists() or (settings.sqlite_path is not None and settings.sqlite_path.exists()):
        return
    from gofer.cli.demo import play_before_serving

    play_before_serving()
    played.touch(mode=0o600)


def web(host: Host = None, port: Port = None) -> None:
    """Run the web part alone: webhooks, pages and API. Workers do the jobs. Needs Postgres.

    \b
    GOFER_DATABASE_URL=postgresql://gofer@db/gofer gofer web --host 0.0.0.0
    """
    _run(host, port, "web")


def worker() -> None:
    """Run a worker alone, which does the jobs. Needs Postgres.

    \b
    GOFER_DATABASE_URL=postgresql://gofer@db/gofer GOFER_SLOTS=32 gofer worker
    """
    _run(None, None, "worker")


def _run(host: str | None, port: int | None, *roles: str) -> None:
    from gofer.settings import load_settings

    settings = load_settings(host=host, port=port)
    if len(roles) == 1 and settings.sqlite_path is not None:
        raise CommandFailed(
            "An SQLite file belongs to one process, so web and worker cannot be split on it. Run `gofer serve`, "
            "or set GOFER_DATABASE_URL to a Postgres database.",
            CONFIGURATION,
        )
    from gofer.serve import run

    run(settings, *roles)
