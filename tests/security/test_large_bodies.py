"""Large bodies of people nobody has vouched for yet: they must not fill the server's memory."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import select
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from gofer.web.body import BODIES_AT_ONCE
from support.patience import patience
from support.web_server import House

KEY = "k" * 40
PIECE = b"x" * (1024 * 1024)


@pytest.fixture(scope="module")
def door(house: House) -> str:
    api = house.api(house.token(house.owner(), "admin"))
    new = {"integration": "hello", "name": "large", "settings": {"reply_url": "http://127.0.0.1:9/"}}
    made = api.post("/connections", json={**new, "secrets": {"signing_key": KEY}}).json()
    return f"/hooks/{made['connection']['id']}"


@contextlib.contextmanager
def sending(house: House, path: str, size: int) -> Iterator[socket.socket]:
    """A connection that has said how much it is about to send."""
    place = urlsplit(house.url)
    with socket.create_connection((place.hostname, place.port), timeout=patience(30)) as sender:
        head = f"POST {path} HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: {size}\r\n\r\n"
        sender.sendall(head.encode())
        yield sender


def answered(sender: socket.socket, within: float = 0) -> bytes:
    """What the server has said so far; nothing when it waits for more."""
    ready, _, _ = select.select([sender], [], [], within)
    with contextlib.suppress(ConnectionError):
        return sender.recv(4096) if ready else b""
    return b"gone"


def send_pieces(sender: socket.socket, size: int) -> bytes:
    """Send all whole pieces of a body, or until the server answers. What it answered."""
    left = size // len(PIECE) * len(PIECE)
    with contextlib.suppress(ConnectionError):
        while left:
            ready, writable, _ = select.select([sender], [sender], [], patience(5))
            if ready:
                return answered(sender) or b"gone"
            assert writable, "the server neither reads nor answers"
            left -= sender.send(PIECE[:left])
        return b""
    return b"gone"


def test_a_door_that_there_is_not_takes_nothing(house: House) -> None:
    """It is answered as one with a wrong key, before the body has come."""
    with sending(house, "/hooks/conn_abcdefghjkmnpqrs", 20 * 1024 * 1024) as sender:
        sender.sendall(PIECE[:1000])
        said = answered(sender, patience(5))
        assert said.startswith(b"HTTP/1.1 401"), said
        assert b"could not be verified" in said


def test_bodies_that_are_still_coming_have_a_bound_together(house: House, door: str) -> None:
    most = house.settings.max_body
    each = most - 1024
    with contextlib.ExitStack() as stack:
        senders, said = [], []
        for _ in range(BODIES_AT_ONCE + 3):
            sender = stack.enter_context(sending(house, door, each))
            senders.append(sender)
            said.append(send_pieces(sender, each))
        for number in range(BODIES_AT_ONCE, len(senders)):
            assert said[number] or answered(senders[number], patience(5))
        assert not any(said[:BODIES_AT_ONCE])
        assert not any(answered(sender) for sender in senders[:BODIES_AT_ONCE])
        # A message of ordinary size needs no room of these.
        assert posted(house, door, "small", "hello").status_code == 200
    # They have gone, and so has what they sent.
    assert posted(house, door, "large", "y" * (2 * 1024 * 1024)).status_code == 200


def posted(house: House, door: str, name: str, text: str):  # type: ignore[no-untyped-def]
    body = json.dumps({"id": name, "room": "large", "from": "ann", "text": text}).encode()
    signature = hmac.new(KEY.encode(), body, hashlib.sha256).hexdigest()
    headers = {"x-hello-signature": signature, "content-type": "application/json"}
    return house.browser().client.post(door, content=body, headers=headers)
