"""Which addresses a sandbox may never reach through us.

The lists are our own because Python's `is_global` differs between versions and calls several of these global.
IPv6 is refused outside 2000::/3, so what is not known is closed.
"""

from __future__ import annotations

import ipaddress
import socket

_REFUSED = [
    (ipaddress.ip_network(network), reason)
    for network, reason in (
        ("0.0.0.0/8", "this host"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by a provider's customers"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "a cloud's metadata service"),
        ("169.254.0.0/16", "link-local, where clouds serve metadata"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "for documentation"),
        ("192.88.99.0/24", "a 6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "for benchmarks"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        ("::1/128", "loopback"),
        ("::ffff:0:0/96", "IPv4 in disguise"),
        ("64:ff9b::/96", "NAT64"),
        ("64:ff9b:1::/48", "NAT64"),
        ("2001::/32", "Teredo"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "for documentation"),
        ("2002::/16", "6to4"),
        ("3fff::/20", "for documentation"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("ff00::/8", "multicast"),
    )
]
_V6_GLOBAL = ipaddress.IPv6Network("2000::/3")


def refused(address: str) -> str | None:
    """Why this address is refused, or None when it is public and not ours."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "not an address"
    if "%" in address:
        return "link-local"
    for network, reason in _REFUSED:
        if parsed in network:
            return reason
    if isinstance(parsed, ipaddress.IPv6Address) and parsed not in _V6_GLOBAL:
        return "reserved"
    return "this machine's own" if is_own(parsed) else None


def is_own(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether it is an address of this machine: only those can be bound.

    Where the machine lets any address be bound (`ip_nonlocal_bind`), one that is certainly not ours can be
    too; then the question is whether the way to it begins at itself.
    """
    foreign = "192.0.2.1" if address.version == 4 else "2001:db8::1"
    return _binds(str(address)) and (not _binds(foreign) or _source_of(str(address)) == str(address))


def _binds(address: str) -> bool:
    with _datagram_socket(address) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


def _source_of(address: str) -> str | None:
    """Our address on the way there; connecting a datagram socket sends nothing."""
    with _datagram_socket(address) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _datagram_socket(address: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
