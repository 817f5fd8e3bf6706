"""The shells of conversations: lent to a run, kept between runs, found again after a crash.

A shell outlives the process that made it. Its record in the store says how to find it; the sandbox itself makes
sure that one process at a time holds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import structlog
from sqlalchemy import Connection, delete, select

from gofer.agent.conversation import rank
from gofer.errors import Fenced, GoferError, StoreError, Temporary
from gofer.jobs.fence import hold
from gofer.jobs.queue import Claim
from gofer.purge import MIRRORS, purged_conversations, remove_shell_files
from gofer.runs.conversation_shell import ConversationShell, Hosts, unless
from gofer.runs.shell_access import Mirrors, ShellAccessGrants
from gofer.runs.shell_inspection import live_shells
from gofer.settings import Settings
from gofer.store import row_macs
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.tables import Trust, connections, shells
from gofer.tool import Shell
from gofer_sandbox import (
    Bubblewrap,
    Level,
    Provider,
    Record,
    Report,
    Sandbox,
    SandboxError,
    SandboxOwned,
    Share,
)
from gofer_sandbox.inspection import is_alive
from gofer_sandbox.network import Egress
from gofer_sandbox.reaper import reap
from gofer_sandbox.spares import Fit, Spares, quiet
from gofer_sandbox.tree import remove as remove_tree
from gofer_sandbox.unconfined import Unconfined

log = structlog.get_logger()

HELD_ELSEWHERE = 2.0
"""Seconds to wait for a shell that another process of this machine still holds."""

LET_GO_AFTER = 300.0
"""Seconds after which an unused shell is let go of; it lives on and is found again when it is wanted."""
TIDY_EVERY = 60.0
SPARE_AFTER = 10.0
"""Seconds that a new process is left alone before it makes the first spare shell."""

ShellKind = Literal["none", "read", "share"]
"""What a worker run has: no shell, or one of its own over the conversation's files, to read or to work in."""
NOT_SHARED = (
    "Tasks cannot work in this conversation's files: {name} cannot share them. Do it without delegating."
)


class NoSharedShell(GoferError):
    """A worker run cannot have the shell that its task needs."""


class Shells:
    """Lends each run the shell of its conversation and agent."""

    def __init__(self, *, settings: Settings, database: Database) -> None:
        self._database = database
        self._directory = settings.data_dir / "shells"
        self._kind = settings.sandbox
        kept_open = settings.sandbox_narrowed_host_list
        self._hosts = Hosts((*settings.sandbox_host_list, *kept_open), kept_open)
        self._live_on = settings.keep_shells
        self._provider = make_provider(settings)
        self._mirrors = (
            None if self._provider is None else Mirrors(settings.data_dir / MIRRORS, self._provider)
        )
        self._open: dict[tuple[str, str], ConversationShell] = {}
        self._busy: dict[tuple[str, str], asyncio.Lock] = {}
        self._tidying: asyncio.Task[None] | None = None
        self._spares = self._make_spares(settings)
        self._probing: asyncio.Task[Report] | None = None

    def _make_spares(self, settings: Settings) -> Spares | None:
        """The pool of spare shells; None where shells end with the server: spares would outlive a killed one."""
        if self._provider is None or self._kind != "bubblewrap" or not self._live_on:
            return None
        return Spares(
            self._provider,
            self._directory,
            settings.spare_shells,
            fit=Fit.of(gate=Egress() if self._hosts.open else None),
            idle=lambda: quiet() and not any(lock.locked() for lock in self._busy.values()),
            settle=SPARE_AFTER,
        )

    async def start(self) -> None:
        """Probe the machine, remove what a crash left behind, and go on tidying. Pages are served meanwhile; no run
        gets a shell before the probe has ended."""
        if self._provider is None:
            log.warning("sandbox.off", meaning="the agent has no shell", fix="unset GOFER_SANDBOX")
            return
        self._probing = asyncio.create_task(self._probe(self._provider), name="sandbox-probe")

    async def report(self) -> Report | None:
        """What the probe found, once it has ended; None when the sandbox is off."""
        return None if self._probing is None else await asyncio.shield(self._probing)

    async def _probe(self, provider: Provider) -> Report:
        report = await provider.probe()
        log.info("sandbox.probed", isolation=report.level.name.lower(), words=report.words)
        self._tidying = asyncio.create_task(self._tidy(), name="shells")
        if self._spares is not None and report.level >= self._minimum:
            self._spares.start()
        return report

    async def stop(self) -> None:
        """Let go of every shell, by default without ending it: the next process finds them as they are."""
        for task in (self._probing, self._tidying):
            if task is not None:
                task.cancel()
        if self._spares is not None:
            await self._spares.close()
        for key in list(self._open):
            await self._let_go(key)
        left: list[str] = []
        with contextlib.suppress(StoreError):  # a database that is down must not keep us from ending
            left = await self._database.read(live_shells) if self._live_on else []
        if left:
            log.info(
                "shells.left_running",
                conversations=left,
                meaning="the next server takes them over; GOFER_KEEP_SHELLS=false ends them instead",
            )

    async def _tidy(self) -> None:
        while True:
            try:
                await self.reap()
                if self._mirrors is not None:
                    await self._mirrors.tidy(await self._database.read(_connections))
                purged = await self._database.read(purged_conversations)
                for conversation_id in purged:
                    await asyncio.to_thread(remove_shell_files, self._directory, conversation_id)
                for key, shell in list(self._open.items()):
                    closed = await self._database.read(_stored_record, key=key) is None
                    if self._busy[key].locked():
                        continue
                    if closed and shell.sandbox is not None:
                        await self._end(key)
                    elif time.monotonic() - shell.used > LET_GO_AFTER or key[0] in purged:
                        await self._let_go(key)
            except StoreError as error:
                log.warning("shells.not_tidied", error=str(error))
            except Exception:
                log.exception("shells.not_tidied")
            await asyncio.sleep(TIDY_EVERY)

    async def _end(self, key: tuple[str, str]) -> None:
        """End a shell whose row was removed because somebody closed it."""
        sandbox = self._open.pop(key).sandbox
        if sandbox is not None:
            with contextlib.suppress(SandboxError):
                await sandbox.close()

    async def _let_go(self, key: tuple[str, str]) -> None:
        shell = self._open.pop(key)
        if shell.sandbox is not None:
            with contextlib.suppress(SandboxError):
                await (shell.sandbox.detach() if self._live_on else shell.sandbox.close())

    async def reap(self) -> list[str]:
        """End the shells of this data directory that no conversation refers to, or that nobody used for long."""
        if self._provider is None:
            return []
        known = await self._database.read(
            lambda connection: [row["id"] for row in connection.execute(select(shells.c.record)).scalars()]
        )
        if not self._live_on:
            known = []  # what is there without an owner was left by a server that was killed
        # Other installations on this machine have shells too; theirs are not ours to end.
        return await reap(self._provider, known, within=self._directory)

    @contextlib.asynccontextmanager
    async def lend(
        self,
        claim: Claim,
        trust: Trust,
        equipping: ShellAccessGrants | None = None,
        stopped: asyncio.Event | None = None,
    ) -> AsyncIterator[Shell | None]:
        """Lend the shell for as long as the run lasts; None where there is no sandbox, or when the run is stopped
        first."""
        key = (str(claim.conversation_id), str(claim.agent_id))
        turn = self._busy.setdefault(key, asyncio.Lock())
        if not await self._turn_came(turn, stopped):
            yield None
            return
        try:
            shell = await self._get(claim, key, trust)
            shell.equipping, shell.mirrors = equipping, self._mirrors
            shell.new_run()
            try:
                yield shell
            finally:
                if stopped is not None and stopped.is_set():
                    # It may be cut off before it has ended its command, for which the next run would wait.
                    with contextlib.suppress(SandboxError):
                        await shell.cancel()
                shell.used, shell.equipping = time.monotonic(), None
                if equipping is not None:
                    equipping.close()
                await self._keep(claim, shell, trust)
        finally:
            turn.release()

    @contextlib.asynccontextmanager
    async def lend_worker(
        self,
        claim: Claim,
        trust: Trust,
        *,
        read_only: bool,
        equipping: ShellAccessGrants | None = None,
    ) -> AsyncIterator[Shell | None]:
        """Lend a worker run a shell of its own over the conversation's files, which ends with the run.

        It runs as the user of the conversation's own shell, which is brought up first, so that both may use the files.
        Raises NoSharedShell where the sandbox cannot share them.
        """
        report = await self.report()
        if self._provider is None or report is None or report.level < self._minimum:
            yield None
            return
        if not self._provider.shares:
            if read_only:
                yield None
                return
            raise NoSharedShell(NOT_SHARED.format(name=self._provider.name))
        host = self._directory / f"{claim.conversation_id}-{claim.agent_id}"
        directory = host.with_name(f"{host.name}~{claim.id}-{claim.fence}")

        async def opening() -> Sandbox:
            made.gate = await self._gate(equipping)
            share = Share(host / "workspace", read_only=read_only, **await self._user_of(claim, trust))
            assert self._provider is not None
            sandbox = Sandbox(
                self._provider,
                directory=directory,
                gate=made.gate,
                ephemeral=True,
                survives=False,
                share=share,
            )
            await sandbox.start()
            made.opened(sandbox, is_new=True)
            return sandbox

        made = ConversationShell(directory, opening, self._hosts, host / "workspace")
        made.equipping, made.mirrors = equipping, self._mirrors
        try:
            yield made
        finally:
            if equipping is not None:
                equipping.close()
            if made.sandbox is not None:
                with contextlib.suppress(SandboxError):
                    await made.sandbox.close()
            await asyncio.to_thread(remove_tree, directory)

    async def _user_of(self, claim: Claim, trust: Trust) -> dict[str, int]:
        """The user of the conversation's own shell, which is opened first if it is not alive."""
        key = (str(claim.conversation_id), str(claim.agent_id))
        kept = await self._database.read(_stored_record, key=key)
        if kept is not None and is_alive(kept[0].reference):
            return {"uid": kept[0].reference.uid, "gid": kept[0].reference.gid}
        shell = self._open.get(key)
        if shell is None or shell.sandbox is None:
            async with self._busy.setdefault(key, asyncio.Lock()):
                shell = await self._get(claim, key, trust if kept is None else kept[1])
                reference = (await shell.open()).record.reference
        else:
            reference = (await shell.open()).record.reference
        return {"uid": reference.uid, "gid": reference.gid}

    async def _turn_came(self, turn: asyncio.Lock, stopped: asyncio.Event | None) -> bool:
        """Wait for the probe and for the run before. False when there is no shell, or when the run is stopped
        meanwhile."""
        try:
            async with unless(stopped):
                report = await self.report()
                if report is None or report.level < self._minimum:
                    return False
                return await turn.acquire()
        except TimeoutError:
            if stopped is None or not stopped.is_set():
                raise
            return False

    @property
    def _minimum(self) -> Level:
        return Level.NONE if self._kind == "unconfined" else Level.ISOLATED

    async def _get(self, claim: Claim, key: tuple[str, str], trust: Trust) -> ConversationShell:
        kept = await self._database.read(_stored_record, key=key)
        risen = kept is not None and rank(trust.value) > rank(kept[1].value)
        shell = self._open.get(key)
        if shell is not None and (risen or kept is None):
            # Without a row somebody has closed it: what it ran must end.
            await self._end(key)
        elif shell is not None and shell.sandbox is not None:
            return shell
        # A shell that no tool has opened would be opened for the earlier run, which is over.
        directory = self._directory / f"{key[0]}-{key[1]}"
        if risen:
            # Processes of less trusted runs do not come along; their files do.
            (directory / "snapshot").unlink(missing_ok=True)

        async def opening() -> Sandbox:
            made.gate = await self._gate(made.equipping)
            sandbox = await self._found_or_made(None if kept is None else kept[0], directory, made.gate)
            try:
                await self._put(claim, sandbox, trust)
            except BaseException:
                # Nobody else could have it as long as this process holds it, nor ever find one that is new.
                await (sandbox.detach() if kept is not None else sandbox.close())
                raise
            made.opened(sandbox, is_new=kept is None)
            return sandbox

        made = self._open[key] = ConversationShell(directory, opening, self._hosts)
        return made

    async def _gate(self, equipping: ShellAccessGrants | None) -> Egress | None:
        """The proxy of a sandbox, where any host is allowed. Without isolation there is nothing to open."""
        equipment = await equipping.get() if equipping is not None else None
        if self._kind == "unconfined" or (equipment is None and not self._hosts.open):
            return None
        return Egress()  # closed until it is known how far the run may reach

    async def _found_or_made(self, record: Record | None, directory: Path, gate: Egress | None) -> Sandbox:
        assert self._provider is not None
        try:
            if record is not None and await asyncio.to_thread(directory.is_dir):
                return await Sandbox.restore(record, self._provider, gate=gate, survives=self._live_on)
            spare = await self._spares.take(directory, gate=gate) if self._spares is not None else None
            if spare is not None:
                return spare
            sandbox = Sandbox(self._provider, directory=directory, gate=gate, survives=self._live_on)
            await sandbox.start()
        except SandboxOwned as error:
            raise Temporary(str(error), reason="shell.held", retry_after=HELD_ELSEWHERE) from error
        return sandbox

    async def _keep(self, claim: Claim, shell: ConversationShell, trust: Trust) -> None:
        """Store how to find the shell again. A run that has lost its job leaves that to the next."""
        with contextlib.suppress(SandboxError, Fenced):
            if shell.sandbox is not None:
                await self._put(claim, shell.sandbox, trust)

    async def _put(self, claim: Claim, sandbox: Sandbox, trust: Trust) -> None:
        await self._database.write(_put, claim=claim, record=sandbox.record.to_json(), trust=trust)


def make_provider(settings: Settings) -> Provider | None:
    """The provider that the settings name; None when the sandbox is off."""
    if settings.sandbox == "off":
        return None
    reserve = settings.sandbox_reserve
    if settings.sandbox == "docker":
        from gofer_sandbox.docker import Docker  # few use it, and every start would load it

        return Docker(settings.sandbox_image, reserve=reserve)
    if settings.sandbox == "unconfined":
        return Unconfined(reserve)
    workspaces = settings.data_dir / "shells"
    return Bubblewrap(reserve=reserve, workspaces=workspaces, images=settings.sandbox_images)


def _connections(connection: Connection) -> set[str]:
    return set(connection.execute(select(connections.c.id)).scalars())


def _stored_record(connection: Connection, key: tuple[str, str]) -> tuple[Record, Trust] | None:
    query = select(shells).where(shells.c.conversation_id == key[0], shells.c.agent_id == key[1])
    row = connection.execute(query).one_or_none()
    if row is None or not row_macs.fits(connection, shells, row):
        return None
    return Record.from_json(row.record["json"]), Trust(row.trust)


def _put(connection: Connection, claim: Claim, record: str, trust: Trust) -> None:
    hold(connection, claim)
    values = {"record": {"id": Record.from_json(record).id, "json": record}, "trust": trust, "used_at": now()}
    key = {"conversation_id": claim.conversation_id, "agent_id": claim.agent_id}
    # The whole row: a record that was refused is replaced, not repaired.
    here = (shells.c.conversation_id == claim.conversation_id) & (shells.c.agent_id == claim.agent_id)
    connection.execute(delete(shells).where(here))
    row_macs.insert(connection, shells, {**key, **values})
