"""`python -m benchmarks [GROUP …] [--quick]`: run the groups, print one table, write `.bench/results.json`."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import sys
import time
import traceback
from pathlib import Path

import structlog
import uvloop

from benchmarks.report import Row, table, write_json

GROUPS = (
    "engine_sqlite",
    "engine_postgres",
    "webhook",
    "github",
    "recovery",
    "sandbox",
    "agent",
    "prompt_cache",
    "telegram",
    "starting",
    "supervisor",
    "watching",
    "pages",
    "recall",
    "heartbeat",
    "workers",
    "mcp_calls",
    "sockets",
    "goals",
)
"""Every group, in the order they run: a module of `benchmarks` with `async def main(quick) -> list[Row]`."""

RESULTS = Path(".bench/results.json")


async def run(names: list[str], quick: bool) -> tuple[list[Row], list[str]]:
    """The rows of the named groups, and the groups that broke."""
    rows: list[Row] = []
    broken: list[str] = []
    for name in names:
        began = time.perf_counter()
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            rows += await importlib.import_module(f"benchmarks.{name}").main(quick)
        except Exception:
            traceback.print_exc()
            broken.append(name)
        print(f"{name} took {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return rows, broken


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: is it still in the right order?")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the data goes")
    given = parser.parse_args()
    unknown = set(given.groups) - set(GROUPS)
    if unknown:
        parser.error(f"no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as in `gofer serve`
        rows, broken = runner.run(run(given.groups or list(GROUPS), given.quick))
    print(table(rows))
    write_json(given.output, rows)
    missed = [row for row in rows if row.met is False]
    print(f"\n{len(rows)} figures, {len(missed)} short of their target; as data in {given.output}")
    if broken:
        print(f"not measured, because of an error: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
