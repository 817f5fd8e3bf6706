"""How every command reaches the platform: an HTTP client to the control API.

While a server runs, over the Unix socket in the data directory; without one, in this process, which then holds
the store's lock for as long as the command takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from gofer.cli.exit_codes import TRY_LATER, USAGE, CommandFailed

if TYPE_CHECKING:
    import httpx2

    from gofer.settings import Settings

T = TypeVar("T")

BASE = "http://gofer/api/v1"
PATIENCE, TOLD_AFTER = 30.0, 3.0
"""Seconds to wait for a process that is just starting, or for another command to finish; and to do so silently."""
WAITING = "Process {holder} has the database and takes no commands yet: it is starting, stopping, or a command itself."
UPDATE_TAKES = 120.0
"""Seconds to wait for a server that the supervisor is about to start."""
SILENCE = 3600.0
"""Seconds a stream may be silent: a run may work for long."""
USUAL_ANSWER, LONGEST_ANSWER = 60.0, 3600.0
"""Seconds an answer may take; the second for what goes through the whole store."""


def call(method: str, path: str, **request: Any) -> Any:
    """One request to the control API; its JSON, or Failed."""
    return with_api(lambda api: api.ask(method, path, **request))


class Api:
    """The control API as commands see it."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def ask(self, method: str, path: str, **request: Any) -> Any:
        """The JSON answer; raises Failed with the problem's own words."""
        import httpx2

        if {".", ".."} & set(path.split("/")):
            raise CommandFailed("A name or an id may not be . or .. or have one between slashes.", USAGE)
        try:
            response = await self._client.request(method, path, **request)
        except httpx2.InvalidURL as error:
            raise CommandFailed(
                "An argument is too long, or has characters that no request can carry.", USAGE
            ) from error
        except UnicodeEncodeError as error:
            raise CommandFailed("An argument is not UTF-8 text.", USAGE) from error
        except ValueError as error:  # JSON has no word for it
            raise CommandFailed("A number has to be finite.", USAGE) from error
        except httpx2.TimeoutException as error:
            raise CommandFailed(
                "The server did not answer in time; it may be stopped or very busy.", TRY_LATER
            ) from error
        except httpx2.TransportError as error:
            raise CommandFailed(
                f"The server went away before it answered ({type(error).__name__}).", TRY_LATER
            ) from error
        if response.is_error:
            raise CommandFailed.by_problem(response.status_code, _json(response))
        return response.json()

    async def lines(self, path: str, **request: Any) -> AsyncGenerator[str]:
        """The lines of a stream, until the server ends it; raises Failed when there is none."""
        import httpx2

        timeout = httpx2.Timeout(SILENCE, connect=5)
        try:
            async with self._client.stream("GET", path, timeout=timeout, **request) as response:
                if response.is_error:
                    await response.aread()
                    raise CommandFailed.by_problem(response.status_code, _json(response))
                async for line in response.aiter_lines():
                    yield line
        except httpx2.TransportError as error:
            raise CommandFailed(f"The server went away ({type(error).__name__}).", TRY_LATER) from error


def _json(response: httpx2.Response) -> dict[str, Any]:
    try:
        value = response.json()
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def with_api(do: Callable[[Api], Awaitable[T]]) -> T:
    """Run something that asks several things over one connection."""

    async def work() -> T:
        from gofer.settings import load_settings

        async with open_api(load_settings()) as api:
            return await do(api)

    return asyncio.run(work())


@contextlib.asynccontextmanager
async def open_api(settings: Settings) -> AsyncIterator[Api]:
    """The API of the running server, or of a platform opened here and now."""
    import httpx2

    async with contextlib.AsyncExitStack() as stack:
        transport = await _transport(settings, stack)
        client = httpx2.AsyncClient(
            transport=transport, base_url=BASE, timeout=httpx2.Timeout(USUAL_ANSWER, connect=5)
        )
        yield Api(await stack.enter_async_context(client))


@contextlib.asynccontextmanager
async def server_client(
    settings: Settings, url: str, token: str, here: Mapping[str, str]
) -> AsyncIterator[httpx2.AsyncClient]:
    """The API of a server that runs: of one elsewhere with a token, or of the one on this machine with the headers that
    narrow what a caller may do. Without a server nothing would do the work that is asked for."""
    import httpx2

    from gofer.web.unix_socket import reachable, somebody_listens

    timeout = httpx2.Timeout(USUAL_ANSWER, connect=5)
    if url:
        headers = {"authorization": f"Bearer {token}"}
        base = f"{url.rstrip('/')}/api/v1"
        async with httpx2.AsyncClient(base_url=base, headers=headers, timeout=timeout) as client:
            yield client
        return
    await wait_for_supervisor(settings)
    if not somebody_listens(settings.socket_path):
        raise CommandFailed("No server runs here. Start one first: gofer serve", TRY_LATER)
    with reachable(settings.socket_path) as name:
        transport = httpx2.AsyncHTTPTransport(uds=name, verify=False)
        async with httpx2.AsyncClient(
            transport=transport, base_url=BASE, headers=here, timeout=timeout
        ) as client:
            yield client


async def wait_for_supervisor(settings: Settings) -> None:
    """While `gofer up` is about to start a server here, wait for it; say so. Raises CommandFailed when that takes too
    long in the midst of an update, in which the store belongs to the supervisor's own commands."""
    from gofer.releases.lifecycle import expected_server, open_home
    from gofer.web.unix_socket import somebody_listens

    begun, told = time.monotonic(), False
    if os.environ.get("GOFER_BUILD"):  # a command of the supervisor itself
        return
    while not somebody_listens(settings.socket_path):
        why, updating = expected_server(open_home(settings))
        waited = time.monotonic() - begun
        if not why or (waited > UPDATE_TAKES and not updating):
            return
        if waited > UPDATE_TAKES:
            raise CommandFailed(f"{why} Try again when that is done: gofer update list", TRY_LATER)
        if waited > TOLD_AFTER and not told:
            print(f"gofer: {why} Waiting …", file=sys.stderr, flush=True)
            told = True
        await asyncio.sleep(0.1)


async def _transport(settings: Settings, stack: contextlib.AsyncExitStack) -> httpx2.AsyncBaseTransport:
    """Wherever the store is open; a process that is starting or ending is given a moment."""
    import httpx2

    from gofer.errors import StoreBusy
    from gofer.web.unix_socket import reachable, somebody_listens

    await wait_for_supervisor(settings)
    begun, told = time.monotonic(), False
    while True:
        if somebody_listens(settings.socket_path):
            name = stack.enter_context(reachable(settings.socket_path))
            return httpx2.AsyncHTTPTransport(uds=name, verify=False)
        try:
            return await _open_here(settings, stack)
        except StoreBusy as error:
            waited, said = time.monotonic() - begun, WAITING.format(holder=error.holder)
            if waited > PATIENCE:
                raise StoreBusy(f"{said} Try again in a moment; if it stays like this, stop it.") from error
            if waited > TOLD_AFTER and not told:
                print(f"gofer: {said} Waiting …", file=sys.stderr, flush=True)
                told = True
        await asyncio.sleep(0.1)


async def _open_here(settings: Settings, stack: contextlib.AsyncExitStack) -> httpx2.AsyncBaseTransport:
    import httpx2

    from gofer.app import open_app
    from gofer.logs import set_up_logs
    from gofer.vault.redaction import Redactor
    from gofer.web.api import control_app

    redactor = Redactor()
    # What a server tells its log is not what somebody who typed a command wants to read.
    set_up_logs(settings.model_copy(update={"log_level": "error"}), redactor)
    platform = await stack.enter_async_context(open_app(settings, roles=frozenset(), redactor=redactor))
    return httpx2.ASGITransport(app=control_app(platform), raise_app_exceptions=False)
