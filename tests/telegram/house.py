"""Gofer with a Telegram connection on the stand-in, in this process or in one of its own that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from e2e.process import become, forks
from gofer.app import Platform, open_app
from gofer.connections.changes import add_connection, change_settings, set_up_connection
from gofer.connections.health import health_of
from gofer.identity import grant_role, new_code
from gofer.settings import Settings
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import IS_UNSENT, LIVE, deliveries, in_state, jobs, replies
from gofer.vault.redaction import Secret
from gofer.web.app import public_app
from gofer.web.server import listening as serving
from gofer_standins.telegram import Chat, Message, Person, Telegram
from support.patience import eventually
from support.sqlite_template import with_tables

OWNERS = range(5_000_000_001, 5_000_000_021)
"""The first twenty people of the stand-in, whom Gofer in a process of its own knows."""


class House:
    """A platform with one Telegram connection."""

    def __init__(self, telegram: Telegram, platform: Platform, connection_id: str) -> None:
        self.telegram = telegram
        self.platform = platform
        self.connection_id = connection_id

    async def let_in(self, person: Person, role: Any = "owner") -> Chat:
        """Make somebody known without the ceremony; returns their private chat."""
        await self.platform.database.write(
            partial(
                grant_role,
                workspace_id=FIRST_WORKSPACE,
                integration="telegram",
                subject=str(person.id),
                name=person.first_name,
                role=role,
                by="test",
            )
        )
        return self.telegram.world.private(person)

    async def owner(self, name: str = "Ann") -> tuple[Person, Chat]:
        """An owner with a chat the bot has seen."""
        person = self.telegram.world.add_person(name)
        return person, await self.let_in(person)

    async def change(self, **settings: Any) -> None:
        """Change settings of the connection."""
        connected = await self.platform.accounts.get(self.connection_id)
        verb = partial(
            change_settings,
            connection_id=self.connection_id,
            integration=connected.integration,
            settings={**connected.account.settings, **settings},
            by="test",
        )
        await self.platform.database.write(verb)
        self.platform.accounts.forget()

    async def code(self, role: Any = "owner") -> str:
        verb = partial(new_code, workspace_id=FIRST_WORKSPACE, connection_id=self.connection_id, role=role)
        return await self.platform.database.write(verb)

    async def rows(self, query: Any) -> list[Any]:
        return await self.platform.database.read(lambda connection: list(connection.execute(query).all()))

    async def count(self, table: Any, *conditions: Any) -> int:
        return int((await self.rows(select(func.count()).select_from(table).where(*conditions)))[0][0])

    async def answers(self, chat: Chat, count: int, *, within: float = 60) -> list[str]:
        """What the bot says in a chat once it has said so much, all of it complete."""

        def complete() -> bool:
            said = self.telegram.said(chat)
            return len(said) >= count and not any(text.endswith(" …") for text in said)

        await eventually(complete, within=within)
        return self.telegram.said(chat)

    async def took_in(self, count: int, *, within: float = 60) -> None:
        """Wait until so many deliveries are stored."""

        async def enough() -> bool:
            return await self.count(deliveries) >= count

        await eventually(enough, within=within)
        assert await self.count(deliveries) == count

    async def until_health(self, words: str, *, ok: bool, within: float = 60) -> None:
        """Wait until the connection says something of itself."""

        async def says_so() -> bool:
            told = await health_of(self.platform, self.connection_id)
            return told.ok == ok and words in told.line

        await eventually(says_so, within=within)

    async def connect_again(self) -> House:
        """The same bot in a connection of its own, after the first was removed."""
        return House(self.telegram, self.platform, await connect(self.platform, self.telegram))

    async def jobs_in(self, state: str, *, within: float = 60) -> None:
        """Wait until the last answer's job is in a state."""
        query = select(jobs.c.state).where(jobs.c.kind == "answer").order_by(jobs.c.id.desc()).limit(1)

        async def there() -> bool:
            return [row.state for row in await self.rows(query)] == [state]

        await eventually(there, within=within)

    async def sent(self, *, within: float = 60) -> None:
        """Wait until nothing is left to send."""
        await self._none(replies, IS_UNSENT, within=within)

    async def settled(self, *, within: float = 60) -> None:
        """Wait until no job is left but the poller's."""
        busy = (in_state(*LIVE), jobs.c.kind.not_in(("poll", "approval")))
        await self._none(jobs, *busy, within=within)

    async def _none(self, table: Any, *conditions: Any, within: float) -> None:
        async def empty() -> bool:
            return await self.count(table, *conditions) == 0

        await eventually(empty, within=within)


@contextlib.asynccontextmanager
async def open_house(
    telegram: Telegram,
    data_dir: Path,
    *,
    webhook: bool = False,
    sandbox: str = "off",
    database_url: str = "",
    **settings: Any,
) -> AsyncIterator[House]:
    """Gofer in this process, polling or behind a webhook."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    public = f"http://127.0.0.1:{listening.getsockname()[1]}" if webhook else ""
    kept = {"database_url": database_url} if database_url else {}
    wanted: dict[str, Any] = {"data_dir": data_dir, "public_url": public, "sandbox": sandbox, **kept}
    given = with_tables(Settings(poll_interval=0.3, lease=2, **wanted))
    try:
        async with open_app(given, roles=frozenset({"web", "worker"})) as platform:
            house = House(telegram, platform, await connect(platform, telegram, **settings))
            async with serving(public_app(platform), listening):
                yield house
    finally:
        listening.close()


async def connect(platform: Platform, telegram: Telegram, **settings: Any) -> str:
    """The bot's connection: the one there is, or a new one."""
    known = [one for one in await platform.accounts.all() if one.integration.name == "telegram"]
    if known:
        connection_id = known[0].account.id
    else:
        connection_id = await platform.database.write(
            partial(
                add_connection,
                vault=platform.vault,
                workspace_id=FIRST_WORKSPACE,
                integration=platform.registry.get("telegram"),
                name="bot",
                settings={"api_url": telegram.url, **settings},
                secrets_given={"token": Secret(telegram.token)},
                by="test",
            )
        )
        await platform.reload_secrets()
    health = await set_up_connection(platform.database, platform.accounts, connection_id)
    assert health.ok, health
    await platform.database.write(platform.start_inflow)
    return connection_id


class Process:
    """Gofer in a process of its own."""

    def __init__(
        self, telegram: Telegram, data_dir: Path, *, webhook: bool, sandbox: str = "off", **settings: Any
    ) -> None:
        self.telegram = telegram
        self.data_dir = data_dir
        self.webhook = webhook
        self.sandbox = sandbox
        self.settings = settings
        """Of the connection."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._running: ForkServerProcess | None = None

    async def start(self, **environment: str) -> None:
        """Start it, and wait until it serves or has ended."""
        with contextlib.suppress(FileNotFoundError):
            self.ready.unlink()
        variables = {**environment, "GOFER_DATA_DIR": str(self.data_dir), "GOFER_SANDBOX": self.sandbox}
        log = self.data_dir.parent / "process.log"
        wanted = (
            self.telegram.url,
            self.telegram.token,
            self.port,
            self.webhook,
            self.data_dir.parent,
            self.settings,
        )
        self._running = forks.Process(target=_main, args=(variables, str(log), *wanted), daemon=True)
        self._running.start()
        while not self.ready.exists() and not self.died:
            await asyncio.sleep(0.01)

    @property
    def ready(self) -> Path:
        return self.data_dir.parent / "ready"

    @property
    def code(self) -> str:
        """A pairing code, made at its first start."""
        return (self.data_dir.parent / "code").read_text()

    @property
    def died(self) -> bool:
        return self._running is not None and self._running.exitcode is not None

    async def __aenter__(self) -> Process:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def kill(self, number: int = signal.SIGKILL) -> None:
        """End it as a power cut would, or politely."""
        if self._running is None or self._running.exitcode is not None:
            return
        assert self._running.pid is not None
        os.kill(self._running.pid, number)
        await asyncio.to_thread(self._running.join)


def _main(
    environment: dict[str, str],
    log: str,
    url: str,
    token: str,
    port: int,
    hook: bool,
    folder: Path,
    settings: dict[str, Any],
) -> None:
    become(environment, log)
    telegram = Telegram(token=token)
    telegram.url = url
    asyncio.run(_serve(telegram, port, hook, folder, settings))


async def _serve(
    telegram: Telegram, port: int, hook: bool, folder: Path, connected_with: dict[str, Any]
) -> None:
    # What a silent worker sent arrives at once here, so nobody need wait long for it.
    quick = Settings(poll_interval=0.2, lease=1, stop_within=1, request_timeout=1)
    settings = quick.model_copy(update={"public_url": f"http://127.0.0.1:{port}" if hook else ""})
    listening = socket.create_server(("127.0.0.1", port))
    listening.setblocking(False)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with (
        open_app(settings, roles=frozenset({"web", "worker"})) as platform,
        serving(public_app(platform), listening),
    ):
        house = House(telegram, platform, await connect(platform, telegram, **connected_with))
        for number in OWNERS:
            await house.let_in(Person(number, "Somebody"), "owner")
        if not (folder / "code").exists():
            (folder / "code").write_text(await house.code())
        (folder / "ready").touch()
        await stopping.wait()


def texts(messages: list[Message]) -> list[str]:
    return [str(message.get("text", "")) for message in messages]
