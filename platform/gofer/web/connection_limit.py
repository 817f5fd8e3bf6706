"""A bound on open connections, in all and per address, that nobody can use to shut others out.

A newcomer is never turned away for those who keep the server waiting: the one that has done so for longest is closed in
its place, of the same address when that has more than its share. When nobody is waiting, and everybody is being
answered, a newcomer may still say who it is: people who are signed in and health checks are answered.
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import structlog

from gofer.settings import Settings
from gofer.web.auth.client_address import Peers

log = structlog.get_logger()

MAX_CONNECTIONS = 4096
MAX_PER_ADDRESS = 200
TOLD_EVERY = 60.0
"""Seconds between two lines of the log about this."""


class LimitedClient(Protocol):
    """One connection, as far as the bound is concerned."""

    address: str
    crowded: int
    """The status for a stranger's request when there is no room for it; 0 when there is."""

    def evict(self) -> None:
        """Close it now."""


def room_for_connections() -> int:
    """Half of the descriptors this process may open: the other half is for the database, shells and services."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    usable = MAX_CONNECTIONS * 2 if soft == resource.RLIM_INFINITY else soft
    return max(16, min(MAX_CONNECTIONS, usable // 2))


def limit_for(settings: Settings) -> ConnectionLimit:
    """The bound for the door to the network."""
    trusts = Peers(settings).trusts
    return ConnectionLimit(settings.max_connections, settings.max_per_address, exempt=trusts)


class ConnectionLimit:
    """Counts connections and makes room. Of one server, and of its event loop only."""

    def __init__(
        self,
        max_connections: int | None = None,
        max_per_address: int = MAX_PER_ADDRESS,
        exempt: Callable[[str], bool] = lambda address: not address,
    ) -> None:
        self.max_connections = max_connections or room_for_connections()
        self.max_per_address = max_per_address
        self._exempt = exempt
        """Addresses that many people share: our own proxies, and the Unix socket, which has none."""
        self._reserve = max(2, self.max_connections // 8)
        self._per_address: Counter[str] = Counter()
        self._waiting: dict[LimitedClient, None] = {}
        """Strangers that the server waits for, the one it has waited for longest first."""
        self._closed = 0
        self._told_at = -TOLD_EVERY
        self.open = 0

    def enter(self, client: LimitedClient) -> bool:
        """Count a new connection and make room for it; False when it has to go at once."""
        self.open += 1
        self._per_address[client.address] += 1
        over = self._per_address[client.address] > self.max_per_address and not self._exempt(client.address)
        if over:
            client.crowded = 0 if self._evict(client.address) else 429
        elif self.open > self.max_connections - self._reserve:
            client.crowded = 0 if self._evict(None) else 503
        self.wait_for(client)
        return self.open <= self.max_connections

    def leave(self, client: LimitedClient) -> None:
        """Forget a connection that has ended."""
        self.open -= 1
        self._per_address[client.address] -= 1
        if self._per_address[client.address] <= 0:
            del self._per_address[client.address]
        self._waiting.pop(client, None)

    def wait_for(self, client: LimitedClient) -> None:
        """The server waits for it from now on."""
        self._waiting.pop(client, None)
        self._waiting[client] = None

    def wait_no_more(self, client: LimitedClient) -> None:
        """It has said all that it was waited for, or is somebody whom we know."""
        self._waiting.pop(client, None)

    def _evict(self, address: str | None) -> bool:
        victim = next((each for each in self._waiting if address is None or each.address == address), None)
        if victim is None:
            return False
        self._waiting.pop(victim)
        victim.evict()
        self._closed += 1
        if time.monotonic() - self._told_at >= TOLD_EVERY:
            self._told_at = time.monotonic()
            log.warning(
                "web.connections_full", open=self.open, closed=self._closed, address=address or victim.address
            )
            self._closed = 0
        return True
