"""What clients of OpenClaw's gateway protocol are told beside their sessions: who is there, how the server is doing,
and what schedules and heartbeats do. Each is told what it may read, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import structlog
from sqlalchemy import Connection, select

from gofer.app import Platform
from gofer.errors import StoreError
from gofer.jobs.event_stream import Event
from gofer.jobs.kinds import SAY
from gofer.web.protocols.gateway_client import GatewayClient
from gofer.web.protocols.gateway_control import may_read_schedules
from gofer.web.protocols.gateway_follow import job_run, now_ms
from gofer.web.protocols.gateway_frames import ADMIN, READ, TICK_INTERVAL, Frame

log = structlog.get_logger()

KINDS = frozenset({"job.created", "attempt.finished", "schedule.changed", "heartbeat.nudged"})
"""The kinds of events of the log that are told."""
LOOK_AGAIN = 10.0
"""Seconds between two looks at how the server is doing."""
BETWEEN = 1.0
"""Seconds at least in which news are gathered: many clients may come at once."""
MAX_SHOWN = 50
"""Clients in a list of those who are there, the newest of them."""
MAX_WAITING = 1000
"""Events of the log that wait to be told, and runs of schedules that are remembered."""
SCHEDULE_LANE = "schedule:"
ENDED = {"done": "ok", "dead": "error", "cancelled": "skipped"}


class GatewayAnnouncer:
    """Tells all clients of this process, while there are any."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._clients: dict[str, GatewayClient] = {}
        """By id, the newest at the end."""
        self._tasks: list[asyncio.Task[None]] = []
        self._woken = asyncio.Event()
        self._heard: deque[Event] = deque(maxlen=MAX_WAITING)
        self._runs: dict[int, str] = {}
        """The schedules of jobs that are not over."""
        self._healthy = True
        self._present = self._told_present = 0
        self._health_version = 0

    @contextlib.contextmanager
    def entered(self, client: GatewayClient) -> Iterator[None]:
        """Tell a client for as long as it is connected, and the others that it is."""
        self._clients[client.id] = client
        self._changed()
        if not self._tasks:
            sides = (self._keep_telling(), self._keep_ticking())
            self._tasks = [asyncio.create_task(side, name="gateway-events") for side in sides]
        try:
            yield
        finally:
            del self._clients[client.id]
            self._changed()
            if not self._clients:
                for task in self._tasks:
                    task.cancel()
                self._tasks = []

    def _changed(self) -> None:
        self._present += 1
        self._woken.set()

    def tell_since(self, versions: Frame) -> None:
        """Tell once more who is there, if that has changed since a client was told on its way in."""
        if versions["presence"] != self._present:
            self._changed()

    @property
    def versions(self) -> Frame:
        """How often what is told here has changed."""
        return {"presence": self._present, "health": self._health_version}

    def present(self, client: GatewayClient) -> list[Frame]:
        """Who is connected, as far as a client may know: those of its own member; for owners, everybody."""
        return self._present_for(_sight(client))

    def _present_for(self, member_id: str | None) -> list[Frame]:
        newest = reversed(self._clients.values())
        seen = (each for each in newest if member_id is None or each.visitor.member_id == member_id)
        return [each.presence() for each in islice(seen, MAX_SHOWN)]

    async def health(self, client: GatewayClient) -> Frame:
        """Whether the server works, and which agent answers by default."""
        agents = await client.agents()
        default = {"defaultAgentId": agents[0]} if agents else {}
        return {"ok": self._healthy, "ts": now_ms(), "durationMs": 0, **default}

    async def _keep_ticking(self) -> None:
        """One task for all clients, each at its own time, so that nobody waits for the ticks of many."""
        while True:
            await asyncio.sleep(BETWEEN)
            due = time.monotonic() - TICK_INTERVAL
            for client in self._clients.values():
                if client.greeted and client.ticked_at <= due:
                    client.tick()

    async def _keep_telling(self) -> None:
        while True:
            try:
                async with self._platform.follower.heeding(KINDS, self._hear):
                    while True:
                        await self._tell_news()
                        await asyncio.sleep(BETWEEN)
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(LOOK_AGAIN):
                                await self._woken.wait()
                        self._woken.clear()
            except Exception:
                log.exception("gateway.not_told")
                await asyncio.sleep(BETWEEN)

    def _hear(self, event: Event) -> None:
        data = event["data"]
        if event["kind"] == "job.created" and data.get("kind") == SAY:
            self._runs[event["job_id"]] = str(data["lane"]).removeprefix(SCHEDULE_LANE)
            for oldest in list(self._runs)[:-MAX_WAITING]:
                del self._runs[oldest]
        elif event["kind"] in ("job.created", "attempt.finished") and event["job_id"] not in self._runs:
            return
        self._heard.append(event)
        self._woken.set()

    async def _tell_news(self) -> None:
        await self._look_at_health()
        if self._told_present != self._present:
            self._told_present = self._present
            for_each = functools.cache(lambda member_id: {"presence": self._present_for(member_id)})
            await self._tell("presence", lambda client: for_each(_sight(client)), state=True)
        while self._heard:
            await self._tell_event(self._heard.popleft())

    async def _look_at_health(self) -> None:
        try:
            await self._platform.database.read(_any)
            healthy = True
        except StoreError:
            healthy = False
        if healthy == self._healthy:
            return
        self._healthy = healthy
        self._health_version += 1
        told = {client.id: await self.health(client) for client in list(self._clients.values())}
        await self._tell("health", lambda client: told.get(client.id), state=True)

    async def _tell_event(self, event: Event) -> None:
        data, at = event["data"], int(event["at"] * 1000)
        if event["kind"] == "heartbeat.nudged":
            sent = {"ts": at, "status": "sent", "agentId": data["agent"], "reason": data["code"]}
            place = event["conversation_id"]
            await self._tell("heartbeat", lambda client: sent if client.reads(place) else None)
            return
        told = self._cron(event, data, at)
        if told is not None:
            await self._tell("cron", lambda client: told if may_read_schedules(client) else None)

    def _cron(self, event: Event, data: Frame, at: int) -> Frame | None:
        if event["kind"] == "schedule.changed":
            return {"jobId": data["schedule"], "action": data["action"]} if data["kind"] == SAY else None
        if event["kind"] == "job.created":
            run = {"runAtMs": at, "runId": job_run(event["job_id"])}
            return {"jobId": self._runs.get(event["job_id"], ""), "action": "started", **run}
        status = ENDED.get(str(data.get("outcome")))
        if status is None:
            return None  # it is tried again
        job_id = self._runs.pop(event["job_id"], "")
        return {"jobId": job_id, "action": "finished", "status": status, "runId": job_run(event["job_id"])}

    async def _tell(
        self, event: str, payload: Callable[[GatewayClient], Frame | None], *, state: bool = False
    ) -> None:
        """Tell each client what it may read of something; one that does not read is cut off."""
        more = {"stateVersion": self.versions} if state else {}
        telling = [
            client.tell(event, told, **more)
            for client in list(self._clients.values())
            if client.greeted and READ in client.granted and (told := payload(client)) is not None
        ]
        await asyncio.gather(*telling)


def _sight(client: GatewayClient) -> str | None:
    """The member whose clients a client may see; None for everybody's."""
    return None if ADMIN in client.granted else client.visitor.member_id


def _any(connection: Connection) -> Any:
    return connection.execute(select(1)).scalar()
