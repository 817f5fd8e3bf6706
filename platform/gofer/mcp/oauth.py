"""OAuth for MCP servers that want it: an owner follows a link once; the tokens are kept in the vault and refreshed.

A run uses what is kept. Only `Authoriser.begin` asks an owner; a run that would have to is told so.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import structlog

from gofer.client.mcp_tools import load_library
from gofer.errors import ConfigError, GoferError, NotFound, Permanent, Temporary
from gofer.mcp.settings import McpServerSettings
from gofer.mcp.transport import http_client

if TYPE_CHECKING:
    from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

log = structlog.get_logger()

LINK_LIFE = 600.0
"""Seconds in which an owner follows the link."""
LINK_TIMEOUT = 30.0
"""Seconds in which the server gives the link."""
EARLY = 30.0
"""Seconds before its end from which a token is renewed."""

Load = Callable[[str], Awaitable[str]]
"""A secret by its name; raises NotFound."""
Save = Callable[[str, str], Awaitable[None]]


class NotAuthorised(ConfigError):
    """The server wants an owner's authorisation, which nobody has given or which has ended."""

    code = "mcp.not_authorised"


def secret_name(server: str, settings: McpServerSettings, what: str) -> str:
    """Under which name what was granted for a server's address is kept."""
    return f"mcp_{server}_{hashlib.sha256(settings.url.encode()).hexdigest()[:8]}_{what}"


@dataclass(slots=True)
class KeptTokens:
    """The library's storage, over the vault."""

    load: Load
    save: Save
    name: Callable[[str], str]
    expires_at: float | None = None

    async def get_tokens(self) -> OAuthToken | None:
        """What was granted, if anything."""
        from mcp.shared.auth import OAuthToken

        try:
            access = await self.load(self.name("access"))
        except NotFound:
            return None
        facts = await self._facts()
        self.expires_at = facts.get("expires_at")
        try:
            refresh = await self.load(self.name("refresh"))
        except NotFound:
            refresh = None
        return OAuthToken(access_token=access, refresh_token=refresh, scope=facts.get("scope"))

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep what was granted."""
        self.expires_at = None if tokens.expires_in is None else time.time() + tokens.expires_in
        await self.save(self.name("access"), tokens.access_token)
        if tokens.refresh_token:
            await self.save(self.name("refresh"), tokens.refresh_token)
        await self._keep(expires_at=self.expires_at, scope=tokens.scope)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """What the server knows us as."""
        from mcp.shared.auth import OAuthClientInformationFull

        client = (await self._facts()).get("client")
        return OAuthClientInformationFull.model_validate(client) if client else None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep it."""
        await self._keep(client=client_info.model_dump(mode="json", exclude_none=True))

    async def _facts(self) -> dict[str, Any]:
        try:
            return dict(json.loads(await self.load(self.name("client"))))
        except (NotFound, ValueError):
            return {}

    async def _keep(self, **facts: Any) -> None:
        await self.save(self.name("client"), json.dumps({**await self._facts(), **facts}))


@dataclass(slots=True)
class _Pending:
    """An authorisation that waits for its owner."""

    code: asyncio.Future[Any]
    task: asyncio.Task[None]


@dataclass(slots=True)
class Authoriser:
    """Begins and finishes authorisations, and signs the requests of runs."""

    load: Load
    save: Save
    callback: Callable[[], str]
    """Where the owner's browser is sent back to; empty while nobody listens."""
    _pending: dict[str, _Pending] = field(default_factory=dict)

    def auth(self, server: str, settings: McpServerSettings) -> httpx2.Auth:
        """What signs a run's requests, and renews its token."""

        async def refuse(url: str) -> None:
            raise NotAuthorised(
                f"{server} wants to be authorised. An owner runs: gofer mcp authorise AGENT {server}"
            )

        return self._provider(server, settings, refuse, None)

    async def begin(self, server: str, settings: McpServerSettings) -> str:
        """The link that an owner follows; empty when the server is content already. Raises GoferError."""
        if not settings.oauth:
            raise ConfigError(f"Write `oauth = true` into [mcp.{server}] first.")
        await asyncio.to_thread(load_library)
        loop = asyncio.get_running_loop()
        link: asyncio.Future[str] = loop.create_future()
        code: asyncio.Future[Any] = loop.create_future()

        async def show(url: str) -> None:
            if not link.done():
                link.set_result(url)

        async def wait() -> Any:
            return await asyncio.wait_for(code, LINK_LIFE)

        auth = self._provider(server, settings, show, wait)
        task = asyncio.create_task(_visit(server, settings, auth), name=f"authorise-{server}")
        task.add_done_callback(partial(_ended, server, link))
        try:
            async with asyncio.timeout(LINK_TIMEOUT):
                url = await asyncio.shield(link)
        except TimeoutError:
            task.cancel()
            raise Temporary(f"{server} did not say where to authorise.") from None
        state = parse_qs(urlsplit(url).query).get("state", [""])[0] if url else ""
        if state:
            self._pending[state] = _Pending(code, task)
            task.add_done_callback(lambda _: self._pending.pop(state, None))
        return url

    async def finish(self, state: str, code: str, issuer: str = "") -> None:
        """The owner came back with a code. Raises NotFound for a link that has ended, and what went wrong."""
        from mcp.shared.auth import AuthorizationCodeResult

        pending = self._pending.pop(state, None)
        if pending is None or pending.code.done():
            raise NotFound("This authorisation has ended. Begin it again: gofer mcp authorise")
        pending.code.set_result(AuthorizationCodeResult(code=code, state=state, iss=issuer or None))
        await asyncio.wait({pending.task}, timeout=LINK_TIMEOUT)
        if not pending.task.done():
            raise Temporary("The server does not answer.")
        pending.task.result()

    def _provider(
        self,
        server: str,
        settings: McpServerSettings,
        show: Callable[[str], Awaitable[None]],
        wait: Callable[[], Awaitable[Any]] | None,
    ) -> httpx2.Auth:
        from mcp.client.auth import OAuthClientProvider
        from mcp.shared.auth import OAuthClientMetadata
        from pydantic import AnyUrl

        kept = KeptTokens(self.load, self.save, partial(secret_name, server, settings))

        class Provider(OAuthClientProvider):
            async def _initialize(self) -> None:
                await super()._initialize()
                # The library would take a token that it finds for a fresh one.
                if kept.expires_at is not None:
                    self.context.token_expiry_time = kept.expires_at - EARLY

        metadata = OAuthClientMetadata(
            client_name="Gofer",
            redirect_uris=[AnyUrl(self.callback() or "http://127.0.0.1/mcp/callback")],
            token_endpoint_auth_method="none",  # noqa: S106 - we keep no secret of our own
        )
        return Provider(settings.url, metadata, kept, show, wait or _nobody)


async def _nobody() -> Any:
    raise NotAuthorised


async def _visit(server: str, settings: McpServerSettings, auth: httpx2.Auth) -> None:
    """Connect once, which is when a server asks for authorisation."""
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    async with http_client(settings, {}, auth) as http:
        ping = {"jsonrpc": "2.0", "id": 0, "method": "ping"}
        response = await http.post(
            settings.url, json=ping, headers={"accept": "application/json, text/event-stream"}
        )
        if response.status_code in (401, 403):
            raise Permanent(f"{server} still refuses: {response.status_code}.")
        async with Client(streamable_http_client(settings.url, http_client=http)) as client:
            await client.list_tools()


def _ended(server: str, link: asyncio.Future[str], task: asyncio.Task[None]) -> None:
    """Without a link the server was content, or could not be reached."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.warning("mcp.not_authorised", server=server, error=f"{type(error).__name__}: {str(error)[:300]}")
    if link.done():
        return
    if error is None:
        link.set_result("")
    else:
        told = error if isinstance(error, GoferError) else Temporary(f"{server}: {str(error)[:300]}")
        link.set_exception(told)
