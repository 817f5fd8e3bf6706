"""`gofer status`, `gofer doctor`, `gofer version`: the instance as a whole."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from gofer.cli.client import Api, call, open_api
from gofer.cli.exit_codes import FAILED, CommandFailed
from gofer.cli.output import AsJson, Shown, ago, facts, plain, show, table
from gofer.cli.update import failed, progress

PROMPTLY = 5.0
"""Seconds that a server has to say that it runs. One that takes longer hangs, or was stopped."""
SIGNS = {"ok": "ok  ", "note": "note", "warning": "warn", "error": "FAIL"}


def version() -> Shown:
    """Print the version."""
    from gofer import __version__

    return {"version": __version__}, __version__


def migrate() -> Shown:
    """Bring the database to this release's version, while no server runs on SQLite. Starting a server does it too.

    \b
    gofer migrate
    """
    import asyncio

    from gofer.app import open_app
    from gofer.settings import load_settings
    from gofer.store import migrations

    async def opened() -> None:
        async with open_app(load_settings(), roles=frozenset()):
            pass

    asyncio.run(opened())
    at = migrations.newest()
    return {"version": at}, f"The database is at version {at}."


def status(
    refusals: Annotated[
        bool, typer.Option("--refusals", help="Show the last requests that were refused.")
    ] = False,
    levels: Annotated[
        bool, typer.Option("--levels", help="Show service levels: waiting times, queue, failures.")
    ] = False,
    running: Annotated[
        bool, typer.Option("--running", help="Only check whether a server answers: exit code 0 or 1.")
    ] = False,
) -> Shown:
    """Show whether a server runs, where, and how many jobs there are.

    \b
    gofer status
    gofer status --refusals
    gofer status --levels
    gofer status --running
    """
    if running:
        _require_server()
    if refusals:
        found = call("GET", "/refusals")
        return found, lambda: _print_refusals(found["refusals"])
    if levels:
        found = call("GET", "/levels")
        return found, lambda: _print_levels(found)
    found = call("GET", "/status")
    return found, lambda: _print_status(found)


def _print_levels(found: dict[str, Any]) -> None:
    waits = [
        (
            f"last {each['window']}",
            each["answer"]["count"],
            *(_seconds(each[what][share]) for what in ("first_word", "answer") for share in ("p50", "p95")),
        )
        for each in found["windows"]
    ]
    table(("window", "answers", "word p50", "word p95", "answer p50", "answer p95"), waits, empty="")
    queue = [
        (each["kind"], each["ready"], _seconds(each["oldest_seconds"]), each["waiting"], each["running"])
        for each in found["queue"]
    ]
    table(("kind", "ready", "oldest", "waiting", "running"), queue, empty="Nothing waits.")
    failed = [
        (each["kind"], each["ended"], each["errors"], each["retries"])
        for each in found["windows"][-1]["kinds"]
    ]
    table(("kind, last day", "ended", "given up", "retries"), failed, empty="No job has ended today.")


def _seconds(figure: float | None) -> str:
    return "–" if figure is None else f"{figure:.1f} s"


def _require_server() -> None:
    """For health checks: say at once when no server listens, and leave the store alone."""
    from gofer.settings import load_settings
    from gofer.web.unix_socket import somebody_listens

    path = load_settings().socket_path
    if not somebody_listens(path):
        raise CommandFailed(f"No server listens at {path}. Run: gofer serve", FAILED)
    try:
        call("GET", "/status", timeout=PROMPTLY)
    except CommandFailed as error:
        raise CommandFailed(str(error), FAILED) from error


def _print_refusals(refusals: list[dict[str, Any]]) -> None:
    rows = [
        (ago(each["at"]), each["status"], each["connection"], each["client"], each["reason"])
        for each in refusals
    ]
    table(("when", "status", "connection", "from", "why"), rows, empty="None since the server started.")


def _print_status(found: dict[str, Any]) -> None:
    jobs = ", ".join(f"{count} {state}" for state, count in sorted(found["jobs"].items())) or "none open"
    facts(
        [
            (
                "server",
                f"pid {found['pid']}, started {ago(found['started_at'])}"
                if found["serving"]
                else "not running",
            ),
            ("address", found["url"]),
            ("version", found["version"]),
            *([("release", found["build"])] if found["build"] else []),
            ("database", found["database"]),
            ("data", found["data_dir"]),
            ("connections", found["connections"]),
            ("conversations", found["conversations"]),
            ("jobs", jobs),
            ("refused", sum(found["refused"].values())),
        ]
    )
    if found["deploying"]:
        print(progress(found["deploying"]))
    if found["taken_back"]:
        print(failed(found["taken_back"]))
    if len(found["processes"]) > 1:
        rows = [
            (each["id"], each["host"], each["pid"], each["roles"], ago(each["seen_at"]))
            for each in found["processes"]
        ]
        table(("process", "host", "pid", "roles", "seen"), rows)


def doctor(
    fix: Annotated[
        bool, typer.Option("--fix", help="Fix what can be fixed without losing anything, then check again.")
    ] = False,
    call: Annotated[
        bool, typer.Option("--call", help="Ask the model for one word, for a fraction of a cent.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check the installation. Each line says how to fix what is wrong. Exit code 1 when something is wrong.

    \b
    gofer doctor
    gofer doctor --fix
    gofer doctor --call
    gofer doctor --json
    """
    import asyncio

    fixed = asyncio.run(_fix()) if fix else []
    findings = asyncio.run(_examine(call=call))
    shown = {"findings": findings, **({"fixed": fixed} if fix else {})}
    show(shown, as_json, lambda: _print_findings(findings, fixed))
    if any(each["severity"] == "error" for each in findings):
        raise typer.Exit(FAILED)


async def _fix() -> list[str]:
    """Fix the data directory first, then every unhealthy connection."""
    from gofer.doctor import fix_data_dir
    from gofer.errors import GoferError
    from gofer.settings import load_settings

    settings = load_settings()
    done = fix_data_dir(settings)
    if settings.sqlite_path is not None and not _is_there(settings.sqlite_path):
        return done
    try:
        async with open_api(settings) as api:
            return [*done, *await _set_up_again(api)]
    except (GoferError, CommandFailed):
        # What keeps the platform from opening is told by the round that follows.
        return done


async def _set_up_again(api: Api) -> list[str]:
    done = []
    for connection in (await api.ask("GET", "/connections"))["connections"]:
        where = f"/connections/{connection['id']}"
        if connection["enabled"] and not (await api.ask("POST", f"{where}/test"))["health"]["ok"]:
            health = (await api.ask("PATCH", where, json={"enabled": True}))["health"]
            if health["ok"]:
                done.append(f"Set {connection['name']} up again: {health['line']}")
    return done


async def _examine(*, call: bool) -> list[dict[str, Any]]:
    """Check what can be seen from outside first, then what the platform says, if it can be opened at all."""
    from gofer.doctor import Finding, found_wrong, look_around
    from gofer.errors import GoferError
    from gofer.settings import load_settings
    from gofer.web.unix_socket import somebody_listens

    try:
        settings = load_settings()
    except GoferError as error:
        return [dataclasses.asdict(found_wrong("settings", error))]
    serving = somebody_listens(settings.socket_path)
    findings = [dataclasses.asdict(each) for each in look_around(settings, serving=serving)]
    path = settings.sqlite_path
    if path is not None and not _is_there(path):
        # Looking must not make anything.
        return [
            *findings,
            dataclasses.asdict(Finding("database", "note", "There is none yet.", "gofer serve")),
        ]
    try:
        async with open_api(settings) as api:
            asked = await _ask(api, call=call)
            # A server without the same variable does not say it, and one with it says it as well.
            return [*(each for each in findings if each not in asked), *asked]
    except GoferError as error:
        return [*findings, dataclasses.asdict(found_wrong("platform", error))]


async def _ask(api: Api, *, call: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await api.ask("GET", "/doctor"))["findings"]
    if not call:
        return found
    asked = (await api.ask("POST", "/doctor/model"))["findings"]
    return [*(each for each in found if each["check"] != "model"), *asked]


def _print_findings(findings: list[dict[str, Any]], fixed: list[str]) -> None:
    for line in fixed:
        print(f"fixed {plain(line)}")
    for each in findings:
        print(f"{SIGNS[each['severity']]}  {plain(each['check'])}: {plain(each['line'])}")
        if each["fix"] and each["severity"] != "ok":
            print(f"      fix: {plain(each['fix'])}")
        if each["severity"] == "error" or (each["fix"] and each["severity"] != "ok"):
            print(f"      see: docs/{plain(each['docs'])}")


def _is_there(path: Path) -> bool:
    return os.path.exists(path)  # unlike Path.exists, it does not raise for a name that is too long
