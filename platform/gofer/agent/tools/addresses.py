"""Which addresses a fetch may connect to: public ones only, whatever the name, notation or detour.

The ranges are written out, since Python's `is_global` says yes to some of them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_CLOSED = [
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
        "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
        "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        "::/96", "::1/128", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16",
        "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
    )
]  # fmt: skip
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_6TO4 = ipaddress.IPv6Network("2002::/16")


def is_public(address: Address) -> bool:
    """Whether this address belongs to the open internet, also when it is wrapped in another."""
    inner = _inner(address)
    if inner is not None:
        return is_public(inner)
    return not any(address.version == closed.version and address in closed for closed in _CLOSED)


def is_ours(address: Address) -> bool:
    """Whether it is this machine's own: what listens there may be closed to the world and open to us."""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent: the system only chooses the address it would send from.
            probe.connect((str(address), 9))
            return str(probe.getsockname()[0]) == str(address)
        except OSError:
            return False


def may_be_fetched(address: Address) -> bool:
    """Whether it is somebody else's, and everybody's to reach."""
    return is_public(address) and not is_ours(address)


def _inner(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 one stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address in _6TO4:
        return ipaddress.IPv4Address((int(address) >> 80) & 0xFFFFFFFF)
    return None


async def resolve(host: str, port: int) -> list[Address]:
    """Every address of a name, as the system sees it. Odd notations of numbers come out as what they mean."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
