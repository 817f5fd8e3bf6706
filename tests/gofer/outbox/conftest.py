"""An outbox over a real store and a service on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2
import pytest

from gofer.connections.context import LoadedConnections
from gofer.connections.registry import IntegrationRegistry
from gofer.jobs.outcome import Outcome
from gofer.jobs.queue import SERVICE, Claim
from gofer.jobs.worker import Run
from gofer.outbox.deliver import Outbox
from gofer.secrets.last_used import Uses
from gofer.store import row_macs
from gofer.store.tables import connections
from gofer.vault.redaction import Redactor
from support.both_databases import slow_on_postgres
from support.hello_service import HelloService
from support.patience import patience
from support.world import CONNECTION, World

# What a reply does to each database, the tests of the queue try; here it is what goes over the wire.
database_url = slow_on_postgres


@pytest.fixture
async def service(world: World) -> AsyncIterator[HelloService]:
    async with HelloService().serving() as service:
        settings = {"reply_url": service.url}
        here = connections.c.id == CONNECTION
        await world.run(lambda c: row_macs.update(c, connections, here, {"settings": settings}))
        yield service


@pytest.fixture
async def outbox(world: World, service: HelloService) -> AsyncIterator[Outbox]:
    async with httpx2.AsyncClient(timeout=patience(5)) as http:
        registry = IntegrationRegistry.installed()
        accounts = LoadedConnections(
            database=world.database,
            vault=world.vault,
            registry=registry,
            public_url="",
            uses=Uses(world.database),
            http=http,
        )
        yield Outbox(
            database=world.database,
            vault=world.vault,
            accounts=accounts,
            redactor=Redactor(),
            late_write_within=20,
        )


Deliver = Callable[[], Awaitable[tuple[Claim, Outcome]]]


@pytest.fixture
def deliver(world: World, outbox: Outbox) -> Deliver:
    """Run the next deliver job to its end."""

    async def run() -> tuple[Claim, Outcome]:
        claim = await world.claim_one(pool=SERVICE)
        outcome = await outbox.handle(Run(claim))
        await world.end(claim, outcome)
        return claim, outcome

    return run
