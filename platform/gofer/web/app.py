"""The app for the network: every route in one list."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from sqlalchemy import Connection
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gofer import __version__
from gofer.app import Platform
from gofer.errors import GoferError, StoreError
from gofer.jobs.maintenance import depth, oldest_ready
from gofer.memory.recall import count_by_kind
from gofer.secrets.key_check import open_canary
from gofer.store import migrations
from gofer.vault.errors import KeyRefused, VaultError
from gofer.web import auth, chat, mcp, onboarding, protocols
from gofer.web.api import api_mount, furnish
from gofer.web.api.openapi import document_routes
from gofer.web.dashboard.checks import Checks
from gofer.web.dashboard.error_pages import Refusing, crash_page
from gofer.web.dashboard.render import Renderer
from gofer.web.dashboard.routes import page_routes
from gofer.web.hooks import Hooks, is_hook
from gofer.web.problems import on_gofer_error, on_http_exception, problem
from gofer.web.queries.runtimes import count_runtimes
from gofer.web.queries.service_levels import ServiceLevels
from gofer.web.static_files import StaticFiles

if TYPE_CHECKING:
    pass

log = structlog.get_logger()

STATIC = "/static/{digest}/{name:path}"
PUBLIC = frozenset(
    {
        "/healthz",
        "/readyz",
        "/hooks/{connection}",
        "/login",
        "/logout",
        "/link/{token}",
        STATIC,
        "/api/v1/openapi.json",
        "/api/v1/docs",
    }
)
"""Routes that anybody may call; every other one must ask who is there. A test walks the table."""


class PublicApp(Starlette):
    """The app for the network. A webhook goes straight to its endpoint, past everything that is there for browsers."""

    def __init__(self, hooks: Hooks, **parts: Any) -> None:
        super().__init__(**parts)
        self._hooks = hooks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if is_hook(scope):
            await self._hooks(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def public_app(platform: Platform) -> PublicApp:
    """Build the app for the network."""
    settings = platform.settings
    hooks = Hooks(
        intake=platform.intake,
        refusals=platform.refusals,
        max_body=settings.max_body,
        body_timeout=settings.body_timeout,
    )
    signs = Signs(platform)
    static = StaticFiles()
    app = PublicApp(
        hooks,
        routes=[
            Route("/hooks/{connection}", hooks, methods=["POST"]),  # for other methods: 405
            Route("/healthz", signs.health),
            Route("/readyz", signs.ready),
            Route("/metrics", signs.metrics),
            Route(STATIC, static.serve),
            *page_routes(),
            *auth.routes(platform),
            *chat.routes(platform),
            *protocols.routes(platform),
            *onboarding.routes(),
            mcp.route(platform),
            api_mount(*document_routes()),
        ],
        middleware=[
            Middleware(auth.SecurityHeaders),
            Middleware(Refusing),
            Middleware(auth.Guard, platform=platform),
        ],
        exception_handlers={
            GoferError: on_gofer_error,
            HTTPException: on_http_exception,
            Exception: crash_page,
        },
    )
    app.state.renderer = Renderer(static, timezone=settings.timezone)
    furnish(app, platform)
    app.state.checks = Checks(platform)
    return app


class Signs:
    """Health, readiness and metrics of the process."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._metrics: Metrics | None = None

    async def health(self, request: Request) -> Response:
        """The process is alive."""
        return JSONResponse({"status": "ok", "version": __version__})

    async def ready(self, request: Request) -> Response:
        """The process can do its work: the database answers, and the master key is the one that opens it."""
        try:
            version = await self._platform.database.read(self._look)
        except (StoreError, KeyRefused, VaultError) as error:
            # Whoever may ask this need not know more than that.
            log.warning("web.not_ready", error=str(error))
            away = isinstance(error, StoreError)
            line = "The database does not answer." if away else "The master key does not open the database."
            return problem(503, line, code=error.code, retry_after=5)
        return JSONResponse({"status": "ready", "schema": version})

    def _look(self, connection: Connection) -> str | None:
        open_canary(connection, self._platform.vault)
        return migrations.current(connection)

    async def metrics(self, request: Request) -> Response:
        """Prometheus: for programs on this machine, and for tokens."""
        visitor = auth.caller_of(request).visitor
        if visitor is None and request.scope["gofer.peers"].is_this_machine(request.scope, request.headers):
            return await self._figures(request)
        return await self._figures_for_known(request)

    @auth.require("viewer", "instance")
    async def _figures_for_known(self, request: Request) -> Response:
        return await self._figures(request)

    async def _figures(self, request: Request) -> Response:
        if self._metrics is None:
            self._metrics = Metrics(self._platform, request.app.state.levels)
        return Response(await self._metrics.render(), media_type=self._metrics.content_type)


LEVELS = {
    "first_word_seconds": ("From a message to the model's first word.", ["window", "quantile"]),
    "answer_seconds": ("From a message to its answer.", ["window", "quantile"]),
    "answers": ("Answers that those figures are of.", ["window"]),
    "recall_rate": ("Share of runs that recalled something.", ["window"]),
    "job_errors": ("Jobs that were given up, by kind.", ["window", "kind"]),
    "job_retries": ("Tries that had to be repeated, by kind.", ["window", "kind"]),
    "queue_jobs": ("Jobs that are not over, by kind and state.", ["kind", "state"]),
    "queue_oldest_seconds": ("How long the oldest ready job of a kind has waited.", ["kind"]),
    "heartbeat_dollars": ("What an agent's heartbeat has cost today.", ["agent"]),
}
"""Metrics of service levels: what each says, and its labels, which have few values."""
STATES = ("ready", "blocked", "running", "scheduled", "waiting", "dead")


class Metrics:
    """Renders the figures of one process and its store."""

    def __init__(self, platform: Platform, levels: ServiceLevels) -> None:
        # Loaded here: few installations are asked for metrics, and every start would pay for it.
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge

        self.content_type = CONTENT_TYPE_LATEST
        self._platform = platform
        self._service_levels = levels
        self.registry = CollectorRegistry()
        self._jobs = Gauge("gofer_jobs", "Jobs by state.", ["state"], registry=self.registry)
        self._oldest = Gauge(
            "gofer_oldest_ready_seconds", "How long the oldest ready job has waited.", registry=self.registry
        )
        self._running = Gauge("gofer_running_here", "Jobs this process runs.", registry=self.registry)
        self._refused = Gauge(
            "gofer_refused_requests",
            "Webhooks refused since start, by status.",
            ["status"],
            registry=self.registry,
        )

        self._memories = Gauge(
            "gofer_memories", "Memories that can be recalled, by kind.", ["kind"], registry=self.registry
        )
        self._searches = Gauge(
            "gofer_memory_searches", "Searches of memories since start.", registry=self.registry
        )
        self._search_seconds = Gauge(
            "gofer_memory_search_seconds", "Seconds that those searches took.", registry=self.registry
        )
        self._shown = Gauge(
            "gofer_memory_runs_shown", "Runs that were shown memories since start.", registry=self.registry
        )
        self._used = Gauge(
            "gofer_memory_runs_used", "Of those, runs that read or named one.", registry=self.registry
        )
        self._degraded = Gauge(
            "gofer_memory_degraded",
            "Scopes that cannot be searched as they should, and one more while embeddings fail.",
            registry=self.registry,
        )

        self._runtimes = Gauge("gofer_runtimes", "Runtimes by state.", ["state"], registry=self.registry)
        self._hops = Gauge(
            "gofer_trigger_hops", "Hops of Triggers by what was tried and what became of it.",
            ["action", "state"], registry=self.registry,
        )  # fmt: skip
        self._levels = {
            name: Gauge(f"gofer_{name}", help_, labels, registry=self.registry)
            for name, (help_, labels) in LEVELS.items()
        }

    async def _served(self) -> None:
        """Service levels. What is not there any more must not stay, so all of them are set anew."""
        found = await self._service_levels.read()
        for gauge in self._levels.values():
            gauge.clear()
        for each in found["windows"]:
            window = each["window"]
            for name in ("first_word", "answer"):
                for quantile in ("p50", "p95"):
                    if (seconds := each[name][quantile]) is not None:
                        self._levels[f"{name}_seconds"].labels(window, quantile).set(seconds)
            self._levels["answers"].labels(window).set(each["answer"]["count"])
            if each["recall_rate"] is not None:
                self._levels["recall_rate"].labels(window).set(each["recall_rate"])
            for kind in each["kinds"]:
                self._levels["job_errors"].labels(window, kind["kind"]).set(kind["errors"])
                self._levels["job_retries"].labels(window, kind["kind"]).set(kind["retries"])
        for each in found["queue"]:
            for state in ("ready", "blocked", "scheduled", "waiting", "running"):
                self._levels["queue_jobs"].labels(each["kind"], state).set(each[state])
            self._levels["queue_oldest_seconds"].labels(each["kind"]).set(each["oldest_seconds"])
        for each in found["heartbeats"]:
            if each["today"]:
                self._levels["heartbeat_dollars"].labels(each["agent"]).set(each["dollars"])

    async def _remembered(self) -> None:
        recall = self._platform.recall
        for kind, count in (await self._platform.database.read(count_by_kind)).items():
            self._memories.labels(kind).set(count)
        self._searches.set(recall.counters.searches)
        self._search_seconds.set(recall.counters.seconds)
        self._shown.set(recall.counters.shown)
        self._used.set(recall.counters.used)
        by_words_alone = recall.embeddings is not None and bool(recall.embeddings.problem)
        self._degraded.set(len(recall.degraded) + by_words_alone)

    async def _external(self) -> None:
        every = self._platform.settings.runtime_heartbeat
        states, ended = await self._platform.database.read(partial(count_runtimes, every=every))
        self._hops.clear()
        for state, count in states.items():
            self._runtimes.labels(state).set(count)
        for labels, count in ended.items():
            self._hops.labels(*labels).set(count)

    async def render(self) -> bytes:
        """The metrics as Prometheus reads them."""
        from prometheus_client import generate_latest

        await self._remembered()
        await self._served()
        await self._external()
        states = await self._platform.database.read(depth)
        for state in STATES:
            self._jobs.labels(state).set(states.get(state, 0))
        self._oldest.set(await self._platform.database.read(oldest_ready))
        self._running.set(self._platform.worker.running if self._platform.worker else 0)
        for status, count in self._platform.refusals.counts.items():
            self._refused.labels(str(status)).set(count)
        return generate_latest(self.registry)
