"""The pure parts of the network: addresses, rules, credentials, masks."""

from __future__ import annotations

import base64
import html
import ipaddress
import json
import pickle
import socket
import urllib.parse

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gofer_sandbox.errors import InvalidInput
from gofer_sandbox.network import AllowedHost, Credential, GitAccess, Rule
from gofer_sandbox.network.addresses import is_own, refused
from gofer_sandbox.network.credential import Mask
from gofer_sandbox.network.dial import Dialer, SystemResolver
from gofer_sandbox.network.errors import ProxyRefused
from gofer_sandbox.network.rules import host_name

CLOSED = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "100.127.255.255", "127.0.0.1",
    "127.255.255.254", "168.63.129.16", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192",
    "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.9",
    "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::808:808",
    "64:ff9b:1::1", "100::1", "2001::1", "2001:0:7f00:1::", "2001:2::1", "2001:10::1", "2001:20::1",
    "2001:db8::1", "2002:7f00:1::", "2002:a00:1::1", "3fff::1", "4000::1", "5f00::1", "fc00::1",
    "fd00:ec2::254",
    "fe80::1", "fe80::1%lo", "2606:4700::1%lo", "fec0::1", "ff02::1", "not an address", "",
]  # fmt: skip
OPEN = ["1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "192.0.1.1",
        "2606:4700::1111", "2a00:1450:4001::1", "2001:4860:4860::8888", "2003::1"]  # fmt: skip


@pytest.mark.parametrize("address", CLOSED)
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    assert refused(address)


@pytest.mark.parametrize("address", OPEN)
def test_public_addresses_are_not(address: str) -> None:
    assert refused(address) is None


def test_this_machine_s_own_addresses_are_refused() -> None:
    """Stands for a public address of ours: the rule looks at the routing table, not at a list."""
    assert is_own(ipaddress.ip_address("127.8.9.10"))
    assert not is_own(ipaddress.ip_address("8.8.8.8"))
    assert not is_own(ipaddress.ip_address("2606:4700::1"))


@pytest.mark.parametrize(
    "host",
    [
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "0x7f000001",
        "0177.0.0.1",
        "017700000001",
        "localhost",
        "127.0.0.1",
    ],
)
async def test_loopback_in_other_spellings_is_refused_after_resolution(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        dialer = Dialer(SystemResolver(), 5, None)
        with pytest.raises(ProxyRefused, match="loopback"):
            await dialer.connect(host, listening.getsockname()[1], secure=False, allow_private=False)


async def test_a_name_is_resolved_once_and_only_the_checked_address_is_dialled() -> None:
    """A rebinding server answers with a public address first and loopback afterwards."""
    answers = iter([["192.0.2.1", "10.0.0.1"], ["127.0.0.1"]])

    async def rebinding(host: str, port: int) -> list[str]:
        return next(answers)

    dialer = Dialer(rebinding, 5, None)
    with pytest.raises(ProxyRefused, match="documentation"):
        await dialer.connect("evil.test", 80, secure=False, allow_private=False)
    assert next(answers) == ["127.0.0.1"], "the name was looked up a second time"


async def test_private_answers_are_left_out_when_others_are_public() -> None:
    async def mixed(host: str, port: int) -> list[str]:
        return ["127.0.0.1", "2606:4700::1111"]

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        dialer = Dialer(mixed, 0.3, None)
        with pytest.raises(ProxyRefused, match=r"could not connect|in time"):
            await dialer.connect("a.test", listening.getsockname()[1], secure=False, allow_private=False)
        with pytest.raises(BlockingIOError):
            listening.accept()


@pytest.mark.parametrize(
    ("pattern", "host", "matches"),
    [
        ("example.com", "example.com", True),
        ("example.com", "www.example.com", False),
        ("example.com", "notexample.com", False),
        ("*.example.com", "www.example.com", True),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "evilexample.com", False),
        ("*.example.com", "example.com.evil.test", False),
        ("*", "anything.test", True),
    ],
)
def test_host_patterns(pattern: str, host: str, matches: bool) -> None:
    assert AllowedHost(pattern).matches(host, 443) is matches
    assert not AllowedHost(pattern).matches(host, 22)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Example.COM.", "example.com"),
        ("a_b.test", "a_b.test"),
        ("127.1", "127.1"),
        ("a..b", None),
        ("a b", None),
        ("user@host", None),
        ("host/path", None),
        ("-a.test", None),
        ("é.test", None),
        ("", None),
        (".", None),
        ("a" * 64, None),
        ("a." * 127 + "b.c", None),
        ("a\n", None),
        ("[::1]", None),
    ],
)
def test_host_names_have_one_spelling(text: str, name: str | None) -> None:
    assert host_name(text) == name


@pytest.mark.parametrize(
    "make",
    [
        lambda: AllowedHost("Example.com"),
        lambda: AllowedHost("*.*.com"),
        lambda: AllowedHost("a*b.com"),
        lambda: AllowedHost("a.com", ()),
        lambda: AllowedHost("a.com", (0,)),
        lambda: AllowedHost("a.com", (70000,)),
        lambda: AllowedHost("https://a.com"),
        lambda: Rule("Name", "https://a.com", ("/",)),
        lambda: Rule("n/x", "https://a.com", ("/",)),
        lambda: Rule("n", "ftp://a.com", ("/",)),
        lambda: Rule("n", "https://a.com/path", ("/",)),
        lambda: Rule("n", "https://u:p@a.com", ("/",)),
        lambda: Rule("n", "https://", ("/",)),
        lambda: Rule("n", "https://a.com", ("relative",)),
        lambda: Rule("n", "https://a.com", ("/a//b",)),
        lambda: Rule("n", "https://a.com", ("/%61",)),
        lambda: Rule("n", "https://a.com", ("/",), methods=("TRACE",)),
        lambda: Rule("n", "https://a.com", ("/",), methods=("CONNECT",)),
        lambda: Rule("n", "https://a.com", ("/",), methods=("get",)),
        lambda: GitAccess(push=("heads/main",)),
        lambda: Credential.bearer("line\r\nX-Other: 1"),
        lambda: Credential("Bad Header", "x"),
        lambda: Credential("X-Key", ""),
    ],
)
def test_rules_that_make_no_sense_are_refused_where_they_are_written(make: object) -> None:
    with pytest.raises(InvalidInput):
        make()  # type: ignore[operator]


def test_a_credential_never_prints() -> None:
    credential = Credential.basic("x-access-token", "canary-token")
    rule = Rule("n", "https://a.com", ("/",), credential=credential)
    for text in (repr(credential), str(credential), f"{credential}", repr(rule)):
        assert "canary" not in text
        assert "***" in text
    with pytest.raises(TypeError):
        pickle.dumps(credential)
    assert credential.reveal().startswith(b"Basic ")


@given(
    pieces=st.lists(st.sampled_from([b"tok", b"en-", b"123", b"token-123", b"x", b"", b"t"]), max_size=30),
    cuts=st.lists(st.integers(0, 60), max_size=8),
)
def test_a_secret_is_masked_however_the_stream_is_cut(pieces: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(pieces)
    mask, out, at = Mask((b"token-123",)), b"", 0
    for cut in sorted(cuts):
        out += mask.feed(whole[at:cut])
        at = max(at, cut)
    out += mask.feed(whole[at:]) + mask.rest()
    assert out == whole.replace(b"token-123", b"*" * 9)


@given(
    secret=st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=12, max_size=60),
    before=st.binary(max_size=4),
    after=st.binary(max_size=4),
)
@settings(deadline=None)
def test_a_secret_is_masked_in_every_form_an_upstream_would_write_it_in(
    secret: str, before: bytes, after: bytes
) -> None:
    data = before + secret.encode() + after
    for form in (
        data,
        urllib.parse.quote_from_bytes(data, safe="").encode(),
        json.dumps({"q": secret}).encode(),
        html.escape(secret).encode(),
        data.hex().encode(),
    ):
        assert b"*" * 8 in Mask(Credential("X-Key", secret).secrets).masked(form), form
    for packed in (base64.b64encode(data), base64.urlsafe_b64encode(data)):
        mask = Mask(Credential("X-Key", secret).secrets)
        left = mask.feed(packed) + mask.rest()
        assert left.count(b"*") >= len(secret.encode()) * 4 // 3 - 3  # all but a few bits at its ends
