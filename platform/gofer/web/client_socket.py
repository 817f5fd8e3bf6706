"""A WebSocket of one client, as the web chat and the protocols hold it.

Each has bounds of its own: a client that floods, does not read or lost its access is cut off, and nobody else waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import structlog
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from gofer.errors import Forbidden, NotFound, StoreError, TooBusy
from gofer.web.auth import NotSignedIn, guard
from gofer.web.body import CONNECTION, LAST_WORDS, MESSAGE_LIMIT, SEND_AT_ONCE

log = structlog.get_logger()

SEND_TIMEOUT = 10.0
"""Seconds a reader may take for one frame."""
MAX_UNREAD = 16 * 1024 * 1024
"""Characters that may wait for one reader."""
CLOSE_TIMEOUT = 1.0
"""Seconds to say goodbye in."""
BURST, PER_SECOND = 30.0, 5.0
"""Frames a connection may send at once, and on average."""
TOKEN_BURST, TOKEN_PER_SECOND = 2000.0, 400.0
"""Frames of all connections with one token, at one endpoint."""
MAX_KNOWN = 10_000
"""Addresses and tokens whose allowances are remembered."""
MAX_REASON = 120
"""Bytes of what a close says; the protocol has room for 123."""


class Flooded(Exception):
    """More came than was allowed."""


@dataclass(frozen=True, slots=True)
class CloseCodes:
    """What a socket is closed with, and why."""

    not_allowed: int = 4403
    too_slow: int = 4408
    flooded: int = 4429


OWN_CODES = CloseCodes()


class Allowance:
    """A bucket of frames that fills with time."""

    def __init__(self, burst: float = BURST, per_second: float = PER_SECOND) -> None:
        self._burst, self._per_second = burst, per_second
        self._left, self._at = burst, time.monotonic()

    def spend(self) -> bool:
        """Whether one more frame is allowed now."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        self._left -= 1
        return self._left >= 0


class Allowances:
    """One allowance for each key; the oldest are forgotten first."""

    def __init__(self, burst: float = TOKEN_BURST, per_second: float = TOKEN_PER_SECOND) -> None:
        self._burst, self._per_second = burst, per_second
        self._known: dict[str, Allowance] = {}

    def spend(self, who: str) -> bool:
        """Whether one more frame of this key is allowed now."""
        if who not in self._known:
            if len(self._known) >= MAX_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[who] = Allowance(self._burst, self._per_second)
        return self._known[who].spend()


class ClientSocket:
    """One connection: sends are bounded in time and come one after the other, what comes in is bounded in number."""

    def __init__(
        self, websocket: WebSocket, *, allowance: Allowance | None = None, codes: CloseCodes = OWN_CODES
    ) -> None:
        self.websocket = websocket
        self.codes = codes
        headers = websocket.headers
        self.credential = headers.get("authorization", ""), headers.get("cookie", "")
        """Sockets with the same credential are checked together."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Raises once the client may no longer."""
        self._allowance = allowance or Allowance()
        self._sending = asyncio.Lock()
        self._waiting, self._unread = 0, False

    def is_known(self) -> None:
        """The client has said who it is: from here on it is not closed to make room for others."""
        connection = self.websocket.scope.get(CONNECTION)
        if connection is not None:
            connection.is_known()

    def limit_messages(self, size: int) -> None:
        """Bound the size of each further message; a larger one closes the socket with 1009."""
        limit = self.websocket.scope.get(MESSAGE_LIMIT)
        if limit is not None:
            limit(size)

    def say_last(self, words: Callable[[], str]) -> None:
        """Have one more frame sent when the server stops and closes the socket."""
        say_last = self.websocket.scope.get(LAST_WORDS)
        if say_last is not None:
            say_last(words)

    def send_at_once(self, words: Callable[[], str]) -> None:
        """Send a frame unless another one waits to be read. It costs no task, and nobody waits."""
        send_at_once = self.websocket.scope.get(SEND_AT_ONCE)
        if send_at_once is not None and not self._waiting:
            send_at_once(words)

    async def send(self, text: str) -> None:
        """Send one frame; raises TimeoutError when it is not read, which ends the connection whoever sends it."""
        waits_already, self._waiting = self._waiting, self._waiting + len(text)
        try:
            if waits_already > MAX_UNREAD:
                raise TimeoutError
            async with self._sending:
                if self._unread:
                    raise TimeoutError
                async with asyncio.timeout(SEND_TIMEOUT):
                    await self.websocket.send_text(text)
        except TimeoutError as error:
            self._unread = True
            self.end(error)
            raise
        finally:
            self._waiting -= len(text)

    def end(self, why: BaseException) -> None:
        """End the conversation from elsewhere."""
        if not self.ended.done():
            self.ended.set_exception(why)
            self.ended.exception()  # when it has ended already, nobody else looks

    async def send_json(self, frame: dict[str, Any]) -> None:
        """Send one frame of JSON."""
        await self.send(json.dumps(frame, ensure_ascii=False))

    async def receive(self) -> Message:
        """The next frame; raises WebSocketDisconnect and Flooded."""
        message = await self.websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect
        if not self._allowance.spend():
            raise Flooded
        return message

    async def close(self, code: int, reason: str) -> None:
        """Say goodbye, unless the client has gone."""
        if self.websocket.application_state is not WebSocketState.DISCONNECTED:
            short = reason.encode()[:MAX_REASON].decode(errors="ignore")
            with contextlib.suppress(RuntimeError, TimeoutError, WebSocketDisconnect):
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await self.websocket.close(code, short)

    async def run(self, *sides: Coroutine[Any, Any, None]) -> None:
        """Speak and listen until one side ends; what it raised is raised, and the others are stopped."""
        tasks = [asyncio.create_task(side) for side in sides]
        try:
            done, _ = await asyncio.wait({*tasks, self.ended}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def closing(self, crashed: str) -> AsyncIterator[None]:
        """Close with the code that fits whatever ends the conversation. A bug of ours is logged as `crashed`."""
        try:
            yield
        except (WebSocketDisconnect, RuntimeError):
            pass  # it went away
        except TimeoutError:
            await self.close(self.codes.too_slow, "You read too slowly.")
        except Flooded:
            await self.close(self.codes.flooded, "Too many messages at once.")
        except (NotFound, NotSignedIn, Forbidden) as error:
            await self.close(self.codes.not_allowed, str(error))
        except Exception:
            log.exception(crashed)
            await self.close(1011, "")


class ClientSockets:
    """The open sockets of one endpoint: a number for each member, closed when their credential ends."""

    def __init__(self, check: Callable[[WebSocket], Awaitable[None]]) -> None:
        self.open: Counter[str] = Counter()
        """By member."""
        self._check = check
        """Raises NotSignedIn or Forbidden once a client may no longer."""
        self._sockets: set[ClientSocket] = set()
        self._watch: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def entered(self, socket: ClientSocket, member_id: str, *, most: int) -> Iterator[None]:
        """Hold a place for a socket; raises TooBusy when the member has no more."""
        if self.open[member_id] >= most:
            raise TooBusy("Too many connections are open.", retry_after=30)
        self.open[member_id] += 1
        self._sockets.add(socket)
        if self._watch is None:
            self._watch = asyncio.create_task(self._keep_watch(), name="client-sockets")
        try:
            yield
        finally:
            socket.ended.cancel()
            self.open[member_id] -= 1
            self._sockets.discard(socket)
            if not self._sockets:
                self._watch.cancel()
                self._watch = None

    async def _keep_watch(self) -> None:
        """Check each credential repeatedly, once for all sockets that use it."""
        while True:
            await asyncio.sleep(guard.LOOK_AGAIN)
            together: dict[tuple[str, str], list[ClientSocket]] = defaultdict(list)
            for socket in self._sockets:
                together[socket.credential].append(socket)
            for sockets in together.values():
                await self._look_at(sockets)

    async def _look_at(self, sockets: list[ClientSocket]) -> None:
        try:
            await self._check(sockets[0].websocket)
        except (NotSignedIn, Forbidden) as error:
            for socket in sockets:
                socket.end(error)
        except StoreError:
            pass  # looked at again
        except Exception:
            log.exception("socket.check_failed")
