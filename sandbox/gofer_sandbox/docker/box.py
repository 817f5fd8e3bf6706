"""A living container whose processes this machine can see."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from gofer_sandbox import processes
from gofer_sandbox.bubblewrap import users
from gofer_sandbox.docker.engine import Engine
from gofer_sandbox.limits import Limits
from gofer_sandbox.local import LocalBox
from gofer_sandbox.provider import Capabilities, Pressure
from gofer_sandbox.record import Reference
from gofer_sandbox.runtime import remove_control
from gofer_sandbox.shell.fifo import FifoWire
from gofer_sandbox.shell.outputs import Ownership


class DockerBox(LocalBox):
    """The engine makes and removes it; everything between goes past the engine, as with bubblewrap.

    One `exec` for each command would be slow, could not be killed, and would end only when every process that
    holds its output does.
    """

    def __init__(
        self, session: str, reference: Reference, capabilities: Capabilities, engine: Engine, limits: Limits
    ) -> None:
        super().__init__(reference, capabilities, None)
        self._session, self._engine, self._limits = session, engine, limits

    def wire(self) -> FifoWire:
        """Over the FIFOs of the control directory, which the container sees too: its engine passes no descriptors."""
        owner = Ownership(self.reference.uid, self.reference.gid)
        return FifoWire(Path(self.reference.control), owner)

    def pressure(self) -> Pressure:
        """By counting: how often the engine's control group was hit is not in its API."""
        count = sum(1 for _ in processes.descendants(self.reference.pid))
        return Pressure(processes=int(count >= 0.8 * self._limits.processes))

    async def destroy(self) -> None:
        """End PID 1 ourselves, so that nothing outlives this even when the engine does not answer."""
        await self._end_keeper()
        self.detach()
        await clean_up(self._engine, self._session, self.reference)


async def clean_up(engine: Engine, session: str, reference: Reference) -> None:
    """Remove what a container leaves: itself, and whatever the engine says, control directory and user id."""
    try:
        if reference.handle:
            await engine.remove(reference.handle)
    finally:
        if reference.control:
            control = Path(reference.control)
            await asyncio.to_thread(remove_control, control)
            if os.geteuid() == 0:
                users.release(control.parent / "uids", session, reference.uid)
