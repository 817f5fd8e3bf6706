"""A process's parts, open and ready, as the web and the command line see them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

import httpx2
import structlog
from sqlalchemy import Connection

from gofer.accounts import Accounts
from gofer.agent.roster import Roster
from gofer.errors import GoferError
from gofer.intake.polling import ensure_catch_up, ensure_inflow
from gofer.intake.receive import Intake, Refusals
from gofer.jobs.following import Follower
from gofer.jobs.signals import JOBS, SECRETS, Signals
from gofer.jobs.worker import Worker
from gofer.live import Live
from gofer.logs import RecentLines
from gofer.registry import Registry
from gofer.settings import Settings
from gofer.store.database import Database
from gofer.vault.envelope import Vault
from gofer.vault.redaction import Redactor
from gofer.vault.secret import Secret
from gofer.vault.stored import all_secrets
from gofer.vault.uses import Uses

log = structlog.get_logger()

RELOAD_EVERY = 30.0


@dataclass
class Platform:
    """Everything a process needs; `gofer.assembly` puts it together."""

    settings: Settings
    owner: str
    """This process's id, fresh at each start: the name on its leases."""
    database: Database
    vault: Vault
    redactor: Redactor
    registry: Registry
    accounts: Accounts
    uses: Uses
    http: httpx2.AsyncClient
    signals: Signals
    intake: Intake
    refusals: Refusals
    follower: Follower
    roster: Roster
    live: Live = field(default_factory=Live)
    worker: Worker | None = None
    roles: frozenset[str] = frozenset()
    url: str = ""
    """Where it listens for webhooks, once it does."""
    started_at: float = field(default_factory=time.time)
    recent_lines: RecentLines = field(default_factory=RecentLines)
    """What this process logged last."""

    async def reload_secrets(self) -> None:
        """After a secret or connection changed: forget what was read and mask the new value from now on."""
        self.accounts.forget()
        stored = await self.database.read(partial(all_secrets, vault=self.vault))
        self.redactor.replace({**secrets_of_settings(self.settings), **stored})

    async def secrets_changed(self) -> None:
        """Reload them here, and have every other process do the same; routes may name a connection that is new."""
        await self.reload_secrets()
        await self.agents_changed()
        self.signals.wake(SECRETS)

    async def agents_changed(self) -> None:
        """Have routes say at once what the agents' files do; what cannot be done now is done by the next look."""
        try:
            await self.roster.sync()
        except GoferError as error:
            log.warning("agents.not_synced", error=str(error))

    async def watch_secrets(self) -> None:
        """Reload them when another process says so, and now and then in case its word got lost."""
        woken = self.signals.subscribe(SECRETS)
        while True:
            await woken.wait(RELOAD_EVERY)
            try:
                await self.reload_secrets()
            except GoferError as error:
                log.warning("secrets.not_reloaded", error=str(error))

    async def keep_catching_up(self) -> None:
        """Fetch now and then what services could not deliver, also while we were there: a proxy may have been away."""
        while True:
            await asyncio.sleep(self.settings.catch_up_every)
            try:
                made = await self.database.write(partial(ensure_catch_up, integrations=self._catching_up()))
            except GoferError as error:
                log.warning("catchup.not_begun", error=str(error))
            else:
                if made:
                    self.signals.wake(JOBS)

    def _catching_up(self) -> frozenset[str]:
        integrations = self.registry.integrations.items()
        return frozenset(name for name, integration in integrations if integration.can_catch_up)

    def start_inflow(self, connection: Connection) -> int:
        """See that every connection that has to be polled or caught up with is."""
        integrations = self.registry.integrations.items()
        return ensure_inflow(
            connection,
            polling=frozenset(name for name, integration in integrations if integration.can_poll),
            catching_up=self._catching_up(),
            public=bool(self.settings.public_url),
        )


def secrets_of_settings(settings: Settings) -> dict[str, Secret]:
    """What came by the environment and must not be shown either."""
    given = {
        "anthropic_key": settings.anthropic_key,
        "openai_key": settings.openai_key,
        "owner_password": settings.owner_password,
        "database_password": urlsplit(settings.database_url).password or "",
        "redis_password": urlsplit(settings.redis_url).password or "",
        **{f"master_key_{number}": key for number, key in enumerate(settings.master_key.split(","))},
    }
    return {name: Secret(value.strip()) for name, value in given.items() if value.strip()}
