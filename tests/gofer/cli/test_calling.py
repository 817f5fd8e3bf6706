"""Beside a process that has the store and does not listen yet."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from gofer.cli import client
from gofer.errors import StoreBusy
from gofer.settings import Settings
from gofer.store.sqlite import held


async def test_a_server_that_takes_its_time_to_start_is_waited_for(
    data_dir: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(data_dir=data_dir, database_url=sqlite_url, sandbox="off")
    path = settings.sqlite_path
    assert path is not None
    with contextlib.ExitStack() as starting:
        starting.enter_context(held(path))
        monkeypatch.setattr(client, "PATIENCE", 0)
        with pytest.raises(StoreBusy, match=f"Process {os.getpid()} .*is starting.*Try again"):
            await _version(settings)
        monkeypatch.undo()
        monkeypatch.setattr(client, "TOLD_AFTER", 0)
        asking = asyncio.create_task(_version(settings))
        await asyncio.sleep(0.3)
        assert not asking.done()
    assert await asking
    assert capsys.readouterr().err.count("Waiting") == 1


async def _version(settings: Settings) -> str:
    async with client.open_api(settings) as api:
        return str((await api.ask("GET", "/status"))["version"])
