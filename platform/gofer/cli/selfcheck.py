"""`gofer selfcheck`: what a release checks about itself before anybody may deploy it.

It is a program of the new release, so `gofer update stage` runs it where it can do no harm: in a sandbox without
network, with a copy of the store, and without the master key.
"""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import typer

from gofer.cli.output import Shown
from gofer.errors import GoferError

PACKAGES = (
    "gofer",
    "gofer_sandbox",
    "gofer_supervisor",
    "gofer_telegram",
    "gofer_github",
    "gofer_webchat",
    "gofer_hello",
)
NOT_IMPORTED = ("__main__", ".migrations.versions.", ".migrations.env")
"""Parts of module names that are programs."""


class SelfCheckFailed(GoferError):
    """The release does not work."""


def selfcheck(
    database: Annotated[
        Path | None, typer.Option(help="A copy of an SQLite store, which is migrated.")
    ] = None,
) -> Shown:
    """Check that this release works: that it can be imported, that it can migrate a store, and that a scripted
    conversation with a throw-away instance goes as it should. Exit code 1 if not.

    \b
    gofer selfcheck
    gofer selfcheck --database copy.db
    """

    async def check() -> list[str]:
        return [found async for found in self_check(database)]

    found = asyncio.run(check())
    return {"found": found}, "\n".join(found)


async def self_check(database: Path | None) -> AsyncIterator[str]:
    """Check the release; yields what was found, and raises SelfCheckFailed at the first fault."""
    yield f"{import_everything()} modules can be imported"
    if database is not None:
        yield await _migrate_copy(database)
    async for scene in _play():
        yield scene


def import_everything() -> int:
    """Import every module; returns how many there are."""
    names = [
        module.name
        for package in PACKAGES
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
        if not any(part in f".{module.name}" for part in NOT_IMPORTED)
    ]
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise SelfCheckFailed(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    return len(names)


async def _migrate_copy(place: Path) -> str:
    from gofer.store import migrations
    from gofer.store.bootstrap import migrate
    from gofer.store.sqlite import SqliteDatabase

    database = SqliteDatabase(place)
    await database.start()
    try:
        before = await database.read(migrations.current)
        await migrate(database, backup_to=None)
        after = await database.read(migrations.current)
    except Exception as error:
        raise SelfCheckFailed(f"The store cannot be migrated: {error}") from error
    finally:
        await database.close()
    if before == after:
        return f"a copy of the store can be used as it is ({after})"
    return f"a copy of the store was migrated from {before} to {after}"


async def _play() -> AsyncIterator[str]:
    """A conversation by a script: signed messages in, replies out, none lost or doubled."""
    from gofer_standins.demo import play
    from gofer_standins.instance import NotStarted

    try:
        async for scene, step in play(shell=False):
            if not step.ok:
                raise SelfCheckFailed(f"{scene}: {step.what}: {step.detail}")
            await asyncio.sleep(0)
    except NotStarted as error:
        raise SelfCheckFailed(f"It does not start: {error}") from error
    yield "a scripted conversation went as it should"
