"""The real command line beside a real server, and a strict stand-in for the service it speaks with."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gofer.settings import Settings
from support.command_line import Hello, Process, Terminal, environment
from support.process_speed import log_plainly
from support.sqlite_template import with_tables


@pytest.fixture(autouse=True)
def _tables(request: pytest.FixtureRequest) -> None:
    """The store has its tables where a test has a server or a terminal: to make them takes a quarter of a second."""
    if {"start", "terminal"} & {*request.fixturenames}:
        with_tables(Settings(data_dir=request.getfixturevalue("data_dir")))


@pytest.fixture
def hello() -> Iterator[Hello]:
    hello = Hello()
    yield hello
    hello.close()


@pytest.fixture
def start(data_dir: Path) -> Iterator[Callable[..., Process]]:
    """Starts processes; whatever still runs at the end is killed."""
    started: list[Process] = []

    def begin(*arguments: str, at: Path = data_dir, **settings: str) -> Process:
        process = Process(at, *arguments, **settings)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.close()


@pytest.fixture
def terminal(
    data_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Terminal]:
    for name in [name for name in os.environ if name.startswith("GOFER_")]:
        monkeypatch.delenv(name)
    for name, value in environment(data_dir).items():
        if name.startswith("GOFER_"):
            monkeypatch.setenv(name, value)
    handlers = logging.getLogger().handlers[:]
    yield Terminal(capsys, monkeypatch)
    logging.getLogger().handlers[:] = handlers
    log_plainly()
