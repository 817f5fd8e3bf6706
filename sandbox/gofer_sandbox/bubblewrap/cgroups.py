"""Limits for a session as a whole, by whatever control groups this machine lets us make.

Nothing is assumed from what is mounted: a group is made and its limits written, and only that counts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gofer_sandbox import processes
from gofer_sandbox.limits import Limits
from gofer_sandbox.provider import Pressure

PREFIX = "gofer-sandbox-"
GIVEN = f"{PREFIX}server"
"""A leaf that systemd starts the server in, by DelegateSubgroup= in the unit."""
MOVED = f"{PREFIX}moved"
"""A leaf that the server moved to by itself. As long as groups beside it have limits nothing can be started in the
group above, not even by systemd; the unit's ExecStopPost= sees to that, and knows by this name that it must."""
_PERIOD = 100_000
_ROOT = Path("/sys/fs/cgroup")


Setting = tuple[str, str, object]
"""A controller, a file in its directory, and what is written to it."""


def _write(path: Path | str, value: object) -> None:
    """Write a value to a file of the kernel, at once."""
    with open(path, "wb", 0) as file:
        file.write(str(value).encode())


def _number(path: Path, key: bytes) -> int:
    """A counter from a file of `key value` lines."""
    with contextlib.suppress(OSError, ValueError):
        for line in processes.read_small(f"{path}").splitlines():
            name, _, value = line.partition(b" ")
            if name == key:
                return int(value)
    return 0


def _members(place: Path) -> list[int]:
    """The processes in a group."""
    return [int(pid) for pid in (place / "cgroup.procs").read_text().split()]


@dataclass(frozen=True, slots=True)
class Version:
    """What the files of a version of control groups are called."""

    kind: str
    entrance: str
    """What a process writes 0 to that moves itself."""
    memory_events: str
    required: Callable[[Limits], list[Setting]]
    """What must be written, and be there when it is read again."""
    optional: Callable[[Limits], list[Setting]]
    """No swap, for which a kernel without has no file; and the kernel ends one process that uses too much, not all."""
    freezer: tuple[str, str, str, str]
    """A controller, a file, and what is written to it to stop and to continue everything inside."""
    frozen: tuple[str, str]
    """A file, and its line when everything has stopped."""


# In version 1 whoever moves itself by the file that takes one thread is in at once; moving any other process has the
# kernel wait for all processors, which takes longer than all else about a start.
V1 = Version(
    kind="cgroup v1",
    entrance="tasks",
    memory_events="memory.oom_control",
    required=lambda limits: [
        ("memory", "memory.limit_in_bytes", limits.memory),
        ("pids", "pids.max", limits.processes),
        ("cpu", "cpu.cfs_period_us", _PERIOD),
        ("cpu", "cpu.cfs_quota_us", int(limits.cpus * _PERIOD)),
    ],
    optional=lambda limits: [
        ("memory", "memory.memsw.limit_in_bytes", limits.memory),
        ("memory", "memory.swappiness", 0),
    ],
    freezer=("freezer", "freezer.state", "FROZEN", "THAWED"),
    frozen=("freezer.state", "FROZEN"),
)
V2 = Version(
    kind="cgroup v2",
    entrance="cgroup.procs",
    memory_events="memory.events",
    required=lambda limits: [
        ("memory", "memory.max", limits.memory),
        ("pids", "pids.max", limits.processes),
        ("cpu", "cpu.max", f"{int(limits.cpus * _PERIOD)} {_PERIOD}"),
    ],
    optional=lambda limits: [("memory", "memory.swap.max", 0), ("memory", "memory.oom.group", 0)],
    freezer=("pids", "cgroup.freeze", "1", "0"),
    frozen=("cgroup.events", "frozen 1"),
)


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The control groups of one session: a directory for each controller, which is the same for all in version 2."""

    version: Version
    places: dict[str, Path]

    def directories(self) -> list[Path]:
        """Each once."""
        return list(dict.fromkeys(self.places.values()))

    def limit(self, limits: Limits) -> None:
        """Set its limits."""
        for controller, file, value in self.version.required(limits):
            _write(f"{self.places[controller]}/{file}", value)
        for controller, file, value in self.version.optional(limits):
            with contextlib.suppress(OSError):
                _write(f"{self.places[controller]}/{file}", value)

    def entrances(self) -> list[int]:
        """Descriptors, the caller's to close: a process that writes 0 to each is in, and what it starts follows. Who
        opened a descriptor decides what may be done through it, whoever uses it."""
        found: list[int] = []
        try:
            for place in self.directories():
                found.append(os.open(place / self.version.entrance, os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            for fd in found:
                os.close(fd)
            raise
        return found

    def pressure(self) -> Pressure:
        """How often limits were hit."""
        return Pressure(
            processes=_number(self.places["pids"] / "pids.events", b"max"),
            memory=_number(self.places["memory"] / self.version.memory_events, b"oom_kill"),
        )

    def shortfall(self, pid: int, limits: Limits) -> str:
        """Why a process is not under these limits, by the kernel's own account; nothing when it is."""
        try:
            found = [f"it is not in {place}" for place in self.directories() if pid not in _members(place)]
            # What the kernel makes of a size of memory is whole pages.
            memory = limits.memory - limits.memory % os.sysconf("SC_PAGE_SIZE")
            for controller, file, value in self.version.required(replace(limits, memory=memory)):
                now = (self.places[controller] / file).read_text().strip()
                found += [] if now == str(value) else [f"{file} is {now}, not {value}"]
        except OSError as error:
            return str(error)
        return "; ".join(found)

    def end(self) -> None:
        """Kill whatever is inside. Its name is a session's of ours, so nothing else can be in it."""
        with contextlib.suppress(OSError):
            for pid in _members(self.places["pids"]):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        """Remove the groups. Each can only go once the kernel has let go of its last process, which takes an
        instant."""
        for place in self.directories():
            for attempt in range(50):
                with contextlib.suppress(OSError):
                    place.rmdir()
                if not place.exists():
                    break
                time.sleep(0.002 * (attempt + 1))

    def freeze(self, frozen: bool) -> bool:
        """Have everything inside stop or continue at once; False when that is not possible, as without a freezer
        hierarchy in version 1."""
        controller, file, stop, go = self.version.freezer
        try:
            _write(self.places[controller] / file, stop if frozen else go)
        except (KeyError, OSError):
            return False
        return True

    def frozen(self) -> bool:
        """Whether everything has stopped."""
        file, line = self.version.frozen
        place = self.places.get(self.version.freezer[0])
        return place is not None and line in (place / file).read_text().splitlines()


@dataclass(frozen=True, slots=True)
class Groups:
    """Where groups can be made: below our own place in each hierarchy."""

    version: Version
    parents: dict[str, Path]
    mounted: Path | None = None
    """Where the unified hierarchy is; None with version 1."""

    def make(self, name: str) -> ControlGroup:
        """A new group, without limits yet."""
        group = self.open(name)
        for place in group.directories():
            os.mkdir(place)
        return group

    def open(self, name: str) -> ControlGroup:
        """A group that was made earlier."""
        return ControlGroup(
            self.version, {one: parent / (PREFIX + name) for one, parent in self.parents.items()}
        )

    def resume(self, name: str, pid: int, limits: Limits) -> ControlGroup:
        """The group of a process that another server started, wherever it is: in another unit maybe. Limits of version
        2 lapse with the controllers, which are off between two servers where systemd has no DelegateSubgroup=, and are
        set again. Those of version 1 stay whatever becomes of the server."""
        group = self.open(name)
        if self.mounted is None:
            return group
        with contextlib.suppress(OSError):
            own = _memberships(Path(f"/proc/{pid}/cgroup").read_text()).get("", "")
            if own.endswith(f"/{PREFIX}{name}"):
                group = ControlGroup(
                    self.version, dict.fromkeys(self.parents, self.mounted / own.lstrip("/"))
                )
            group.limit(limits)
        return group


def find(root: Path = _ROOT, own: str | None = None) -> tuple[Groups | None, str]:
    """Where groups with all limits can be made, tried for real; else None and why not."""
    memberships = _memberships(own if own is not None else Path("/proc/self/cgroup").read_text())
    reasons = []
    for candidate in (_version_2(root, memberships), _version_1(root, memberships)):
        if isinstance(candidate, str):
            reasons.append(candidate)
        elif reason := _try(candidate):
            reasons.append(reason)
        else:
            return candidate, ""
    return None, "; ".join(reasons)


def _memberships(text: str) -> dict[str, str]:
    """Our path in each hierarchy, by controller; the unified one under the empty name."""
    found = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _version_1(root: Path, memberships: dict[str, str]) -> Groups | str:
    parents: dict[str, Path] = {}
    for controller in ("memory", "pids", "cpu", "freezer"):
        mounted = next((p for p in (root / controller, root / "cpu,cpuacct") if (p / "tasks").exists()), None)
        if mounted is None or (mounted.name != controller and controller != "cpu"):
            if controller == "freezer":
                continue
            return f"there is no {controller} hierarchy of version 1"
        parents[controller] = _below(mounted, memberships.get(controller, "/"))
    return Groups(V1, parents)


def _version_2(root: Path, memberships: dict[str, str]) -> Groups | str:
    mounted = next(
        (place for place in (root, root / "unified") if (place / "cgroup.controllers").exists()), None
    )
    if mounted is None:
        return "there is no unified hierarchy"
    own = _below(mounted, memberships.get("", "/"))
    if os.getpid() not in _members(own):
        return "the unified hierarchy that is mounted is not ours but the host's"
    parent = own.parent if own.name in (GIVEN, MOVED) else own
    missing = {"memory", "pids", "cpu"} - set((parent / "cgroup.controllers").read_text().split())
    if missing:
        return f"the unified hierarchy gives us no {', '.join(sorted(missing))} controller"
    try:
        _enable(parent, mounted)
        return Groups(V2, dict.fromkeys(("memory", "pids", "cpu"), parent), mounted)
    except OSError as error:
        if error.errno == errno.EBUSY and (others := beside_us(parent)):
            return f"in our control group are others, too ({', '.join(others)}); we have to be alone there"
        return f"the unified hierarchy is not delegated to us ({error.strerror})"


def beside_us(place: Path) -> list[str]:
    """What else runs in a group, such as the make or sh around the server. It may not be ours to move."""
    found = []
    for pid in _members(place):
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/comm").read_text().strip())
    return sorted(found)


def _enable(parent: Path, mounted: Path) -> None:
    """Have the children of a directory get the controllers. Processes may only be in its leaves, so those of ours
    that are in the way move to one: this one, or all of them in a container, where every process is ours."""
    control = parent / "cgroup.subtree_control"
    if {"memory", "pids", "cpu"} <= set(control.read_text().split()):
        return
    try:
        _write(control, "+memory +pids +cpu")
    except OSError:
        leaf = parent / MOVED
        leaf.mkdir(exist_ok=True)
        for pid in [os.getpid()] if parent != mounted else _members(parent):
            with contextlib.suppress(ProcessLookupError):
                _write(leaf / "cgroup.procs", pid)
        _write(control, "+memory +pids +cpu")


def _below(mounted: Path, path: str) -> Path:
    """Our own place; in a container the path may be the host's, and the mount's root is ours."""
    place = mounted / path.lstrip("/")
    return place if place.exists() else mounted


def _try(groups: Groups) -> str:
    """Make a group and remove it; why that is not possible, or nothing."""
    name = f"probe-{threading.get_native_id()}"
    try:
        groups.make(name).limit(Limits())
    except OSError as error:
        return f"{groups.version.kind}: {error.strerror or error}"
    finally:
        groups.open(name).remove()
    return ""
