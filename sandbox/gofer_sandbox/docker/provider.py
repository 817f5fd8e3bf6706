"""Sandboxes as containers of Docker's engine, for those who have one and want its images or runtimes.

The engine must be on this machine and its processes visible to us: commands and frames go through FIFOs in a
shared directory, and processes are watched and ended by pid. Inside a container of its own, the library needs
`--pid=host` and its data directory at the same path as on the host. Not yet run on a real engine; gVisor in
particular hides its processes, which the start notices and says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from gofer_sandbox import processes, records, runtime
from gofer_sandbox.bubblewrap import users
from gofer_sandbox.docker.box import DockerBox, clean_up
from gofer_sandbox.docker.container import OWNER_LABEL, SESSION_LABEL, Plan
from gofer_sandbox.docker.engine import DEFAULT, Engine, EngineError
from gofer_sandbox.docker.probe import Probe, probe
from gofer_sandbox.errors import StartFailed
from gofer_sandbox.levels import Level
from gofer_sandbox.limits import RESERVE
from gofer_sandbox.provider import Box, Capabilities, Report, Spec
from gofer_sandbox.record import Record, Reference
from gofer_sandbox.shell import scripts
from gofer_sandbox.shell.control import prepare
from gofer_sandbox.shell.outputs import Ownership

_HIDDEN = (
    "the container runs, but its processes and files cannot be seen from here. Run on the engine's machine as"
    " root or as the user who owns the containers; inside a container add --pid=host and mount the data"
    " directory at its own path; runtimes such as gVisor hide their processes and cannot be used this way"
)


class Docker:
    """Makes sandboxes with Docker's engine."""

    name = "docker"

    def __init__(
        self,
        image: str,
        *,
        engine: Engine | str = DEFAULT,
        minimum: Level = Level.ISOLATED,
        runtime: str | None = None,
        base: Path | None = None,
        pull: bool = True,
        reserve: int = RESERVE,
    ) -> None:
        """`image` must have bash. `runtime` is one the engine knows, if not its default. `base` is the
        directory for control files, found when not given; the engine must see it at the same path. `reserve` is
        the free space of the machine below which no workspace may grow."""
        self.reserve = reserve
        self._image, self._runtime, self._minimum, self._pull = image, runtime, minimum, pull
        self._engine = Engine(engine) if isinstance(engine, str) else engine
        self._given_base = base
        self._probe: Probe | None = None
        self._lock = asyncio.Lock()

    @property
    def base(self) -> Path:
        """Where control directories are made."""
        if self._given_base is None:
            self._given_base = runtime.directory()
        return self._given_base

    async def probe(self) -> Report:
        """Ask the engine, once it answers."""
        return (await self._probed()).report

    async def _probed(self) -> Probe:
        async with self._lock:
            if self._probe is None or self._probe.report.level is Level.NONE:
                self._probe = await probe(self._engine, self._image, self._runtime)
        return self._probe

    async def _accepted(self) -> Probe:
        found = await self._probed()
        found.report.require(self._minimum)
        return found

    async def start(self, spec: Spec) -> Box:
        """Make the control directory and the container, start it, and make sure that we can reach into it."""
        found = await self._accepted()
        await self._have_image()
        uid, gid = _identity(self.base, spec)
        reference = Reference(uid=uid, gid=gid, control=str(self.base / spec.id), boot=processes.boot_id())
        try:
            await asyncio.to_thread(_prepare, self.base, spec, uid, gid)
            handle = await self._engine.create(f"gofer-sandbox-{spec.id}", self._body(spec, found, uid, gid))
            reference = _with(reference, handle=handle)
            await self._engine.start(handle)
            return self._box(spec, found, await self._located(reference))
        except BaseException as error:
            await self._give_up(spec, reference)
            if isinstance(error, EngineError):
                raise StartFailed(str(error)) from error
            raise

    async def _give_up(self, spec: Spec, reference: Reference) -> None:
        """Clean up after a failed start, whose error is the one to tell."""
        with contextlib.suppress(EngineError):
            await clean_up(self._engine, spec.id, reference)

    def _body(self, spec: Spec, found: Probe, uid: int, gid: int) -> dict[str, object]:
        # In a rootless engine's containers the user who runs it is called root.
        inner_uid, inner_gid = (0, 0) if found.rootless else (uid, gid)
        return Plan(
            session=spec.id,
            owner=str(self.base),
            image=self._image,
            runtime=self._runtime,
            processors=found.processors,
            uid=inner_uid,
            gid=inner_gid,
            workspace=spec.workspace,
            control=self.base / spec.id,
            limits=spec.limits,
            environment=spec.environment,
            readonly=spec.readonly,
        ).body()

    async def _have_image(self) -> None:
        if await self._engine.has_image(self._image):
            return
        if not self._pull:
            raise StartFailed(f"the image {self._image} is not there: docker pull {self._image}")
        try:
            await self._engine.pull(self._image)
        except EngineError as error:
            raise StartFailed(str(error)) from error

    async def _located(self, reference: Reference) -> Reference:
        """The reference with the keeper's pid, proved by finding our control directory in its root."""
        state = (await self._engine.inspect(reference.handle) or {}).get("State") or {}
        pid = int(state.get("Pid") or 0)
        if not state.get("Running") or not pid:
            why = state.get("Error") or f"exit code {state.get('ExitCode')}: has the image bash?"
            raise StartFailed(f"the container ended as it began ({why})")
        start = processes.start_time(pid)
        if start is None or not _same_file(f"/proc/{pid}/root{scripts.INSIDE}", reference.control):
            raise StartFailed(_HIDDEN)
        return _with(reference, pid=pid, start=start)

    def _box(self, spec: Spec, found: Probe, reference: Reference) -> Box:
        return DockerBox(spec.id, reference, _capabilities(found), self._engine, spec.limits)

    async def find(self, record: Record) -> Box | None:
        """The same process in the same boot, and the engine still calls it that container's."""
        reference = record.reference
        if reference.boot != processes.boot_id() or processes.start_time(reference.pid) != reference.start:
            return None
        found = await self._accepted()
        known = await self._engine.inspect(reference.handle)
        if known is None or known["State"].get("Pid") != reference.pid:
            return None
        try:
            box = DockerBox(record.id, reference, _capabilities(found), self._engine, record.limits)
        except ProcessLookupError:
            return None
        if processes.start_time(reference.pid) != reference.start:
            box.detach()
            return None
        return box

    async def remove(self, record: Record) -> None:
        """Remove container, control directory and claim."""
        await clean_up(self._engine, record.id, record.reference)

    async def reap(self, keep: Collection[str]) -> list[str]:
        """Remove containers that belong neither to a session to be kept nor to any that has a record, which is
        for `gofer_sandbox.reap` to end. Those of another base directory are not ours."""
        removed = []
        for container in await self._engine.labelled(SESSION_LABEL, f"{OWNER_LABEL}={self.base}"):
            session = container["Labels"][SESSION_LABEL]
            if session not in keep and not records.known(self.base, session):
                await self._engine.remove(container["Id"])
                removed.append(session)
        return removed


def _capabilities(found: Probe) -> Capabilities:
    """Entering a container's network namespace needs root, since the engine's root owns it."""
    level = found.report.level
    limits_by = "engine" if level >= Level.LIMITED else "rlimits"
    return Capabilities("docker", level, survives_server=True, network=os.geteuid() == 0, limits_by=limits_by)


def _identity(base: Path, spec: Spec) -> tuple[int, int]:
    """The user a session runs as: one of its own when we are root."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    wanted = spec.previous.uid if spec.previous else spec.workspace.stat().st_uid
    uid = users.claim(base / "uids", spec.id, wanted)
    return uid, uid


def _prepare(base: Path, spec: Spec, uid: int, gid: int) -> None:
    """Fill the control directory and hand the workspace over."""
    control = runtime.make_control(base, spec.id, gid)
    channel = scripts.Channel()
    keeper = scripts.keeper(spec.limits, None, None, channel)
    prepare(control, keeper, Ownership(uid, gid), channel)
    if os.geteuid() == 0 and spec.workspace.stat().st_uid != uid:
        users.hand_over(spec.workspace, uid)


def _with(reference: Reference, *, pid: int = 0, start: int = 0, handle: str | None = None) -> Reference:
    handle = reference.handle if handle is None else handle
    return Reference(pid, start, reference.boot, reference.uid, reference.gid, reference.control, handle)


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
