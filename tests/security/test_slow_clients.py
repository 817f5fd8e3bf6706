"""Clients that are slow on purpose: they must not take the server from everybody else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.responses import PlainTextResponse

from gofer.web.auth.sessions import csrf_for
from gofer.web.server import ConnectionLimit, make_server
from protocols.gateway_client import hello_params, line
from support.patience import Deadline, patience, until
from support.web_server import House

DESCRIPTORS = 256
SLOW_FORM = (
    b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 900\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n\r\nname="
)
UPGRADE = (
    b"GET /gateway HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


USER = 29999
AS_USER = f"""
import ctypes, os, runpy, sys
if os.geteuid() == 0:
    libc = ctypes.CDLL(None)
    os.setresuid(0, {USER}, 0)
    libc.setfsuid(0)
    libc.prctl(4, 1, 0, 0, 0)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a program as a user who is not root, that the kernel may write to disk as it may any user's. It still opens the
files that root may, where Python and Gofer are."""


class Process:
    """A real server with few descriptors."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.port = int(taken.getsockname()[1])
        gofer = [sys.executable, "-c", AS_USER, str(Path(sys.executable).parent / "gofer"), "serve"]
        ours = {
            "GOFER_DATA_DIR": str(folder),
            "GOFER_PORT": str(self.port),
            "GOFER_SANDBOX": "off",
            # Long enough that none of this is over before it is looked at.
            "GOFER_BODY_TIMEOUT": "120",
        }
        self.log = folder.parent / "log"
        with self.log.open("wb") as log:
            limited = ["sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$0" "$@"', *gofer]
            self._process = subprocess.Popen(limited, env={**os.environ, **ours}, stdout=log, stderr=log)
        self.client = httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=patience(10))
        deadline = Deadline(60)
        while not self._answers():
            assert deadline.left > 0, self.log.read_text()
            assert self._process.poll() is None, self.log.read_text()
            time.sleep(0.05)

    def _answers(self) -> bool:
        with contextlib.suppress(httpx2.TransportError):
            return self.client.get("/readyz").status_code == 200
        return False

    def limits(self) -> str:
        return Path(f"/proc/{self._process.pid}/limits").read_text()

    def owner_of(self, name: str) -> int:
        return os.stat(f"/proc/{self._process.pid}/{name}").st_uid

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    @cached_property
    def session(self) -> str:
        """The session of the owner, who follows the link that the server printed."""
        (link,) = re.findall(r"/link/([\w-]+)", self.log.read_text())[:1]
        made = self.client.post(f"/link/{link}", data={}, headers={"origin": str(self.client.base_url)})
        assert made.status_code == 303, made.text
        return str(self.client.cookies.pop("gofer_session"))

    def close(self) -> None:
        self.client.close()
        self._process.terminate()
        self._process.wait(patience(60))


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("slow") / "data"
    folder.mkdir(mode=0o700)
    process = Process(folder)
    yield process
    process.close()


@contextlib.contextmanager
def slow_clients(port: int, addresses: list[str], opening: bytes = SLOW_FORM) -> Iterator[None]:
    """As many connections as addresses, each of which has begun to say something and goes on for ever."""
    with contextlib.ExitStack() as stack:
        for address in addresses:
            made = stack.enter_context(socket.socket())
            made.bind((address, 0))
            made.settimeout(patience(5))
            with contextlib.suppress(OSError):
                made.connect(("127.0.0.1", port))
                made.send(opening)
        yield


GUESS = b"name=ada&password=" + b"x" * 20
GUESSING = (
    b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n\r\n" % len(GUESS)
) + GUESS


def fresh(process: Process, path: str, **headers: str) -> httpx2.Response:
    """Over a connection of its own, like a health check."""
    return httpx2.get(f"http://127.0.0.1:{process.port}{path}", headers=headers, timeout=patience(10))


@pytest.mark.parametrize(
    "addresses",
    [
        pytest.param(["127.0.0.1"] * 400, id="of one address", marks=pytest.mark.slow),
        pytest.param([f"127.0.{n % 2}.{n // 2 + 2}" for n in range(400)], id="of many addresses"),
    ],
)
@pytest.mark.parametrize(
    "opening",
    [SLOW_FORM, b"GET / HTTP/1.1\r\nHo", b"", UPGRADE],
    ids=["form", "head", "none", "a WebSocket that does not say who it is"],
)
def test_slow_clients_leave_room_for_everybody(
    process: Process, addresses: list[str], opening: bytes
) -> None:
    with slow_clients(process.port, addresses, opening):
        assert fresh(process, "/healthz").status_code == 200
        assert fresh(process, "/readyz").status_code == 200
        assert fresh(process, "/login").status_code == 200
        if os.geteuid() == 0:  # nobody else may look into the process
            assert process.descriptors() < DESCRIPTORS - 64, "the rest is for shells and services"
        assert fresh(process, "/healthz").status_code == 200


def test_people_who_are_signed_in_come_first(process: Process) -> None:
    """Also when strangers keep the server busy with whole requests, so that nobody can be closed to make room."""
    cookie = {"cookie": f"gofer_session={process.session}"}
    with slow_clients(process.port, [f"127.0.{n % 2}.{n // 2 + 2}" for n in range(400)], GUESSING):
        assert fresh(process, "/api/v1/me", **cookie).status_code == 200
        assert fresh(process, "/healthz").status_code == 200
        assert fresh(process, "/api/v1/me", **cookie).status_code == 200


def test_a_program_that_has_said_who_it_is_keeps_its_connection(process: Process) -> None:
    """Over the gateway protocol it says so after its WebSocket is open."""
    url = f"http://127.0.0.1:{process.port}"
    headers = {"cookie": f"gofer_session={process.session}", "origin": url}
    headers["x-gofer-csrf"] = csrf_for(process.session)
    made = httpx2.post(f"{url}/api/v1/tokens", headers=headers, json={"name": "p"}, timeout=patience(10))
    many = [f"127.0.{n % 2}.{n // 2 + 2}" for n in range(400)]
    with line(url) as client:
        client.ask("connect", **hello_params(made.json()["token"]))
        with slow_clients(process.port, many):
            assert fresh(process, "/healthz").status_code == 200
            assert client.ask("agents.list")


def test_a_server_that_crashes_leaves_no_core(process: Process) -> None:
    """Keys and words would be in it."""
    assert re.search(r"Max core file size +0 +0 ", process.limits())


def test_the_memory_of_a_server_is_not_for_others_of_its_user(process: Process) -> None:
    """The kernel gives the files of a process that keeps its memory to itself to root."""
    assert process.owner_of("status") in (0, USER, os.geteuid())
    assert process.owner_of("mem") == process.owner_of("environ") == 0


def test_a_flood_writes_one_line_a_minute(process: Process) -> None:
    with slow_clients(process.port, ["127.0.0.1"] * 300):
        assert fresh(process, "/healthz").status_code == 200
    assert 1 <= process.log.read_text().count("web.connections_full") <= 3


KEY = b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"


@pytest.mark.parametrize(
    ("header", "body"),
    [(b"Content-Length: 900", b"x"), (b"Transfer-Encoding: chunked", b"5\r\nx"), (b"X: " + b"x" * 9000, b"")],
    ids=["a body that does not come", "a body in pieces", "a line that nobody reads"],
)
@pytest.mark.parametrize("method", [b"GET", b"POST"])
async def test_an_upgrade_that_does_not_come_about_is_given_up(
    header: bytes, body: bytes, method: bytes
) -> None:
    server = make_server(PlainTextResponse("hello"), host="127.0.0.1", port=0, head_timeout=0.3)
    serving = asyncio.create_task(server.serve())
    await server.ready.wait()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(UPGRADE.replace(b"GET", method).replace(KEY, KEY + header + b"\r\n") + body)
        answer = await asyncio.wait_for(reader.read(), patience(10))
    finally:
        writer.close()
        await writer.wait_closed()
        server.stop()
        await serving
    assert re.match(rb"HTTP/1.1 (400|405|408) ", answer), answer


def test_a_form_that_dribbles_is_given_up(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """On every door where strangers are asked for one, and for members too."""
    monkeypatch.setattr(type(house.settings), "__setattr__", object.__setattr__)
    monkeypatch.setattr(house.platform.settings, "body_timeout", 0.3)
    cookie = house.browser()
    cookie.follow(house.link(house.owner()))
    session = f"Cookie: gofer_session={cookie.cookie}\r\nOrigin: {house.url}\r\n".encode()
    port = int(house.url.rpartition(":")[2])
    for path, headers in (("/login", b""), ("/link/x", b""), ("/secrets", session), ("/logout", session)):
        head = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n%s" % (path.encode(), port, headers)
        head += b"Content-Length: 900\r\nContent-Type: application/x-www-form-urlencoded\r\n\r\n"
        answer = b""
        while not answer:
            with contextlib.suppress(
                ConnectionResetError
            ):  # what is written too late may have it dropped unread
                answer = asyncio.run(_dribbled(port, head))
        assert answer.startswith(b"HTTP/1.1 408 "), (path, answer[:200])


def test_a_form_with_too_much_in_it_is_refused(house: House) -> None:
    """Before it is read, when it says that it is too large; a form has few fields and no files unless it asks."""
    browser = house.browser().client
    urlencoded = {"content-type": "application/x-www-form-urlencoded"}
    large = browser.post("/login", content=b"name=" + b"x" * 100_000, headers=urlencoded)
    assert large.status_code == 413
    boundary = {"content-type": "multipart/form-data; boundary=b"}
    part = b'--b\r\ncontent-disposition: form-data; name="f%d"%s\r\n\r\nx\r\n'
    fields = b"".join(part % (number, b"") for number in range(100)) + b"--b--\r\n"
    file = part % (1, b'; filename="a"') + b"--b--\r\n"
    for body in (fields, file):
        assert browser.post("/login", content=body, headers=boundary).status_code == 400, body[:60]


async def _dribbled(port: int, head: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head)
    answer = asyncio.ensure_future(reader.read())
    for _ in range(200):
        if answer.done():
            break
        with contextlib.suppress(ConnectionError):
            writer.write(b"x")
            await writer.drain()
        await asyncio.sleep(0.05)
    writer.close()
    return await asyncio.wait_for(answer, patience(10))


@pytest.mark.parametrize("path", ["/login", "/link/x", "/hooks/{door}", "/api/v1/messages"])
def test_who_goes_away_in_the_middle_of_a_body_costs_one_debug_line(
    house: House, capfd: pytest.CaptureFixture[str], path: str
) -> None:
    port = int(house.url.rpartition(":")[2])
    token = f"Authorization: Bearer {house.token(house.owner())}\r\n"
    if "{door}" in path:  # one that there is: any other takes no body
        new = {"integration": "hello", "name": "slow", "settings": {"reply_url": "http://127.0.0.1:9/"}}
        api = house.api(house.token(house.owner()))
        made = api.post("/connections", json={**new, "secrets": {"signing_key": "k" * 40}}).json()
        path = path.format(door=made["connection"]["id"])
    capfd.readouterr()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 900\r\n{token if 'api' in path else ''}"
        f"Content-Type: application/{'json' if 'api' in path else 'x-www-form-urlencoded'}\r\n\r\nname="
    )
    with socket.create_connection(("127.0.0.1", port)) as gone:
        gone.sendall(head.encode())
        time.sleep(patience(0.1))
    said = ""

    def lines() -> list[str]:
        nonlocal said
        said += "".join(capfd.readouterr())
        return [line for line in said.splitlines() if f"path={path[:6]}" in line]

    until(lines)
    assert "Traceback" not in said
    (line,) = lines()
    assert "499" in line
    assert "debug" in line


class _Client:
    """What the bound sees of a connection."""

    def __init__(self, address: str) -> None:
        self.address, self.crowded, self.gone = address, 0, False

    def evict(self) -> None:
        self.gone = True


def test_when_everybody_is_being_answered_a_newcomer_may_say_who_it_is() -> None:
    limit = ConnectionLimit(16, max_per_address=100)
    busy = [_Client(f"192.0.2.{n}") for n in range(15)]
    for each in busy:
        limit.enter(each)
        limit.wait_no_more(each)
    newcomer = _Client("192.0.2.99")
    assert limit.enter(newcomer)
    assert newcomer.crowded == 503
    assert not any(each.gone for each in busy)
    limit.wait_for(busy[3])
    assert limit.enter(last := _Client("192.0.2.100")) is False or last.crowded == 0
    assert busy[3].gone or newcomer.gone


def test_one_address_has_its_share_and_others_are_left_alone() -> None:
    limit = ConnectionLimit(1000, max_per_address=4)
    other = _Client("192.0.2.2")
    limit.enter(other)
    greedy = [_Client("192.0.2.1") for _ in range(6)]
    for each in greedy:
        limit.enter(each)
    assert [each.gone for each in greedy] == [True, True, False, False, False, False]
    assert not other.gone


def test_every_form_is_read_by_the_bounded_reader() -> None:
    found: dict[str, Any] = {}
    for path in Path("platform/gofer/web").rglob("*.py"):
        if path.name != "body.py" and re.search(r"request\.(form|body|json|stream)\(", path.read_text()):
            found[str(path)] = True
    assert not found, "use read_form and read_body, which have bounds"
