"""Deadlines of tests move with the load of the machine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from support import patience
from support.patience import Deadline, patiently, slowness, until


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the kernel says of an idle machine with one core; to be overwritten."""
    file = tmp_path / "loadavg"
    file.write_text("0.10 0.10 0.10 1/200 4711\n")
    monkeypatch.setattr(patience, "LOAD", file)
    monkeypatch.setattr(patience, "CORES", 1)
    return file


def test_an_idle_machine_gets_the_seconds_that_were_asked_for(load: Path) -> None:
    assert slowness() == 1
    assert patience.patience(7) == 7


@pytest.mark.parametrize("busy", ["20.0 9.0 3.0 1/300 1", "0.5 0.5 0.5 20/300 1"])
def test_a_busy_machine_gets_more(load: Path, busy: str) -> None:
    load.write_text(busy)
    assert patience.patience(7) == 140


async def test_a_deadline_moves_when_the_machine_gets_busy_meanwhile(load: Path) -> None:
    deadline = Deadline(0.1)
    async with patiently(0.1):
        load.write_text("500 0 0 1/1 1")
        await asyncio.sleep(0.2)
    assert deadline.left > 10


async def test_what_does_not_happen_fails_in_the_end(load: Path) -> None:
    with pytest.raises(TimeoutError):
        async with patiently(0.05):
            await asyncio.sleep(3600)
    with pytest.raises(AssertionError):
        until(lambda: False, within=0.05)


def test_real_load_is_seen() -> None:
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(6)]
    try:
        until(lambda: slowness() > 6 / patience.CORES - 1, within=30)
    finally:
        for each in spinning:
            each.kill()
            each.wait()
