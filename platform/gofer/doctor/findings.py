"""What a check found: one line for people, and how to fix it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal

from gofer.errors import ConfigError, GoferError, StoreBusy, StoreUnavailable
from gofer.settings import Settings, may_be_closed, prepare_data_dir
from gofer.vault.errors import KeyRefused, VaultError

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
    "signed rows": "operations.md#rows-that-are-refused",
    "audit log": "operations.md#the-audit-log",
    "sandbox": "sandbox.md#where-it-runs",
    "model": "models.md",
    "agents": "agents.md",
    "external agents": "external-agents.md",
    "integration": "architecture.md",
    "integrations": "architecture.md",
    "connections": "operations.md#commands",
    "refused requests": "operations.md#commands",
    "jobs": "operations.md#commands",
    "releases": "updates.md",
}
"""Where each check is explained, below docs/."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found."""

    check: str
    severity: Severity
    line: str
    fix: str = ""
    """The exact command or step that fixes it."""
    docs: str = ""
    """The page that explains it, below docs/."""

    def __post_init__(self) -> None:
        if not self.docs:
            object.__setattr__(self, "docs", PAGES.get(self.check, "operations.md"))


def found_wrong(check: str, error: GoferError) -> Finding:
    """An error as a finding: what it says to run, or else what fixes errors of its kind."""
    line, _, command = str(error).partition(" Run: ")
    page = next((PAGES[topic] for kind, topic in _TOPICS.items() if isinstance(error, kind)), "")
    return Finding(check, "error", line, command or _way_out(error), page)


_TOPICS: dict[type[GoferError], str] = {
    KeyRefused: "master key",
    VaultError: "master key",
    StoreUnavailable: "clock",
    StoreBusy: "server",
    ConfigError: "settings",
}
"""Under which check's page an error is explained."""


def _way_out(error: GoferError) -> str:
    if isinstance(error, KeyRefused | VaultError):
        return "Put the master key back from your backup (chmod 600), or give it in GOFER_MASTER_KEY."
    if isinstance(error, StoreUnavailable):
        return "Start the database, or correct GOFER_DATABASE_URL; then: gofer doctor"
    if isinstance(error, StoreBusy):
        return "Stop the other process; then: gofer doctor"
    variable = re.search(r"GOFER_[A-Z_]+", str(error))
    return f"Correct {variable[0]}, or unset it; then: gofer doctor" if variable else ""


def fix_data_dir(settings: Settings) -> list[str]:
    """Fix what can be fixed without a server; returns what was done."""
    path = settings.data_dir
    done = []
    if not os.path.exists(path):
        prepare_data_dir(settings)
        done.append(f"Made {path}.")
    try:
        # A directory that others share is theirs, too: the round that follows says to choose another.
        if path.stat().st_mode & 0o077 and may_be_closed(path):
            path.chmod(0o700)
            done.append(f"Closed {path} to others.")
        if settings.key_path.is_file() and settings.key_path.stat().st_mode & 0o077:
            settings.key_path.chmod(0o600)
            done.append(f"Closed {settings.key_path} to others.")
    except OSError as error:
        raise GoferError(f"{path} cannot be fixed: {error.strerror}.") from error
    return done
