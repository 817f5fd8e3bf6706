"""Sessions made ahead, so that a new one need not wait for bubblewrap and two shells.

A mount follows its directory wherever that is moved, so a session made with an empty workspace becomes that of any
directory by renaming its own. It keeps its id, user, control groups and control directory.

A spare is recorded like any other session: what a killed server left is found and ended by `reap`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gofer_sandbox import tree
from gofer_sandbox.errors import SandboxError
from gofer_sandbox.journal import owned
from gofer_sandbox.limits import Limits
from gofer_sandbox.provider import Gate, Provider
from gofer_sandbox.sandbox import Sandbox

PREFIX = "spare-"
_EVERY = 1.0
"""Seconds between looks whether there is time to make one."""
_AFTER_FAILURE = 60.0
_PRESSURE_MAX = 20.0
"""Percent of the last ten seconds in which something had to wait for a processor."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fit:
    """What a session cannot change once it is made."""

    limits: Limits
    environment: frozenset[tuple[str, str]]
    """What the shell starts with, the gate's part included."""
    readonly: tuple[str, ...]

    @classmethod
    def of(
        cls,
        limits: Limits | None = None,
        environment: Mapping[str, str] | None = None,
        readonly: Sequence[Path | str] = (),
        gate: Gate | None = None,
    ) -> Fit:
        """Of what a `Sandbox` would be given."""
        whole = {**(environment or {}), **(gate.environment if gate else {})}
        return cls(limits or Limits(), frozenset(whole.items()), tuple(map(str, readonly)))


class Spares:
    """Keeps a few sessions ready, made one at a time while there is nothing else to do."""

    def __init__(
        self,
        provider: Provider,
        folder: Path,
        count: int,
        *,
        fit: Fit | None = None,
        idle: Callable[[], bool] | None = None,
        settle: float = 0.0,
    ) -> None:
        """`folder` is where the sessions that adopt them are kept, too; `fit` what the first is made for, until a
        session that none fits has shown what is wanted. `idle` says whether there is nothing else to do: by default
        when the machine has processor time to spare. `settle` is how many seconds to wait before the first."""
        self._provider, self._folder, self._count = provider, folder, count
        self._wanted, self._idle, self._settle = fit or Fit.of(), idle or quiet, settle
        self._ready: list[tuple[Fit, Sandbox]] = []
        self._changed = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to make them."""
        if self._count and self._keeping is None:
            self._keeping = asyncio.create_task(self._keep(), name="spares")

    async def close(self) -> None:
        """End them all."""
        keeping, self._keeping = self._keeping, None
        if keeping:
            keeping.cancel()
            await asyncio.wait({keeping})
        while self._ready:
            await self._discard(self._ready.pop()[1])

    @property
    def ready(self) -> int:
        """How many there are now."""
        return len(self._ready)

    async def take(
        self,
        directory: Path,
        *,
        limits: Limits | None = None,
        environment: Mapping[str, str] | None = None,
        readonly: Sequence[Path | str] = (),
        gate: Gate | None = None,
    ) -> Sandbox | None:
        """A started session in a directory that is not there yet; None when no spare fits."""
        fit = Fit.of(limits, environment, readonly, gate)
        self._wanted = fit
        try:
            while sandbox := self._fitting(fit, directory):
                try:
                    await sandbox.adopt(directory, environment or {}, gate)
                    return sandbox
                except (SandboxError, OSError) as error:
                    _log.info("a spare sandbox could not be used: %s", error)
                    await self._discard(sandbox)
        finally:
            self._changed.set()
        return None

    def _fitting(self, fit: Fit, directory: Path) -> Sandbox | None:
        """Taken out; none for a directory that is there."""
        found = next((one for one in self._ready if one[0] == fit), None)
        if found is None or os.path.lexists(directory):
            return None
        self._ready.remove(found)
        return found[1]

    async def _keep(self) -> None:
        await asyncio.sleep(self._settle)
        await asyncio.to_thread(self._tidy)
        while True:
            self._changed.clear()
            if self._complete():
                await self._changed.wait()
            pause = _EVERY
            if self._idle():
                try:
                    await self._make()
                except (SandboxError, OSError) as error:
                    _log.warning("no spare sandbox could be made: %s", error)
                    pause = _AFTER_FAILURE
                else:
                    continue
            await asyncio.sleep(pause)

    def _complete(self) -> bool:
        return sum(1 for fit, _ in self._ready if fit == self._wanted) >= self._count

    async def _make(self) -> None:
        """In place of one that is not wanted any more, if there are enough."""
        fit = self._wanted
        if len(self._ready) >= self._count:
            unwanted = next(one for one in self._ready if one[0] != fit)
            self._ready.remove(unwanted)
            await self._discard(unwanted[1])
        sandbox = Sandbox(
            self._provider,
            directory=self._folder / f"{PREFIX}{secrets.token_hex(8)}",
            limits=fit.limits,
            environment=dict(fit.environment),
            readonly=fit.readonly,
            ephemeral=True,
        )
        await sandbox.start()
        self._ready.append((fit, sandbox))

    async def _discard(self, sandbox: Sandbox) -> None:
        with contextlib.suppress(SandboxError, OSError):
            await sandbox.close()

    def _tidy(self) -> None:
        """Remove the directories of spares that were never finished; a reaper ends those that were."""
        for directory in self._folder.glob(f"{PREFIX}*"):
            if not owned(directory):
                tree.remove(directory)


def quiet() -> bool:
    """Whether the machine has processor time to spare."""
    try:
        share = Path("/proc/pressure/cpu").read_text().split()[1]
        return float(share.removeprefix("avg10=")) < _PRESSURE_MAX
    except (OSError, ValueError, IndexError):
        return os.getloadavg()[0] < (os.cpu_count() or 1)
