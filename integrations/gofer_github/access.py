"""Credentials for GitHub: an App that mints a token per repository and purpose, or a plain token."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gofer.errors import Permanent, ServiceError, Unset
from gofer.integration import ConnectionContext, JobScope
from gofer_github.client import MAX_SHORT_WAIT, Branches, Client, RateLimit, is_missing
from gofer_github.place import Repository
from gofer_github.settings import Settings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

Permissions = Mapping[str, str]

LOOK: Permissions = MappingProxyType({"metadata": "read"})
READ: Permissions = MappingProxyType(
    {"metadata": "read", "issues": "read", "pull_requests": "read", "contents": "read", "checks": "read"}
)
WRITE: Permissions = MappingProxyType({"metadata": "read", "issues": "write", "pull_requests": "write"})
OPEN_PULL: Permissions = MappingProxyType({"metadata": "read", "contents": "read", "pull_requests": "write"})
CHECKS: Permissions = MappingProxyType({"metadata": "read", "checks": "write"})
STATUSES: Permissions = MappingProxyType({"metadata": "read", "statuses": "read"})
LOGS: Permissions = MappingProxyType({"metadata": "read", "checks": "read", "actions": "read"})
RESOLVE: Permissions = MappingProxyType({"metadata": "read", "pull_requests": "write", "contents": "write"})
"""GitHub asks for write access to the contents, too, before a thread may be resolved; with less it answers
`Resource not accessible by integration` (docs/integrations/github.md, Permissions)."""
GIT: Permissions = MappingProxyType({"metadata": "read", "contents": "write"})
GIT_READ: Permissions = MappingProxyType({"metadata": "read", "contents": "read"})

REUSE = 300.0
"""Seconds for which work outside jobs shares its tokens; then they are revoked."""


@dataclass(frozen=True, slots=True)
class Signer:
    """An App's parsed private key."""

    digest: bytes
    key: RSAPrivateKey

    def sign(self, claims: dict[str, Any]) -> str:
        import jwt

        return jwt.encode(claims, self.key, algorithm="RS256")


def _read_key(pem: bytes) -> RSAPrivateKey:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(pem, None)
    if not isinstance(key, RSAPrivateKey):
        raise ValueError("GitHub gives Apps RSA keys")
    return key


class Access:
    """Clients and tokens of connections. Its state is a cache and may be lost at any time."""

    def __init__(self, reuse: float = REUSE) -> None:
        self._reuse = reuse
        self._ending: set[asyncio.Task[None]] = set()
        self._tokens: dict[tuple[str, JobScope | None], Tokens] = {}
        self._signers: dict[str, Signer] = {}
        self._installations: dict[tuple[str, str], int] = {}
        self._numbers: dict[str, int] = {}
        self._limits: dict[tuple[str, str, str], RateLimit] = {}
        self._branches: dict[tuple[str, str], Branches] = {}

    def as_app(self, account: ConnectionContext) -> Client:
        """A client as the App itself, which can mint tokens and list deliveries but not touch a repository."""
        from github.Auth import AppAuth

        settings = Settings.model_validate(account.settings)
        if settings.app_id is None:
            raise Permanent("This connection uses a plain token, not an App.", reason="no_app")
        try:
            auth = AppAuth(settings.app_id, sign_func=self._signer(account).sign)
            return Client(settings.api_url, auth, limit=self._limit(account))
        except (ValueError, TypeError) as error:
            raise Permanent(
                f"The secret private_key is not an RSA key: {error}", reason="credentials"
            ) from None

    def _signer(self, account: ConnectionContext) -> Signer:
        """The parsed key, cached while it stays the same: parsing takes fifty times as long as signing."""
        pem = account.secret("private_key").encode()
        digest = hashlib.sha256(pem).digest()
        kept = self._signers.get(account.id)
        if kept is None or kept.digest != digest:
            kept = self._signers[account.id] = Signer(digest, _read_key(pem))
        return kept

    async def to(self, account: ConnectionContext, repository: str, permissions: Permissions) -> Client:
        """A client with just these permissions in one repository."""
        from github.Auth import Token as TokenAuth

        async def renewed() -> TokenAuth:
            return TokenAuth(await self.token(account, repository, permissions, refused=token))

        token = await self.token(account, repository, permissions)
        settings = Settings.model_validate(account.settings)
        renew = renewed if settings.app_id is not None else None
        limit = self._limit(account, repository.partition("/")[0])
        # A run can wait a moment; whoever else asks is tried again by the job it belongs to.
        patience = MAX_SHORT_WAIT if account.job is not None else 0
        branches = self._branches.setdefault((account.id, settings.api_url), {})
        return Client(
            settings.api_url, TokenAuth(token), renew, limit=limit, patience=patience, branches=branches
        )

    def _limit(self, account: ConnectionContext, owner: str = "") -> RateLimit:
        """Of an installation, which there is one of for each owner; of the App itself; of a plain token."""
        settings = Settings.model_validate(account.settings)
        whose = owner.lower() if settings.app_id is not None else ""
        return self._limits.setdefault((account.id, settings.api_url, whose), RateLimit())

    @contextlib.asynccontextmanager
    async def to_installation(self, account: ConnectionContext, installation: int) -> AsyncIterator[Client]:
        """A client that can list an installation's repositories, and no more."""
        from github.Auth import Token as TokenAuth

        token = (await _minted(self.as_app(account), installation, {"permissions": dict(LOOK)})).value
        try:
            yield Client(Settings.model_validate(account.settings).api_url, TokenAuth(token))
        finally:
            with contextlib.suppress(ServiceError):  # it ends by itself within the hour
                await self._revoke(account, token)

    async def own_number(self, account: ConnectionContext, client: Client) -> int:
        """The id of the account we write as, by which GitHub links a commit's author; 0 when unknown."""
        login = Settings.model_validate(account.settings).login
        if login and login not in self._numbers:
            try:
                self._numbers[login] = int((await client.get(f"/users/{quote(login)}"))["id"])
            except Permanent:
                return 0
        return self._numbers.get(login, 0)

    async def token(
        self, account: ConnectionContext, repository: str, permissions: Permissions, refused: str = ""
    ) -> str:
        """A token for one repository with just these permissions; the job's own, when there is a job."""
        if Settings.model_validate(account.settings).app_id is None:
            return self._plain(account)
        named = Repository.known(repository)
        what = (named.lower(), named.number, frozenset(permissions.items()))
        return await self._kept(account).get(what, partial(self._mint, account, named, permissions), refused)

    def _kept(self, account: ConnectionContext) -> Tokens:
        key = (account.id, account.job)
        if (kept := self._tokens.get(key)) is None:
            kept = Tokens()
            if account.job is not None:
                account.job.at_end(partial(self._end, account))
            else:
                asyncio.get_running_loop().call_later(self._reuse, self._end_soon, account)
            self._tokens[key] = kept
        return kept

    async def _end(self, account: ConnectionContext) -> None:
        """Revoke the tokens of a job, or those used outside jobs. Whoever still uses one of the latter gets a new one
        when GitHub refuses it."""
        await self._tokens.pop((account.id, account.job)).end(partial(self._revoke, account))

    def _end_soon(self, account: ConnectionContext) -> None:
        task = asyncio.create_task(self._ended(account))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _ended(self, account: ConnectionContext) -> None:
        with contextlib.suppress(ServiceError):  # they end by themselves within the hour
            await self._end(account)

    def _plain(self, account: ConnectionContext) -> str:
        try:
            return account.secret("token")
        except Unset as error:
            raise Permanent(f"Neither app_id nor token is set: {error}", reason="credentials") from None

    async def _mint(
        self, account: ConnectionContext, repository: Repository, permissions: Permissions
    ) -> Token:
        app = self.as_app(account)
        which: dict[str, Any] = {"repositories": [repository.partition("/")[2]]}
        if repository.number:
            which = {"repository_ids": [repository.number]}
        wanted = {**which, "permissions": dict(permissions)}
        known = self._installations.get((account.id, repository))
        if known is not None:
            try:
                return await _minted(app, known, wanted)
            except Permanent:
                pass  # installed anew, perhaps; GitHub says which one it is now
        found = await _installation(app, repository)
        if repository.owner and found.get("account", {}).get("id", repository.owner) != repository.owner:
            raise Permanent(f"{repository} belongs to somebody else now.", reason="github.elsewhere")
        installation = int(found["id"])
        token = await _minted(app, installation, wanted)
        self._installations[account.id, repository] = installation
        return token

    async def _revoke(self, account: ConnectionContext, token: str) -> None:
        from github.Auth import Token as TokenAuth

        api_url = Settings.model_validate(account.settings).api_url
        await Client(api_url, TokenAuth(token)).request("DELETE", "/installation/token")


async def _installation(app: Client, repository: Repository) -> dict[str, Any]:
    try:
        found: dict[str, Any] = await app.get(f"/repos/{repository}/installation")
    except Permanent as error:
        if not is_missing(error):
            raise
        detail = f"{repository} was deleted, or the App is not installed there any more. {error}"
        raise Permanent(detail, reason=error.reason) from None
    return found


async def _minted(app: Client, installation: int, wanted: dict[str, Any]) -> Token:
    made = await app.post(f"/app/installations/{installation}/access_tokens", wanted)
    return Token(str(made["token"]), moment(str(made.get("expires_at", ""))) or math.inf)


def moment(text: str) -> float:
    """A GitHub timestamp in seconds; 0 when it is not one."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


NEARLY_OVER = 300.0
"""A token with less than so many seconds left is not used: a clone may take that long."""


@dataclass(frozen=True, slots=True)
class Token:
    """A minted token, and when it expires."""

    value: str = field(repr=False)
    until: float = math.inf


class Tokens:
    """The tokens of one job, or of a few minutes of work outside jobs."""

    def __init__(self) -> None:
        self._latest: dict[Hashable, asyncio.Task[Token]] = {}
        self._minted: list[asyncio.Task[Token]] = []

    async def get(
        self, what: Hashable, mint: Callable[[], Coroutine[Any, Any, Token]], refused: str = ""
    ) -> str:
        """The token for this; a new one when GitHub refused it or it is about to expire."""
        minting = self._latest.get(what)
        if minting is None or _is_useless(minting, refused):
            minting = self._latest[what] = asyncio.create_task(mint())
            self._minted.append(minting)
        # A call that is given up must not lose the token that GitHub is about to make.
        return (await asyncio.shield(minting)).value

    async def end(self, revoke: Callable[[str], Awaitable[None]]) -> None:
        """Revoke all of them, also those still being minted; raises when GitHub refuses."""
        minted = await asyncio.gather(*self._minted, return_exceptions=True)
        values = [one.value for one in minted if isinstance(one, Token)]
        for failed in await asyncio.gather(*map(revoke, values), return_exceptions=True):
            if isinstance(failed, BaseException) and not _is_over(failed):
                raise failed


def _is_useless(minting: asyncio.Task[Token], refused: str) -> bool:
    if not minting.done():
        return False
    if minting.cancelled() or minting.exception() is not None:
        return True
    token = minting.result()
    return token.value == refused or token.until - time.time() < NEARLY_OVER


def _is_over(error: BaseException) -> bool:
    """Whether the token had already expired: GitHub ends them after an hour, and with the installation."""
    return isinstance(error, Permanent) and error.reason == "github.credentials"
