"""What an integration's own tests folder says about it, so that the one suite can try it.

`tests/<name>/contract.py` exports `CASE`, a `Case`. Adding an integration adds that file and nothing here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from gofer.integration import ConnectionContext, Integration, Request


class Service(Protocol):
    """A strict stand-in for the outside service, in which the suite looks."""

    account: ConnectionContext
    """The connection under test, reaching the stand-in, with an HTTP client."""
    conversation: str
    """A place in it to which replies can be sent."""

    def texts(self) -> list[str]:
        """What people see there, in order."""


@dataclass(frozen=True, slots=True)
class Case:
    """One integration, ready to be tried."""

    integration: Integration
    account: ConnectionContext
    """With every secret and setting it needs, and no network."""
    message: Callable[[], Request]
    """A genuine request that addresses an agent."""
    ignored: Callable[[], Request]
    """A genuine request that is known and wants no answer."""
    serve: Callable[[], AbstractAsyncContextManager[Service]]
    finds: bool = False
    """Whether the service can be searched for a reply that was placed before."""
    signed_body: bool = True
    """Whether a changed body is noticed; not where a service only sends a shared token."""
