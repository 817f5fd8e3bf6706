"""The server itself, around whatever app it serves."""

from __future__ import annotations

import asyncio
import socket

import httpx2
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from gofer.web.server import listening, make_server
from support.patience import patience


async def test_who_is_cut_off_by_a_stop_is_told_to_come_back() -> None:
    asked = asyncio.Event()

    async def never_answers(scope: Scope, receive: Receive, send: Send) -> None:
        asked.set()
        await asyncio.sleep(3600)

    server = make_server(never_answers, host="127.0.0.1", port=0, stop_timeout=0)
    serving = asyncio.create_task(server.serve())
    await server.ready.wait()
    async with httpx2.AsyncClient(timeout=patience(30)) as client:
        posting = asyncio.create_task(client.post(f"http://127.0.0.1:{server.port}/hooks/x", content=b"{}"))
        await asked.wait()
        server.stop()
        response = await posting
    await serving
    assert response.status_code == 503
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["retry-after"] == "1"


async def test_the_pieces_of_an_answer_do_not_wait_for_each_other() -> None:
    """Connections inherit it from what they came in by; without it every answer with a body takes 40 ms longer."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        bound.setblocking(False)
        async with listening(PlainTextResponse("here"), bound):
            assert bound.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_who_has_connected_just_before_the_server_stops_is_answered() -> None:
    async def says_ok(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await PlainTextResponse("ok")(scope, receive, send)

    server = make_server(says_ok, host="127.0.0.1", port=0)
    running = asyncio.create_task(server.serve())
    await server.ready.wait()
    visitors = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
    await asyncio.sleep(0.1)
    server.stop()
    await asyncio.sleep(0.3)  # it accepts nobody any more
    for _, writer in visitors[:2]:
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answers = [await asyncio.wait_for(reader.read(), patience(30)) for reader, _ in visitors]
    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 200", b"HTTP/1.1 200", b""]
    assert all(b"connection: close" in answer.lower() for answer in answers[:2])
    await asyncio.wait_for(running, patience(30))
    for _, writer in visitors:
        writer.close()
