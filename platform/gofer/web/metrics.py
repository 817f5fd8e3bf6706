"""Figures for Prometheus, read from the store when asked: what is counted is what is true."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

from gofer.jobs.upkeep import depth, oldest_ready
from gofer.platform import Platform

STATES = ("ready", "blocked", "running", "scheduled", "waiting", "dead")


class Metrics:
    """Renders the figures of one process and its store."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
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

    async def render(self) -> bytes:
        """The page."""
        states = await self._platform.database.read(depth)
        for state in STATES:
            self._jobs.labels(state).set(states.get(state, 0))
        self._oldest.set(await self._platform.database.read(oldest_ready))
        self._running.set(self._platform.worker.running if self._platform.worker else 0)
        for status, count in self._platform.refusals.counts.items():
            self._refused.labels(str(status)).set(count)
        return generate_latest(self.registry)
