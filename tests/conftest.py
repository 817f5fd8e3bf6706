"""How a run is set up. The process that only hands out tests loads no more than this needs."""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import gc
import inspect
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support import process_leaks
from support.forked_workers import Nursery
from support.patience import patience

MEMORY, ENOUGH = Path("/dev/shm"), 2 * 1024**3


def keep_files_in_memory() -> None:
    """Have pytest make its folders where a file that is synced need not reach a disk: a test waits for hundreds of
    commits, and none cuts the power. `PYTEST_DEBUG_TEMPROOT` names another place."""
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ENOUGH:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all is imported and collected
    keep_files_in_memory()
    if not config.getoption("tx", None):  # it runs tests itself
        config.pluginmanager.import_plugin("support.fixtures")
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        process_leaks.mark()
        process_leaks.mind()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    if sys.platform != "linux":  # elsewhere a process that has libraries loaded may not be forked
        return
    folder = tempfile.mkdtemp(prefix="gofer-workers-")
    nursery = Nursery(config, folder)
    config.add_cleanup(partial(shutil.rmtree, folder))
    config.add_cleanup(nursery.close)
    specs[:] = [type(spec)(f"{spec}//python={nursery.python}") for spec in specs]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have each worker begin with its part of the longest tests (`slow(long=True)`), and two workers with those that
    mostly wait (`waits`), beside others that compute: begun last, they would leave the cores idle. xdist hands out the
    list in as many equal parts as there are workers."""
    workers = int(getattr(config, "workerinput", {}).get("workercount", 1))
    longest = [item for item in items if any(mark.kwargs.get("long") for mark in item.iter_markers("slow"))]
    waiting = [item for item in items if item.get_closest_marker("waits") and item not in longest]
    if workers == 1 or not (longest or waiting):
        return
    early = {*longest, *waiting}
    rest = [item for item in items if item not in early]
    ordered: list[pytest.Item] = []
    for number in range(workers):
        first = longest[number::workers] + (waiting[number::2] if number < 2 else [])
        size = (len(items) - len(ordered)) // (workers - number) - len(first)
        ordered += [*first, *rest[: max(0, size)]]
        del rest[: max(0, size)]
    items[:] = [*ordered, *rest]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fail a test that hangs, so that the run goes on and its name is known."""
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
        test = item.obj

        @functools.wraps(test)
        async def bounded(**fixtures: Any) -> None:
            async with asyncio.timeout(patience(HANG_TIMEOUT)):
                await test(**fixtures)

        item.obj = bounded


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """End a worker that hangs after a test: xdist says which it was, and starts another."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    faulthandler.dump_traceback_later(patience(HANG_TIMEOUT), exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


HANG_TIMEOUT = 200.0


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the garbage collector need not look at it again."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
