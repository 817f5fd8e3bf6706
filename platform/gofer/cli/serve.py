"""`gofer serve`, `gofer web`, `gofer worker`: the processes."""

from __future__ import annotations

from typing import Annotated

import typer

from gofer.cli.exit_codes import CONFIGURATION, CommandFailed

Host = Annotated[str | None, typer.Option(help="The address to listen on (GOFER_HOST).")]
Port = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one (GOFER_PORT)."),
]


def serve(
    host: Host = None,
    port: Port = None,
    demo: Annotated[bool, typer.Option("--demo", help="Play the demo before the very first start.")] = False,
) -> None:
    """Run the server: web and worker in one process.

    \b
    gofer serve
    gofer serve --port 9000
    GOFER_DATABASE_URL=postgresql://gofer@db/gofer gofer serve
    """
    if demo:
        _play_once(host, port)
    _run(host, port, "web", "worker")


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
