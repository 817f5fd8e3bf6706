"""The app for the network: every route in one list, and one line in the log for each request."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import structlog
from sqlalchemy import Connection
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gofer import __version__
from gofer.app import Platform
from gofer.errors import GoferError, StoreError
from gofer.jobs.maintenance import depth, oldest_ready
from gofer.memory.recall import count_by_kind
from gofer.secrets.key_check import open_canary
from gofer.store import migrations
from gofer.store.ids import new_id
from gofer.vault.errors import KeyRefused, VaultError
from gofer.web import auth, chat, mcp, onboarding, protocols
from gofer.web.api import api_mount, set_app_state
from gofer.web.auth.client_address import Peers, plain_address
from gofer.web.body import CLIENT_GONE
from gofer.web.dashboard.checks import Checks
from gofer.web.dashboard.error_pages import Refusing, crash_page
from gofer.web.dashboard.render import Renderer
from gofer.web.dashboard.routes import page_routes
from gofer.web.hooks import Hooks, is_hook
from gofer.web.problems import on_gofer_error, on_http_exception, problem
from gofer.web.queries.runtimes import count_runtimes
from gofer.web.queries.service_levels import ServiceLevels
from gofer.web.static_files import StaticFiles

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
            api_mount(documented=True),
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
    set_app_state(app, platform)
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


FIGURES = {
    "jobs": ("Jobs by state.", ["state"]),
    "oldest_ready_seconds": ("How long the oldest ready job has waited.", []),
    "running_here": ("Jobs this process runs.", []),
    "refused_requests": ("Webhooks refused since start, by status.", ["status"]),
    "memories": ("Memories that can be recalled, by kind.", ["kind"]),
    "memory_searches": ("Searches of memories since start.", []),
    "memory_search_seconds": ("Seconds that those searches took.", []),
    "memory_runs_shown": ("Runs that were shown memories since start.", []),
    "memory_runs_used": ("Of those, runs that read or named one.", []),
    "memory_degraded": (
        "Scopes that cannot be searched as they should, and one more while embeddings fail.",
        [],
    ),
    "runtimes": ("Runtimes by state.", ["state"]),
    "trigger_hops": ("Hops of Triggers by what was tried and what became of it.", ["action", "state"]),
}
"""Metrics of the process and its store: what each says, and its labels, which have few values."""
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
"""The metrics of service levels."""
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
        self._gauges = {
            name: Gauge(f"gofer_{name}", help_, labels, registry=self.registry)
            for name, (help_, labels) in {**FIGURES, **LEVELS}.items()
        }

    async def _served(self) -> None:
        """Service levels. Values that are gone must not stay, so all of them are set again."""
        found = await self._service_levels.read()
        for name in LEVELS:
            self._gauges[name].clear()
        for each in found["windows"]:
            window = each["window"]
            for name in ("first_word", "answer"):
                for quantile in ("p50", "p95"):
                    if (seconds := each[name][quantile]) is not None:
                        self._gauges[f"{name}_seconds"].labels(window, quantile).set(seconds)
            self._gauges["answers"].labels(window).set(each["answer"]["count"])
            if each["recall_rate"] is not None:
                self._gauges["recall_rate"].labels(window).set(each["recall_rate"])
            for kind in each["kinds"]:
                self._gauges["job_errors"].labels(window, kind["kind"]).set(kind["errors"])
                self._gauges["job_retries"].labels(window, kind["kind"]).set(kind["retries"])
        for each in found["queue"]:
            for state in ("ready", "blocked", "scheduled", "waiting", "running"):
                self._gauges["queue_jobs"].labels(each["kind"], state).set(each[state])
            self._gauges["queue_oldest_seconds"].labels(each["kind"]).set(each["oldest_seconds"])
        for each in found["heartbeats"]:
            if each["today"]:
                self._gauges["heartbeat_dollars"].labels(each["agent"]).set(each["dollars"])

    async def _remembered(self) -> None:
        recall = self._platform.recall
        for kind, count in (await self._platform.database.read(count_by_kind)).items():
            self._gauges["memories"].labels(kind).set(count)
        self._gauges["memory_searches"].set(recall.counters.searches)
        self._gauges["memory_search_seconds"].set(recall.counters.seconds)
        self._gauges["memory_runs_shown"].set(recall.counters.shown)
        self._gauges["memory_runs_used"].set(recall.counters.used)
        by_words_alone = recall.embeddings is not None and bool(recall.embeddings.problem)
        self._gauges["memory_degraded"].set(len(recall.degraded) + by_words_alone)

    async def _external(self) -> None:
        every = self._platform.settings.runtime_heartbeat
        states, ended = await self._platform.database.read(count_runtimes, every=every)
        self._gauges["trigger_hops"].clear()
        for state, count in states.items():
            self._gauges["runtimes"].labels(state).set(count)
        for labels, count in ended.items():
            self._gauges["trigger_hops"].labels(*labels).set(count)

    async def render(self) -> bytes:
        """The metrics as Prometheus reads them."""
        from prometheus_client import generate_latest

        await self._remembered()
        await self._served()
        await self._external()
        states = await self._platform.database.read(depth)
        for state in STATES:
            self._gauges["jobs"].labels(state).set(states.get(state, 0))
        self._gauges["oldest_ready_seconds"].set(await self._platform.database.read(oldest_ready))
        self._gauges["running_here"].set(self._platform.worker.running if self._platform.worker else 0)
        for status, count in self._platform.refusals.counts.items():
            self._gauges["refused_requests"].labels(str(status)).set(count)
        return generate_latest(self.registry)


log = structlog.get_logger()

SELDOM_READ = frozenset({"/healthz", "/readyz", "/metrics"})
"""Asked for every few seconds by machines; worth a line only at debug."""
WINDOW = 60.0
"""Seconds over which strangers' requests are counted."""
MAX_LINES, MAX_LINES_OF_ADDRESS, MAX_LINES_OF_PATH = 300, 30, 10
"""Lines about strangers' requests within them, of those refused and of those answered: in all, of one address, and of
its requests for one path."""
MAX_NAMED = 10
"""Addresses that a summary names."""


class RequestLog:
    """Wraps an app."""

    def __init__(self, app: ASGIApp, peers: Peers | None = None) -> None:
        self._app = app
        self._refused = StrangersLines(peers, "request.refused_many")
        self._answered = StrangersLines(peers, "request.many")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Bind the id for every line logged on the way, and give it back in a header."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_id("req")
        answer = _Answer(send, request_id)
        begun = time.perf_counter()
        with structlog.contextvars.bound_contextvars(request=request_id):
            try:
                await self._app(scope, receive, answer.send)
            finally:
                self._note(scope, answer.status, time.perf_counter() - begun)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        path = scope["path"] if not scope["path"].startswith("/link/") else "/link/…"
        quiet = status == CLIENT_GONE or (path in SELDOM_READ and status < 400)
        lines = self._refused if status >= 400 else self._answered
        # What a webhook brought is signed, and each has its line, whoever sends how many.
        signed = status < 400 and path.startswith("/hooks/")
        if not (signed or (quiet and status < 400)) and not lines.may_tell(scope, path):
            return
        say = log.debug if quiet else log.info
        say("request", method=scope["method"], path=path[:200], status=status, ms=round(seconds * 1000, 1))


class StrangersLines:
    """Bounds what strangers can write into the log: beyond a rate their requests are counted and summed up."""

    def __init__(self, peers: Peers | None, summary: str) -> None:
        self._peers = peers
        self._summary = summary
        self._told: Counter[tuple[str, ...]] = Counter()
        self._untold: Counter[str] = Counter()
        self._begun = -WINDOW
        self._later: asyncio.TimerHandle | None = None

    def may_tell(self, scope: Scope, path: str) -> bool:
        """Whether a request gets a line of its own. What signed-in people do always does."""
        caller = scope.get("gofer.caller")
        if caller is not None and caller.visitor is not None:
            return True
        if time.monotonic() - self._begun >= WINDOW:
            self.summarise()
            self._begun = time.monotonic()
        address = self._address(scope)
        limits = {(): MAX_LINES, (address,): MAX_LINES_OF_ADDRESS, (address, path[:80]): MAX_LINES_OF_PATH}
        if any(self._told[key] >= most for key, most in limits.items()):
            self._count(address)
            return False
        self._told.update(limits.keys())
        return True

    def summarise(self) -> None:
        """Log how many requests got no line, and start counting again."""
        if self._untold:
            named = dict(self._untold.most_common(MAX_NAMED))
            log.warning(self._summary, count=self._untold.total(), addresses=named)
        self._told.clear()
        self._untold.clear()
        if self._later is not None:
            self._later.cancel()  # it would end the next window early

    def _count(self, address: str) -> None:
        if not self._untold:
            # Told also when nobody asks for anything any more.
            self._later = asyncio.get_running_loop().call_later(WINDOW, self.summarise)
        self._untold[address if len(self._untold) < MAX_LINES or address in self._untold else "others"] += 1

    def _address(self, scope: Scope) -> str:
        if self._peers is not None:
            return self._peers.address(scope, Headers(scope=scope))
        return plain_address(scope["client"][0]) if scope.get("client") else ""


class _Answer:
    """Notes the status of an answer and adds the header with the request's id."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers: list[Any] = [
                *message.get("headers", ()),
                (b"x-request-id", self._request_id.encode()),
            ]
            message = {**message, "headers": headers}
        await self._send(message)
