"""Gofer in a process of its own, like its peers in the Telegram benchmark: `python -m benchmarks.telegram_ours`."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from functools import partial
from pathlib import Path

from gofer.app import Platform, open_app
from gofer.connections.changes import add_connection
from gofer.identity import grant_role
from gofer.logs import set_up_logs
from gofer.settings import Settings
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.vault.redaction import Secret

PEOPLE = range(5_000_000_001, 5_000_000_101)
"""The numbers that the stand-in gives to people."""


async def main(token: str, url: str) -> None:
    """Serve a bot until killed; everybody is an owner."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder) / "data", sandbox="off", log_level="warning")
        async with open_app(settings, roles=frozenset({"worker"})) as platform:
            set_up_logs(settings, platform.redactor)
            await _connect(platform, token, url)
            await asyncio.Event().wait()


async def _connect(platform: Platform, token: str, url: str) -> None:
    write = platform.database.write
    await write(
        partial(
            add_connection,
            vault=platform.vault,
            workspace_id=FIRST_WORKSPACE,
            integration=platform.registry.get("telegram"),
            name="bench",
            settings={"api_url": url},
            secrets_given={"token": Secret(token)},
            by="bench",
        )
    )
    await platform.reload_secrets()
    for number in PEOPLE:
        await write(
            partial(
                grant_role,
                workspace_id=FIRST_WORKSPACE,
                integration="telegram",
                subject=str(number),
                name=f"Person {number}",
                role="owner",
                by="bench",
            )
        )
    await write(platform.start_inflow)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
