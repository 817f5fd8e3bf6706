"""Limits for a session as a whole, by whatever control groups this machine lets us make.

Nothing is assumed from what is mounted: a group is made and its limits written, and only that counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

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


class Group(Protocol):
    """The control groups of one session."""

    @property
    def kind(self) -> str:
        """Which version they are of."""

    def limit(self, limits: Limits) -> None:
        """Set its limits."""

    def entrances(self) -> list[int]:
        """Descriptors, the caller's to close: a process that writes 0 to each is in, and what it starts follows."""

    def freeze(self, frozen: bool) -> bool:
        """Have everything inside stop or continue at once; False when that is not possible."""

    def frozen(self) -> bool:
        """Whether everything has stopped."""

    def pressure(self) -> Pressure | None:
        """How often limits were hit; None when that is not known here."""

    def shortfall(self, pid: int, limits: Limits) -> str:
        """Why a process is not under these limits; nothing when it is."""

    def end(self) -> None:
        """Kill whatever is inside."""

    async def remove(self) -> None:
        """Remove the groups, which must be empty."""

    def discard(self) -> None:
        """The same at once, for a group that hardly was."""


class Groups(Protocol):
    """Where groups can be made."""

    @property
    def kind(self) -> str:
        """Which version they are of."""

    def make(self, name: str) -> Group:
        """A new group, without limits yet."""

    def open(self, name: str) -> Group:
        """A group that was made earlier."""

    def resume(self, name: str, pid: int, limits: Limits) -> Group:
        """The group of a process that another server started, under these limits again where they have lapsed."""


def _write(path: Path | str, value: object) -> None:
    """Files of the kernel's are not made by writing them, but a stand-in's are."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)


def _opened(paths: Iterable[Path]) -> list[int]:
    """Who opened a descriptor decides what may be done through it, whoever uses it."""
    found: list[int] = []
    try:
        for path in paths:
            found.append(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
    except OSError:
        for fd in found:
            os.close(fd)
        raise
    return found


def _number(path: Path, key: bytes) -> int:
    """A counter from a file of `key value` lines."""
    try:
        for line in processes.read_small(f"{path}").splitlines():
            name, _, value = line.partition(b" ")
            if name == key:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0


def _kill(place: Path) -> None:
    """End what is in a group; its name is a session's of ours, so nothing else can be in it."""
    with contextlib.suppress(OSError):
        for pid in (place / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)


async def _remove(places: list[Path]) -> None:
    """A group can only go once the kernel has let go of its last process, which takes an instant."""
    for place in places:
        for attempt in range(50):
            if _gone(place):
                break
            await asyncio.sleep(0.002 * (attempt + 1))


def _discard(places: list[Path]) -> None:
    """At once, or within the instant that the kernel takes to let go."""
    for place in places:
        for _ in range(20):
            if _gone(place):
                break
            time.sleep(0.002)


def _gone(place: Path) -> bool:
    """Remove a group, unless something is still in it."""
    try:
        place.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _outside(place: Path, pid: int) -> str:
    """That a process is not in a group, if so."""
    return "" if str(pid) in (place / "cgroup.procs").read_text().split() else f"it is not in {place}"


def _other(file: Path, wanted: object) -> str:
    """That a limit is not what was asked for, if so."""
    found = file.read_text().strip()
    return "" if found == str(wanted) else f"{file.name} is {found}, not {wanted}"


def _whole_pages(size: int) -> int:
    """What the kernel makes of a size of memory."""
    return size - size % os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class GroupV1:
    """One directory in each of several hierarchies."""

    places: dict[str, Path]
    kind: str = "cgroup v1"

    def limit(self, limits: Limits) -> None:
        """A kernel without swap has no file for it."""
        memory, pids, cpu = (self.places[name] for name in ("memory", "pids", "cpu"))
        _write(f"{memory}/memory.limit_in_bytes", limits.memory)
        _write(f"{pids}/pids.max", limits.processes)
        _write(f"{cpu}/cpu.cfs_period_us", _PERIOD)
        _write(f"{cpu}/cpu.cfs_quota_us", int(limits.cpus * _PERIOD))
        for name, value in (("memory.memsw.limit_in_bytes", limits.memory), ("memory.swappiness", 0)):
            with contextlib.suppress(OSError):
                _write(f"{memory}/{name}", value)

    def entrances(self) -> list[int]:
        """Of the files that take one thread, for whoever moves itself that way is in at once; moving any other
        process has the kernel wait for all processors, which takes longer than all else about a start."""
        return _opened(place / "tasks" for place in self.places.values())

    def freeze(self, frozen: bool) -> bool:
        """Through the freezer hierarchy, where there is one."""
        place = self.places.get("freezer")
        if place is None:
            return False
        try:
            _write(place / "freezer.state", "FROZEN" if frozen else "THAWED")
        except OSError:
            return False
        return True

    def frozen(self) -> bool:
        """Whether everything has stopped."""
        place = self.places.get("freezer")
        return place is not None and (place / "freezer.state").read_text().strip() == "FROZEN"

    def pressure(self) -> Pressure | None:
        """From the pids and memory hierarchies."""
        return Pressure(
            processes=_number(self.places["pids"] / "pids.events", b"max"),
            memory=_number(self.places["memory"] / "memory.oom_control", b"oom_kill"),
        )

    def shortfall(self, pid: int, limits: Limits) -> str:
        """By the kernel's own account of each hierarchy."""
        wanted = {
            "memory": ("memory.limit_in_bytes", _whole_pages(limits.memory)),
            "pids": ("pids.max", limits.processes),
            "cpu": ("cpu.cfs_quota_us", int(limits.cpus * _PERIOD)),
        }
        found = [_outside(place, pid) for place in self.places.values()]
        found += [_other(self.places[name] / file, value) for name, (file, value) in wanted.items()]
        return "; ".join(filter(None, found))

    def end(self) -> None:
        """The pids hierarchy has them all."""
        _kill(self.places["pids"])

    async def remove(self) -> None:
        """Remove every directory."""
        await _remove(list(self.places.values()))

    def discard(self) -> None:
        """Remove every directory now."""
        _discard(list(self.places.values()))


@dataclass(frozen=True, slots=True)
class GroupsV1:
    """Below our own place in each hierarchy of version 1."""

    parents: dict[str, Path]
    kind: str = "cgroup v1"

    def make(self, name: str) -> Group:
        """A directory in each hierarchy."""
        group = self.open(name)
        for place in group.places.values():
            os.mkdir(place)
        return group

    def open(self, name: str) -> GroupV1:
        """The same directories again."""
        return GroupV1({controller: parent / (PREFIX + name) for controller, parent in self.parents.items()})

    def resume(self, name: str, pid: int, limits: Limits) -> Group:
        """Limits of this version stay whatever becomes of the server."""
        return self.open(name)


@dataclass(frozen=True, slots=True)
class GroupV2:
    """One directory in the unified hierarchy."""

    place: Path
    kind: str = "cgroup v2"

    def limit(self, limits: Limits) -> None:
        """A kernel without swap has no file for it."""
        _write(f"{self.place}/memory.max", limits.memory)
        _write(f"{self.place}/pids.max", limits.processes)
        _write(f"{self.place}/cpu.max", f"{int(limits.cpus * _PERIOD)} {_PERIOD}")
        for name in ("memory.swap.max", "memory.oom.group"):
            with contextlib.suppress(OSError):
                _write(f"{self.place}/{name}", 0)

    def entrances(self) -> list[int]:
        """Of the one file that takes a process."""
        return _opened([self.place / "cgroup.procs"])

    def freeze(self, frozen: bool) -> bool:
        """Ask the kernel to stop or continue the group."""
        try:
            _write(self.place / "cgroup.freeze", int(frozen))
        except OSError:
            return False
        return True

    def frozen(self) -> bool:
        """Whether everything has stopped."""
        return _number(self.place / "cgroup.events", b"frozen") == 1

    def pressure(self) -> Pressure | None:
        """From the group's event counters."""
        return Pressure(
            processes=_number(self.place / "pids.events", b"max"),
            memory=_number(self.place / "memory.events", b"oom_kill"),
        )

    def shortfall(self, pid: int, limits: Limits) -> str:
        """By the kernel's own account."""
        wanted = {
            "memory.max": _whole_pages(limits.memory),
            "pids.max": limits.processes,
            "cpu.max": f"{int(limits.cpus * _PERIOD)} {_PERIOD}",
        }
        found = [_outside(self.place, pid)]
        found += [_other(self.place / file, value) for file, value in wanted.items()]
        return "; ".join(filter(None, found))

    def end(self) -> None:
        """One by one; there may be only a few."""
        _kill(self.place)

    async def remove(self) -> None:
        """Remove the directory."""
        await _remove([self.place])

    def discard(self) -> None:
        """Remove the directory now."""
        _discard([self.place])


@dataclass(frozen=True, slots=True)
class GroupsV2:
    """Below a directory of the unified hierarchy that is delegated to us."""

    parent: Path
    mounted: Path
    kind: str = "cgroup v2"

    def make(self, name: str) -> Group:
        """A directory."""
        place = self.parent / (PREFIX + name)
        place.mkdir()
        return GroupV2(place)

    def open(self, name: str) -> Group:
        """The same directory again."""
        return GroupV2(self.parent / (PREFIX + name))

    def resume(self, name: str, pid: int, limits: Limits) -> Group:
        """Wherever it is: with the server before it, in another unit maybe. Limits lapse with the controllers, which
        are off between two servers where systemd has no DelegateSubgroup=."""
        group = GroupV2(self.parent / (PREFIX + name))
        with contextlib.suppress(OSError):
            own = _memberships(Path(f"/proc/{pid}/cgroup").read_text()).get("", "")
            if own.endswith(f"/{PREFIX}{name}"):
                group = GroupV2(self.mounted / own.lstrip("/"))
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
    return GroupsV1(parents)


def _version_2(root: Path, memberships: dict[str, str]) -> Groups | str:
    mounted = next(
        (place for place in (root, root / "unified") if (place / "cgroup.controllers").exists()), None
    )
    if mounted is None:
        return "there is no unified hierarchy"
    own = _below(mounted, memberships.get("", "/"))
    if _outside(own, os.getpid()):
        return "the unified hierarchy that is mounted is not ours but the host's"
    parent = own.parent if own.name in (GIVEN, MOVED) else own
    missing = {"memory", "pids", "cpu"} - set((parent / "cgroup.controllers").read_text().split())
    if missing:
        return f"the unified hierarchy gives us no {', '.join(sorted(missing))} controller"
    try:
        _enable(parent, _in_the_way(parent, mounted))
        return GroupsV2(parent, mounted)
    except OSError as error:
        if error.errno == errno.EBUSY and (others := beside_us(parent)):
            return f"in our control group are others, too ({', '.join(others)}); we have to be alone there"
        return f"the unified hierarchy is not delegated to us ({error.strerror})"


def beside_us(place: Path) -> list[str]:
    """What else runs in a group, such as the make or sh around the server. It may not be ours to move."""
    found = []
    for pid in (place / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/comm").read_text().strip())
    return sorted(found)


def _enable(parent: Path, ours: list[int]) -> None:
    """Have the children of a directory get the controllers. Processes may only be in its leaves, so those of ours
    that are in the way move to one."""
    control = parent / "cgroup.subtree_control"
    if {"memory", "pids", "cpu"} <= set(control.read_text().split()):
        return
    try:
        _write(control, "+memory +pids +cpu")
    except OSError:
        leaf = parent / MOVED
        leaf.mkdir(exist_ok=True)
        for pid in ours:
            with contextlib.suppress(ProcessLookupError):
                _write(leaf / "cgroup.procs", pid)
        _write(control, "+memory +pids +cpu")


def _in_the_way(parent: Path, mounted: Path) -> list[int]:
    """Ourselves; and in a container, all of which is ours, its init."""
    if parent != mounted:
        return [os.getpid()]
    return [int(pid) for pid in (parent / "cgroup.procs").read_text().split()]


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
        return f"{groups.kind}: {error.strerror or error}"
    finally:
        groups.open(name).discard()
    return ""
