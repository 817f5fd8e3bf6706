"""Asking integrations about their connections, whatever they answer or raise."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gofer.accounts import Connected
from gofer.connecting import set_up_connection
from gofer.errors import GoferError
from gofer.integration import Health
from gofer.platform import Platform


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
