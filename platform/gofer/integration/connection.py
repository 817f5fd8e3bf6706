"""A connection as its integration sees it: settings, secrets, HTTP client and health."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog
from pydantic import BaseModel, ConfigDict

from gofer.errors import Permanent, Temporary, Unset

if TYPE_CHECKING:
    import httpx2

    from gofer.vault.secret import Secret


log = structlog.get_logger()


class JobScope:
    """One worker's work on a job, for what must end with it, such as a token minted for this job.

    It ends with the run, before its answer is sent, whether the run succeeded or not. A job that is resumed gets a new
    scope. A killed process ends nothing: use only credentials that also expire.
    """

    def __init__(self) -> None:
        self._endings: list[Callable[[], Awaitable[None]]] = []
        self._over = False

    def at_end(self, ending: Callable[[], Awaitable[None]]) -> None:
        """Call `ending` when the job ends. What it raises is logged and does not affect the answer."""
        if self._over:
            raise Permanent("The job is over.", reason="job.over")
        self._endings.append(ending)

    async def end(self) -> None:
        """Gofer calls this, once."""
        self._over = True
        for failed in await asyncio.gather(*(one() for one in self._endings), return_exceptions=True):
            if failed is not None:
                log.warning("job.cleanup_failed", error=type(failed).__name__, reason=str(failed))


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """A Connection as its integration sees it."""

    id: str
    name: str
    settings: Mapping[str, Any]
    secrets: Mapping[str, Secret]
    hook_url: str | None = None
    """The webhook's URL; None when Gofer has no public URL."""
    http: httpx2.AsyncClient | None = None
    """The shared client, in async methods only."""
    proxied: httpx2.AsyncClient | None = None
    """The client through the connection's proxy, when `Integration.proxy` names one."""
    job: JobScope | None = field(default=None, repr=False)
    """The job that asks for tools or shell access; None outside a job."""
    on_use: Callable[[str], None] | None = field(default=None, repr=False, compare=False)
    """Called with the name of each secret that is read, to record its last use."""
    signer: Callable[..., str] | None = field(default=None, repr=False, compare=False)
    """Computes `mac`."""

    def secret(self, name: str) -> str:
        """A secret's value; raises Unset when it is missing or blank, so an incomplete connection accepts nothing."""
        value = self.secrets[name].reveal() if name in self.secrets else ""
        if not value.strip():
            raise Unset(f"The secret {name} of connection {self.id} is not set.")
        if self.on_use is not None:
            self.on_use(name)
        return value

    def secrets_of(self, name: str, *others: str) -> list[str]:
        """A secret's value and the values of others that are set, such as the key that will replace it; raises Unset
        when the first is missing."""
        return [self.secret(name), *(self.secret(other) for other in others if other in self.secrets)]

    def mac(self, *parts: str) -> str:
        """A MAC in hex with a key of this connection that never changes or leaves Gofer, to recognise what Gofer wrote
        at the service."""
        if self.signer is None:
            raise Unset(f"The connection {self.id} has no key to sign with.")
        return self.signer(*parts)

    async def call(self, method: str, url: str, **arguments: Any) -> Any:
        """Send a request to the service and return its JSON, None for 404; raises Temporary or Permanent."""
        assert self.http is not None
        response = await self.http.request(method, url, **arguments)
        if response.status_code == 429 or response.status_code >= 500:
            after = response.headers.get("retry-after", "")
            raise Temporary(
                f"The service answered {response.status_code}.",
                retry_after=float(after) if after.isascii() and after.isdigit() else None,
            )
        if response.status_code == 404:
            return None
        if response.is_error:
            raise Permanent(f"The service answered {response.status_code}.")
        return response.json()


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a connection works."""

    ok: bool
    line: str
    fix: str = ""
    """The exact command or step that fixes it."""
    learned: Mapping[str, Any] = field(default_factory=dict)
    """Settings that `set_up` learned, such as the bot's name; stored with the connection."""


@dataclass(frozen=True, slots=True)
class SignUp:
    """A form that the browser posts to a service, which creates an account and redirects back with a code."""

    url: str
    fields: Mapping[str, str]
    asks: Mapping[str, str] = field(default_factory=dict)
    """What the account may do, and why; shown before the form is sent."""


@dataclass(frozen=True, slots=True)
class SecretField:
    """A secret that a connection has."""

    name: str
    help: str
    generated: bool = False
    """Gofer makes one when none is given."""
    optional: bool = False
    """A connection works without it."""


class NoSettings(BaseModel):
    """The settings of an integration that has none."""

    model_config = ConfigDict(extra="forbid")
