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
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gofer_sandbox import processes, runtime
from gofer_sandbox.bubblewrap.arguments import ENVIRONMENT, HOME
from gofer_sandbox.docker.engine import DEFAULT, Engine, EngineError
from gofer_sandbox.errors import StartFailed
from gofer_sandbox.inspection import is_alive
from gofer_sandbox.levels import Level
from gofer_sandbox.limits import RESERVE, Limits
from gofer_sandbox.local import Box
from gofer_sandbox.provider import Capabilities, Feature, Pressure, Report, Spec
from gofer_sandbox.records import Record, Reference
from gofer_sandbox.shell import scripts
from gofer_sandbox.shell.control import prepare
from gofer_sandbox.shell.outputs import Ownership

_HIDDEN = (
    "the container runs, but its processes and files cannot be seen from here. Run on the engine's machine as"
    " root or as the user who owns the containers; inside a container add --pid=host and mount the data"
    " directory at its own path; runtimes such as gVisor hide their processes and cannot be used this way"
)


class DockerBox(Box):
    """The engine makes and removes it; everything between goes past the engine, as with bubblewrap.

    One `exec` for each command would be slow, could not be killed, and would end only when every process that
    holds its output does.
    """

    def __init__(
        self, session: str, reference: Reference, capabilities: Capabilities, engine: Engine, limits: Limits
    ) -> None:
        super().__init__(reference, capabilities, None)
        self._session, self._engine, self._limits = session, engine, limits

    def pressure(self) -> Pressure:
        """By counting: how often the engine's control group was hit is not in its API."""
        count = sum(1 for _ in processes.descendants(self.reference.pid))
        return Pressure(processes=int(count >= 0.8 * self._limits.processes))

    async def destroy(self) -> None:
        """End PID 1 ourselves, so that nothing outlives this even when the engine does not answer."""
        await self._end_keeper()
        self.detach()
        await _clean_up(self._engine, self._session, self.reference)


class Docker:
    """Makes sandboxes with Docker's engine."""

    name = "docker"
    shares = False

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
        self._info: dict[str, Any] = {}
        """What the engine said of itself."""
        self._report = Report(self.name, Level.NONE)
        self._lock = asyncio.Lock()

    @cached_property
    def base(self) -> Path:
        """Where control directories are made."""
        return self._given_base or runtime.directory()

    async def probe(self) -> Report:
        """Ask the engine about itself, its limits, the runtime and the image, once it answers."""
        async with self._lock:
            if self._report.level is Level.NONE:
                self._report = await self._ask()
        return self._report

    async def _ask(self) -> Report:
        try:
            self._info = await self._engine.info()
            image_there = await self._engine.has_image(self._image)
        except EngineError as error:
            feature = Feature("engine", False, str(error), "start Docker, or give its address")
            return Report(self.name, Level.NONE, (feature,))
        image = Feature("image", image_there, f"{self._image} is not there yet", f"docker pull {self._image}")
        features = [Feature("engine", True), *_isolation(self._info, self._runtime), *_limits(self._info)]
        return Report(self.name, _level(features), (*features, image))

    async def start(self, spec: Spec) -> Box:
        """Make the control directory and the container, start it, and make sure that we can reach into it."""
        (await self.probe()).require(self._minimum)
        await self._have_image()
        uid, gid = runtime.claim(self.base, spec)
        reference = Reference(uid=uid, gid=gid, control=str(self.base / spec.id), boot=processes.boot_id())
        try:
            await asyncio.to_thread(_prepare, self.base, spec, uid, gid)
            handle = await self._engine.create(_name(spec.id), self._container(spec, uid, gid))
            reference = replace(reference, handle=handle)
            await self._engine.start(handle)
            return self._box(spec.id, await self._located(reference), spec.limits)
        except BaseException as error:
            with contextlib.suppress(EngineError):  # the start's own error is the one to tell
                await _clean_up(self._engine, spec.id, reference)
            if isinstance(error, EngineError):
                raise StartFailed(str(error)) from error
            raise

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
        return replace(reference, pid=pid, start=start)

    def _box(self, session: str, reference: Reference, limits: Limits) -> DockerBox:
        """Entering a container's network namespace needs root, since the engine's root owns it."""
        level = self._report.level
        limits_by = "engine" if level >= Level.LIMITED else "rlimits"
        capabilities = Capabilities(
            self.name, level, survives_server=True, network=os.geteuid() == 0, limits_by=limits_by
        )
        return DockerBox(session, reference, capabilities, self._engine, limits)

    async def find(self, record: Record) -> Box | None:
        """The same process in the same boot, and the engine still calls it that container's."""
        reference = record.reference
        if not is_alive(reference):
            return None
        (await self.probe()).require(self._minimum)
        known = await self._engine.inspect(reference.handle)
        if known is None or known["State"].get("Pid") != reference.pid:
            return None
        try:
            box = self._box(record.id, reference, record.limits)
        except ProcessLookupError:
            return None
        if not is_alive(reference):
            box.detach()
            return None
        return box

    async def remove(self, record: Record) -> None:
        """Remove container, control directory and claim."""
        await _clean_up(self._engine, record.id, record.reference)

    def _container(self, spec: Spec, uid: int, gid: int) -> dict[str, Any]:
        """The request for `POST /containers/create`: everything closed that can be closed."""
        # In a rootless engine's containers the user who runs it is called root.
        rootless = "name=rootless" in " ".join(_security_options(self._info))
        environment = {**ENVIRONMENT, "LANG": "C.UTF-8", **spec.environment}
        return {
            "Image": self._image,
            "Entrypoint": ["bash"],
            "Cmd": [*scripts.KEEPER_OPTIONS, f"{scripts.INSIDE}/keeper"],
            "User": "0:0" if rootless else f"{uid}:{gid}",
            "WorkingDir": HOME,
            "Hostname": "sandbox",
            "Env": [f"{name}={value}" for name, value in environment.items()],
            "Labels": {"gofer-sandbox.session": spec.id},
            "AttachStdin": False,
            "AttachStdout": False,
            "AttachStderr": False,
            "OpenStdin": False,
            "Tty": False,
            "NetworkDisabled": True,
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": {
                "NetworkMode": "none",
                "ReadonlyRootfs": True,
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges"],
                "IpcMode": "private",
                "CgroupnsMode": "private",
                "Privileged": False,
                "PublishAllPorts": False,
                "AutoRemove": False,
                "RestartPolicy": {"Name": "no"},
                "LogConfig": {"Type": "none", "Config": {}},
                "Init": False,  # the keeper is PID 1 and reaps
                "Mounts": [
                    _bind(self.base / spec.id, scripts.INSIDE, True),
                    _bind(spec.workspace, HOME, False),
                    *(_bind(path, str(path), True) for path in spec.readonly),
                ],
                "Tmpfs": {
                    "/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={spec.limits.tmp}",  # noqa: S108 a path inside
                },
                **_resources(spec.limits, int(self._info.get("NCPU") or 1)),
                **({"Runtime": self._runtime} if self._runtime else {}),
            },
        }


def _resources(limits: Limits, processors: int) -> dict[str, Any]:
    return {
        "Memory": limits.memory,
        "MemorySwap": limits.memory,  # memory and swap together: none
        "NanoCpus": int(min(limits.cpus, processors) * 1e9),  # more than there are is refused
        "PidsLimit": limits.processes,
        "ShmSize": limits.shm,
        "Ulimits": [
            {"Name": name, "Soft": most, "Hard": most}
            for name, most in (("core", 0), ("nofile", limits.open_files), ("fsize", limits.file_size))
        ],
    }


def _bind(source: Path, target: str, readonly: bool) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": str(source),
        "Target": target,
        "ReadOnly": readonly,
        "BindOptions": {"Propagation": "rprivate"},
    }


def _security_options(info: dict[str, Any]) -> list[str]:
    return [str(option) for option in info.get("SecurityOptions") or ()]


def _isolation(info: dict[str, Any], runtime: str | None) -> list[Feature]:
    """What an engine gives is asked of it: its options are only as good as its machine."""
    options = _security_options(info)
    return [
        Feature(
            "Linux containers",
            info.get("OSType") == "linux",
            f"this engine runs {info.get('OSType')} containers",
            "switch it to Linux containers",
        ),
        Feature(
            "seccomp",
            any(option.startswith("name=seccomp") for option in options),
            "the engine filters no system calls",
            "use an engine and kernel with seccomp, and do not start it with an unconfined profile",
        ),
        Feature(
            "user ids",
            not any(option.startswith("name=userns") for option in options),
            "the engine remaps user ids, so its containers cannot open our FIFOs",
            "use an engine without userns-remap, or a rootless one",
        ),
        Feature(
            "runtime",
            runtime is None or runtime in (info.get("Runtimes") or {}),
            f"the engine has no runtime named {runtime}",
            f"install it and add it to /etc/docker/daemon.json under runtimes: {runtime}",
        ),
    ]


def _limits(info: dict[str, Any]) -> list[Feature]:
    fix = "enable this control group on the engine's machine"
    words = {"MemoryLimit": "memory", "PidsLimit": "processes", "CpuCfsQuota": "cpu"}
    return [
        Feature(f"limit of {word}", bool(info.get(key)), "the engine cannot set it", fix)
        for key, word in words.items()
    ]


def _level(features: list[Feature]) -> Level:
    failed = [feature.name for feature in features if not feature.ok]
    if not failed:
        return Level.SEPARATED if os.geteuid() == 0 else Level.LIMITED
    return Level.ISOLATED if all(name.startswith("limit of ") for name in failed) else Level.NONE


def _prepare(base: Path, spec: Spec, uid: int, gid: int) -> None:
    """Fill the control directory and hand the workspace over."""
    control = runtime.make_control(base, spec.id, gid)
    channel = scripts.Channel()
    keeper = scripts.keeper(spec.limits, None, None, channel)
    prepare(control, keeper, Ownership(uid, gid), channel)
    runtime.hand_over(spec.workspace, uid)


def _name(session: str) -> str:
    return f"gofer-sandbox-{session}"


async def _clean_up(engine: Engine, session: str, reference: Reference) -> None:
    """Remove what a container leaves: itself, and whatever the engine says, control directory and user id. A start that
    was cut short may have made it without our having heard its handle."""
    try:
        await engine.remove(reference.handle or _name(session))
    finally:
        await asyncio.to_thread(runtime.release, session, reference)


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
