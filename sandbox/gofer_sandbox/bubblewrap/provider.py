"""The default provider: bubblewrap, as root or as anybody."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import signal
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from gofer_sandbox import processes, records, runtime
from gofer_sandbox.bubblewrap import arguments, binary, seccomp
from gofer_sandbox.bubblewrap.cgroups import ControlGroup
from gofer_sandbox.bubblewrap.disk_limit import DiskLimit, held_by, unmount, unmount_device
from gofer_sandbox.bubblewrap.probe import Probe
from gofer_sandbox.bubblewrap.spawn import Spawned, as_user, spawn, through_mount
from gofer_sandbox.errors import StartFailed
from gofer_sandbox.inspection import is_alive
from gofer_sandbox.kernel import take_place
from gofer_sandbox.levels import Level
from gofer_sandbox.limits import MIB, RESERVE, Limits
from gofer_sandbox.local import Box
from gofer_sandbox.provider import IMAGE, WATCHED, Capabilities, Pressure, Process, Report, Spec
from gofer_sandbox.records import Record, Reference
from gofer_sandbox.shell import scripts, socket_wire
from gofer_sandbox.shell.control import prepare
from gofer_sandbox.shell.outputs import Ownership

_BEYOND = 16 * MIB
"""How much larger than the disk limit one file may grow: enough for it to be seen, and its writer ended."""


class Bubblewrap:
    """Makes sandboxes with `bwrap`. Probes the machine once, before the first."""

    name = "bubblewrap"
    shares = True

    def __init__(
        self,
        minimum: Level = Level.ISOLATED,
        bwrap: Path | None = None,
        base: Path | None = None,
        use_cgroups: bool = True,
        reserve: int = RESERVE,
        workspaces: Path | None = None,
        images: bool = False,
    ) -> None:
        """`minimum` is the least isolation to accept; `bwrap` and `base` (the directory for control files)
        are found when not given. `reserve` is the free space of the machine below which no workspace may grow.
        `workspaces` is where sessions' directories will be: what holds the disk limit there is what is reported.
        `images` keeps each in an image of limited size where the server is root and there are no project quotas."""
        self.reserve = reserve
        self._workspaces, self._disk = workspaces, DiskLimit(images)
        self._minimum, self._bwrap, self._use_cgroups = minimum, bwrap, use_cgroups
        self._given_base = base
        self._probe: Probe | None = None
        self._lock = asyncio.Lock()

    @cached_property
    def base(self) -> Path:
        """Where control directories are made."""
        return self._given_base or runtime.directory()

    async def probe(self) -> Report:
        """Try every feature for real, once."""
        return (await self._probed()).report

    async def _probed(self) -> Probe:
        async with self._lock:
            if self._probe is None:
                base = self.base if platform.system() == "Linux" else Path()  # elsewhere nothing is kept
                self._probe = await asyncio.to_thread(self._look, base)
        return self._probe

    def _look(self, base: Path) -> Probe:
        """Also has the limits of sessions that live on hold again, whether or not anybody attaches to them."""
        probe = Probe.run(base, self._bwrap, self._use_cgroups)
        if probe.groups is not None:
            for record in records.every(base):
                if record.provider == self.name and is_alive(record.reference):
                    probe.groups.resume(record.id, record.reference.pid, record.limits)
        if probe.bwrap is None:
            return probe
        disk_by, feature = self._disk.probe(self._workspaces or Path(tempfile.gettempdir()))
        report = replace(probe.report, features=(*probe.report.features, feature), disk_by=disk_by)
        return replace(probe, report=report)

    async def _accepted(self) -> Probe:
        probe = await self._probed()
        probe.report.require(self._minimum)
        return probe

    async def start(self, spec: Spec) -> Box:
        """Make the control directory and the groups, and spawn the keeper as a member of them."""
        probe = await self._accepted()
        uid, gid = runtime.claim(self.base, spec)
        group = probe.groups.open(spec.id) if probe.groups else None
        reference = Reference(uid=uid, gid=gid, control=str(self.base / spec.id), boot=processes.boot_id())
        try:
            runtime.make_control(self.base, spec.id, gid)
            channel, spawned, disk_by = await self._started(probe, spec, reference)
            start = processes.start_time(spawned.keeper)
            if start is None:
                channel.close()
                spawned.end()
                raise StartFailed("the sandbox ended as it began")
            whole = replace(reference, pid=spawned.keeper, start=start)
            capabilities = _capabilities(probe, group is not None, disk_by)
            box = BubblewrapBox(
                spec.id, whole, capabilities, group, spec.limits, spawned.monitor, channel, spec.survives
            )
        except BaseException:
            await clean_up(spec.id, reference, group)
            if spec.share is None:
                await asyncio.to_thread(unmount, spec.workspace)
            raise
        if disk_by == IMAGE and spec.share is None:
            box.image = spec.workspace.stat().st_dev
        return box

    async def _started(
        self, probe: Probe, spec: Spec, reference: Reference
    ) -> tuple[socket.socket, Spawned, str]:
        """Spawn the keeper in a thread. A thread cannot be cancelled, so a cancelled caller waits for it and ends what
        it started."""
        loop = asyncio.get_running_loop()
        starting = loop.run_in_executor(None, self._spawn, probe, spec, reference)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            while not starting.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({starting})
            if not starting.exception():
                channel, spawned, _ = starting.result()
                channel.close()
                spawned.end()
            raise

    def _spawn(self, probe: Probe, spec: Spec, reference: Reference) -> tuple[socket.socket, Spawned, str]:
        """Everything that blocks: hand over the workspace, make the groups, and spawn; what is in the control
        directory, and the groups' limits, only while bubblewrap is at work. The keeper has both ends of the channel
        where it is to outlive us, and dies with us where not."""
        import fcntl  # not there on every system that may import this

        assert probe.bwrap is not None
        assert probe.etc is not None
        disk_by = self._disk.hold(spec)
        control, uid = Path(reference.control), reference.uid
        workspace, prefix = _reachable(spec.workspace, control / "w", uid)
        options = arguments.session(
            probe.etc, workspace, control, spec.limits, spec.environment, spec.readonly,
            "--ro-bind" if spec.share and spec.share.read_only else "--bind",
        )  # fmt: skip
        bwrap = [*prefix, str(probe.bwrap), *options, *([] if spec.survives else ["--die-with-parent"])]
        user = uid if os.geteuid() == 0 and not prefix else None
        group = probe.groups.make(spec.id) if probe.groups else None
        entrances = group.entrances() if group else []
        ours, theirs = socket_wire.pair()
        with theirs:
            passed = [theirs, *([ours] if spec.survives else [])]
            ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, scripts.BEYOND) for end in passed]
        channel = scripts.Channel(scripts.INSIDE, *ends)

        def fill(besides: int) -> None:
            if group:
                group.limit(spec.limits)
            keeper = _keeper(spec, channel, entrances, besides)
            prepare(control, keeper, Ownership(uid, reference.gid), channel)

        program = seccomp.program(preallocation=disk_by != WATCHED)
        inherited = [*entrances, *ends]
        try:
            spawned = spawn(bwrap, arguments.keeper(), program, inherited, user=user, meanwhile=fill)
        except BaseException:
            ours.close()
            raise
        return ours, spawned, disk_by

    async def find(self, record: Record) -> Box | None:
        """A living box by its record; looked at twice, for it may end meanwhile."""
        reference = record.reference
        if not is_alive(reference):
            return None
        probe = await self._accepted()
        group = probe.groups.resume(record.id, reference.pid, record.limits) if probe.groups else None
        # A session may have begun where groups could not be.
        limited = group is not None and not group.shortfall(reference.pid, record.limits)
        monitor = processes.child_of_ours(reference.pid)  # when we have let go of it before
        capabilities = _capabilities(probe, limited, held_by(Path(record.directory)))
        try:
            box = BubblewrapBox(record.id, reference, capabilities, group, record.limits, monitor)
            if capabilities.disk_by == IMAGE:
                box.image = os.stat(f"/proc/{reference.pid}/root{arguments.HOME}").st_dev
        except (ProcessLookupError, FileNotFoundError):
            return None
        if not is_alive(reference):
            box.detach()
            return None
        return box

    async def remove(self, record: Record) -> None:
        """Remove control directory, groups and claim, also of a start that was never finished."""
        probe = await self._probed()
        group = probe.groups.open(record.id) if probe.groups else None
        if group:
            group.end()
        await clean_up(record.id, record.reference, group)
        await asyncio.to_thread(unmount, Path(record.directory, "workspace"))


def _capabilities(probe: Probe, limited: bool, disk_by: str) -> Capabilities:
    kind = probe.groups.version.kind if probe.groups and limited else "rlimits"
    level = probe.report.level if limited else min(probe.report.level, Level.ISOLATED)
    return Capabilities(
        "bubblewrap", level, survives_server=True, network=True, limits_by=kind, disk_by=disk_by
    )


def _reachable(workspace: Path, staging: Path, uid: int) -> tuple[Path, list[str]]:
    """Where the session's user finds the workspace, and what makes it so, if anything has to, and then becomes
    that user."""
    if os.geteuid() != 0:
        return workspace, []
    runtime.hand_over(workspace, uid)
    if binary.reachable_by_others(workspace):
        return workspace, []
    staging.mkdir(mode=0o755)
    return staging, [*through_mount(workspace, staging), *as_user(uid)]


def _keeper(spec: Spec, channel: scripts.Channel, entrances: Sequence[int], besides: int) -> dict[str, str]:
    """The keeper's scripts. Should this server die before it is there, bubblewrap's child finds none, and ends.
    `besides` is a descriptor that it has and does not need.

    Where there are groups they count processes and memory, and the limits of each process stand behind."""
    largest = min(spec.limits.file_size, spec.limits.disk + _BEYOND)
    limits = replace(spec.limits, file_size=largest)
    locale = {name: value for name, value in arguments.LOCALE.items() if name not in spec.environment}
    return scripts.keeper(
        limits,
        processes=limits.processes * (4 if entrances else 1) if _counts_by_namespace() else None,
        address_space=None if entrances else limits.memory,
        channel=channel,
        entrances=entrances,
        besides=(besides,),
        locale=" ".join(f"{name}={value}" for name, value in locale.items()),
    )


def _counts_by_namespace() -> bool:
    """Since Linux 5.14 RLIMIT_NPROC counts a user namespace's processes; before, all of the user's."""
    major, minor = (int(part) for part in os.uname().release.split(".")[:2])
    return os.geteuid() == 0 or (major, minor) >= (5, 14)


class BubblewrapBox(Box):
    """Orphans inside become children of PID 1, so what is below it is everything."""

    def __init__(
        self,
        session: str,
        reference: Reference,
        capabilities: Capabilities,
        group: ControlGroup | None,
        limits: Limits,
        monitor: int | None = None,
        channel: socket.socket | None = None,
        outlasts: bool = False,
    ) -> None:
        """`monitor` is whichever is a child of ours: bubblewrap's own process, which ends right after PID 1, or PID 1.
        `channel` is our end of it, when it need not be taken from the keeper. A new box may `outlast` us."""
        super().__init__(reference, capabilities, monitor, watched=False)
        self._outlasts = outlasts
        self._ending: asyncio.Task[None] | None = None
        self._session, self._group, self._limits = session, group, limits
        self.image: int | None = None
        """The device of the image that is mounted as its workspace, if one is."""
        self._channel = channel

    def wire(self) -> socket_wire.SocketWire:
        """Over the socket that was given to the keeper."""
        owner = Ownership(self.reference.uid, self.reference.gid)
        channel, self._channel = self._channel or socket_wire.take(self.reference.pid), None
        return socket_wire.SocketWire(Path(self.reference.control), owner, channel, self.reference.pid)

    def settled(self) -> None:
        """Where PID 1 need not end with us bubblewrap's own process has nothing more to do, and it takes as much memory
        as half a shell."""
        if self._outlasts and self._ending is None and self._child is not None:
            self._ending = self._loop.create_task(self._end_monitor(self._child))

    async def _end_monitor(self, monitor: int) -> None:
        if await asyncio.to_thread(take_place, monitor):
            self._child = self.reference.pid

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
        if self._ending:
            await asyncio.wait({self._ending})
        self._thaw()
        await self._end_keeper()
        self.detach()
        await clean_up(self._session, self.reference, self._group)
        if self.image is not None:
            await asyncio.to_thread(unmount_device, self.image)


async def clean_up(session: str, reference: Reference, group: ControlGroup | None) -> None:
    """Remove what a sandbox that has ended leaves on the host."""
    if group:
        await asyncio.to_thread(group.remove)
    await asyncio.to_thread(runtime.release, session, reference)
