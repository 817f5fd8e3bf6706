"""A living sandbox of bubblewrap's: a pid namespace whose PID 1 is our keeper."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from gofer_sandbox import processes, users
from gofer_sandbox.bubblewrap import image
from gofer_sandbox.bubblewrap.cgroups import Group
from gofer_sandbox.limits import Limits
from gofer_sandbox.local import LocalBox
from gofer_sandbox.provider import Capabilities, Pressure, Process
from gofer_sandbox.record import Reference
from gofer_sandbox.shell.outputs import Ownership
from gofer_sandbox.shell.socket_wire import SocketWire, take


class BubblewrapBox(LocalBox):
    """Orphans inside become children of PID 1, so what is below it is everything."""

    def __init__(
        self,
        session: str,
        reference: Reference,
        capabilities: Capabilities,
        group: Group | None,
        limits: Limits,
        monitor: int | None = None,
        channel: socket.socket | None = None,
    ) -> None:
        """`monitor` is bubblewrap's own process, which ends right after PID 1, when it is a child of ours. `channel` is
        our end of it, when it need not be taken from the keeper."""
        super().__init__(reference, capabilities, monitor, watched=False)
        self._session, self._group, self._limits = session, group, limits
        self.image: int | None = None
        """The device of the image that is mounted as its workspace, if one is."""
        self._channel = channel

    def wire(self) -> SocketWire:
        """Over the socket that was given to the keeper."""
        owner = Ownership(self.reference.uid, self.reference.gid)
        channel, self._channel = self._channel or take(self.reference.pid), None
        return SocketWire(Path(self.reference.control), owner, channel, self.reference.pid)

    def detach(self) -> None:
        """Also of a channel that was never used."""
        super().detach()
        if self._channel:
            self._channel.close()
            self._channel = None

    async def sweep(self, spare: Callable[[Process], bool]) -> list[Process]:
        """With the whole group frozen nothing can fork while it is being ended."""
        if not await self._freeze():
            return await super().sweep(spare)
        try:
            doomed = [process for process in self.processes() if not spare(process)]
            self.signal(doomed, signal.SIGKILL)
        finally:
            self._thaw()
        return doomed

    async def _freeze(self) -> bool:
        group = self._group
        if group is None or not group.freeze(True):
            return False
        for _ in range(100):
            if group.frozen():
                return True
            await asyncio.sleep(0.002)
            group.freeze(True)
        self._thaw()
        return False

    def _thaw(self) -> None:
        if self._group:
            self._group.freeze(False)

    def pressure(self) -> Pressure:
        """From the control group, else by counting."""
        if self._group:
            return self._group.pressure()
        count = sum(1 for _ in processes.descendants(self.reference.pid))
        return Pressure(processes=int(count >= 0.8 * self._limits.processes))

    async def destroy(self) -> None:
        """Killing PID 1 of a pid namespace ends everything in it, and it has ended when all have."""
        self._thaw()
        await self._end_keeper()
        self.detach()
        await clean_up(self._session, self.reference, self._group)
        if self.image is not None:
            await asyncio.to_thread(image.unmount_device, self.image)


async def clean_up(session: str, reference: Reference, group: Group | None) -> None:
    """Remove what a sandbox that has ended leaves on the host."""
    if group:
        await asyncio.to_thread(group.remove)
    await asyncio.to_thread(users.release, session, reference)
