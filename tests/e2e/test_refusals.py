"""Requests that must change nothing, over real HTTP on both databases: facts of abuse, one test each."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import json
import zlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from e2e.door import KEY, SIGNATURE, Door, Headers, message, problem_of, sign
from e2e.keys import plant_key, remove_key, set_key
from gofer.connections.changes import switch_connection
from gofer.store import row_macs
from gofer.store.tables import connections

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def nothing_changes(door: Door) -> AsyncIterator[None]:
    """Whatever a test of this file sends, nothing is left of it but a refusal in memory, and the server is well."""
    before = await door.counts()
    yield
    assert await door.counts() == before
    assert (await door.client.get("/healthz")).status_code == 200


async def refused(door: Door, response: httpx2.Response, status: int) -> dict[str, Any]:
    """Check a refusal: its status and shape, that it was counted, and that the note of it holds no body."""
    assert response.status_code == status, response.text
    found = problem_of(response)
    last = door.platform.refusals.recent[-1]
    assert last.status == status
    assert "kitchen" not in repr(last)
    assert (f'gofer_refused_requests{{status="{status}"}}').encode() in (
        await door.client.get("/metrics")
    ).content
    return found


# Signatures.


async def test_no_signature(door: Door) -> None:
    await refused(door, await door.post_unsigned(message()), 401)


async def test_an_unverified_body_is_not_parsed(door: Door) -> None:
    await refused(door, await door.post_unsigned(b"{not json"), 401)
    await refused(door, await door.post(b"{not json", signature="0" * 64), 401)


@pytest.mark.parametrize("header", [SIGNATURE, "x-hub-signature", "x-hello-signature-sha1"])
async def test_a_sha1_signature_is_none(door: Door, header: str) -> None:
    body = message()
    sha1 = hmac.new(KEY.encode(), body, hashlib.sha1).hexdigest()
    for value in (sha1, f"sha1={sha1}"):
        await refused(door, await door.post_unsigned(body, [(header, value)]), 401)


async def test_a_body_that_was_serialised_again(door: Door) -> None:
    body = message()
    again = json.dumps(json.loads(body), separators=(",", ":")).encode()
    assert again != body
    await refused(door, await door.post(again, signature=sign(body)), 401)


async def test_a_body_signed_with_another_key(door: Door) -> None:
    body = message()
    await refused(door, await door.post(body, signature=sign(body, KEY + "x")), 401)


@pytest.mark.parametrize(
    "value",
    [
        "ключ".encode(),
        "sïgnature".encode("latin-1"),
        b"\xff\xfe" * 32,
        b"a" * 8192,
        b"",
        b"0" * 63,
        b"sha256=" + b"0" * 64,
    ],
    ids=["cyrillic", "latin-1", "bytes", "8kB", "empty", "short", "prefixed"],
)
async def test_odd_signatures(door: Door, value: bytes) -> None:
    await refused(door, await door.post(message(), signature=value), 401)


async def test_a_doubled_signature_even_if_one_is_right(door: Door) -> None:
    body = message()
    for pair in ([sign(body), "0" * 64], ["0" * 64, sign(body)], [sign(body)] * 2):
        headers: Headers = [(SIGNATURE, value) for value in pair]
        await refused(door, await door.post_unsigned(body, headers), 401)


async def test_a_rotated_key_is_refused_from_the_next_request(door: Door) -> None:
    body = message()
    await set_key(door, "another-signing-key-after-the-rotation")
    try:
        await refused(door, await door.post(body), 401)
    finally:
        await set_key(door, KEY)


# Connections.


@pytest.mark.parametrize("blank", [None, "", "   "], ids=["unset", "empty", "blank"])
async def test_without_a_key_the_door_stays_shut(door: Door, blank: str | None) -> None:
    body = message()
    await (remove_key(door) if blank is None else plant_key(door, blank))
    try:
        for signature in (sign(body), sign(body, blank or ""), ""):
            response = await door.post(body, signature=signature)
            found = await refused(door, response, 503)
            assert (found["code"], response.headers["retry-after"]) == ("unavailable", "5")
            assert "signing_key" not in response.text
            assert "signing_key" in door.platform.refusals.recent[-1].reason
    finally:
        await set_key(door, KEY)


async def test_a_connection_switched_off_looks_like_a_wrong_key(door: Door) -> None:
    switch = partial(switch_connection, connection_id=door.connection_id, by="test")
    await door.do(partial(switch, enabled=False))
    await door.platform.reload_secrets()
    try:
        body = message()
        off = await door.post(body)
        await refused(door, off, 401)
        assert off.content == (await door.post(body, signature="0" * 64)).content
    finally:
        await door.do(partial(switch, enabled=True))
        await door.platform.reload_secrets()


async def test_without_its_integration_a_connection_asks_to_be_tried_again(door: Door) -> None:
    """A package that fails to load after an upgrade must not cost what comes in meanwhile."""
    here = connections.c.id == door.connection_id
    await door.do(lambda connection: row_macs.update(connection, connections, here, {"integration": "gone"}))
    await door.platform.reload_secrets()
    try:
        response = await door.post(message())
        found = await refused(door, response, 503)
        assert (found["code"], response.headers["retry-after"]) == ("unavailable", "60")
        assert "integration" not in str(found), "what is installed is nobody's business"
        assert "There is no integration 'gone'." in door.platform.refusals.recent[-1].reason
    finally:
        await door.do(
            lambda connection: row_macs.update(connection, connections, here, {"integration": "hello"})
        )
        await door.platform.reload_secrets()


async def test_an_unknown_connection_looks_like_a_wrong_key(door: Door) -> None:
    body = message()
    wrong = await door.post(body, signature="0" * 64)
    await refused(door, wrong, 401)
    for name in (
        "hello_nobody",
        "%00",
        "%ff%fe",
        "x" * 5000,
        "%F0%9F%92%A9",
        "' OR 1=1 --",
        "%0d%0aset-cookie:x",
    ):
        unknown = await door.post(body, path=f"/hooks/{name}")
        await refused(door, unknown, 401)
        assert unknown.content == wrong.content, name
        assert set(unknown.headers) == set(wrong.headers)


@pytest.mark.parametrize("path", ["/hooks", "/hooks/", "/hooks/a/b", "/nothing", "/hooks/../healthz/x"])
async def test_paths_that_lead_nowhere(door: Door, path: str) -> None:
    response = await door.post(message(), path=path)
    assert response.status_code == 404
    problem_of(response)


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
async def test_other_methods(door: Door, method: str) -> None:
    response = await door.client.request(method, door.path)
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    problem_of(response)


# Bodies.


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, identity", "x" * 3000, "GZIP"])
async def test_compressed_bodies_are_not_read(door: Door, encoding: str) -> None:
    body = message()
    packed = {"gzip": gzip.compress(body), "deflate": zlib.compress(body)}.get(encoding, body)
    response = await door.post(packed, headers=[("content-encoding", encoding)])
    await refused(door, response, 415)
    assert len(response.content) < 500


async def test_a_bomb_is_not_unpacked(door: Door) -> None:
    bomb = gzip.compress(b"\0" * 5_000_000)
    await refused(door, await door.post(bomb, headers=[("content-encoding", "gzip")]), 415)


async def test_a_body_that_says_it_is_too_large_is_not_waited_for(door: Door) -> None:
    for length in ("1048577", "99999999999999999999", "9" * 19):
        answer = await door.raw(door.head(headers={"content-length": length}))
        assert answer.startswith((b"HTTP/1.1 413 ", b"HTTP/1.1 400 ")), answer
        assert b"application/problem+json" in answer


async def test_a_chunked_body_is_cut_off_at_the_cap(door: Door) -> None:
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    head = door.head(headers={"content-length": "", "transfer-encoding": "chunked"})
    before = _resident()
    answer = await door.raw(head, *[chunk] * 1600)
    assert answer.startswith(b"HTTP/1.1 413 "), answer
    assert b"application/problem+json" in answer
    assert _resident() - before < 32 * 2**20, "a hundred megabytes were sent; they must not be kept"


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


async def test_a_sender_that_goes_away_in_the_middle(door: Door) -> None:
    body = message()
    _, writer = await asyncio.open_connection("127.0.0.1", door.port)
    writer.write(door.head(body) + body[:-1])
    await writer.drain()
    writer.close()
    await writer.wait_closed()


# Slow senders. The server of these tests waits for one second where a real one waits for ten.


async def test_slow_senders_are_sent_away_while_others_are_served(door: Door) -> None:
    body = message()
    dribbles = {
        "head": [door.head(body)[at : at + 1] for at in range(60)],
        "nothing": [b""] * 60,
        "body": [door.head(body), *[body[at : at + 1] for at in range(len(body) - 1)]],
        "header": [b"POST / HTTP/1.1\r\nx: ", *[b"y"] * 60],
    }
    sending = {name: asyncio.create_task(door.raw(*pieces, pause=0.05)) for name, pieces in dribbles.items()}
    healthy = 0
    while not all(task.done() for task in sending.values()):
        async with asyncio.timeout(1):
            healthy += (await door.client.get("/healthz")).status_code == 200
        await asyncio.sleep(0.05)
    assert healthy > 5
    for name, task in sending.items():
        assert task.result().startswith(b"HTTP/1.1 408 "), (name, task.result())
        assert b"application/problem+json" in task.result(), name


async def test_a_slow_body_that_nobody_reads_does_not_hold_the_connection(door: Door) -> None:
    head = b"POST /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n"
    answer = await door.raw(head, *[b"x"] * 200, pause=0.05)
    assert answer.startswith(b"HTTP/1.1 405 ")
    assert answer.count(b"HTTP/1.1") == 1


# JSON.

ZOO = {
    "empty": b"",
    "nothing": b" ",
    "cut": b'{"id": "z1", "room": "r", "from": "a", "text": "t"',
    "two": b'{"id": "z1"} {"id": "z2"}',
    "nested lists": b"[" * 100_000 + b"]" * 100_000,
    "nested objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "nested in a field": b'{"id":"z","room":"r","from":"a","text":"t","x":'
    + b"[" * 99_999
    + b"]" * 99_999
    + b"}",
    "long integer": b'{"id":"z","room":"r","from":"a","text":"t","x":' + b"1" * 5000 + b"}",
    "NaN": b'{"id":"z","room":"r","from":"a","text":"t","x":NaN}',
    "infinity": b'{"id":"z","room":"r","from":"a","text":"t","x":-Infinity}',
    "too large a float": b'{"id":"z","room":"r","from":"a","text":"t","x":1e999}',
    "same key twice": b'{"id":"z","id":"y","room":"r","from":"a","text":"t"}',
    "same key twice, escaped": b'{"id":"z","\\u0069d":"y","room":"r","from":"a","text":"t"}',
    "same key twice, deep": b'{"id":"z","room":"r","from":"a","text":"t","x":[{"a":1,"a":2}]}',
    "lone surrogate": b'{"id":"z","room":"r","from":"a","text":"\\ud800"}',
    "lone surrogate as a key": b'{"id":"z","room":"r","from":"a","text":"t","\\udc00":1}',
    "surrogates the wrong way round": b'{"id":"z","room":"r","from":"a","text":"\\ude00\\ud83d"}',
    "raw surrogate": b'{"id":"z","room":"r","from":"a","text":"\xed\xa0\x80"}',
    "UTF-16": '{"id":"z","room":"r","from":"a","text":"t"}'.encode("utf-16"),
    "UTF-16 without mark": '{"id":"z","room":"r","from":"a","text":"t"}'.encode("utf-16-le"),
    "UTF-32": '{"id":"z","room":"r","from":"a","text":"t"}'.encode("utf-32"),
    "byte order mark": b'\xef\xbb\xbf{"id":"z","room":"r","from":"a","text":"t"}',
    "latin-1": b'{"id":"z","room":"r","from":"a","text":"\xe9"}',
    "NUL": b'{"id":"z","room":"r","from":"a","text":"a\\u0000b"}',
    "NUL in the id": b'{"id":"z\\u0000","room":"r","from":"a","text":"t"}',
    "NUL in the room": b'{"id":"z","room":"\\u0000","from":"a","text":"t"}',
    "NUL in the sender": b'{"id":"z","room":"r","from":"\\u0000","text":"t"}',
    "raw NUL": b'{"id":"z","room":"r","from":"a","text":"a\x00b"}',
    "raw control character": b'{"id":"z","room":"r","from":"a","text":"a\x1fb"}',
    "a list": b"[]",
    "a string": b'"id"',
    "null": b"null",
    "a number": b"1e5",
    "wrong types": b'{"id":1,"room":["r"],"from":null,"text":{}}',
    "id is empty": b'{"id":"","room":"r","from":"a","text":"t"}',
    "id is too long": b'{"id":"' + b"z" * 501 + b'","room":"r","from":"a","text":"t"}',
    "room is too long": b'{"id":"z","room":"' + b"r" * 10_000 + b'","from":"a","text":"t"}',
    "room is empty": b'{"id":"z","room":"","from":"a","text":"t"}',
    "id is missing": b'{"room":"r","from":"a","text":"t"}',
    "trailing comma": b'{"id":"z","room":"r","from":"a","text":"t",}',
    "single quotes": b"{'id':'z','room':'r','from':'a','text':'t'}",
    "a form": b"id=z&room=r&from=a&text=t",
    "xml": b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>',
}


@pytest.mark.parametrize("body", ZOO.values(), ids=ZOO.keys())
async def test_json_with_more_than_one_meaning_or_none(door: Door, body: bytes) -> None:
    found = await refused(door, await door.post(body), 400)
    assert found["code"] == "malformed"
    assert len(found["detail"]) < 300


# HTTP that is none.

GARBAGE = {
    "bytes": b"\x00\x01\x02\xff" * 64,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x5a" * 200,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
    "words": b"hello\r\n\r\n",
    "newlines and words": b"\r\n\r\n\r\nwhat\r\n\r\n",
    "header without colon": b"GET /healthz HTTP/1.1\r\nhost localhost\r\n\r\n",
    "NUL in a header": b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: a\x00b\r\n\r\n",
    "space before colon": b"GET /healthz HTTP/1.1\r\nhost : x\r\n\r\n",
    "bytes in the path": b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
    "star": b"GET * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    "connect": b"CONNECT localhost:22 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "negative length": b"POST /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
    "two lengths": b"POST /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
    "length and chunks": (
        b"POST /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "odd coding": b"POST /healthz HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked, x\r\n\r\n0\r\n\r\n",
    "endless chunk size": (
        b"POST /healthz HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n"
    ),
    "chunk that is no number": (
        b"POST /healthz HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n\r\n"
    ),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
async def test_garbage_is_answered_and_put_away(door: Door, garbage: bytes) -> None:
    answer = await door.raw(garbage)
    status = int(answer[9:12])
    assert 400 <= status < 500, answer
    assert b"Traceback" not in answer
    assert b"application/problem+json" in answer


async def test_a_head_without_end_is_not_kept(door: Door) -> None:
    for piece in (b"a" * 65536, b"a: b\r\n" * 10_000):
        answer = await door.raw(b"GET /healthz HTTP/1.1\r\nx: y\r\n", *[piece] * 50)
        assert answer.startswith(b"HTTP/1.1 431 "), answer
        assert b"application/problem+json" in answer


async def test_a_websocket_is_not_offered(door: Door) -> None:
    answer = await door.raw(
        f"GET {door.path} HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        "sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
    )
    assert 400 <= int(answer[9:12]) < 500, answer
