"""A sandbox's way out: two proxies that listen inside its network namespace and run outside."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import h11

from gofer_sandbox import processes, tree
from gofer_sandbox.errors import SandboxGone, shown
from gofer_sandbox.kernel import closing
from gofer_sandbox.network.caller import Callers, command_behind
from gofer_sandbox.network.dial import Dialer, Resolve, SystemResolver
from gofer_sandbox.network.errors import EgressUnavailable, PortTaken, ProxyRefused
from gofer_sandbox.network.forward import ForwardProxy
from gofer_sandbox.network.http import EgressLimits, Meter, Peer, answer, drain
from gofer_sandbox.network.reverse import REVERSE_PORT, ReverseProxy, inner_url
from gofer_sandbox.network.rules import AllowedHost, Rule
from gofer_sandbox.records import Reference

_FORWARD_PORT = 3128
_MAX_REFUSALS = 256
_MAX_DISCARDED = 1024 * 1024
_MAX_PUSH_DISCARDED = 256 * 1024 * 1024
_RETRY_SECONDS = 0.1
_ENVIRONMENT = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), f"http://127.0.0.1:{_FORWARD_PORT}")
_ENVIRONMENT["no_proxy"] = "127.0.0.1,localhost,::1"
_ENVIRONMENT |= {name.upper(): value for name, value in _ENVIRONMENT.items()}


@dataclass(frozen=True, slots=True)
class BlockedRequest:
    """One request that was not let through.

    Its texts come from the sandbox and are made short and printable. `command` is the program that asked, as
    it was called; "" where it could not be found.
    """

    proxy: str
    method: str
    host: str
    port: int
    path: str
    reason: str
    command: str = ""
    when: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        for name in ("method", "host", "path", "reason", "command"):
            object.__setattr__(self, name, shown(getattr(self, name)))


class Egress:
    """Opens one sandbox's network as far as it is told to, and no further.

    Allowed hosts are reached through the forward proxy that `environment` names. A granted rule is reached
    through the reverse proxy, which adds the rule's credential outside, so that it never enters the sandbox.
    """

    def __init__(
        self,
        hosts: Sequence[AllowedHost | str] = (),
        *,
        limits: EgressLimits | None = None,
        on_refusal: Callable[[BlockedRequest], None] | None = None,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`on_refusal` is told of every refusal and must neither raise nor block."""
        self._limits = limits or EgressLimits()
        self._on_refusal = on_refusal
        self._latest: deque[BlockedRequest] = deque(maxlen=_MAX_REFUSALS)
        self._meter = Meter(self._limits.total_bytes)
        dialer = Dialer(resolve or SystemResolver(), self._limits.connect_seconds, tls)
        self._forward = ForwardProxy(_allowed(hosts), dialer)
        self._reverse = ReverseProxy(dialer)
        self._services: list[_Service] = []
        self.environment: Mapping[str, str] = _ENVIRONMENT

    async def open(self, reference: Reference) -> None:
        """Begin to serve that sandbox. Do this before its first command, or one could take the ports."""
        await self.close()
        sockets = await listen_inside(reference, (_FORWARD_PORT, REVERSE_PORT))
        proxies: tuple[ForwardProxy | ReverseProxy, ...] = (self._forward, self._reverse)
        for proxy, listening in zip(proxies, sockets, strict=True):
            self._services.append(
                _Service(proxy, listening, reference.pid, self._limits, self._meter, self._refuse)
            )

    async def close(self) -> None:
        """Serve nothing more and end what is under way."""
        services, self._services = self._services, []
        for service in services:
            await service.close()

    def grant(self, rule: Rule, callers: Callers | None = None) -> AbstractAsyncContextManager[None]:
        """Open a rule for the length of the block, to certain programs if they are given; its end cuts off what is
        under way."""
        return self._reverse.grant(rule, callers)

    def allow(
        self, hosts: Sequence[AllowedHost | str], callers: Callers | None = None, why: str = ""
    ) -> None:
        """Have the forward proxy reach these hosts from now on and no others, for certain programs if they are given;
        `why` is what the others are told. What is under way to a host that is closed now is cut off."""
        self._forward.allow(_allowed(hosts), callers, why)

    @property
    def refusals(self) -> tuple[BlockedRequest, ...]:
        """The latest refusals, oldest first."""
        return tuple(self._latest)

    def _refuse(self, refusal: BlockedRequest) -> None:
        self._latest.append(refusal)
        if self._on_refusal is not None:
            self._on_refusal(refusal)

    def url(self, rule: Rule, path: str = "/") -> str:
        """Where a program inside finds a path of the rule's upstream."""
        return inner_url(rule, path)

    def git_config(self, rule: Rule) -> str:
        """Lines of a git configuration file that send the rule's repositories through the proxy. No secrets in it."""
        home = self.url(rule)
        lines = [f'[http "{home}"]', '\tproxy = ""', f'[credential "{home}"]', '\thelper = ""']
        for path in rule.paths:
            bare = path.rstrip("/").removesuffix(".git")
            lines.append(f'[url "{self.url(rule, bare)}"]')
            for place in (
                rule.upstream + bare,
                f"git@{rule.host}:{bare.lstrip('/')}",
                f"ssh://git@{rule.host}{bare}",
            ):
                lines.append(f'\tinsteadOf = "{place}"')
        return "\n".join(lines) + "\n"


class _Service:
    """One listening socket and its connections, served one request after another, within limits."""

    def __init__(
        self,
        proxy: ForwardProxy | ReverseProxy,
        listening: socket.socket,
        keeper: int,
        limits: EgressLimits,
        meter: Meter,
        report: Callable[[BlockedRequest], None],
    ) -> None:
        """Begin to accept; takes the socket over. `keeper` is the sandbox's first process, below which the connections'
        programs are found."""
        listening.setblocking(False)
        self._proxy, self._listening, self._keeper = proxy, listening, keeper
        self._looking = asyncio.Lock()  # one search at a time: who provokes many waits for his own
        self._limits = limits
        self._meter = meter
        self._report = report
        self._connections: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(limits.connections)
        self._accepting = asyncio.create_task(self._accept())

    async def close(self) -> None:
        """Stop accepting and end every connection."""
        tasks = [*self._connections, self._accepting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listening.close()

    async def _accept(self) -> None:
        """Accept only what there is a place for. The rest waits in the kernel's bounded backlog, where it costs
        this process no descriptor, however many a sandbox opens."""
        while True:
            await self._places.acquire()
            try:
                await _readable(self._listening)
                connection, _ = self._listening.accept()
            except OSError:  # it went away again, or this process has no descriptor left for now
                self._places.release()
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            connection.setblocking(False)
            task = asyncio.create_task(self._connected(connection))
            self._connections.add(task)
            task.add_done_callback(partial(self._gone, connection))

    def _gone(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        """Close what a task that was cancelled before it began could not."""
        connection.close()
        self._connections.discard(task)
        self._places.release()

    async def _connected(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        meter = Meter(self._limits.connection_bytes, self._meter)
        client = Peer(h11.SERVER, reader, writer, meter, self._limits)
        try:
            async with asyncio.timeout(self._limits.connection_seconds):
                await self._requests(client)
        except (OSError, TimeoutError, h11.LocalProtocolError, h11.RemoteProtocolError):
            pass  # the other side went away or fell silent: there is nobody to tell
        finally:
            await client.close()

    async def _requests(self, client: Peer) -> None:
        """Serve requests until one is refused or the connection is used up."""
        while True:
            request: h11.Request | None = None
            try:
                event = await client.receive(self._limits.header_seconds)
                if not isinstance(event, h11.Request):
                    return
                request = event
                await self._proxy.handle(client, request)
            except ProxyRefused as refusal:
                await self._refuse(client, request, refusal)
                return
            if client.http.our_state is not h11.DONE or client.http.their_state is not h11.DONE:
                return
            client.http.start_next_cycle()

    async def _refuse(self, client: Peer, request: h11.Request | None, refusal: ProxyRefused) -> None:
        """Tell the caller first: while the program waits for its answer, it can still be found."""
        method = request.method.decode("ascii", "replace") if request else ""
        async with self._looking:
            command = await asyncio.to_thread(command_behind, self._keeper, client.ends)
        name, host, port, path = self._proxy.name, refusal.host, refusal.port, refusal.path
        self._report(BlockedRequest(name, method, host, port, path, refusal.reason, command))
        if refusal.report is None:
            await answer(client, refusal.status, f"Refused by the sandbox: {refusal.reason}\n".encode())
            await drain(client, _MAX_DISCARDED, 2)
        else:
            await drain(client, _MAX_PUSH_DISCARDED, self._limits.idle_seconds)
            await answer(client, 200, refusal.report, refusal.report_type)


async def _readable(listening: socket.socket) -> None:
    """Wait until somebody connects. The loop's own `sock_accept`, cancelled when it has just accepted, leaves a
    connection that nobody closes."""
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()
    loop.add_reader(listening, woken.set)
    try:
        await woken.wait()
    finally:
        loop.remove_reader(listening)


def _allowed(hosts: Sequence[AllowedHost | str]) -> list[AllowedHost]:
    return [AllowedHost(host) if isinstance(host, str) else host for host in hosts]


_HELPER = Path(__file__).with_name("enter.py")
_TIMEOUT = 20.0


async def listen_inside(reference: Reference, ports: tuple[int, ...]) -> list[socket.socket]:
    """Sockets listening on those ports of the sandbox's own 127.0.0.1, held by this process outside it: nothing runs
    inside that a command could kill, and no socket file is shown to it."""
    with closing(_network_of(reference)) as namespace:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                await _run_helper(namespace, theirs.fileno(), ports)
            return _received(ours, ports)


def _network_of(reference: Reference) -> int:
    """The namespace, opened through the process's own directory so that a reused pid cannot be meant."""
    try:
        with closing(tree.open_directory(f"/proc/{reference.pid}")) as process:
            if reference.start and processes.start_time(reference.pid) != reference.start:
                raise SandboxGone
            return os.open("ns/net", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)
    except PermissionError:
        raise EgressUnavailable(
            "cannot open the sandbox's network namespace: run as root or as the user it belongs to"
        ) from None
    except (FileNotFoundError, ProcessLookupError):
        raise SandboxGone from None


async def _run_helper(namespace: int, channel: int, ports: tuple[int, ...]) -> None:
    # -I and -S: the helper must not read this environment or any site-packages, and starts faster.
    helper = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        str(_HELPER),
        str(namespace),
        str(channel),
        *map(str, ports),
        pass_fds=(namespace, channel),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
    )
    try:
        await asyncio.wait_for(helper.wait(), _TIMEOUT)
    except TimeoutError:
        helper.kill()
        await helper.wait()
        raise EgressUnavailable("entering the sandbox's network namespace took too long") from None


def _received(channel: socket.socket, ports: tuple[int, ...]) -> list[socket.socket]:
    said, fds, _, _ = socket.recv_fds(channel, 256, len(ports))  # all of them, or none
    if fds:
        return [socket.socket(fileno=fd) for fd in fds]
    raise _explained(said.decode(errors="replace"), ports)


def _explained(said: str, ports: tuple[int, ...]) -> EgressUnavailable:
    if said.startswith(f"E{errno.EADDRINUSE} "):
        return PortTaken(
            f"a process in the sandbox already listens on one of the ports {', '.join(map(str, ports))}"
        )
    if said.startswith(f"E{errno.EPERM} "):
        return EgressUnavailable(
            "not allowed to enter the sandbox's network namespace: run as root or as the user who made it"
        )
    return EgressUnavailable(
        f"could not listen in the sandbox's network namespace: {said[1:] or 'the helper ended early'}"
    )
