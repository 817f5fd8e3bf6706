"""Server-sent events to one reader, as the API and the chat send them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gofer.errors import TooBusy
from gofer.jobs.event_stream import FellBehind

SEND_TIMEOUT = 15.0
"""Seconds a reader may take to read what is sent. A slower one is cut off, and can resume."""
MAX_STREAM_SECONDS = 300.0
"""Seconds a stream lasts; a reader who wants more reconnects."""


class Stream(Response):
    """Server-sent events to one reader, who is cut off when it does not read or may no longer.

    Raises TooBusy for one more than a member may have, before anything is sent. `refusal` is awaited beside it,
    and ends it when the reader may read no more.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        content: AsyncIterator[bytes],
        watching: Counter[str],
        member_id: str,
        *,
        most: int,
        refusal: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        if watching[member_id] >= most:
            raise TooBusy(f"You are watching {most} times already.", retry_after=30)
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._content = content
        self._refusal = refusal
        self._watching = watching
        self._member_id = member_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the content ends, the reader leaves or time is up."""
        self._watching[self._member_id] += 1
        try:
            await self._stream(receive, send)
        finally:
            self._watching[self._member_id] -= 1

    async def _stream(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_left(receive))
        refused = asyncio.create_task(self._refusal())
        tasks = (sending, leaving, refused)
        await asyncio.wait(tasks, timeout=MAX_STREAM_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._content.aclose()  # type: ignore[attr-defined]
        with contextlib.suppress(Exception):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send) -> None:
        with contextlib.suppress(FellBehind, TimeoutError):
            async for piece in self._content:
                async with asyncio.timeout(SEND_TIMEOUT):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
