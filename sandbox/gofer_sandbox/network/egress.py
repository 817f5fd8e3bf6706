"""A sandbox's way out: two proxies that listen inside its network namespace and run outside."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from gofer_sandbox.network.caller import Callers
from gofer_sandbox.network.dial import Dialer, Resolve, SystemResolver
from gofer_sandbox.network.forward import ForwardProxy
from gofer_sandbox.network.limits import EgressLimits, Meter
from gofer_sandbox.network.listeners import listen_inside
from gofer_sandbox.network.refusals import Refusal, Refusals
from gofer_sandbox.network.reverse import ReverseProxy
from gofer_sandbox.network.rules import AllowedHost, Rule
from gofer_sandbox.network.service import Handler, Service
from gofer_sandbox.record import Reference


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
        on_refusal: Callable[[Refusal], None] | None = None,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
        forward_port: int = 3128,
        reverse_port: int = 3129,
    ) -> None:
        """`on_refusal` is told of every refusal and must neither raise nor block."""
        self._limits = limits or EgressLimits()
        self._ports = (forward_port, reverse_port)
        self._refusals = Refusals(on_refusal)
        self._meter = Meter(self._limits.total_bytes)
        dialer = Dialer(resolve or SystemResolver(), self._limits.connect_seconds, tls)
        self._forward = ForwardProxy(_allowed(hosts), dialer)
        self._reverse = ReverseProxy(dialer, reverse_port)
        self._services: list[Service] = []
        self.environment: Mapping[str, str] = _environment(forward_port)

    async def open(self, reference: Reference) -> None:
        """Begin to serve that sandbox. Do this before its first command, or one could take the ports."""
        await self.close()
        sockets = await listen_inside(reference, self._ports)
        handlers: tuple[Handler, Handler] = (self._forward, self._reverse)
        for handler, listening in zip(handlers, sockets, strict=True):
            service = Service(handler, reference.pid, self._limits, self._meter, self._refusals)
            service.start(listening)
            self._services.append(service)

    async def close(self) -> None:
        """Serve nothing more and end what is under way."""
        services, self._services = self._services, []
        for service in services:
            await service.close()

    @asynccontextmanager
    async def grant(self, rule: Rule, callers: Callers | None = None) -> AsyncIterator[None]:
        """Open a rule for the length of the block, to certain programs if they are given; its end cuts off what is
        under way."""
        async with self._reverse.grant(rule, callers):
            yield

    def allow(
        self, hosts: Sequence[AllowedHost | str], callers: Callers | None = None, why: str = ""
    ) -> None:
        """Have the forward proxy reach these hosts from now on and no others, for certain programs if they are given;
        `why` is what the others are told. What is under way to a host that is closed now is cut off."""
        self._forward.allow(_allowed(hosts), callers, why)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """The latest refusals, oldest first."""
        return self._refusals.latest()

    @property
    def refused(self) -> int:
        """How many requests were refused in all."""
        return self._refusals.count

    def url(self, rule: Rule, path: str = "/") -> str:
        """Where a program inside finds a path of the rule's upstream."""
        return f"http://127.0.0.1:{self._ports[1]}/{rule.name}{path}"

    def git_settings(self, rule: Rule) -> list[tuple[str, str]]:
        """Git's configuration that sends the rule's repositories through the proxy. No secrets in it."""
        home = self.url(rule)
        settings = [(f"http.{home}.proxy", ""), (f"credential.{home}.helper", "")]
        for path in rule.paths:
            bare = path.rstrip("/").removesuffix(".git")
            key = f"url.{self.url(rule, bare)}.insteadOf"
            settings += [
                (key, f"{rule.upstream}{bare}"),
                (key, f"git@{rule.host}:{bare.lstrip('/')}"),
                (key, f"ssh://git@{rule.host}{bare}"),
            ]
        return settings

    def git_config(self, rule: Rule) -> str:
        """The same as lines of a git configuration file."""
        lines = []
        for key, value in self.git_settings(rule):
            section, rest = key.split(".", 1)
            name, _, variable = rest.rpartition(".")
            lines += [f'[{section} "{name}"]', f'\t{variable} = "{value}"']
        return "\n".join(lines) + "\n"


def _allowed(hosts: Sequence[AllowedHost | str]) -> list[AllowedHost]:
    return [AllowedHost(host) if isinstance(host, str) else host for host in hosts]


def _environment(port: int) -> dict[str, str]:
    proxy = f"http://127.0.0.1:{port}"
    near = "127.0.0.1,localhost,::1"
    pairs = {"http_proxy": proxy, "https_proxy": proxy, "all_proxy": proxy, "no_proxy": near}
    return pairs | {name.upper(): value for name, value in pairs.items()}
