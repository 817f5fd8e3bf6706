"""Has a server live once in the process that servers are forked from, so that each of them finds what every start
makes: compiled statements, patterns, lists of plugins. It halves what a start and a first answer take."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import os
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path

from e2e.scenario import Scenario, prepared
from gofer import serve
from gofer.settings import load_settings
from support.patience import patience
from support.process_speed import (
    compile_for_postgres,
    new_loop,
    share_compiled_statements,
    share_entry_points,
)


def warm_up() -> None:
    """Leaves no thread behind, which could not be forked."""
    share_compiled_statements()
    share_entry_points()
    folder = Path(tempfile.mkdtemp(prefix="gofer-warm-"))
    before, path = dict(os.environ), sys.path[:]
    try:
        with contextlib.redirect_stdout(io.StringIO()), asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(asyncio.wait_for(_live_once(folder / "data"), patience(60)))
    finally:
        os.environ.clear()
        os.environ.update(before)
        sys.path[:] = path
        shutil.rmtree(folder)
    compile_for_postgres()
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()


async def _live_once(data_dir: Path) -> None:
    data_dir.mkdir(mode=0o700)
    async with prepared(data_dir, "", log_level="error") as scenario:
        os.environ.update(scenario.environment)
        serving = asyncio.create_task(serve.serve(load_settings(), frozenset({serve.WEB, serve.WORKER})))
        await _use(scenario)
        os.kill(os.getpid(), signal.SIGTERM)
        await serving


async def _use(scenario: Scenario) -> None:
    await scenario.say("1", "kitchen", '$tool mark {"line": "warm"}')
    await scenario.control("POST", "/goals", {"text": '$tool mark {"line": "warm"}'})
    await scenario.settle(5)


warm_up()
