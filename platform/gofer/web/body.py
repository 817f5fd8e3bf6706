"""Reading a request's body without trusting its sender: bounded in bytes and in time."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from gofer.errors import GoferError


class BodyError(GoferError):
    """The body cannot be taken."""

    code = "body"

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def read_body(request: Request, *, at_most: int, within: float) -> bytes:
    """The raw bytes; raises BodyError 408, 413 or 415, or 400 when the sender went away."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise BodyError(415, f"Send the body without content-encoding ({encoding[:40]} is not read).")
    declared = request.headers.get("content-length", "0")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > at_most:
        raise BodyError(413, f"The body may have {at_most} bytes at most.")
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(within):
            async for chunk in request.stream():
                size += len(chunk)
                if size > at_most:
                    raise BodyError(413, f"The body may have {at_most} bytes at most.")
                chunks.append(chunk)
    except TimeoutError:
        raise BodyError(408, f"The body did not arrive within {within:.0f} s.") from None
    except ClientDisconnect:
        raise BodyError(400, "The connection closed before the body was complete.") from None
    return b"".join(chunks)
