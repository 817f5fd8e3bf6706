"""The forward proxy and plain reverse rules, used by curl and Python in a real sandbox."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import os
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gofer_sandbox.errors import SandboxGone
from gofer_sandbox.network import (
    AllowedHost,
    Credential,
    Egress,
    EgressLimits,
    EgressUnavailable,
    Rule,
    Unanswered,
)
from gofer_sandbox.records import Reference
from sandbox.bare_box import BareBox, bare_box
from sandbox.upstream import Upstream, upstream
from support.patience import patience

SECRET = "canary-9d4e"
CURL = 'curl() { command curl -s --max-time 20 "$@"; };'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Upstream]:
    with upstream(tmp_path) as running:
        running.pages["/"] = (200, {"Content-Type": "text/plain"}, b"hello\n")
        yield running


@pytest.fixture(scope="module")
def shared_box() -> Iterator[BareBox]:
    with bare_box() as box:
        box.prelude = CURL
        yield box


class Site:
    """A sandbox with its network opened as a test wants it."""

    def __init__(self, box: BareBox) -> None:
        self.box = box
        self.egress = Egress()

    async def open(self, egress: Egress) -> Egress:
        self.egress = egress
        await egress.open(Reference(pid=self.box.pid))
        exports = "".join(f"export {name}={value};" for name, value in egress.environment.items())
        self.box.prelude = CURL + exports
        await self.sh("rm -rf /workspace/*")
        return egress

    async def sh(self, script: str) -> str:
        return await asyncio.to_thread(self.box.sh, script)


@pytest.fixture
async def site(shared_box: BareBox) -> AsyncIterator[Site]:
    site = Site(shared_box)
    yield site
    await site.egress.close()


async def names(host: str, port: int) -> list[str]:
    """The test's own DNS."""
    if host.endswith((".test", "127.0.0.1")):
        return ["127.0.0.1"]
    raise OSError("no such name")


def allowing(server: Upstream, **limits: float) -> Egress:
    """Lets `ok.test` through to the test's server; `shut.test` is named without leave for loopback."""
    hosts = [
        AllowedHost("ok.test", (server.port,), allow_private=True),
        AllowedHost("shut.test", (server.port,)),
    ]
    return Egress(hosts, resolve=names, limits=EgressLimits(**limits))  # type: ignore[arg-type]


async def test_without_an_egress_there_is_no_network(shared_box: BareBox, server: Upstream) -> None:
    said = await asyncio.to_thread(
        shared_box.sh,
        f"curl --noproxy '*' http://127.0.0.1:{server.port}/; echo $?;"
        " curl --noproxy '*' http://1.1.1.1/; echo $?; getent hosts example.com; echo $?",
    )
    assert said.split() == ["7", "7", "2"]
    assert server.seen == []


async def test_an_allowed_host_is_reached_plainly_and_through_a_tunnel(site: Site, server: Upstream) -> None:
    await site.open(allowing(server))
    url = f"http://ok.test:{server.port}/"
    assert await site.sh(f"curl {url}") == "hello"
    assert await site.sh(f"curl -p {url}") == "hello"
    assert await site.sh(f"curl {url} {url}") == "hello\nhello"  # one connection, two requests
    assert await site.sh(f"curl -I {url} | head -1") == "HTTP/1.1 200 OK\r"
    assert await site.sh(f"curl --http1.0 {url}") == "hello"
    assert site.egress.refusals == ()
    assert server.seen[0].headers["host"] == f"ok.test:{server.port}"
    assert not any("proxy" in name for seen in server.seen for name in seen.headers)


async def test_bodies_pass_in_both_directions(site: Site, server: Upstream) -> None:
    server.pages["/big"] = (200, {}, bytes(range(256)) * 20_000)
    await site.open(allowing(server))
    url = f"http://ok.test:{server.port}"
    await site.sh("head -c 2000000 /dev/urandom > up")
    for extra in ("", "-p", "-H 'Transfer-Encoding: chunked'", "-H 'Expect: 100-continue'"):
        assert (await site.sh(f"curl {extra} --data-binary @up {url}/ ")) == "hello"
        assert server.seen[-1].body == (site.box.workspace / "up").read_bytes()
    assert await site.sh(f"curl {url}/big | wc -c; curl -p {url}/big | wc -c") == "5120000\n5120000"


@pytest.mark.parametrize(
    ("command", "status", "host", "reason"),
    [
        ("curl -w %{{http_code}} http://evil.test:{port}/", "403", "evil.test", "may not reach this host"),
        ("curl -w %{{http_code}} http://ok.test:1/", "403", "ok.test", "may not reach this host and port"),
        ("curl -w %{{http_code}} http://shut.test:{port}/", "403", "shut.test", "its address is loopback"),
        ("curl -w %{{http_code}} http://127.0.0.1.:{port}/", "403", "127.0.0.1", "may not reach"),
        (
            "curl -pw %{{http_connect}} http://evil.test:{port}/",
            "403",
            "evil.test",
            "may not reach this host",
        ),
        (
            "curl -pw %{{http_connect}} http://shut.test:{port}/",
            "403",
            "shut.test",
            "its address is loopback",
        ),
        ("curl -w %{{http_connect}} https://evil.test/", "403", "evil.test", "may not reach this host"),
        (
            "curl -w %{{http_code}} http://OK.test.evil.test:{port}/",
            "403",
            "ok.test.evil.test",
            "may not reach",
        ),
    ],
)
async def test_everything_else_is_refused_and_reported(
    site: Site, server: Upstream, command: str, status: str, host: str, reason: str
) -> None:
    await site.open(allowing(server))
    assert status in await site.sh("unset no_proxy NO_PROXY; " + command.format(port=server.port))
    [refusal] = site.egress.refusals
    assert (refusal.proxy, refusal.host, refusal.method in ("GET", "CONNECT")) == ("forward", host, True)
    assert reason in refusal.reason
    assert refusal.command.startswith("curl -s --max-time 20")
    assert server.seen == []


RAW = [
    b"GET / HTTP/1.1\r\nHost: ok.test\r\n\r\n",
    b"GET http://user:pw@ok.test:{port}/ HTTP/1.1\r\nHost: ok.test\r\n\r\n",
    b"GET https://ok.test:{port}/ HTTP/1.1\r\nHost: ok.test\r\n\r\n",
    b"GET http://ok.test:{port}#@evil.test/ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://2130706433:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://0x7f.1:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://[::ffff:127.0.0.1]:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://[::1%25lo]:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://ok.test:99999/ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT ok.test HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT ok.test:0 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT ok.test:99999999999999999999 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT [::1]:{port} HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT evil.test\x00.ok.test:{port} HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST http://ok.test:{port}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST http://ok.test:{port}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    b"GET http://ok.test:{port}/ HTTP/1.1\r\nHost: x\r\nBad Header: 1\r\n\r\n",
    b"nonsense\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET http://ok.test:{port}/ HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
]


async def test_what_is_not_a_plain_request_is_refused(site: Site, server: Upstream) -> None:
    await site.open(allowing(server, header_seconds=2))
    for number, raw in enumerate(RAW):
        (site.box.workspace / "raw").write_bytes(raw.replace(b"{port}", str(server.port).encode()))
        said = await site.sh("exec 3<>/dev/tcp/127.0.0.1/3128; cat raw >&3 2>/dev/null; cat <&3; exec 3>&-")
        assert said == "" or said.split()[1] in ("400", "403", "431"), (number, said)
    assert server.seen == []


async def test_connections_bytes_and_silence_have_limits(site: Site, server: Upstream) -> None:
    server.pages["/big"] = (200, {}, b"x" * 3_000_000)
    await site.open(allowing(server, connections=3, connection_bytes=1_000_000, header_seconds=0.3))
    url = f"http://ok.test:{server.port}"
    hold = "".join(f"exec {n}<>/dev/tcp/127.0.0.1/3128;" for n in (3, 4, 5))
    assert await site.sh(f"{hold} curl {url}/") == "hello"  # it waits until the silent ones are let go
    for extra in ("", "-p"):
        assert int(await site.sh(f"curl {extra} {url}/big | wc -c")) < 1_000_000
    reasons = [refusal.reason for refusal in site.egress.refusals]
    assert reasons[-1] == "more than 1000000 bytes were moved"


async def test_a_flood_of_connections_takes_no_more_descriptors_than_the_limit(
    site: Site, server: Upstream
) -> None:
    await site.open(allowing(server, connections=5, header_seconds=1))
    before = len(os.listdir("/proc/self/fd"))
    flood = asyncio.create_task(
        site.sh(
            "for port in 3128 3129; do for i in {1..60}; do exec {f}<>/dev/tcp/127.0.0.1/$port; done; done;"
            " echo flooded > /workspace/mark; sleep 0.5; echo over"
        )
    )
    most = 0
    while not flood.done():
        most = max(most, len(os.listdir("/proc/self/fd")))
        await asyncio.sleep(0.01)
    assert await flood == "over"
    assert (site.box.workspace / "mark").exists()
    # Of a hundred and twenty, five for each of the two proxies; what was closed may take the loop a moment longer.
    assert 5 <= most - before < 20
    assert await site.sh(f"curl http://ok.test:{server.port}/") == "hello"


async def test_a_silent_tunnel_is_closed(site: Site, server: Upstream) -> None:
    await site.open(allowing(server, idle_seconds=0.2))
    (site.box.workspace / "raw").write_text(f"CONNECT ok.test:{server.port} HTTP/1.1\r\nHost: x\r\n\r\n")
    said = await site.sh("exec 3<>/dev/tcp/127.0.0.1/3128; cat raw >&3; cat <&3; echo closed")
    assert said.endswith("closed")


async def test_a_client_that_goes_away_frees_its_place(site: Site, server: Upstream) -> None:
    """Half a body and then nothing: neither side is waited for."""
    egress = await site.open(allowing(server, connections=1))
    url = f"http://ok.test:{server.port}/"
    (site.box.workspace / "raw").write_text(
        f"POST {url} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf"
    )
    await site.sh("exec 3<>/dev/tcp/127.0.0.1/3128; cat raw >&3; sleep 0.1; exec 3>&-")
    await asyncio.sleep(0.1)
    assert await site.sh(f"curl {url}") == "hello"
    assert egress.refusals == ()


async def test_closing_ends_everything_and_it_can_be_opened_again(site: Site, server: Upstream) -> None:
    egress = await site.open(allowing(server))
    url = f"http://ok.test:{server.port}"
    stalled = asyncio.create_task(site.sh(f"curl -N {url}/stall; echo code $?"))
    while not server.seen:
        await asyncio.sleep(0.01)
    await egress.close()
    assert "code" in await asyncio.wait_for(stalled, patience(20))
    assert await site.sh(f"curl {url}/; echo code $?") == "code 7"
    await site.open(egress)
    assert await site.sh(f"curl {url}/") == "hello"


async def test_a_sandbox_that_is_gone_or_holds_the_port_is_said(site: Site) -> None:
    with pytest.raises(SandboxGone):
        await Egress().open(Reference(pid=2**22 - 5))
    with pytest.raises(SandboxGone):
        await Egress().open(Reference(pid=site.box.pid, start=1))
    await site.sh(
        'python3 -c \'import os,socket,time; s=socket.create_server(("127.0.0.1",3128));'
        'open("up","w").write(str(os.getpid()));'
        " time.sleep(60)' >/dev/null 2>&1 & until [ -e up ]; do sleep 0.01; done"
    )
    with pytest.raises(EgressUnavailable, match="already listens"):
        await site.open(Egress())
    await site.sh("kill $(cat up)")


# Reverse rules that are not git


def api(server: Upstream, **changes: object) -> Rule:
    values: dict[str, object] = {
        "name": "api",
        "upstream": f"http://api.test:{server.port}",
        "paths": ("/echo", "/v1"),
        "credential": Credential.bearer(SECRET),
        "allow_private": True,
    }
    return Rule(**(values | changes))  # type: ignore[arg-type]


async def test_the_credential_goes_out_and_never_comes_back(site: Site, server: Upstream) -> None:
    """The upstream echoes what it was sent, in a header and in the body."""
    rule = api(server)
    egress = await site.open(Egress(resolve=names))
    async with egress.grant(rule):
        said = await site.sh(
            f"curl -i -H 'Authorization: mine' -H 'Cookie: c=d' -H 'X-HTTP-Method-Override: DELETE'"
            f" -H 'X-Kept: yes' {egress.url(rule, '/echo')}"
        )
    seen = server.seen[-1].headers
    assert seen["authorization"] == f"Bearer {SECRET}"
    assert (seen["x-kept"], "cookie" in seen, "x-http-method-override" in seen) == ("yes", False, False)
    assert SECRET not in said
    assert said.count("*" * len(SECRET)) == 2
    assert "set-cookie" not in said.lower()


@pytest.mark.parametrize(
    ("method", "path", "reason"),
    [
        ("POST", "/echo", "POST is not allowed here, only GET, HEAD"),
        ("DELETE", "/v1/x", "DELETE is not allowed"),
        ("GET", "/v2", "only /echo, /v1 may be reached"),
        ("GET", "/v10", "only /echo, /v1 may be reached"),
        ("GET", "/v1/../v2", "read in two ways"),
        ("GET", "/v1/%2e%2e/v2", "read in two ways"),
        ("GET", "/v1/%252e%252e/v2", "read in two ways"),
        ("GET", "/v1/%2Fv2", "read in two ways"),
        ("GET", "/v1/%5c..%5cv2", "read in two ways"),
        ("GET", "/v1/%00", "read in two ways"),
        ("GET", "/v1//x", "empty part"),
        ("GET", "/v1/%ff", "not UTF-8"),
    ],
)
async def test_a_rule_holds_methods_and_paths(
    site: Site, server: Upstream, method: str, path: str, reason: str
) -> None:
    rule = api(server)
    egress = await site.open(Egress(resolve=names))
    async with egress.grant(rule):
        said = await site.sh(f"curl --path-as-is -X {method} '{egress.url(rule, path)}'")
    assert reason in said
    assert reason in egress.refusals[-1].reason
    assert (egress.refusals[-1].host, egress.refusals[-1].method) == ("api.test", method)
    assert server.seen == []


async def test_redirects_stay_within_the_rule(site: Site, server: Upstream) -> None:
    rule = api(server)
    inside = f"http://api.test:{server.port}/v1/new?x=1"
    server.pages |= {
        "/v1/moved": (302, {"Location": inside}, b""),
        "/v1/new": (200, {}, b"arrived"),
        "/v1/away": (302, {"Location": "http://evil.test/"}, b""),
        "/v1/port": (302, {"Location": "http://api.test:1/v1/new"}, b""),
        "/v1/tls": (302, {"Location": f"https://api.test:{server.port}/v1/new"}, b""),
        "/v1/up": (302, {"Location": "/private"}, b""),
        "/v1/double": (302, {"Location": "//evil.test/v1/new"}, b""),
        "/v1/packed": (200, {"Content-Encoding": "gzip"}, b"\x1f\x8b"),
    }
    egress = await site.open(Egress(resolve=names))
    async with egress.grant(rule):
        assert await site.sh(f"curl -L '{egress.url(rule, '/v1/moved')}'") == "arrived"
        assert server.seen[-1].path == "/v1/new?x=1"
        for path in ("away", "port", "tls", "up", "double", "packed"):
            said = await site.sh(f"curl -L -w ' %{{http_code}}' '{egress.url(rule, '/v1/' + path)}'")
            assert said.endswith("502"), path
    assert len(egress.refusals) == 6
    assert {seen.path for seen in server.seen} >= {"/v1/away"}
    assert not any("private" in seen.path for seen in server.seen)


async def test_a_path_that_moved_is_followed_where_its_rule_says(site: Site, server: Upstream) -> None:
    """Whoever made the rule is asked; what the upstream says alone opens nothing, nor does their silence."""

    async def now() -> tuple[str, ...]:
        asked.append("asked")
        if len(asked) == 1:
            raise Unanswered("where it is now cannot be found out")
        return ("/v2",)

    asked: list[str] = []
    rule = replace(api(server), moved=now)
    server.pages |= {
        "/v1/moved": (301, {"Location": "/v2/new"}, b""),
        "/v1/up": (301, {"Location": "/private"}, b""),
        "/v2/new": (200, {}, b"arrived"),
    }
    egress = await site.open(Egress(resolve=names))
    async with egress.grant(rule):
        assert "may be reached here" in await site.sh(f"curl '{egress.url(rule, '/v2/new')}'")
        assert "cannot be found out" in await site.sh(f"curl -L '{egress.url(rule, '/v1/moved')}'")
        assert await site.sh(f"curl -L '{egress.url(rule, '/v1/moved')}'") == "arrived"
        assert "not allowed" in await site.sh(f"curl -L '{egress.url(rule, '/v1/up')}'")
    async with egress.grant(rule):
        assert "may be reached here" in await site.sh(f"curl '{egress.url(rule, '/v2/new')}'")
    assert not any("private" in seen.path for seen in server.seen)


async def test_private_upstreams_need_the_rule_s_own_leave(site: Site, server: Upstream) -> None:
    rule = api(server, allow_private=False)
    egress = await site.open(Egress([AllowedHost("*", (server.port,), allow_private=True)], resolve=names))
    async with egress.grant(rule):
        said = await site.sh(f"curl {egress.url(rule, '/echo')}")
    assert "its address is loopback" in said
    assert server.seen == []


def _certificate(directory: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "api.test")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("api.test"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = directory / "cert.pem", directory / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return paths


async def test_an_https_upstream_is_verified_by_its_name(site: Site, tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=str(certificate))
    with upstream(tmp_path, context) as server:
        egress = await site.open(Egress(resolve=names, tls=trusting))
        good = api(server, upstream=f"https://api.test:{server.port}")
        wrong = api(server, name="wrong", upstream=f"https://other.test:{server.port}")
        async with egress.grant(good), egress.grant(wrong):
            assert "Authorization" in await site.sh(f"curl {egress.url(good, '/echo')}")
            assert "certificate" in (await site.sh(f"curl {egress.url(wrong, '/echo')}")).lower()
        assert len(server.seen) == 1
        await egress.close()
        plain = await site.open(Egress(resolve=names))
        async with plain.grant(good):
            assert "CERTIFICATE_VERIFY_FAILED" in await site.sh(f"curl {plain.url(good, '/echo')}")
