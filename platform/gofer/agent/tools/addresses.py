"""Which addresses a fetch may connect to: the same as a shell may reach through its proxy, by the same list."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from gofer_sandbox.network.addresses import refused

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def may_be_fetched(address: Address) -> bool:
    """Whether it is somebody else's, and everybody's to reach."""
    return refused(str(address)) is None


async def resolve(host: str, port: int) -> list[Address]:
    """Every address of a name, as the system sees it. Odd notations of numbers come out as what they mean."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(entry[4][0])) for entry in found]
