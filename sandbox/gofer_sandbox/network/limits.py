"""How much one sandbox may ask of the proxies, and the counting of it."""

from __future__ import annotations

from dataclasses import dataclass

from gofer_sandbox.network.errors import Refused


@dataclass(frozen=True, slots=True)
class EgressLimits:
    """Bounds of one sandbox's traffic. Sizes are in bytes and times in seconds."""

    connections: int = 64
    """At once, through each of the two proxies; further ones wait."""
    connection_bytes: int = 4 * 1024**3
    total_bytes: int = 32 * 1024**3
    header_bytes: int = 32 * 1024
    header_seconds: float = 15.0
    connect_seconds: float = 15.0
    idle_seconds: float = 120.0
    connection_seconds: float = 3600.0


class Meter:
    """Counts bytes in both directions against a limit, and against a wider meter's."""

    def __init__(self, limit: int, wider: Meter | None = None) -> None:
        self._left = limit
        self._limit = limit
        self._wider = wider

    def count(self, size: int) -> None:
        """Refused once the limit is passed."""
        self._left -= size
        if self._left < 0:
            raise Refused(f"more than {self._limit} bytes were moved")
        if self._wider is not None:
            self._wider.count(size)
