"""Heads that are too large, and Host headers that two readers could understand in two ways."""

from __future__ import annotations

import socket

import pytest

from gofer.web.server import MAX_HEAD
from support.patience import patience
from support.web_server import House

PATHS = ["/healthz", "/login", "/api/v1/openapi.json", "/static/x/y"]


def ask(house: House, head: bytes, *pieces: bytes) -> bytes:
    """Everything that comes back for some bytes, over a connection of its own."""
    with socket.create_connection(
        ("127.0.0.1", int(house.url.rpartition(":")[2])), timeout=patience(10)
    ) as made:
        answer = b""
        try:
            for piece in (head, *pieces):
                made.sendall(piece)
            while piece := made.recv(65536):
                answer += piece
        except ConnectionError:
            pass
        return answer


def get(path: str, *headers: str, version: str = "1.1") -> bytes:
    lines = "".join(f"{each}\r\n" for each in headers)
    return f"GET {path} HTTP/{version}\r\n{lines}Connection: close\r\n\r\n".encode("latin-1")


@pytest.mark.parametrize(
    "hosts",
    [
        ("evil@127.0.0.1",),
        ("127.0.0.1, evil",),
        ("127.0.0.1", "evil"),
        ("evil", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1/evil",),
        ("127.0.0.1:80:80",),
        ("127.0.0.1:port",),
        ("127.0.0.1 evil",),
        ("[::1",),
        ("evil?.127.0.0.1",),
        ("\xe9vil",),
        ("",),
        (),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", PATHS)
def test_an_odd_host_is_refused_on_every_path(house: House, path: str, hosts: tuple[str, ...]) -> None:
    answer = ask(house, get(path, *(f"Host: {each}" for each in hosts)))
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert b"application/problem+json" in answer
    assert answer.count(b"HTTP/1.1") == 1


def test_an_odd_host_is_refused_on_webhooks_too(house: House) -> None:
    post = b"POST /hooks/x HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 2\r\n\r\n{}"
    assert ask(house, post).startswith(b"HTTP/1.1 400 ")


def test_an_address_that_names_another_host_is_refused(house: House) -> None:
    other = ask(house, get("http://evil.example/healthz", "Host: 127.0.0.1"))
    assert other.startswith(b"HTTP/1.1 400 ")
    same = ask(house, get("http://127.0.0.1/healthz", "Host: 127.0.0.1"))
    assert same.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8765", "localhost", "[::1]:8765", "my_box.local"])
def test_a_plain_host_is_answered(house: House, host: str) -> None:
    assert ask(house, get("/healthz", f"Host: {host}")).startswith(b"HTTP/1.1 200 ")


def test_a_health_check_of_the_old_kind_needs_no_host(house: House) -> None:
    assert ask(house, get("/healthz", version="1.0")).split(b" ", 2)[1] == b"200"


@pytest.mark.parametrize("path", ["/healthz", "/hooks/x"])
@pytest.mark.parametrize("shape", ["one", "many", "address"])
@pytest.mark.parametrize("pieces", [1, 7])
def test_a_head_beyond_the_limit_is_refused(house: House, path: str, shape: str, pieces: int) -> None:
    """Also when it arrives at once, so that it is whole before anybody counts."""
    size = 79 * 1024
    heads = {
        "one": get(path, "Host: 127.0.0.1", f"X: {'y' * size}"),
        "many": get(path, "Host: 127.0.0.1", *(f"X-{n}: {'y' * 990}" for n in range(size // 1000))),
        "address": get(f"{path}?{'y' * size}", "Host: 127.0.0.1"),
    }
    head = heads[shape]
    cut = len(head) // pieces + 1
    answer = ask(house, *(head[at : at + cut] for at in range(0, len(head), cut)))
    assert answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 414 ")), answer[:200]
    assert answer.count(b"HTTP/1.1") == 1


def test_a_head_that_does_not_end_is_refused_when_it_is_too_large(house: House) -> None:
    """Not only when its time is over: a line without an end would fill the memory until then."""
    answer = ask(house, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * (2 * MAX_HEAD))
    assert answer.startswith(b"HTTP/1.1 431 "), answer


def test_a_head_within_the_limit_is_answered(house: House) -> None:
    head = get("/healthz", "Host: 127.0.0.1", f"X: {'y' * (MAX_HEAD - 200)}")
    assert ask(house, head).startswith(b"HTTP/1.1 200 ")


def test_the_head_of_each_request_of_a_connection_is_counted_alone(house: House) -> None:
    head = get("/healthz", "Host: 127.0.0.1", f"X: {'y' * 40_000}").replace(b"Connection: close\r\n", b"")
    last = get("/healthz", "Host: 127.0.0.1")
    assert ask(house, head, head, last).count(b"HTTP/1.1 200 ") == 3


def test_garbage_is_not_told_to_the_log(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """A line for each would let strangers fill the disk."""
    assert ask(house, b"\x16\x03\x01 no http at all\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert "Invalid HTTP" not in caplog.text
