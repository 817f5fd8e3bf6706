"""Threat: somebody has the agent or its shell reach the machine, its network or a cloud's metadata service.

The fetch tool and the sandbox's proxy judge every address by one list.
"""

from __future__ import annotations

import ipaddress

import pytest

from gofer.agent.tools.fetch import may_be_fetched
from gofer_sandbox.network.addresses import refused

CLOSED = [
    "168.63.129.16", "169.254.169.254", "100.100.100.200", "127.8.9.10", "10.0.0.1", "192.88.99.1", "198.18.0.1",
    "240.0.0.1", "4000::1", "5f00::1", "fd00:ec2::254", "::ffff:10.0.0.1", "::ffff:8.8.8.8", "64:ff9b::a00:1",
    "64:ff9b::808:808", "64:ff9b:1::1", "2002:a00:1::", "2001::1", "3fff::1", "2606:4700::1%lo", "fe80::1%lo",
]  # fmt: skip
OPEN = ["8.8.8.8", "100.128.0.1", "2606:4700::1", "2a00:1450:4001::1"]


@pytest.mark.parametrize("address", CLOSED)
def test_neither_fetch_nor_shell_reaches_what_is_not_public(address: str) -> None:
    assert refused(address)
    assert not may_be_fetched(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", OPEN)
def test_both_reach_what_is_public(address: str) -> None:
    assert refused(address) is None
    assert may_be_fetched(ipaddress.ip_address(address))
