"""OAuth for MCP servers that want it: an owner follows a link once; the tokens are kept in the vault and refreshed.

A run uses what is kept. Only `Authoriser.begin` asks an owner; a run that would have to is told so. What was begun
waits in the store, so the owner may come back to another process than the one that gave the link.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import httpx2
import structlog
from sqlalchemy import Connection, and_, delete

from gofer.client.mcp_server import load_library
from gofer.errors import ConfigError, GoferError, NotFound, Permanent, Temporary
from gofer.mcp.settings import McpServerSettings
from gofer.mcp.transport import http_client, in_our_words
from gofer.secrets.secret_store import PLATFORM, get_secret, write_secret
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.tables import secrets
from gofer.vault.envelope import Vault
from gofer.vault.redaction import Secret

if TYPE_CHECKING:
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

log = structlog.get_logger()

LINK_LIFE = 600.0
"""Seconds in which an owner follows the link."""
VISIT_TIMEOUT = 30.0
"""Seconds in which the server gives the link, or takes the code."""
EARLY = 30.0
"""Seconds before its end from which a token is renewed."""

Load = Callable[[str], Awaitable[str]]
"""A secret by its name; raises NotFound."""
Save = Callable[[str, str], Awaitable[None]]


class NotAuthorised(ConfigError):
    """The server wants an owner's authorisation, which nobody has given or which has ended."""

    code = "mcp.not_authorised"


@dataclass(slots=True)
class KeptTokens:
    """The library's storage, over the vault."""

    load: Load
    save: Save
    server: str
    settings: McpServerSettings
    anew: bool = False
    """Whether to go about it as if nothing had been granted."""
    expires_at: float | None = None

    def name(self, what: str) -> str:
        """Under which name something is kept."""
        return self.settings.kept_as(self.server, what)

    async def get_tokens(self) -> OAuthToken | None:
        """What was granted, if anything."""
        from mcp.shared.auth import OAuthToken

        if self.anew:
            return None
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
        await self._keep(expires_at=self.expires_at, scope=tokens.scope, wanted=None)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """What the server knows us as."""
        from mcp.shared.auth import OAuthClientInformationFull

        if self.settings.client_id:
            return await self._registered_by_hand()
        client = (await self._facts()).get("client")
        return OAuthClientInformationFull.model_validate(client) if client else None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep it."""
        await self._keep(client=client_info.model_dump(mode="json", exclude_none=True))

    async def _registered_by_hand(self) -> OAuthClientInformationFull:
        from mcp.shared.auth import OAuthClientInformationFull

        secret, method = None, "none"
        if self.settings.client_secret:
            secret = await self._client_secret()
            method = (await self._facts()).get("method") or "client_secret_basic"
        return OAuthClientInformationFull(
            client_id=self.settings.client_id,
            client_secret=secret,
            redirect_uris=None,
            token_endpoint_auth_method=method,
        )

    async def _client_secret(self) -> str:
        name = self.settings.client_secret
        try:
            return await self.load(name)
        except NotFound:
            raise ConfigError(f"There is no secret {name}. Set it: gofer secrets put {name}") from None

    async def settle_method(self, provider: OAuthClientProvider) -> None:
        """Send the secret in the way that the server takes it."""
        metadata, client = provider.context.oauth_metadata, provider.context.client_info
        taken = metadata.token_endpoint_auth_methods_supported if metadata is not None else None
        if not self.settings.client_secret or client is None or not taken:
            return
        if "client_secret_basic" not in taken and "client_secret_post" in taken:
            client.token_endpoint_auth_method = "client_secret_post"  # noqa: S105 - the name of a way
            await self._keep(method=client.token_endpoint_auth_method)

    async def keep_place(self, provider: OAuthClientProvider) -> None:
        """Keep where tokens come from: they are renewed there, also when nobody has looked for the place again."""
        context = provider.context
        found = {"server": context.oauth_metadata, "resource": context.protected_resource_metadata}
        await self._keep(
            **{
                f"{name}_metadata": one.model_dump(mode="json", exclude_none=True)
                for name, one in found.items()
                if one is not None
            }
        )

    async def restore_place(self, provider: OAuthClientProvider) -> None:
        """Have the provider know again where tokens come from."""
        from mcp.shared.auth import OAuthMetadata, ProtectedResourceMetadata

        facts, context = await self._facts(), provider.context
        if server := facts.get("server_metadata"):
            context.oauth_metadata = OAuthMetadata.model_validate(server)
        if resource := facts.get("resource_metadata"):
            context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(resource)

    async def wanted(self) -> str | None:
        """The scope that a call needed beyond the granted one."""
        return (await self._facts()).get("wanted")

    async def want(self, scope: str | None) -> None:
        """Note what a call needed, so that the owner is asked for it."""
        granted = (await self._facts()).get("scope") or ""
        if scope and not {*scope.split()} <= {*granted.split()}:
            await self._keep(wanted=scope)

    async def _facts(self) -> dict[str, Any]:
        try:
            return dict(json.loads(await self.load(self.name("client"))))
        except (NotFound, ValueError):
            return {}

    async def _keep(self, **facts: Any) -> None:
        await self.save(self.name("client"), json.dumps({**await self._facts(), **facts}))


@dataclass(frozen=True, slots=True)
class PendingAuthorisations:
    """Authorisations that wait for their owner, each a sealed row: any process can finish one, once, also after a
    restart."""

    database: Database
    vault: Vault

    async def keep(self, state: str, value: str) -> None:
        """Keep one under the state that the owner comes back with, and drop those that have ended."""

        def write(connection: Connection) -> None:
            connection.execute(delete(secrets).where(_PENDING, secrets.c.created_at <= now() - LINK_LIFE))
            place = {"workspace_id": FIRST_WORKSPACE, "owner": PLATFORM, "name": _pending_name(state)}
            write_secret(connection, self.vault, **place, value=Secret(value))

        await self.database.write(write)

    async def take(self, state: str) -> str:
        """Take the stored row, which removes it; raises NotFound."""
        place = {"workspace_id": FIRST_WORKSPACE, "owner": PLATFORM, "name": _pending_name(state)}

        def write(connection: Connection) -> str:
            alive = secrets.c.name == place["name"], secrets.c.created_at > now() - LINK_LIFE
            found = get_secret(connection, self.vault, **place).reveal()
            if connection.execute(delete(secrets).where(_PENDING, *alive)).rowcount == 0:
                raise NotFound
            return found

        try:
            return await self.database.write(write)
        except NotFound:
            raise NotFound("This authorisation has ended. Begin it again: gofer mcp authorise") from None


_PREFIX = "mcp_pending_"
_PENDING = and_(secrets.c.owner == PLATFORM, secrets.c.name.startswith(_PREFIX, autoescape=True))


def _pending_name(state: str) -> str:
    return _PREFIX + hashlib.sha256(state.encode("utf-8", "replace")).hexdigest()


Grant = Callable[["OAuthClientProvider"], Awaitable[tuple[str, str]]]
"""How an authorisation comes about: the code and its verifier."""


@dataclass(slots=True)
class Authoriser:
    """Begins and finishes authorisations, and signs the requests of runs."""

    load: Load
    save: Save
    pending: PendingAuthorisations
    callback: Callable[[], str]
    """Where the owner's browser is sent back to; empty while nobody listens."""
    _turns: dict[str, asyncio.Lock] = field(default_factory=dict)
    """By what is granted: who renews it."""

    def auth(self, server: str, settings: McpServerSettings) -> httpx2.Auth:
        """What signs a run's requests, and renews its token."""
        kept = KeptTokens(self.load, self.save, server, settings)

        async def refuse(provider: OAuthClientProvider) -> tuple[str, str]:
            if provider.context.current_tokens is not None:
                await kept.want(provider.context.client_metadata.scope)
            raise NotAuthorised(
                f"{server} wants to be authorised. An owner runs: gofer mcp authorise AGENT {server}"
            )

        return self._provider(kept, refuse)

    async def begin(self, server: str, settings: McpServerSettings) -> str:
        """The link that an owner follows; empty when the server is content already. Raises GoferError."""
        if not settings.oauth:
            raise ConfigError(f"Write `oauth = true` into [mcp.{server}] first.")
        await asyncio.to_thread(load_library)
        from mcp.client.auth.utils import union_scopes

        links: list[str] = []
        back = self.callback()
        kept = KeptTokens(self.load, self.save, server, settings)
        wanted = await kept.wanted()
        kept.anew = wanted is not None

        async def ask(provider: OAuthClientProvider) -> tuple[str, str]:
            known_scope = provider.context.client_metadata
            known_scope.scope = union_scopes(known_scope.scope, wanted)
            url, state, verifier = await _link(provider)
            known = {
                "server": server,
                "settings": settings.model_dump_json(),
                "back": back,
                "verifier": verifier,
                "token_endpoint": provider._get_token_endpoint(),
            }
            await self.pending.keep(state, json.dumps(known))
            links.append(url)
            raise NotAuthorised

        try:
            await _visit(server, settings, self._provider(kept, ask, back))
        except GoferError:
            if not links:
                raise
        return links[0] if links else ""

    async def finish(self, state: str, code: str, issuer: str = "") -> None:
        """The owner came back with a code. Raises NotFound for a link that has ended, and what went wrong."""
        known = json.loads(await self.pending.take(state))
        server, settings = known["server"], McpServerSettings.model_validate_json(known["settings"])
        await asyncio.to_thread(load_library)
        from mcp.client.auth.utils import validate_authorization_response_iss

        kept = KeptTokens(self.load, self.save, server, settings, anew=True)

        async def exchange(provider: OAuthClientProvider) -> tuple[str, str]:
            validate_authorization_response_iss(issuer or None, provider.context.oauth_metadata)
            if provider._get_token_endpoint() != known["token_endpoint"]:
                raise Permanent(f"{server} names another place for tokens than when this began. Begin again.")
            await kept.settle_method(provider)
            await kept.keep_place(provider)
            return code, known["verifier"]

        await _visit(server, settings, self._provider(kept, exchange, known["back"]))

    def _provider(self, kept: KeptTokens, grant: Grant, back: str = "") -> OAuthClientProvider:
        from mcp.client.auth import OAuthClientProvider
        from mcp.shared.auth import OAuthClientMetadata
        from pydantic import AnyUrl

        turn = self._turns.setdefault(kept.name("access"), asyncio.Lock())

        class Provider(OAuthClientProvider):
            refusal: GoferError | None = None
            """Why it asked nobody; the library tells no more than that the connection ended."""

            async def _initialize(self) -> None:
                # One at a time: many servers take a token for renewal once, and revoke everything if it comes twice.
                async with turn:
                    await super()._initialize()
                    await kept.restore_place(self)
                    self._note_expiry()
                    if not self.context.is_token_valid() and self.context.can_refresh_token():
                        await self._renew()

            def _note_expiry(self) -> None:
                # The library would take a token that it finds for a fresh one.
                if kept.expires_at is not None:
                    self.context.token_expiry_time = kept.expires_at - EARLY

            async def _renew(self) -> None:
                async with http_client(kept.settings, {}) as http:
                    renewed = await self._handle_refresh_response(
                        await http.send(await self._refresh_token())
                    )
                if not renewed:  # unless another process was quicker
                    self.context.current_tokens = await kept.get_tokens()
                    self._note_expiry()
                    if not self.context.is_token_valid():
                        self.context.clear_tokens()

            async def _perform_authorization_code_grant(self) -> tuple[str, str]:
                try:
                    return await grant(self)
                except NotAuthorised as error:
                    self.refusal = error
                    raise

        metadata = OAuthClientMetadata(
            client_name="Gofer",
            redirect_uris=[AnyUrl(back or self.callback() or "http://127.0.0.1/mcp/callback")],
            token_endpoint_auth_method="none",  # noqa: S106 - we keep no secret of our own
        )
        return Provider(kept.settings.url, metadata, kept)


async def _link(provider: OAuthClientProvider) -> tuple[str, str, str]:
    """The link as the library makes it, its state, and a verifier of ours: the library does not give us its own."""
    from mcp.client.auth import OAuthClientProvider, PKCEParameters

    urls: list[str] = []

    async def show(url: str) -> None:
        urls.append(url)
        raise NotAuthorised

    async def wait() -> Any:
        raise NotAuthorised

    provider.context.redirect_handler, provider.context.callback_handler = show, wait
    with contextlib.suppress(NotAuthorised):
        await OAuthClientProvider._perform_authorization_code_grant(provider)
    parts = urlsplit(urls[0])
    query = dict(parse_qsl(parts.query))
    ours = PKCEParameters.generate()
    url = urlunsplit(parts._replace(query=urlencode({**query, "code_challenge": ours.code_challenge})))
    return url, query["state"], ours.code_verifier


async def _visit(server: str, settings: McpServerSettings, auth: httpx2.Auth) -> None:
    """Connect once, which is when a server asks for authorisation. Raises GoferError."""
    try:
        async with asyncio.timeout(VISIT_TIMEOUT):
            await _connect(server, settings, auth)
    except TimeoutError:
        raise Temporary(f"{server} did not answer within {VISIT_TIMEOUT:g} seconds.") from None
    except GoferError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a stranger's server makes the library raise
        told = in_our_words(server, error)
        log.warning("mcp.not_authorised", server=server, error=str(told))
        raise told from None


async def _connect(server: str, settings: McpServerSettings, auth: httpx2.Auth) -> None:
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
