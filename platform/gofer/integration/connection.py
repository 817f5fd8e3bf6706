"""A connection as its integration sees it: settings, secrets, the HTTP client, and how it is doing."""

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
    """A job while a worker is at it, for what must not outlive it, such as a token minted for it alone.

    It ends when the run does, well or badly, and before its answer is on its way. A job that is taken up again,
    by this worker or the next, is another one. Nothing ends when the process is killed: lend only what also ends
    by itself.
    """

    def __init__(self) -> None:
        self._endings: list[Callable[[], Awaitable[None]]] = []
        self._over = False

    def at_end(self, ending: Callable[[], Awaitable[None]]) -> None:
        """Have something ended with the job. What it raises is logged, and costs nobody their answer."""
        if self._over:
            raise Permanent("The job is over.", reason="job.over")
        self._endings.append(ending)

    async def end(self) -> None:
        """The platform calls this, once."""
        self._over = True
        for failed in await asyncio.gather(*(one() for one in self._endings), return_exceptions=True):
            if failed is not None:
                log.warning("job.not_given_back", error=type(failed).__name__, reason=str(failed))


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """A Connection as its integration sees it."""

    id: str
    name: str
    settings: Mapping[str, Any]
    secrets: Mapping[str, Secret]
    hook_url: str | None = None
    """Where the service can reach us; None when Gofer has no public URL."""
    http: httpx2.AsyncClient | None = None
    """The shared client; only async methods have it."""
    proxied: httpx2.AsyncClient | None = None
    """The client that goes through the connection's proxy, where `Integration.proxy` names one."""
    job: JobScope | None = field(default=None, repr=False)
    """The job it is about, where tools and shell access are asked for; None in what Gofer does beside jobs."""
    on_use: Callable[[str], None] | None = field(default=None, repr=False, compare=False)
    """Told the name of each secret that is asked for, so that its last use is known."""
    signer: Callable[..., str] | None = field(default=None, repr=False, compare=False)
    """How `mac` does it."""

    def secret(self, name: str) -> str:
        """A secret's value; raises Unset when it is missing or blank, so half a configuration stays closed."""
        value = self.secrets[name].reveal() if name in self.secrets else ""
        if not value.strip():
            raise Unset(f"The secret {name} of connection {self.id} is not set.")
        if self.on_use is not None:
            self.on_use(name)
        return value

    def secrets_of(self, name: str, *others: str) -> list[str]:
        """A secret's value and those of others that are set, such as a key that is about to replace it; raises
        Unset when the first is missing."""
        return [self.secret(name), *(self.secret(other) for other in others if other in self.secrets)]

    def mac(self, *parts: str) -> str:
        """A MAC in hex, with a key that only this Gofer has and that is this connection's for ever: for what is
        written outside and has to be known again."""
        if self.signer is None:
            raise Unset(f"The connection {self.id} has no key to sign with.")
        return self.signer(*parts)

    async def call(self, method: str, url: str, **arguments: Any) -> Any:
        """Ask the service, and return the JSON it answers; None for 404. Raises Temporary or Permanent."""
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
    """How a connection is doing."""

    ok: bool
    line: str
    fix: str = ""
    """The exact command or step that mends it."""
    learned: Mapping[str, Any] = field(default_factory=dict)
    """Settings that `set_up` found out (a bot's name); they are stored with the connection."""


@dataclass(frozen=True, slots=True)
class SignUp:
    """A form that a person's browser posts to a service, which makes an account and sends them back with a code."""

    url: str
    fields: Mapping[str, str]
    asks: Mapping[str, str] = field(default_factory=dict)
    """What the account may do, and why, for the person to read first."""


@dataclass(frozen=True, slots=True)
class SecretField:
    """A secret that a connection has."""

    name: str
    help: str
    generated: bool = False
    """Made by Gofer when none is given."""
    optional: bool = False
    """A connection may do without it."""


class NoSettings(BaseModel):
    """The settings of an integration that has none."""

    model_config = ConfigDict(extra="forbid")
