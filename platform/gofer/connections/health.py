"""Asks integrations how their connections are doing, whatever they answer or raise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import structlog

from gofer.connections.changes import find_connection, remove_connection, set_up_connection
from gofer.connections.context import LoadedConnection
from gofer.connections.inflow import fetch_now, fetch_trouble
from gofer.errors import GoferError, NotFound, NotInstalled
from gofer.integration import Health
from gofer.jobs.notifications import JOBS
from gofer.purge import remove_mirrors

if TYPE_CHECKING:
    from gofer.app import Platform

log = structlog.get_logger()

WATCH_EVERY = 300.0
"""Seconds between two looks at every connection, so that trouble is in the log before somebody misses an answer."""


async def set_up(platform: Platform, connection_id: str) -> Health:
    """Prepare the service for a connection as it is now."""
    health = await _ask(
        platform,
        connection_id,
        lambda _: set_up_connection(platform.database, platform.accounts, connection_id),
    )
    if health.ok:
        await platform.database.write(fetch_now, connection_id=connection_id)
        platform.signals.wake(JOBS)
    return health


async def health_of(platform: Platform, connection_id: str) -> Health:
    """How a connection is doing."""
    health = await _ask(
        platform, connection_id, lambda connected: connected.integration.health(connected.account)
    )
    return await _with_trouble(platform, connection_id, health) if health.ok else health


async def _with_trouble(platform: Platform, connection_id: str, health: Health) -> Health:
    """A service may be well and still give us nothing: somebody else polls in our place, or we may not look."""
    reason = await platform.database.read(fetch_trouble, connection_id=connection_id)
    if not reason:
        return health
    connected = await platform.accounts.get(connection_id)
    words = connected.integration.reasons.get(reason, f"Fetching what comes in is interrupted: {reason}.")
    return Health(False, f"{health.line} {words}", fix=f"gofer connections enable {connection_id}")


async def watch(platform: Platform, every: float = WATCH_EVERY) -> None:
    """Ask every connection now and then how it is doing, and log when that changes."""
    unwell: set[str] = set()
    while True:
        await asyncio.sleep(every)
        try:
            known = await platform.accounts.all()
        except GoferError as error:
            log.warning("connections.not_watched", error=str(error))
            continue
        for connected in known:
            await _watch(platform, connected.account.id, unwell)


async def _watch(platform: Platform, connection_id: str, unwell: set[str]) -> None:
    health = await health_of(platform, connection_id)
    if health.ok and connection_id in unwell:
        unwell.discard(connection_id)
        log.info("connection.healthy", connection=connection_id, line=health.line)
    elif not health.ok and connection_id not in unwell:
        unwell.add(connection_id)
        log.warning("connection.unhealthy", connection=connection_id, line=health.line, fix=health.fix)


async def disconnect(platform: Platform, connection_id: str, *, by: str) -> None:
    """Remove a connection that has no conversations, and tell its service when that can be reached."""
    try:
        connected = await platform.accounts.get(connection_id)
    except (NotFound, NotInstalled):
        connected = None
    await platform.database.write(remove_connection, connection_id=connection_id, by=by)
    await platform.secrets_changed()
    await asyncio.to_thread(remove_mirrors, platform.settings.data_dir, connection_id)
    if connected is not None:
        try:
            await connected.integration.tear_down(connected.account)
        except Exception as error:  # noqa: BLE001 - it is gone here; the service may be gone, too
            log.warning("connection.not_torn_down", connection=connection_id, error=str(error))


async def _ask(
    platform: Platform, connection_id: str, question: Callable[[LoadedConnection], Awaitable[Health]]
) -> Health:
    """Report a failure as the connection's health: the connection exists, and this is how it is doing."""
    try:
        row = await platform.database.read(find_connection, connection_id=connection_id)
        if not row.enabled:
            return Health(True, "Switched off.", fix=f"gofer connections enable {connection_id}")
        return await question(await platform.accounts.get(connection_id))
    except NotInstalled as error:
        return Health(
            False,
            f"{error} Until then its webhooks are answered 503.",
            fix=f"pip install its package and start Gofer again, or: gofer connections disable {connection_id}",
        )
    except GoferError as error:
        return Health(False, str(error), fix=f"gofer connections show {connection_id}")
    except Exception as error:  # noqa: BLE001 - a stranger's code may fail in any way
        return Health(
            False, f"{type(error).__name__}: {error}", fix=f"gofer connections show {connection_id}"
        )
