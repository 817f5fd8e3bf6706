"""The reverse proxy: plain HTTP inside, the rule's upstream outside, the credential added in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from urllib.parse import urljoin, urlsplit

import h11

from gofer_sandbox.errors import InvalidInput
from gofer_sandbox.network import git
from gofer_sandbox.network.caller import Callers
from gofer_sandbox.network.credential import Mask
from gofer_sandbox.network.dial import Dialer
from gofer_sandbox.network.errors import Refused, Unanswered
from gofer_sandbox.network.exchange import closing, exchange, request_head
from gofer_sandbox.network.http import BodyCutOff, Headers, Peer, end_to_end, framing, relay_body
from gofer_sandbox.network.paths import decoded, git_service, permitted, split_target
from gofer_sandbox.network.rules import GitAccess, Rule

# What a sandbox must not tell the upstream: who it is, or another method than the one that was checked.
_NOT_SENT = (
    b"host", b"authorization", b"cookie", b"accept-encoding", b"forwarded", b"x-forwarded-for",
    b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip", b"x-http-method-override", b"x-http-method",
    b"x-method-override",
)  # fmt: skip
_NOT_RETURNED = (b"set-cookie", b"www-authenticate", b"authentication-info", b"alt-svc")


@dataclass(eq=False, slots=True)
class Grant:
    """A rule that is open, and what is under way through it."""

    rule: Rule
    callers: Callers | None = None
    holders: int = 0
    under_way: set[asyncio.Timeout] = field(default_factory=set)
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    moved: tuple[str, ...] = ()
    """Where the rule's paths turned out to be now."""

    async def as_of_now(self) -> Rule:
        """The rule with its credential, and the paths that are known to be its own by now."""
        rule = await self.rule.as_of_now()
        return replace(rule, paths=(*rule.paths, *self.moved)) if self.moved else rule

    async def look_again(self) -> Rule:
        """The rule after asking where its paths are now."""
        if self.rule.moved is not None:
            self.moved = tuple(await self.rule.moved())
        return replace(self.rule, paths=(*self.rule.paths, *self.moved))

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Hold one request, which is cut off when the grant ends."""
        deadline = asyncio.timeout(None)
        try:
            async with deadline:
                self.under_way.add(deadline)
                yield
        except TimeoutError:
            if deadline.expired():
                raise Refused("the grant ended while the request was under way") from None
            raise
        finally:
            self.under_way.discard(deadline)
            if not self.under_way:
                self.quiet.set()

    async def cut(self) -> None:
        """End everything under way and wait until it has ended."""
        self.quiet.clear()
        for deadline in self.under_way:
            deadline.reschedule(asyncio.get_running_loop().time())
        if self.under_way:
            await self.quiet.wait()


class ReverseProxy:
    """Serves the upstreams of the rules that are granted at the moment."""

    name = "reverse"

    def __init__(self, dialer: Dialer, port: int) -> None:
        self._dialer = dialer
        self._port = port
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
                await grant.cut()

    async def handle(self, client: Peer, request: h11.Request) -> None:
        """Serve one request, or raise Refused."""
        name, path, query = split_target(request.target.decode("ascii", "replace"))
        grant = self._grants.get(name)
        if grant is None:
            raise Refused(f"no access named {name!r} is open now", host=name, path=path)
        try:
            async with grant.passing():
                if grant.callers is not None and not await asyncio.to_thread(grant.callers.made, client.ends):
                    raise Refused("this program was not started by the commands that it is open for")
                await self._serve(grant, client, request, path, query)
        except Unanswered as silence:
            raise Refused(str(silence), status=502, host=grant.rule.host, path=path) from None
        except Refused as refusal:
            refusal.host, refusal.port, refusal.path = grant.rule.host, grant.rule.port, path
            raise

    async def _serve(self, grant: Grant, client: Peer, request: h11.Request, path: str, query: str) -> None:
        rule = await grant.as_of_now()
        service = _checked(rule, request.method.decode(), decoded(path), query)
        headers = _headers_out(rule, request) + framing(request)
        early = b""
        if service == "git-receive-pack" and request.method == b"POST" and rule.git is not None:
            push = await _push_head(client, request)
            reasons = git.objections(push, rule.git) or await _more_objections(push, rule.git)
            if reasons:
                told = "; ".join(f"push to {ref}: {reason}" for ref, reason in reasons.items())
                raise Refused(told, report=git.rejection(push, reasons))
            early = push.data
        target = f"{path}?{query}" if query else path
        head = request_head(request.method, target, _host(rule), headers)
        await self._exchange(Answer(rule, self._port, target, grant), client, head, early)

    async def _exchange(self, answer: Answer, client: Peer, head: h11.Request, early: bytes) -> None:
        rule = answer.rule
        reader, writer = await self._dialer.connect(
            rule.host, rule.port, secure=rule.secure, allow_private=rule.allow_private
        )
        async with closing(Peer(h11.CLIENT, reader, writer, client.meter, client.limits)) as upstream:

            async def send_body() -> None:
                if early:
                    await upstream.send(h11.Data(data=early))
                await relay_body(client, upstream)

            await exchange(client, upstream, head, send_body, answer.pass_on)


class Answer:
    """Brings an upstream's answer back without its credential, cookies or ways to other hosts."""

    def __init__(self, rule: Rule, port: int, target: str, grant: Grant) -> None:
        self.rule = rule
        self._grant = grant
        self._port = port
        self._target = target
        self._secrets = rule.credential.secrets if rule.credential else ()

    async def pass_on(self, client: Peer, upstream: Peer, response: h11.Response) -> None:
        """Send status, headers and body on, masked."""
        if response.status_code == 401 and self.rule.credential is not None:
            raise Refused("the upstream did not accept the credential")
        headers = await self._headers(response)
        await client.send(
            h11.Response(
                status_code=response.status_code, headers=headers, reason=self._masked(response.reason)
            )
        )
        await self._body(client, upstream)

    async def _body(self, client: Peer, upstream: Peer) -> None:
        mask = Mask(self._secrets)
        while isinstance(event := await upstream.receive(), h11.Data):
            if safe := mask.feed(bytes(event.data)):
                await client.send(h11.Data(data=safe))
        if not isinstance(event, h11.EndOfMessage):
            raise BodyCutOff
        if rest := mask.rest():
            await client.send(h11.Data(data=rest))
        await client.send(h11.EndOfMessage())

    async def _headers(self, response: h11.Response) -> Headers:
        found = end_to_end(response.headers, *_NOT_RETURNED)
        kept = [(n, self._masked(v)) for n, v in found if not self._names_secret(n)]
        if any(name == b"content-encoding" and value.lower() != b"identity" for name, value in kept):
            raise Refused("the upstream's answer is compressed and cannot be checked", status=502)
        return [(n, await self._location(v) if n == b"location" else v) for n, v in kept]

    def _names_secret(self, name: bytes) -> bool:
        return any(secret.lower() in name for secret in self._secrets)

    async def _location(self, value: bytes) -> bytes:
        """A redirect within the rule, as an address of this proxy; any other is refused."""
        try:
            goal = urlsplit(urljoin(self.rule.upstream + self._target, value.decode("ascii")))
            port = goal.port or (443 if goal.scheme == "https" else 80)
        except ValueError:
            raise Refused("the upstream redirects to something unreadable", status=502) from None
        same = (goal.scheme == "https") == self.rule.secure and port == self.rule.port
        if not same or goal.hostname != self.rule.host:
            raise Refused(f"the upstream redirects to another host: {goal.hostname}", status=502)
        path = decoded(goal.path or "/")
        if not permitted(self.rule, path) and not permitted(await self._grant.look_again(), path):
            raise Refused("the upstream redirects to a path that is not allowed", status=502)
        query = f"?{goal.query}" if goal.query else ""
        return f"http://127.0.0.1:{self._port}/{self.rule.name}{goal.path or '/'}{query}".encode()

    def _masked(self, value: bytes) -> bytes:
        mask = Mask(self._secrets)
        return mask.feed(value) + mask.rest()


def _checked(rule: Rule, method: str, path: str, query: str) -> str | None:
    """The git service asked for, None under a rule without git; Refused for what the rule does not allow."""
    if rule.git is None:
        if method not in rule.methods:
            raise Refused(f"{method} is not allowed here, only {', '.join(rule.methods)}")
        if not permitted(rule, path):
            raise Refused(f"only {', '.join(rule.paths)} may be reached here")
        return None
    service = git_service(rule, method, path, query)
    if service is None:
        raise Refused(f"only git's smart HTTP to {', '.join(rule.paths)} is allowed here")
    if not _serves(rule.git, service):
        raise Refused(
            "this sandbox may not push here" if service == "git-receive-pack" else "fetching is closed"
        )
    return service


def _serves(access: GitAccess, service: str) -> bool:
    return access.fetch if service == "git-upload-pack" else bool(access.push)


def _host(rule: Rule) -> str:
    return urlsplit(rule.upstream).netloc


def _headers_out(rule: Rule, request: h11.Request) -> Headers:
    credential = rule.credential
    dropped = (*_NOT_SENT, credential.header.lower().encode()) if credential else _NOT_SENT
    headers = end_to_end(request.headers, *dropped)
    # Compressed answers could not be searched for the credential.
    headers.append((b"accept-encoding", b"identity"))
    if credential is not None:
        headers.append((credential.header.encode(), credential.reveal()))
    return headers


async def _more_objections(push: git.PushHead, access: GitAccess) -> dict[str, str]:
    """What whoever made the rule knows about these refs; while they do not say, none may be changed."""
    if access.objections is None:
        return {}
    refs = [update.ref for update in push.updates]
    try:
        found = await access.objections(refs)
    except Unanswered as silence:
        found = dict.fromkeys(refs, str(silence))
    return {ref: " ".join(reason.split()) for ref, reason in found.items()}


async def _push_head(client: Peer, request: h11.Request) -> git.PushHead:
    if any(name == b"content-encoding" for name, _ in request.headers):
        raise Refused("a compressed push cannot be checked", status=415)
    push = git.PushHead()
    while not push.complete:
        event = await client.receive()
        if not isinstance(event, h11.Data):
            raise Refused("the push was cut off", status=400)
        push.feed(bytes(event.data))
    if not push.updates and (len(push.data) > git.NOTHING or not await _is_over(client)):
        # Git asks with an empty push whether it may push at all; what stands behind one is nothing it reads.
        raise Refused("the push names nothing, and goes on", status=400)
    return push


async def _is_over(client: Peer) -> bool:
    return isinstance(await client.receive(), h11.EndOfMessage)
