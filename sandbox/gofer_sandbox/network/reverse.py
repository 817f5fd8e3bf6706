"""The reverse proxy: plain HTTP inside, the rule's upstream outside, the credential added in between.

A Git LFS server answers a batch with addresses on other hosts and headers that open them. Neither enters the sandbox:
it gets addresses of this proxy instead, each good for one object, in one direction, while the grant lasts.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urljoin, urlsplit

import h11

from gofer_sandbox.errors import InvalidInput
from gofer_sandbox.network import git, http
from gofer_sandbox.network.caller import Callers
from gofer_sandbox.network.credential import Credential, Mask
from gofer_sandbox.network.dial import Dialer
from gofer_sandbox.network.errors import ProxyRefused, Unanswered
from gofer_sandbox.network.http import Headers, Peer
from gofer_sandbox.network.rules import GitAccess, Rule, decode_path, split_target

MAX_REQUEST = 1024 * 1024
MAX_ANSWER = 8 * 1024 * 1024
MAX_TRANSFERS = 20_000
MEDIA_TYPE = "application/vnd.git-lfs+json"
PLACE = "/.lfs/"
"""Below a rule's name, where its objects are."""
BATCH = "info/lfs/objects/batch"
LOCKS = "info/lfs/locks/verify"
_METHODS = {"download": "GET", "upload": "PUT", "verify": "POST"}


@dataclass(frozen=True, slots=True)
class Transfer:
    """One object on its way."""

    method: str
    href: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(repr=False)


def check_batch(body: bytes, access: GitAccess) -> None:
    """Raise ProxyRefused for a batch that may not be asked for."""
    try:
        wanted = json.loads(body)
        operation = wanted["operation"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ProxyRefused("the LFS batch cannot be read", status=400) from None
    if operation not in ("download", "upload"):
        raise ProxyRefused(f"LFS operation {operation!r} is not known", status=400)
    access.require(pushes=operation == "upload")


def rewrite_answer(answer: bytes, base: str, transfers: dict[str, Transfer]) -> bytes:
    """A batch's answer with addresses of this proxy; the real ones are kept in `transfers`."""
    try:
        found = json.loads(answer)
        for one in found["objects"]:
            actions = one.get("actions") or {}
            one["actions"] = {
                name: _ours(name, action, base, transfers)
                for name, action in actions.items()
                if name in _METHODS
            }
            if not one["actions"]:
                del one["actions"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ProxyRefused("the upstream's LFS answer cannot be read", status=502) from None
    found.pop("transfer", None)
    return json.dumps({**found, "transfer": "basic"}).encode()


def _ours(name: str, action: Mapping[str, Any], base: str, transfers: dict[str, Transfer]) -> dict[str, Any]:
    href = str(action["href"])
    if urlsplit(href).scheme not in ("http", "https") or not urlsplit(href).hostname:
        raise ProxyRefused("the upstream keeps an LFS object nowhere", status=502)
    if len(transfers) >= MAX_TRANSFERS:
        raise ProxyRefused("too many LFS objects for one grant", status=429)
    given = action.get("header") or {}
    token = secrets.token_urlsafe(24)
    transfers[token] = Transfer(
        _METHODS[name], href, tuple((str(key), str(value)) for key, value in given.items())
    )
    kept = {key: action[key] for key in ("expires_in", "expires_at") if key in action}
    return {"href": f"{base}{PLACE}{token}", **kept}


# What a sandbox must not tell the upstream: who it is, or another method than the one that was checked.
_NOT_SENT = (
    b"host", b"authorization", b"cookie", b"accept-encoding", b"forwarded", b"x-forwarded-for",
    b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip", b"x-http-method-override", b"x-http-method",
    b"x-method-override",
)  # fmt: skip
_NOT_RETURNED = (b"set-cookie", b"www-authenticate", b"authentication-info", b"alt-svc")
REVERSE_PORT = 3129
MAX_REPLAYED = 2 * 1024 * 1024
"""Bytes of a body that are kept until its answer has come: git asks with a small one before it sends a bigger."""


class CredentialRefused(ProxyRefused):
    """The upstream does not take the credential; nothing of its answer was passed on."""

    def __init__(self) -> None:
        super().__init__("the upstream did not accept the credential")


@dataclass(eq=False, slots=True)
class Grant:
    """A rule that is open, and what is under way through it."""

    rule: Rule
    callers: Callers | None = None
    holders: int = 0
    under_way: http.UnderWay = field(
        default_factory=lambda: http.UnderWay("the grant ended while the request was under way")
    )
    transfers: dict[str, Transfer] = field(default_factory=dict)
    """LFS objects that were asked for, by what their addresses end with."""
    moved: tuple[str, ...] = ()
    """Where the rule's paths turned out to be now."""
    known: git.Known = field(default_factory=git.Known)
    """What git was told of."""

    async def as_of_now(self, refused: Credential | None = None) -> Rule:
        """The rule with its credential, and the paths that are known to be its own by now."""
        rule = await self.rule.as_of_now(refused)
        return replace(rule, paths=(*rule.paths, *self.moved)) if self.moved else rule

    async def renewed(self, rule: Rule, client: Peer) -> Rule:
        """The rule with another credential than the one that was refused. Raises ProxyRefused when there is none, or
        when the body has gone and the request cannot be sent again."""
        if self.rule.lender is None or client.http.their_state is not h11.DONE:
            raise CredentialRefused
        again = await self.as_of_now(rule.credential)
        new, old = again.credential, rule.credential
        if new is None or old is None or new.reveal() == old.reveal():
            raise CredentialRefused
        return again

    async def look_again(self) -> Rule:
        """The rule after asking where its paths are now."""
        if self.rule.moved is not None:
            self.moved = tuple(await self.rule.moved())
        return replace(self.rule, paths=(*self.rule.paths, *self.moved))


class ReverseProxy:
    """Serves the upstreams of the rules that are granted at the moment."""

    name = "reverse"

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._grants: dict[str, Grant] = {}

    @asynccontextmanager
    async def grant(self, rule: Rule, callers: Callers | None) -> AsyncIterator[None]:
        """Open the rule for the length of the block; what is under way at its end is cut off."""
        grant = self._grants.setdefault(rule.name, Grant(rule, callers))
        if (grant.rule, grant.callers) != (rule, callers):
            raise InvalidInput(f"another rule named {rule.name!r} is open")
        grant.holders += 1
        try:
            yield
        finally:
            grant.holders -= 1
            if grant.holders == 0:
                del self._grants[rule.name]
                await grant.under_way.cut_all()

    async def handle(self, client: Peer, request: h11.Request) -> None:
        """Serve one request, or raise ProxyRefused."""
        name, path, query = split_target(request.target.decode("ascii", "replace"))
        grant = self._grants.get(name)
        if grant is None:
            raise ProxyRefused(f"no access named {name!r} is open now", host=name, path=path)
        try:
            async with grant.under_way.hold(grant.rule.host, grant.rule.port):
                if grant.callers is not None:
                    await grant.callers.require(client.ends)
                await self._serve(grant, client, request, path, query)
        except Unanswered as silence:
            raise ProxyRefused(str(silence), status=502, host=grant.rule.host, path=path) from None
        except ProxyRefused as refusal:
            refusal.host, refusal.port, refusal.path = grant.rule.host, grant.rule.port, path
            raise

    async def _serve(self, grant: Grant, client: Peer, request: h11.Request, path: str, query: str) -> None:
        if grant.rule.git is not None and path.startswith(PLACE):
            await self._transfer(grant, client, request, path.removeprefix(PLACE))
            return
        rule = await grant.as_of_now()
        if rule.git is not None and (rest := rule.lfs_path(decode_path(path))):
            await self._lfs(grant, rule, client, request, path, rest)
            return
        service = _checked(rule, request.method.decode(), decode_path(path), query)
        body = http.framing(request)
        early = b""
        refs = None
        if service is not None and request.method == b"GET":
            fetches = service == "git-upload-pack"
            # What is advertised to a push may be named by what others have, and is not known to a fetch.
            refs = git.RefFilter(grant.known if fetches else git.Known())
        elif service == "git-upload-pack" and rule.git is not None:
            early, asked = await _fetch_request(client, request)
            await git.check_fetch(asked, rule.git, grant.known)
            refs = git.RefFilter(grant.known) if asked.lists_refs else None
        if service == "git-receive-pack" and request.method == b"POST" and rule.git is not None:
            push = await _push_head(client, request)
            reasons = git.objections(push, rule.git)
            if not reasons and rule.git.objections is not None:
                refs_named = [update.ref for update in push.updates]
                reasons = await git.ask_objections(rule.git.objections, refs_named)
            if reasons:
                told = "; ".join(f"push to {ref}: {reason}" for ref, reason in reasons.items())
                raise ProxyRefused(told, report=git.rejection(push, reasons))
            early = push.data
        target = f"{path}?{query}" if query else path
        early += await _small_body(client, request)

        async def attempt(rule: Rule) -> None:
            head = http.request_head(request.method, target, _host(rule), _headers_out(rule, request) + body)
            answer = MaskedAnswer(rule, target, grant, refs, Mask(rule.secrets))
            async with self._upstream(rule, client) as upstream:
                await http.exchange(client, upstream, head, answer.pass_on, early)

        try:
            await attempt(rule)
        except CredentialRefused:
            await attempt(await grant.renewed(rule, client))

    async def _lfs(
        self, grant: Grant, rule: Rule, client: Peer, request: h11.Request, path: str, rest: str
    ) -> None:
        """Answer a batch of LFS. git-lfs asks for locks with every push; the answer is that there are none."""
        assert rule.git is not None
        if request.method == b"POST" and rest == LOCKS:
            await http.answer(client, 404, b'{"message": "Not Found"}', MEDIA_TYPE)
            return
        if (request.method, rest) != (b"POST", BATCH):
            raise ProxyRefused(f"only git's smart HTTP to {', '.join(rule.paths)} is allowed here")
        body = await http.read_body(client, MAX_REQUEST)
        check_batch(body, rule.git)
        status, told = await self._ask(rule, client, path, body)
        if status == 401:
            rule = await grant.renewed(rule, client)
            status, told = await self._ask(rule, client, path, body)
        if status == 401:
            raise CredentialRefused
        if status == 200:
            told = rewrite_answer(told, inner_url(rule), grant.transfers)
        await http.answer(client, status, Mask(rule.secrets).masked(told), MEDIA_TYPE)

    async def _ask(self, rule: Rule, client: Peer, path: str, body: bytes) -> tuple[int, bytes]:
        """A request of ours with the rule's credential, and its whole answer."""
        kind = MEDIA_TYPE.encode()
        headers = [
            (b"accept", kind), (b"content-type", kind), (b"accept-encoding", b"identity"),
            (b"content-length", str(len(body)).encode()),
        ]  # fmt: skip
        if rule.credential is not None:
            headers.append((rule.credential.header.encode(), rule.credential.reveal()))
        async with self._upstream(rule, client) as upstream:
            await upstream.send(http.request_head(b"POST", path, _host(rule), headers))
            await upstream.send(h11.Data(data=body), h11.EndOfMessage())
            response = await http.receive_head(upstream)
            return response.status_code, await http.read_body(upstream, MAX_ANSWER)

    async def _transfer(self, grant: Grant, client: Peer, request: h11.Request, token: str) -> None:
        """One object to or from where it is kept; the rule's credential has no business there."""
        known = grant.transfers.get(token)
        if known is None or known.method.encode() != request.method:
            raise ProxyRefused("no LFS object was asked for by this address")
        goal = urlsplit(known.href)
        secure = goal.scheme == "https"
        given = {name.lower().encode(): value.encode() for name, value in known.headers}
        kept = (b"content-length", b"content-type", b"range")
        own = [(name, value) for name, value in request.headers if name in kept and name not in given]
        headers = [*own, *given.items(), (b"accept-encoding", b"identity"), *http.framing(request)]
        target = f"{goal.path or '/'}{f'?{goal.query}' if goal.query else ''}"
        head = http.request_head(request.method, target, goal.netloc.rpartition("@")[2], headers)
        port, private = goal.port or (443 if secure else 80), grant.rule.allow_private
        async with self._dialer.upstream(
            client, goal.hostname or "", port, secure=secure, allow_private=private
        ) as upstream:
            await http.exchange(client, upstream, head, _pass_object)

    def _upstream(self, rule: Rule, client: Peer) -> AbstractAsyncContextManager[Peer]:
        return self._dialer.upstream(
            client, rule.host, rule.port, secure=rule.secure, allow_private=rule.allow_private
        )


async def _pass_object(client: Peer, upstream: Peer, response: h11.Response) -> None:
    if 300 <= response.status_code < 400:
        raise ProxyRefused("an LFS object is sent for elsewhere", status=502)
    await http.relay_answer(client, upstream, response, *_NOT_RETURNED)


@dataclass(slots=True)
class MaskedAnswer:
    """Brings an upstream's answer back without its credential, cookies or ways to other hosts."""

    rule: Rule
    target: str
    grant: Grant
    refs: git.RefFilter | None
    mask: Mask

    async def pass_on(self, client: Peer, upstream: Peer, response: h11.Response) -> None:
        """Send status, headers and body on, masked."""
        if response.status_code == 401 and self.rule.credential is not None:
            raise CredentialRefused
        headers = await self._headers(response)
        if response.status_code != 200:
            self.refs = None
        if self.refs is not None:
            headers = [(name, value) for name, value in headers if name != b"content-length"]
        reason = self.mask.masked(response.reason)
        await client.send(h11.Response(status_code=response.status_code, headers=headers, reason=reason))
        await self._body(client, upstream)

    async def _body(self, client: Peer, upstream: Peer) -> None:
        mask = self.mask
        while isinstance(event := await upstream.receive(), h11.Data):
            data = bytes(event.data) if self.refs is None else self.refs.feed(bytes(event.data))
            if safe := mask.feed(data):
                await client.send(h11.Data(data=safe))
        if not isinstance(event, h11.EndOfMessage):
            raise http.BodyCutOff
        if rest := mask.feed(self.refs.rest() if self.refs is not None else b"") + mask.rest():
            await client.send(h11.Data(data=rest))
        await client.send(h11.EndOfMessage())

    async def _headers(self, response: h11.Response) -> Headers:
        found = http.end_to_end(response.headers, *_NOT_RETURNED)
        secrets = [secret.lower() for secret in self.rule.secrets]
        kept = [(n, self.mask.masked(v)) for n, v in found if not any(secret in n for secret in secrets)]
        if any(name == b"content-encoding" and value.lower() != b"identity" for name, value in kept):
            raise ProxyRefused("the upstream's answer is compressed and cannot be checked", status=502)
        return [(n, await self._location(v) if n == b"location" else v) for n, v in kept]

    async def _location(self, value: bytes) -> bytes:
        """A redirect within the rule, as an address of this proxy; any other is refused."""
        try:
            goal = urlsplit(urljoin(self.rule.upstream + self.target, value.decode("ascii")))
            port = goal.port or (443 if goal.scheme == "https" else 80)
        except ValueError:
            raise ProxyRefused("the upstream redirects to something unreadable", status=502) from None
        same = (goal.scheme == "https") == self.rule.secure and port == self.rule.port
        if not same or goal.hostname != self.rule.host:
            raise ProxyRefused(f"the upstream redirects to another host: {goal.hostname}", status=502)
        path = decode_path(goal.path or "/")
        if not self.rule.permits(path) and not (await self.grant.look_again()).permits(path):
            raise ProxyRefused("the upstream redirects to a path that is not allowed", status=502)
        query = f"?{goal.query}" if goal.query else ""
        return inner_url(self.rule, f"{goal.path or '/'}{query}").encode()


def inner_url(rule: Rule, path: str = "") -> str:
    """Where a program inside finds a path of the rule's upstream."""
    return f"http://127.0.0.1:{REVERSE_PORT}/{rule.name}{path}"


def _checked(rule: Rule, method: str, path: str, query: str) -> str | None:
    """The git service asked for, None under a rule without git; ProxyRefused for what the rule does not allow."""
    if rule.git is None:
        if method not in rule.methods:
            raise ProxyRefused(f"{method} is not allowed here, only {', '.join(rule.methods)}")
        if not rule.permits(path):
            raise ProxyRefused(f"only {', '.join(rule.paths)} may be reached here")
        return None
    service = rule.git_service(method, path, query)
    if service is None:
        raise ProxyRefused(f"only git's smart HTTP to {', '.join(rule.paths)} is allowed here")
    rule.git.require(pushes=service == "git-receive-pack")
    return service


def _host(rule: Rule) -> str:
    return urlsplit(rule.upstream).netloc


def _headers_out(rule: Rule, request: h11.Request) -> Headers:
    credential = rule.credential
    dropped = (*_NOT_SENT, credential.header.lower().encode()) if credential else _NOT_SENT
    headers = http.end_to_end(request.headers, *dropped)
    # Compressed answers could not be searched for the credential.
    headers.append((b"accept-encoding", b"identity"))
    if credential is not None:
        headers.append((credential.header.encode(), credential.reveal()))
    return headers


async def _push_head(client: Peer, request: h11.Request) -> git.PushHead:
    if any(name == b"content-encoding" for name, _ in request.headers):
        raise ProxyRefused("a compressed push cannot be checked", status=415)
    push = git.PushHead()
    while not push.complete:
        event = await client.receive()
        if not isinstance(event, h11.Data):
            raise ProxyRefused("the push was cut off", status=400)
        push.feed(bytes(event.data))
    empty = not push.updates
    if empty and (len(push.data) > git.NOTHING or not isinstance(await client.receive(), h11.EndOfMessage)):
        # Git asks with an empty push whether it may push at all; what stands behind one is nothing it reads.
        raise ProxyRefused("the push names nothing, and goes on", status=400)
    return push


async def _small_body(client: Peer, request: h11.Request) -> bytes:
    """What is left of a body whose length is known and small, so that it can be sent a second time; else nothing."""
    declared = [value for name, value in request.headers if name == b"content-length"]
    chunked = any(name == b"transfer-encoding" for name, _ in request.headers)
    if chunked or int(declared[0] if declared else 0) > MAX_REPLAYED or client.http.their_state is h11.DONE:
        return b""
    return await http.read_body(client, MAX_REPLAYED)


async def _fetch_request(client: Peer, request: h11.Request) -> tuple[bytes, git.FetchRequest]:
    """The whole body of a fetch's request, to be passed on unchanged, and what it asks for."""
    body = await http.read_body(client, git.MAX_FETCH)
    encodings = [value.strip().lower() for name, value in request.headers if name == b"content-encoding"]
    if len(encodings) > 1:
        raise ProxyRefused("a fetch in two compressions cannot be checked", status=415)
    data = await asyncio.to_thread(git.decompress, body, *encodings or [b""])
    return body, await asyncio.to_thread(git.FetchRequest.parse, data)
