"""Polls and catches up with services, where no webhook reaches us or while none did.

Each polled connection has one perpetual job, so that lane, lease and fence see to it that a token has one poller
over all workers, and that another takes over when its process dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import structlog
from sqlalchemy import ColumnElement, Connection, and_, select

from gofer.connections.changes import set_up_connection
from gofer.connections.context import LoadedConnection, LoadedConnections
from gofer.connections.inflow import CATCH_UP, lane_of
from gofer.errors import NotFound, Permanent, Refused, Temporary
from gofer.intake.receive import Intake, take_batch
from gofer.jobs.outcome import Done, Outcome, Retry, Snooze
from gofer.jobs.worker import Run
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.row_macs import RowRefused
from gofer.store.tables import deliveries

log = structlog.get_logger()


REMOVED = "connection.removed"
"""The reason of a job that had nothing to do. No such job ends dead: the connection's health says what is wrong."""
REFUSED_RETRY = 900.0
"""Seconds until the next try of what a person has to put right. Once Gofer sees that it was done, it tries at once."""
MAX_MISSED = 3 * 86400.0
"""Seconds that a first catch-up looks back."""


FIRST_PAUSE, MAX_PAUSE = 0.05, 2.0
"""Seconds between two polls of a service that answers at once although it has nothing new; each is twice the last."""


class Poller:
    """Handles poll and catch-up jobs."""

    def __init__(self, *, database: Database, accounts: LoadedConnections, intake: Intake) -> None:
        self._database = database
        self._accounts = accounts
        self._intake = intake

    async def poll(self, run: Run) -> Outcome:
        """Ask for updates again and again; each batch is stored before the next is asked for."""
        connection_id = str(run.claim.payload.get("connection_id", ""))
        run.endless = True
        pause = 0.0
        last = await self._database.read(last_delivery, connection_id=connection_id)
        try:
            while not run.cancelled.is_set():
                # Looked up anew each time: its token may have been rotated, its settings changed.
                connected = await self._accounts.get(connection_id)
                reached = connected.account.hook_url is not None
                if reached or not connected.enabled or not connected.integration.can_poll:
                    return Done()
                asked_at = time.monotonic()
                requests = await connected.integration.poll(connected.account, last)
                # Again, because a poll may take long: what it brought is read by the settings of now.
                connected = await self._accounts.get(connection_id)
                stored = await take_batch(self._intake, connected, list(requests), "poll")
                idle = stored.last in (None, last) and time.monotonic() - asked_at < MAX_PAUSE
                last = stored.last or last
                pause = min(MAX_PAUSE, max(FIRST_PAUSE, 2 * pause)) if idle else 0.0
                await _sleep(run, pause)
        except Temporary as error:
            log.warning("poll.interrupted", connection=connection_id, reason=error.reason, error=str(error))
            return Snooze(error.retry_after or 5, error.reason)
        except (Permanent, Refused, RowRefused) as error:
            log.error("poll.refused", connection=connection_id, error=str(error))
            return Snooze(60, getattr(error, "reason", error.code))
        except NotFound:
            return Done(reason=REMOVED)
        return Done()

    async def catch_up(self, run: Run) -> Outcome:
        """Fetch what was missed; repeats are deduped like any other delivery."""
        connection_id = str(run.claim.payload.get("connection_id", ""))
        try:
            connected = await self._accounts.get(connection_id)
            if connected.enabled and connected.integration.can_catch_up:
                await self._fetch_missed(connected)
        except Temporary as error:
            return Snooze(error.retry_after, error.reason) if error.retry_after else Retry(error.reason)
        except (Permanent, Refused, RowRefused) as error:
            log.error("catchup.refused", connection=connection_id, error=str(error))
            reason = getattr(error, "reason", error.code)
            # Ours, of which there is one, waits; one that a schedule made is followed by the next.
            waits = run.claim.lane == lane_of(CATCH_UP, connection_id)
            return Snooze(REFUSED_RETRY, reason) if waits else Done(reason=reason)
        except NotFound:
            return Done(reason=REMOVED)
        return Done()

    async def set_up(self, run: Run) -> Outcome:
        """Prepare the service once at start: our address may have changed since."""
        connection_id = str(run.claim.payload.get("connection_id", ""))
        try:
            health = await set_up_connection(self._database, self._accounts, connection_id)
        except Temporary as error:
            return Snooze(error.retry_after, error.reason) if error.retry_after else Retry(error.reason)
        except (Permanent, Refused, RowRefused) as error:
            log.error("connection.not_set_up", connection=connection_id, error=str(error))
            return Done(reason=getattr(error, "reason", error.code))
        except NotFound:
            return Done(reason=REMOVED)
        log.info("connection.set_up", connection=connection_id, ok=health.ok)
        return Done()

    async def _fetch_missed(self, connected: LoadedConnection) -> None:
        since = await self._database.read(last_time, connection_id=connected.account.id)
        new = 0
        async for request in connected.integration.catch_up(
            connected.account, since if since is not None else time.time() - MAX_MISSED
        ):
            new += (await take_batch(self._intake, connected, [request], "catchup")).new
            await asyncio.sleep(0)
        if new:
            log.info("catchup.took_in", connection=connected.account.id, new=new)


async def _sleep(run: Run, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        if seconds:
            async with asyncio.timeout(seconds):
                await run.cancelled.wait()


FORGOTTEN_AFTER = 6 * 86400.0
"""Seconds of silence after which a service may have restarted its numbering. Its last id then says nothing any more."""


def last_delivery(connection: Connection, connection_id: str) -> str | None:
    """The service's id of the last delivery stored, by our order of arrival; None after a long silence.

    Asking for what comes after an id confirms everything before it. One that is too high would confirm away what
    nobody has seen; without one, what is seen again is known as a repeat.
    """
    query = select(deliveries.c.external_id).where(
        _came_by_itself(connection_id), deliveries.c.received_at > now() - FORGOTTEN_AFTER
    )
    return connection.execute(query.order_by(deliveries.c.id.desc()).limit(1)).scalar()


def last_time(connection: Connection, connection_id: str) -> float | None:
    """When the last delivery came."""
    query = select(deliveries.c.received_at).where(_came_by_itself(connection_id))
    return connection.execute(query.order_by(deliveries.c.id.desc()).limit(1)).scalar()


def _came_by_itself(connection_id: str) -> ColumnElement[bool]:
    # A replay says nothing about how far the service has got.
    return and_(deliveries.c.connection_id == connection_id, deliveries.c.source != "replay")
