"""Asking integrations about their connections, whatever they answer or raise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from gofer.accounts import Connected
from gofer.connecting import remove_connection, set_up_connection
from gofer.errors import GoferError, NotFound
from gofer.integration import Health
from gofer.platform import Platform
from gofer.purging import remove_mirrors

log = structlog.get_logger()


async def set_up(platform: Platform, connection_id: str) -> Health:
    """Prepare the service for a connection as it is now."""
    return await _ask(
        platform,
        connection_id,
        lambda _: set_up_connection(platform.database, platform.accounts, connection_id),
    )


async def health_of(platform: Platform, connection_id: str) -> Health:
    """How a connection is doing."""
    return await _ask(
        platform, connection_id, lambda connected: connected.integration.health(connected.account)
    )


async def disconnect(platform: Platform, connection_id: str, *, by: str) -> None:
    """Remove a connection that has no conversations, and tell its service so if that still listens."""
    try:
        connected = await platform.accounts.get(connection_id)
    except NotFound:
        connected = None
    await platform.database.write(partial(remove_connection, connection_id=connection_id, by=by))
    await platform.secrets_changed()
    await asyncio.to_thread(remove_mirrors, platform.settings.data_dir, connection_id)
    if connected is not None:
        try:
            await connected.integration.tear_down(connected.account)
        except Exception as error:  # noqa: BLE001 - it is gone here; the service may be gone, too
            log.warning("connection.not_torn_down", connection=connection_id, error=str(error))


async def _ask(
    platform: Platform, connection_id: str, question: Callable[[Connected], Awaitable[Health]]
) -> Health:
    """A failure is an answer: the connection exists, and this is how it is doing."""
    try:
        connected = await platform.accounts.get(connection_id)
        if not connected.enabled:
            return Health(True, "Switched off.", fix=f"gofer connections enable {connection_id}")
        return await question(connected)
    except GoferError as error:
        return Health(False, str(error), fix=f"gofer connections show {connection_id}")
    except Exception as error:  # noqa: BLE001 - a stranger's code may fail in any way
        return Health(
            False, f"{type(error).__name__}: {error}", fix=f"gofer connections show {connection_id}"
        )
