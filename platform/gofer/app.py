"""The composition root: the one place that sees everything and puts it together.

`open_app` opens what every process needs, then what its roles ask for: presence among the processes, the worker
(`gofer.handlers` gives it a handler for each kind of job), the watch over the load.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx2
import structlog
from sqlalchemy import Connection, insert, select

from gofer import __version__
from gofer.alarms import keep_watch, note_refused
from gofer.connections.context import HttpClients, LoadedConnections
from gofer.connections.health import watch
from gofer.connections.inflow import ensure_catch_up, ensure_inflow
from gofer.connections.registry import IntegrationRegistry
from gofer.errors import GoferError
from gofer.goals.load import keep_watching
from gofer.heartbeat.beats import Beats
from gofer.intake.admit import StrangerLimit
from gofer.intake.receive import Gate, Intake, Refusals
from gofer.integration import Integration
from gofer.jobs.event_stream import Follower
from gofer.jobs.maintenance import expire_all_leases
from gofer.jobs.notifications import (
    JOBS,
    SECRETS,
    LocalSignals,
    PostgresSignals,
    RedisSignals,
    Signals,
)
from gofer.jobs.queue import count_waiting
from gofer.jobs.worker import Worker
from gofer.live import Live, SharedLive
from gofer.logs import RecentLines
from gofer.mac_upgrade import begin_signing
from gofer.mcp.settings import McpServerSettings, RunServers
from gofer.memory.embeddings import Embeddings, Endpoint
from gofer.memory.recall import Recall
from gofer.outbox.progress import ProgressUpdater, RunSummary
from gofer.runs.agent_files import AgentFiles
from gofer.runs.agent_sync import AgentSync
from gofer.runs.memory_manager import keep_tidy
from gofer.runs.shell_access import Loans
from gofer.runs.shells import Shells, make_provider
from gofer.secrets.key_check import check_canary, ciphertext_exists
from gofer.secrets.last_used import Uses
from gofer.secrets.secret_store import all_secrets, get_secret, put_secret
from gofer.settings import Settings, prepare_data_dir
from gofer.store import events as log_of_events
from gofer.store.bootstrap import FIRST_WORKSPACE, database_for, migrate, seed_agent, seed_workspace
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.ids import new_id
from gofer.store.tables import connections, workers
from gofer.supervision import keep_record
from gofer.vault.envelope import Vault
from gofer.vault.keyring import open_ring
from gofer.vault.redaction import Redactor, Secret
from gofer_supervisor.system import notify_systemd

if TYPE_CHECKING:
    from gofer.mcp.oauth import Authoriser
    from gofer.mcp.servers import McpServers

log = structlog.get_logger()
RELOAD_EVERY = 30.0
MCP_CALLBACK = "/mcp/callback"
"""Where an owner comes back to who has authorised Gofer at an MCP server."""


@dataclass
class Platform:
    """Everything a process needs."""

    settings: Settings
    owner: str
    """This process's id, fresh at each start: the name on its leases."""
    database: Database
    vault: Vault
    redactor: Redactor
    registry: IntegrationRegistry
    accounts: LoadedConnections
    uses: Uses
    http: httpx2.AsyncClient
    signals: Signals
    intake: Intake
    refusals: Refusals
    follower: Follower
    roster: AgentSync
    recall: Recall
    live: Live = field(default_factory=Live)
    worker: Worker | None = None
    roles: frozenset[str] = frozenset()
    url: str = ""
    """Address at which it listens for webhooks, once it does."""
    started_at: float = field(default_factory=time.time)
    recent_lines: RecentLines = field(default_factory=RecentLines)
    """The last lines of this process's log."""

    async def reload_secrets(self) -> None:
        """Read secrets and connections again after one changed, and mask the new values from now on."""
        self.accounts.forget()
        stored = await self.database.read(all_secrets, vault=self.vault)
        self.redactor.replace({**secrets_of_settings(self.settings), **stored})

    async def secret(self, name: str) -> str:
        """A secret of the workspace by its name; raises NotFound."""
        look = partial(get_secret, vault=self.vault, workspace_id=FIRST_WORKSPACE, name=name)
        found = await self.database.read(look)
        self.uses.add(FIRST_WORKSPACE, "", name)
        return found.reveal()

    async def keep_secret(self, name: str, value: str) -> None:
        """Keep a secret of the workspace, and mask it from now on."""
        await self.database.write(
            put_secret, vault=self.vault, workspace_id=FIRST_WORKSPACE, name=name, value=Secret(value)
        )
        await self.secrets_changed()

    @cached_property
    def authoriser(self) -> Authoriser:
        """Authorisations at MCP servers. Whoever uses none does without the modules."""
        from gofer.mcp.oauth import Authoriser, PendingAuthorisations

        base = self.settings.public_url.rstrip("/")
        pending = PendingAuthorisations(self.database, self.vault)
        return Authoriser(self.secret, self.keep_secret, pending, lambda: f"{base or self.url}{MCP_CALLBACK}")

    @cached_property
    def servers(self) -> McpServers:
        """The MCP servers of agents. Whoever uses none does without the modules."""
        from gofer.mcp.servers import McpServers

        return McpServers(
            make_provider(self.settings), self.secret, lambda *which: self.authoriser.auth(*which)
        )

    @contextlib.asynccontextmanager
    async def servers_for_run(self, wanted: Mapping[str, McpServerSettings]) -> AsyncIterator[RunServers]:
        """What an agent's MCP servers bring to a run; they end with the block."""
        if not wanted:
            yield RunServers()
            return
        async with self.servers.for_run(wanted) as servers:
            yield servers

    async def secrets_changed(self) -> None:
        """Reload secrets here and in every other process, and routes too: they may name a new connection."""
        await self.reload_secrets()
        await self.agents_changed()
        self.signals.wake(SECRETS)

    async def agents_changed(self) -> None:
        """Apply the agents' files to the routes at once; the next look retries what fails."""
        try:
            await self.roster.sync()
        except GoferError as error:
            log.warning("agents.not_synced", error=str(error))

    async def watch_secrets(self) -> None:
        """Reload secrets when another process says so, and now and then in case that signal got lost."""
        woken = self.signals.subscribe(SECRETS)
        while True:
            await woken.wait(RELOAD_EVERY)
            try:
                await self.reload_secrets()
            except GoferError as error:
                log.warning("secrets.not_reloaded", error=str(error))

    async def keep_catching_up(self) -> None:
        """Fetch now and then what services could not deliver. Our proxy may have been away while we were up."""
        while True:
            await asyncio.sleep(self.settings.catch_up_every)
            try:
                made = await self.database.write(self._catch_up)
            except GoferError as error:
                log.warning("catchup.not_begun", error=str(error))
            else:
                if made:
                    self.signals.wake(JOBS)

    def _catch_up(self, connection: Connection) -> int:
        able = frozenset(each.name for each in self._connected(connection) if each.can_catch_up)
        return ensure_catch_up(connection, able)

    def start_inflow(self, connection: Connection) -> int:
        """Make the jobs that set up, poll and catch up with each connection, where they are missing."""
        integrations = self._connected(connection)
        return ensure_inflow(
            connection,
            polling=frozenset(each.name for each in integrations if each.can_poll),
            catching_up=frozenset(each.name for each in integrations if each.can_catch_up),
            public=bool(self.settings.public_url),
        )

    def _connected(self, connection: Connection) -> list[Integration]:
        """The integrations that connections use. The others need not be loaded."""
        names = connection.execute(select(connections.c.integration).distinct()).scalars()
        return [found for name in names if (found := self.registry.find(name)) is not None]


@contextlib.asynccontextmanager
async def open_app(
    settings: Settings, *, roles: frozenset[str], redactor: Redactor | None = None
) -> AsyncIterator[Platform]:
    """Open everything, and close it in order. Roles: web, worker, or none for a command."""
    prepare_data_dir(settings)
    async with contextlib.AsyncExitStack() as stack:
        platform = await _open(settings, roles, redactor if redactor is not None else Redactor(), stack)
        if roles:
            await _join(platform, stack)
        if "worker" in roles:
            await _work(platform, stack)
        if "web" in roles:
            stack.callback(asyncio.create_task(_watch_load(platform), name="watch-load").cancel)
        yield platform


async def _open(
    settings: Settings, roles: frozenset[str], redactor: Redactor, stack: contextlib.AsyncExitStack
) -> Platform:
    """Open the parts that every process needs."""
    database = database_for(settings)
    await database.start()
    stack.push_async_callback(database.close)
    await migrate(database, backup_to=settings.data_dir / "backups")
    await database.write(seed_workspace)
    vault = await _open_vault(settings, database)
    await begin_signing(settings, database, vault)
    await database.write(seed_agent)
    clients = HttpClients(timeout=settings.request_timeout)
    stack.push_async_callback(clients.close)
    http = clients.shared
    registry = IntegrationRegistry.installed()
    uses = Uses(database)
    accounts = LoadedConnections(
        database=database,
        vault=vault,
        registry=registry,
        public_url=settings.public_url,
        uses=uses,
        http=http,
        proxied=clients.through,
    )
    signals = _signals(settings, database)
    await signals.start()
    stack.push_async_callback(signals.close)
    gate = Gate(settings.max_waiting)
    intake = Intake(
        database=database,
        vault=vault,
        accounts=accounts,
        signals=signals,
        gate=gate,
        redactor=redactor,
        strangers=StrangerLimit(settings.max_from_stranger),
    )
    owner = new_id("proc")
    platform = Platform(
        settings=settings,
        owner=owner,
        database=database,
        vault=vault,
        redactor=redactor,
        registry=registry,
        accounts=accounts,
        uses=uses,
        http=http,
        signals=signals,
        intake=intake,
        refusals=Refusals(),
        follower=Follower(database=database, vault=vault, redactor=redactor, signals=signals),
        roster=AgentSync(agents=AgentFiles.of(settings), database=database, workspace_id=FIRST_WORKSPACE),
        recall=Recall(database, vault, _embeddings(settings, database, vault, http)),
        live=SharedLive(signals, vault, owner) if signals.reaches_others else Live(),
        roles=roles,
    )
    stack.push_async_callback(platform.follower.close)
    await platform.reload_secrets()
    return platform


async def _open_vault(settings: Settings, database: Database) -> Vault:
    sealed = await database.read(ciphertext_exists)
    given = Secret(settings.master_key) if settings.master_key else None
    ring = await asyncio.to_thread(open_ring, settings.data_dir, value=given, ciphertext_exists=sealed)
    vault = Vault(ring)
    if await database.write(check_canary, vault=vault):
        log.warning("key.not_in_use", fix="gofer key rotate")
    return vault


def _signals(settings: Settings, database: Database) -> Signals:
    if settings.redis_url:
        return RedisSignals(settings.redis_url)
    return PostgresSignals(settings.database_url) if database.dialect == "postgresql" else LocalSignals()


def secrets_of_settings(settings: Settings) -> dict[str, Secret]:
    """Secrets of the environment, which must not be shown either."""
    given = {
        "anthropic_key": settings.anthropic_key,
        "openai_key": settings.openai_key,
        "owner_password": settings.owner_password,
        "database_password": urlsplit(settings.database_url).password or "",
        "redis_password": urlsplit(settings.redis_url).password or "",
        **{f"master_key_{number}": key for number, key in enumerate(settings.master_key.split(","))},
    }
    return {name: Secret(value.strip()) for name, value in given.items() if value.strip()}


async def _join(platform: Platform, stack: contextlib.AsyncExitStack) -> None:
    """Join the other processes: keep agents and secrets fresh, watch for tampering, and record the start."""
    await platform.roster.sync()
    stack.callback(asyncio.create_task(platform.roster.watch(), name="agents").cancel)
    if platform.database.dialect == "postgresql":
        # On SQLite every change passes through this process.
        stack.callback(asyncio.create_task(platform.watch_secrets(), name="secrets").cancel)
    stack.push_async_callback(platform.uses.note)
    stack.callback(asyncio.create_task(platform.uses.keep_noting(), name="uses").cancel)
    stack.push_async_callback(note_refused, platform)
    stack.callback(asyncio.create_task(keep_watch(platform), name="alarms").cancel)
    if platform.settings.build:
        stack.callback(asyncio.create_task(keep_record(platform), name="supervisor").cancel)
    build = platform.settings.build
    await platform.database.write(_record_start, owner=platform.owner, roles=platform.roles, build=build)
    stack.push_async_callback(_record_stop, platform)


def _record_start(connection: Connection, owner: str, roles: frozenset[str], build: str) -> None:
    connection.execute(
        insert(workers).values(
            id=owner,
            host=socket.gethostname(),
            pid=os.getpid(),
            roles=",".join(sorted(roles)),
            version=__version__,
            started_at=now(),
            seen_at=now(),
        )
    )
    facts = {"process": owner, "roles": sorted(roles), "version": __version__, "build": build}
    log_of_events.record(connection, "process.started", FIRST_WORKSPACE, data=facts)


async def _record_stop(platform: Platform) -> None:
    with contextlib.suppress(Exception):
        await platform.database.write(
            log_of_events.record,
            kind="process.stopped",
            workspace_id=FIRST_WORKSPACE,
            data={"process": platform.owner},
        )


async def _work(platform: Platform, stack: contextlib.AsyncExitStack) -> None:
    """Start the worker, and what goes along with it."""
    from gofer.handlers import make_worker  # commands and web processes have no worker

    if platform.database.dialect == "sqlite":
        await platform.database.write(expire_all_leases)
    await platform.database.write(platform.start_inflow)
    shells = Shells(settings=platform.settings, database=platform.database)
    await shells.start()
    stack.push_async_callback(shells.stop)
    summary = RunSummary(platform.vault, platform.redactor, platform.settings.public_url)
    progress = ProgressUpdater(database=platform.database, accounts=platform.accounts, telling=summary)
    progress.start()
    stack.push_async_callback(progress.close)
    loans = Loans()
    stack.push_async_callback(loans.close)
    platform.worker = make_worker(platform, shells, progress, loans)
    await platform.worker.start()
    stack.push_async_callback(platform.worker.stop)
    watching = keep_watching(platform.database, platform.vault, platform.signals, platform.settings)
    stack.callback(asyncio.create_task(watching, name="goals").cancel)
    stack.callback(asyncio.create_task(watch(platform), name="connections").cancel)
    stack.callback(asyncio.create_task(platform.keep_catching_up(), name="catch-up").cancel)
    stack.callback(asyncio.create_task(platform.recall.keep_indexed(), name="memory-index").cancel)
    if os.environ.get("GOFER_ON_PROBATION"):
        from gofer.releases.canary import prove  # a release is on probation once

        stack.callback(asyncio.create_task(prove(platform, notify_systemd), name="canary").cancel)
    beats = Beats(
        platform.database, AgentFiles.of(platform.settings), platform.signals, platform.settings.timezone
    )
    stack.callback(asyncio.create_task(beats.keep_beating(), name="heartbeat").cancel)
    if platform.settings.memory_v1:
        tidying = keep_tidy(platform.database, platform.settings.memory_quiet)
        stack.callback(asyncio.create_task(tidying, name="memory-tidying").cancel)


def _embeddings(
    settings: Settings, database: Database, vault: Vault, http: httpx2.AsyncClient
) -> Embeddings | None:
    if not settings.embeddings_url or not settings.embeddings_model:
        return None
    endpoint = Endpoint(settings.embeddings_url, settings.embeddings_model, settings.embeddings_secret)
    return Embeddings(database, vault, http, endpoint)


async def _watch_load(platform: Platform) -> None:
    """Keep the gate's count of waiting jobs fresh. Other processes make and end jobs too."""
    while True:
        with contextlib.suppress(Exception):
            platform.intake.gate.waiting = await platform.database.read(count_waiting)
        await asyncio.sleep(1)
