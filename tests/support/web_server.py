"""A real server on loopback for the tests of a module, and browsers that visit it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import pytest
from sqlalchemy import select
from starlette.applications import Starlette

from gofer.app import Platform, open_app
from gofer.serve import _listen
from gofer.settings import Settings
from gofer.store.tables import agents, routes
from gofer.web.app import RequestLog, public_app
from gofer.web.auth import passwords
from gofer.web.auth.members import add_member, first_owner, new_link
from gofer.web.auth.passwords import Passwords
from gofer.web.auth.principal import Role, Scope
from gofer.web.auth.sessions import new_token
from gofer.web.server import limit_for, listening
from support.patience import patience
from support.process_speed import new_loop
from support.sqlite_template import with_tables

T = TypeVar("T")

PASSWORD = "correct horse battery"
REAL_COST: dict[str, Any] = {"MEMORY": passwords.MEMORY, "NOBODY": passwords.NOBODY}
"""What a hash costs outside of tests; read before any fixture puts it aside."""


@contextlib.contextmanager
def cheap_passwords() -> Iterator[None]:
    """Hashes that take no time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "MEMORY", 64)
        patch.setattr(passwords, "NOBODY", REAL_COST["NOBODY"].replace(f"m={REAL_COST['MEMORY']}", "m=64"))
        yield


class House:
    """A platform with its public door open, in a thread of its own."""

    def __init__(
        self, data_dir: Path, *, roles: tuple[str, ...] = ("web", "worker"), **settings: Any
    ) -> None:
        self._roles = frozenset(roles)
        given = {"sandbox": "off", "poll_interval": 0.3, **settings}
        self.settings = with_tables(Settings(data_dir=data_dir, port=0, **given))
        self.platform: Platform
        self.app: Starlette
        self.url = ""
        self.connections: set[Any] = set()
        """Those that are open now."""
        self._clients: list[httpx2.Client] = []
        self._loop = new_loop()
        self._ready, self._over = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._live)
        self._thread.start()
        assert self._ready.wait(patience(60))

    def _live(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._open())
            finally:
                self._ready.set()

    async def _open(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            door = _listen(self.settings)
            stack.callback(door.close)
            self.platform = await stack.enter_async_context(open_app(self.settings, roles=self._roles))
            self.app = public_app(self.platform)
            server = await stack.enter_async_context(
                listening(RequestLog(self.app), door, limit_for(self.settings))
            )
            self.connections = server.server_state.connections
            self.url = self.platform.url = f"http://127.0.0.1:{server.port}"
            self._ready.set()
            await self._over.wait()

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def run(self, work: Awaitable[T]) -> T:
        """Do something inside the house."""

        async def main() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(main(), self._loop).result(patience(60))

    def write(self, verb: Callable[..., T], **arguments: Any) -> T:
        return self.run(self.platform.database.write(partial(verb, **arguments)))

    def read(self, verb: Callable[..., T], **arguments: Any) -> T:
        return self.run(self.platform.database.read(partial(verb, **arguments)))

    def owner(self) -> str:
        return str(self.write(first_owner).id)

    def member(self, name: str, role: Role, password: str = PASSWORD) -> str:
        hashed = self.run(Passwords().hashed(password)) if password else ""
        return self.write(add_member, name=name, role=role, password=hashed)

    def token(self, member_id: str, scope: Scope = "admin", **values: Any) -> str:
        return self.write(new_token, member_id=member_id, name="test", scope=scope, **values)[1]

    def link(self, member_id: str) -> str:
        return self.write(new_link, member_id=member_id)

    def hears(self, agent: str) -> bool:
        """Whether what comes in now is heard by an agent."""
        heard = (
            select(routes.c.id).join(agents, agents.c.id == routes.c.agent_id).where(agents.c.name == agent)
        )
        return self.read(lambda connection: connection.execute(heard).first() is not None)

    def browser(self, **headers: str) -> Browser:
        browser = Browser(self.url, headers)
        self._clients.append(browser.client)
        return browser

    def api(self, token: str = "") -> httpx2.Client:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        client = httpx2.Client(base_url=f"{self.url}/api/v1", headers=headers, timeout=patience(30))
        self._clients.append(client)
        return client


class Browser:
    """Keeps cookies, and sends an Origin like a browser does."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self.client = httpx2.Client(base_url=url, headers={"origin": url, **headers}, timeout=patience(30))

    def get(self, path: str, **request: Any) -> httpx2.Response:
        return self.client.get(path, **request)

    def post(self, path: str, **fields: str) -> httpx2.Response:
        return self.client.post(path, data=fields)

    def follow(self, link: str, **fields: str) -> httpx2.Response:
        return self.post(f"/link/{link}", **fields)

    def login(self, name: str, password: str = PASSWORD) -> httpx2.Response:
        return self.post("/login", name=name, password=password)

    @property
    def cookie(self) -> str:
        return self.client.cookies.get("gofer_session") or ""


def csrf_in(page: str) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', page)
    assert found is not None
    return found[1]
