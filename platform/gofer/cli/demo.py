"""`gofer demo`: the path of a message, played for real."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from typing import Any

import typer

from gofer.cli.exit_codes import FAILED, CommandFailed
from gofer.cli.output import AsJson, plain, show

WIDTH = 58


def demo(as_json: AsJson = False) -> None:
    """Start a throw-away instance, send it signed webhooks over HTTP and show what happens. Exit code 1 if
    anything is wrong.

    \b
    gofer demo
    gofer demo --json
    """
    steps = asyncio.run(_play(quiet=as_json))
    ok = all(step["ok"] for step in steps)
    show({"ok": ok, "steps": steps}, as_json, lambda: print(_verdict(ok)))
    if not ok:
        raise typer.Exit(FAILED)


def play_before_serving() -> None:
    """Play the demo at the very first start. Gofer is served afterwards, whatever the result."""
    print(
        "First a demo, on a throw-away instance: about ten seconds, once. `gofer demo` plays it again.",
        flush=True,
    )
    try:
        steps = asyncio.run(_play(quiet=False))
    except CommandFailed as error:
        print(f"The demo could not be played: {error}", file=sys.stderr)
        return
    if not all(step["ok"] for step in steps):
        print("Something is off: see the lines marked FAIL, and `gofer doctor`.")


def _verdict(ok: bool) -> str:
    if ok:
        return "\nAll as promised. `gofer serve` starts an instance that stays; `gofer doctor` says what it needs."
    return "\nSomething is off: see the lines marked FAIL."


async def _play(*, quiet: bool) -> list[dict[str, Any]]:
    from gofer_standins.demo import play
    from gofer_standins.instance import NotStarted

    steps: list[dict[str, Any]] = []
    try:
        async for scene, step in play():
            if not quiet:
                _print(scene, step, first=not steps or steps[-1]["scene"] != scene)
            steps.append({"scene": scene, **dataclasses.asdict(step)})
    except NotStarted as error:
        raise CommandFailed(str(error), FAILED) from None
    return steps


def _print(scene: str, step: Any, *, first: bool) -> None:
    if first:
        print(f"\n{scene}")
    sign = "ok  " if step.ok else "FAIL"
    print(f"  {sign}  {step.what.ljust(WIDTH)} {step.ms:>8.1f} ms")
    if step.detail:
        print(f"        {plain(step.detail)}")
    sys.stdout.flush()
