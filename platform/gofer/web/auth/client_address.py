"""Where a request comes from and whom it was meant for, believing headers only from proxies that are trusted."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from gofer.settings import Settings, listed

LOCAL_NAMES = frozenset({"localhost"})
FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
"""Headers that proxies add."""


class Peers:
    """The settings about proxies and host names."""

    def __init__(self, settings: Settings) -> None:
        self._proxies = [ip_network(each, strict=False) for each in listed(settings.trusted_proxies)]
        public = urlsplit(settings.public_url)
        self._public_host = (public.hostname or "").lower()
        self._public_origin = f"{public.scheme}://{public.netloc}".lower() if self._public_host else ""
        self._names = LOCAL_NAMES | {self._public_host} | set(listed(settings.allowed_hosts))

    def address(self, scope: Scope, headers: Headers) -> str:
        """The client's address: the last one in the chain that is not a trusted proxy."""
        peer = _peer(scope)
        if not self.trusts(peer):
            return peer
        chain = [part.strip() for value in headers.getlist("x-forwarded-for") for part in value.split(",")]
        for each in reversed(chain[-20:]):
            if not _is_address(each):
                break
            peer = plain_address(each)
            if not self.trusts(each):
                break
        return peer

    def is_this_machine(self, scope: Scope, headers: Headers) -> bool:
        """Whether a program on this machine asks, and nobody through a proxy on it. A server with a public address has
        a proxy, and not every proxy says so."""
        peer = _peer(scope)
        forwarded = self._public_host or any(each in headers for each in FORWARDED)
        return not forwarded and _is_address(peer) and ip_address(peer).is_loopback

    def scheme(self, scope: Scope, headers: Headers) -> str:
        """http or https, as the browser sees it."""
        peer = _peer(scope)
        said = headers.get("x-forwarded-proto", "").strip().lower()
        if self.trusts(peer) and said in ("http", "https"):
            return said
        host = _hostname(headers.get("host", ""))
        if self._public_origin.startswith("https:") and host == self._public_host:
            return "https"
        # A WebSocket's origin is that of the page it was opened from.
        return str(scope["scheme"]).replace("ws", "http")

    def serves(self, host: str) -> bool:
        """Whether a Host header is ours. A name that is not may be another site's, bent to our address."""
        name = _hostname(host)
        return name in self._names - {""} or _is_address(name)

    def is_own(self, origin: str, scope: Scope, headers: Headers) -> bool:
        """Whether an Origin is that of our own pages."""
        here = f"{self.scheme(scope, headers)}://{headers.get('host', '')}".lower()
        return origin.lower() in {here, self._public_origin} - {""}

    def trusts(self, address: str) -> bool:
        """Whether an address is that of a proxy of ours."""
        return any(_is_address(address) and ip_address(address) in network for network in self._proxies)


def _peer(scope: Scope) -> str:
    return plain_address(scope["client"][0]) if scope.get("client") else ""


@lru_cache(maxsize=1024)  # the same few clients, with every request
def plain_address(address: str) -> str:
    """The address itself; for an IPv4 address that an IPv6 socket reports in its own form, the IPv4 address."""
    mapped = getattr(ip_address(address), "ipv4_mapped", None) if _is_address(address) else None
    return str(mapped) if mapped is not None else address


@lru_cache(maxsize=1024)
def network_of(address: str) -> str:
    """The network that an address counts for: the 2**64 addresses of an IPv6 host count as one."""
    address = plain_address(address)
    if not _is_address(address) or ip_address(address).version == 4:
        return address
    return str(ip_network(f"{address.partition('%')[0]}/64", strict=False))


@lru_cache(maxsize=1024)
def _hostname(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower().rstrip(".")
    except ValueError:
        return ""


def _is_address(value: str) -> bool:
    try:
        ip_address(value)
    except ValueError:
        return False
    return True
