"""One line of the doctor's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["ok", "note", "warning", "error"]

PAGES = {
    "settings": "operations.md#settings",
    "python": "deploying.md",
    "versions": "operations.md#upgrade",
    "data directory": "operations.md#the-data-directory",
    "disk": "operations.md#the-data-directory",
    "port": "operations.md#start",
    "network": "deploying.md#behind-a-reverse-proxy",
    "platform": "operations.md",
    "server": "operations.md#start",
    "database": "operations.md#upgrade",
    "clock": "operations.md#postgres-redis-several-processes",
    "redis": "operations.md#postgres-redis-several-processes",
    "master key": "operations.md#secrets-and-the-master-key",
    "old keys": "operations.md#secrets-and-the-master-key",
    "sandbox": "sandbox.md#where-it-runs",
    "model": "models.md",
    "agents": "agents.md",
    "integration": "architecture.md",
    "integrations": "architecture.md",
    "connections": "operations.md#commands",
    "refused requests": "operations.md#commands",
    "jobs": "operations.md#commands",
}
"""Where each check is explained, below docs/."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found."""

    check: str
    severity: Severity
    line: str
    fix: str = ""
    """The exact command or step that mends it."""
    docs: str = ""
    """The page that explains it, below docs/."""

    def __post_init__(self) -> None:
        if not self.docs:
            object.__setattr__(self, "docs", PAGES.get(self.check, "operations.md"))
