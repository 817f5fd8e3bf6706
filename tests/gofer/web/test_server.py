"""The HTTP server under the pages and the webhooks."""

from __future__ import annotations

import socket

from starlette.responses import PlainTextResponse

from gofer.web.server import listening


async def test_the_pieces_of_an_answer_do_not_wait_for_each_other() -> None:
    """Connections inherit it from what they came in by; without it every answer with a body takes 40 ms longer."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        bound.setblocking(False)
        async with listening(PlainTextResponse("here"), bound):
            assert bound.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
