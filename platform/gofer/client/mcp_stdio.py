"""MCP on stdin and stdout: a JSON-RPC message a line.

Every request that was read is answered before the process ends, also when its input has ended long ago, and what is no
request is answered with the error that JSON-RPC has for it. The library's own transport does neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from gofer.client.mcp_tools import MAX_WAIT
from gofer.errors import Malformed
from gofer.strict_json import load_json
from gofer.validation import first_error

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp.shared.message import SessionMessage
    from mcp_types import JSONRPCError, JSONRPCMessage

MAX_LINE = 1024 * 1024
"""Bytes of one message; `/mcp` takes as many."""
LAST_ANSWERS_TIMEOUT = MAX_WAIT + 60.0
"""Seconds for what is still to be answered when the input has ended: what a call may wait, and a request to the API."""


class StdioTransport:
    """One client, which writes to `input_fd` and reads from `output_fd`."""

    def __init__(self, input_fd: int, output_fd: int) -> None:
        self._input = input_fd
        self._output = output_fd
        self._open = 0
        """Requests that were read and not answered yet."""
        self._answered = asyncio.Event()
        """Set whenever one was answered."""

    async def serve(self, server: Server[Any]) -> None:
        """Answer until the input has ended and nothing is left to answer, or nobody reads."""
        import anyio

        to_server, incoming = anyio.create_memory_object_stream[Any](0)
        outgoing, from_server = anyio.create_memory_object_stream[Any](0)
        tasks = [
            asyncio.create_task(self._read_messages(to_server, outgoing.clone())),
            asyncio.create_task(self._tell(from_server)),
            asyncio.create_task(server.run(incoming, outgoing, server.create_initialization_options())),
        ]
        telling = tasks[1]
        try:
            # The server closes its side when there is nothing more to hear, and then everything has been told.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for stream in (to_server, incoming, outgoing, from_server):
                stream.close()
        if not telling.cancelled() and isinstance(telling.exception(), OSError):
            return  # nobody reads any more
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _read_messages(self, to_server: Any, outgoing: Any) -> None:
        async with to_server, outgoing:
            async for line in self._lines():
                try:
                    await to_server.send(self._counted(parse_message(line)))
                except InvalidMessage as error:
                    self._open += 1
                    await outgoing.send(_wrapped(error.answer()))
            with contextlib.suppress(TimeoutError):  # the server tells each that the connection is closed
                async with asyncio.timeout(LAST_ANSWERS_TIMEOUT):
                    await self._all_answered()

    async def _all_answered(self) -> None:
        while self._open:
            self._answered.clear()
            await self._answered.wait()

    def _counted(self, message: JSONRPCMessage) -> SessionMessage:
        """A message for the server. A request is open until it is answered, or cancelled: then it has no answer."""
        from mcp.shared.message import ServerMessageMetadata
        from mcp_types import JSONRPCRequest

        if not isinstance(message, JSONRPCRequest):
            return _wrapped(message)
        self._open += 1
        return _wrapped(message, ServerMessageMetadata(on_request_unanswered=self._close_one))

    async def _close_one(self) -> None:
        self._open -= 1
        self._answered.set()

    async def _tell(self, from_server: Any) -> None:
        from mcp_types import JSONRPCError, JSONRPCResponse

        async for item in from_server:
            text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            await self._write(text.encode() + b"\n")
            if isinstance(item.message, JSONRPCError | JSONRPCResponse):
                await self._close_one()

    async def _lines(self) -> AsyncIterator[bytes]:
        """What comes in, line by line. Of a line that is too long the beginning is given, and the rest is left out."""
        import anyio

        rest, skipped = b"", False
        # Not through a buffered file: a thread that waits in one keeps the process from ending.
        while chunk := await anyio.to_thread.run_sync(os.read, self._input, 65536, abandon_on_cancel=True):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line.strip() and not skipped:
                    yield line
                skipped = False
            if len(rest) > MAX_LINE:
                if not skipped:
                    yield rest
                rest, skipped = b"", True
        if rest.strip() and not skipped:
            yield rest

    async def _write(self, data: bytes) -> None:
        import anyio

        view = memoryview(data)
        while view:
            written = await anyio.to_thread.run_sync(os.write, self._output, view, abandon_on_cancel=True)
            view = view[written:]


class InvalidMessage(Exception):
    """What a client said is no message of JSON-RPC."""

    def __init__(self, code: int, words: str, id_: str | int | None = None) -> None:
        super().__init__(words)
        self.code = code
        self.id = id_

    def answer(self) -> JSONRPCError:
        """What it is answered."""
        from mcp_types import ErrorData, JSONRPCError

        return JSONRPCError(jsonrpc="2.0", id=self.id, error=ErrorData(code=self.code, message=str(self)))


def parse_message(line: bytes) -> JSONRPCMessage:
    """One line of a client; raises InvalidMessage."""
    from mcp_types import INVALID_REQUEST, PARSE_ERROR, jsonrpc_message_adapter

    if len(line) > MAX_LINE:
        raise InvalidMessage(INVALID_REQUEST, f"A message has at most {MAX_LINE} bytes.")
    try:
        value = load_json(line)
    except Malformed as error:
        raise InvalidMessage(PARSE_ERROR, str(error)) from None
    if not isinstance(value, dict):
        raise InvalidMessage(INVALID_REQUEST, "A message is one JSON object; there are no batches.")
    id_ = value.get("id")
    known = id_ if isinstance(id_, str | int) and not isinstance(id_, bool) else None
    if "method" in value and "id" in value and known is None:
        raise InvalidMessage(INVALID_REQUEST, "id: must be a text or a whole number.")
    try:
        return jsonrpc_message_adapter.validate_python(value, by_name=False)
    except ValidationError as error:
        words = f"This is no request of JSON-RPC 2.0: {first_error(error)}."
        raise InvalidMessage(INVALID_REQUEST, words, known) from None


def _wrapped(message: JSONRPCMessage, metadata: Any = None) -> SessionMessage:
    from mcp.shared.message import SessionMessage

    return SessionMessage(message, metadata)
