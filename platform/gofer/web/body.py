"""Reading a request's body without trusting its sender: bounded in bytes and in time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator

from starlette.datastructures import FormData
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope

from gofer.app import Platform
from gofer.errors import GoferError

FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
BODIES_AT_ONCE = 4
"""How many webhook bodies of the largest size may be arriving at once, before their signatures are checked."""
MAX_FORM = 32 * 1024 * 1024
SLOWEST = 64 * 1024
"""Bytes per second that give a signed-in person's upload more time than other bodies have."""
CONNECTION = "gofer.connection"
"""Where a request's scope keeps the connection that it came by."""
LAST_WORDS = "gofer.last_words"
"""In the scope of a WebSocket: has one more frame sent when the server stops."""
MESSAGE_LIMIT = "gofer.message_limit"
"""Where a WebSocket's scope keeps what bounds the bytes of its messages from then on."""
SEND_AT_ONCE = "gofer.send_at_once"
"""In the scope of a WebSocket: sends a frame if there is room for it now."""
CLIENT_GONE = 499
"""What the log calls a request whose sender went away; nobody is there to be answered."""


class BodyError(GoferError):
    """The body cannot be taken."""

    code = "body"

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class BodyRoom:
    """Bounds the memory for bodies that arrive in pieces from senders who are not verified yet."""

    def __init__(self, most: int) -> None:
        self._left = most

    @contextlib.contextmanager
    def counted(self) -> Iterator[Callable[[int], None]]:
        """Yields what counts each piece of a body; it raises BodyError 503 when there is no room for it. The room is
        given back in the end."""
        held = 0

        def count(size: int) -> None:
            nonlocal held
            if size > self._left:
                raise BodyError(503, "Too many large bodies are on their way at this moment.")
            held += size
            self._left -= size

        try:
            yield count
        finally:
            self._left += held


class ClientGone(BodyError):
    """The connection closed before the body was complete."""

    def __init__(self) -> None:
        super().__init__(CLIENT_GONE, str(self.__doc__))


async def read_form(
    request: Request, *, max_bytes: int = MAX_FORM, max_files: int = 0, max_fields: int = 20
) -> FormData:
    """The form of a request, read once and bounded in bytes, fields and time; empty when it sent none.

    Raises BodyError 408, 413 or 499.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() not in FORMS:
        return FormData()
    declared = request.headers.get("content-length", "")
    if not (declared.isascii() and declared.isdigit()) or len(declared) > 12 or int(declared) > max_bytes:
        raise BodyError(413, f"A form may have {max_bytes} bytes at most, and says beforehand how many.")
    platform: Platform = request.app.state.platform
    timeout = platform.settings.body_timeout
    if getattr(request.scope.get("gofer.caller"), "visitor", None) is not None:
        timeout += int(declared) / SLOWEST
    try:
        async with asyncio.timeout(timeout):
            return await request.form(max_files=max_files, max_fields=max_fields)
    except TimeoutError:
        raise BodyError(408, f"The form did not arrive within {timeout:.0f} s.") from None
    except ClientDisconnect:
        raise ClientGone from None


async def read_body(request: Request, *, at_most: int, within: float) -> bytes:
    """The raw bytes; raises BodyError 408, 413, 415 or 499."""
    return await receive_body(request.scope, request.receive, at_most=at_most, within=within)


async def receive_body(
    scope: Scope,
    receive: Receive,
    *,
    at_most: int,
    within: float,
    count: Callable[[int], None] = lambda _: None,
) -> bytes:
    """`read_body` for callers without a Request. `count` is told of every piece that is kept."""
    _check_headers(scope["headers"], at_most)
    chunks: list[bytes] = []
    size, more = 0, True
    # A short body is here with its head, and a timer for it would cost more than reading it.
    try:
        async with asyncio.timeout(None if has_whole_body(scope) else within):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                chunk = message.get("body", b"")
                size += len(chunk)
                if size > at_most:
                    raise BodyError(413, f"The body may have {at_most} bytes at most.")
                count(len(chunk))
                chunks.append(chunk)
                more = message.get("more_body", False)
    except TimeoutError:
        raise BodyError(408, f"The body did not arrive within {within:.0f} s.") from None
    return b"".join(chunks)


def has_whole_body(scope: Scope) -> bool:
    """Whether the body has arrived together with the headers."""
    connection = scope.get(CONNECTION)
    return connection is not None and bool(connection.has_whole_body)


def _check_headers(headers: Iterable[tuple[bytes, bytes]], at_most: int) -> None:
    for name, value in headers:
        if name == b"content-encoding":
            encoding = value.decode("latin-1").strip().lower()
            if encoding not in ("", "identity"):
                raise BodyError(415, f"Send the body without content-encoding ({encoding[:40]} is not read).")
        elif name == b"content-length" and value.isdigit() and int(value[:20]) > at_most:
            raise BodyError(413, f"The body may have {at_most} bytes at most.")
