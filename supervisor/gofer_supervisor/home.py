"""The home of a supervised Gofer: its releases, which of them runs, which is good, and what is under way.

    releases/<build>/manifest.json   one release: its version and how to run it
    releases/<build>/lib, deps/<…>   its files and the packages it needs, each with a list of their digests beside it
    current, good                    links to releases: what should run, and what last proved itself
    supervisor.json                  what is under way, written before each step
    events/<number>.json             what happened and is not in the event log yet

Every write is whole or not there: a file is written beside its place, synced and renamed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import time

TYPE_CHECKING = False  # as `typing` has it, which would be a sixth of the supervisor's memory
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

CURRENT, GOOD = "current", "good"
BUILD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,79}")
"""What a build may be called: it becomes the name of a directory."""
MANIFEST = "manifest.json"
_COMPILED = re.compile(r"(^|/)__pycache__/[^/]*\.pyc$")
NOT_NOW = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that say nothing about a file: nothing can be opened just now."""
RESERVE = 1 << 20
"""Bytes that are kept for the supervisor's own files, should the disk be full."""


class HomeError(Exception):
    """The home cannot be used as it is."""


class Release:
    """One release, as its manifest says."""

    __slots__ = ("build", "path", "python", "revision", "version")

    def __init__(
        self, *, build: str, version: str, python: str, path: Sequence[str] = (), revision: str = ""
    ) -> None:
        """`python` is the interpreter that runs it, `path` are directories put before the interpreter's own packages
        (none when it is installed in them), `revision` is the git revision it was made from, where that is known."""
        self.build = checked_build(build)
        self.version = version
        self.python = python
        self.path = tuple(path)
        self.revision = revision

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs `gofer` of this release."""
        return [self.python, "-m", "gofer", *arguments]

    def environment(self) -> dict[str, str]:
        """What its processes have in their environment, so that they know which release they are."""
        known = {"GOFER_BUILD": self.build}
        if not self.path:
            return known
        # Nothing is written into a release, so that whatever is added to it can be noticed.
        return {**known, "PYTHONPATH": os.pathsep.join(self.path), "PYTHONDONTWRITEBYTECODE": "1"}


class State:
    """What the supervisor must know again after it was killed."""

    __slots__ = ("exits", "installed", "outage", "processes", "taken", "trial")

    def __init__(self) -> None:
        self.installed = ""
        """The build of the environment that the supervisor was last started from."""
        self.trial: dict[str, Any] | None = None
        """A release that is being deployed or on probation: its build, the one before, by whom, since when, and which
        step is under way since when (`stop`, `backup`, `migrate`, `restore` or `prove`; `revert` until the release
        before serves again, with why and whether a person asked for it). In `prove`, `ready` says that all its
        processes were, `until` when it has proved itself if all goes well, and `unfit` why it will not before it is
        started again, where there is no release to go back to."""
        self.taken = ""
        """The id of the last request that was begun: should it still lie there, it is not begun again."""
        self.processes: dict[str, list[int]] = {}
        """Process id and start time of what was started, by name: what a supervisor that was killed left running."""
        self.exits: list[float] = []
        """When processes ended that should not have, within the last ten minutes, in seconds since the machine was
        started."""
        self.outage = 0.0
        """When it was first found that nothing can run; 0 when something has run for ten minutes since."""


class Home:
    """The directory, and the only one who writes to it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._releases = f"{path}/releases"
        self._events = f"{path}/events"
        self._state = f"{path}/supervisor.json"
        self._reserve = f"{path}/reserve"

    def prepare(self) -> None:
        """Make what is missing, for the owner alone."""
        for directory in (self.path, self._releases, self._events):
            try:
                os.makedirs(directory, mode=0o700, exist_ok=True)
            except (PermissionError, FileExistsError, NotADirectoryError) as error:
                raise HomeError(f"{directory} cannot be made: {error.strerror}.") from error

    def take(self, within: float) -> None:
        """Be the one supervisor of this home until the process ends, and remove what a kill left half written; raises
        HomeError when another supervisor does not leave in time."""
        lock = os.open(f"{self.path}/supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        give_up = time.monotonic() + within
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() > give_up:
                    raise HomeError(f"Another supervisor runs in {self.path}.") from error
                time.sleep(0.1)
        if os.path.exists(f"{self.path}/request.json") and self.asked() is None:
            self.answered()  # one that cannot be read would keep every other one waiting
        for directory in (self.path, self._events):
            for name in os.listdir(directory):
                if name.startswith(".") and name.endswith(".new"):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(f"{directory}/{name}")
        with contextlib.suppress(OSError), open(self._reserve, "ab", opener=_private) as file:
            os.posix_fallocate(file.fileno(), 0, RESERVE)

    def supervised(self) -> bool:
        """Whether a supervisor runs here, also while nothing that it starts does."""
        try:
            lock = os.open(f"{self.path}/supervisor.lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    def give_up_reserve(self) -> bool:
        """Make room on a full disk; False when that was done before."""
        with contextlib.suppress(OSError):
            os.unlink(self._reserve)
            return True
        return False

    # Releases

    def add(self, release: Release, **facts: Any) -> None:
        """Write the manifest of a release. `facts` are kept beside what is needed to run it."""
        os.makedirs(f"{self._releases}/{release.build}", mode=0o700, exist_ok=True)
        write_json(f"{self._releases}/{release.build}/{MANIFEST}", manifest_content(release, **facts))

    def release(self, build: str) -> Release:
        """A release by its build; raises HomeError."""
        manifest = self.manifest(build)
        try:
            return Release(**{name: manifest[name] for name in Release.__slots__})
        except (KeyError, TypeError) as error:
            raise HomeError(f"The manifest of release {build} is not complete: {error}.") from error

    def manifest(self, build: str) -> dict[str, Any]:
        """All that is known of a release; raises HomeError."""
        place = f"{self._releases}/{checked_build(build)}/{MANIFEST}"
        return read_json(place, f"There is no release {build} in {self.path}.")

    def changed_file(self, build: str) -> str:
        """A file of a release, or of the packages made for it, that was changed, removed or added since it was staged;
        empty when there is none."""
        manifest, release = self.manifest(build), self.release(build)
        if files := manifest.get("files"):
            changed = [changed_below(top, files) for top in release.path]
        else:  # staged by a release that wrote no list
            changed = [
                _changed_since_unpacked(top, str(manifest.get("record") or "")) for top in release.path
            ]
        if packages := manifest.get("packages"):
            changed.append(changed_below(os.path.dirname(os.path.dirname(release.python)), packages))
        return next(filter(None, changed), "")

    def builds(self) -> list[str]:
        """Every release there is, the oldest first."""
        found = {}
        for build in os.listdir(self._releases) if os.path.isdir(self._releases) else ():
            with contextlib.suppress(OSError):
                found[build] = os.stat(f"{self._releases}/{build}/{MANIFEST}").st_mtime
        return sorted(found, key=lambda build: (found[build], build))

    def manifests(self) -> dict[str, dict[str, Any]]:
        """All that is known of each release, the oldest first, without those whose manifest is damaged."""
        found = {}
        for build in self.builds():
            with contextlib.suppress(HomeError):
                found[build] = self.manifest(build)
        return found

    def linked(self, name: str) -> str:
        """The build that `current` or `good` leads to; empty when there is no such link."""
        with contextlib.suppress(OSError):
            return os.path.basename(os.readlink(f"{self.path}/{name}"))
        return ""

    def link(self, name: str, build: str) -> None:
        """Have `current` or `good` lead to a build, in one step."""
        beside = f"{self.path}/.{name}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        os.symlink(f"releases/{checked_build(build)}", beside)
        os.replace(beside, f"{self.path}/{name}")
        _sync(self.path)

    # State and events

    def load(self) -> State:
        """What was under way; what cannot be read counts as nothing, so that a damaged file keeps nobody offline."""
        state = State()
        try:
            kept = read_json(self._state, "")
            state.installed = str(kept["installed"])
            state.trial = dict(kept["trial"]) if kept["trial"] else None
            if state.trial is not None:
                checked_build(state.trial["build"] if {"previous", "step"} <= set(state.trial) else "")
            state.processes = {
                str(name): [int(one) for one in ids] for name, ids in kept["processes"].items()
            }
            state.taken = str(kept.get("taken", ""))
            state.outage = float(kept.get("outage", 0))
            state.exits = [float(at) for at in kept["exits"]]
        except (HomeError, KeyError, TypeError, ValueError, AttributeError):
            return State()
        return state

    def save(self, state: State) -> None:
        """Keep what is under way."""
        write_json(self._state, {name: getattr(state, name) for name in State.__slots__})

    # Requests

    def ask(self, request: Mapping[str, Any]) -> None:
        """Leave a request for the supervisor, which takes it at its next look. Raises FileExistsError when another one
        waits: of two that are left at once, one is refused and none is lost."""
        beside = f"{self.path}/.request-{os.getpid()}-{time.time_ns()}.json.new"
        write_json(beside, {"id": os.urandom(8).hex(), **request})
        try:
            os.link(beside, f"{self.path}/request.json")
        finally:
            os.unlink(beside)
        _sync(self.path)

    def asked(self) -> dict[str, Any] | None:
        """The request that waits, if there is one. What cannot be read is no request."""
        try:
            return read_json(f"{self.path}/request.json", "")
        except HomeError:
            return None

    def answered(self) -> None:
        """The request was taken."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.path}/request.json")

    def note(self, kind: str, **data: Any) -> None:
        """Put an event where the running release takes it into the event log. Its number grows, so it is taken once; it
        grows also when the clock is set back, so that nothing is taken for what was there before."""
        last = f"{self.path}/last_event.json"
        waiting = [int(name[:-5]) for name in os.listdir(self._events) if name[:-5].isdigit()]
        with contextlib.suppress(HomeError, KeyError, TypeError, ValueError):
            waiting.append(int(read_json(last, "")["number"]))
        number = max(time.time_ns() // 1000, 1 + max(waiting, default=0))
        write_json(last, {"number": number})
        write_json(f"{self._events}/{number}.json", {"kind": kind, "at": time.time(), "data": data})


def manifest_content(release: Release, **facts: Any) -> dict[str, Any]:
    """What the manifest of a release holds: what is needed to run it, and facts."""
    return {**{name: getattr(release, name) for name in Release.__slots__}, **facts}


def checked_build(build: str) -> str:
    """A build's name, if it can be the name of a directory; raises HomeError."""
    if not isinstance(build, str) or not BUILD.fullmatch(build):
        raise HomeError(f"{str(build)[:80]!r} is no name of a release.")
    return build


def read_json(place: str, missing: str) -> dict[str, Any]:
    """A JSON object from a file; raises HomeError, and OSError when nothing can be opened just now."""
    try:
        with open(place, "rb") as file:
            found = json.load(file)
    except FileNotFoundError as error:
        raise HomeError(missing or f"{place} is missing.") from error
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in NOT_NOW:
            raise
        raise HomeError(f"{place} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise HomeError(f"{place} is not a JSON object.")
    return found


def write_json(place: str, content: Mapping[str, Any]) -> None:
    """Put a JSON object in place of what was there, and make it last."""
    directory, name = os.path.split(place)
    beside = f"{directory}/.{name}.new"
    with open(beside, "w", opener=_private) as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, place)
    _sync(directory)


def file_digest(place: str) -> str:
    """What a file holds, as the record of a wheel says it; empty for what is no file."""
    import base64
    import hashlib

    try:
        with open(place, "rb", opener=_no_link) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return ""
            found = hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return ""
    return f"sha256={base64.urlsafe_b64encode(found).decode().rstrip('=')}"


def list_files(top: str) -> str:
    """Write down what a directory holds, in a list beside it; returns the digest of the list."""
    write_json(f"{top}.json", dict(_contents(top)))
    return file_digest(f"{top}.json")


def changed_below(top: str, digest: str) -> str:
    """A file below a directory that is not what the list beside it says, or the list, if it is not the one with this
    digest; empty when there is none."""
    if file_digest(f"{top}.json") != digest:
        return f"{os.path.basename(top)}.json"
    listed = read_json(f"{top}.json", "")
    return min((name for name, _ in listed.items() ^ dict(_contents(top)).items()), default="")


def _contents(top: str) -> Iterator[tuple[str, str]]:
    """Every file below a directory with its digest, and every link with what it leads to."""
    for name in _names(top):
        place = f"{top}/{name}"
        yield name, f"-> {os.readlink(place)}" if os.path.islink(place) else file_digest(place)


def _changed_since_unpacked(top: str, record: str) -> str:
    """The first file below a directory that is not what the record of a wheel says; the record itself has a digest,
    where the release was staged with one."""
    found = {name for name in _names(top) if not _COMPILED.search(name)}
    place = min((name for name in found if name.endswith(".dist-info/RECORD")), default="")
    if record and file_digest(f"{top}/{place}") != record:
        return place or "RECORD"
    if not place:
        return ""
    with open(f"{top}/{place}", encoding="utf-8") as file:
        rows = [line.rstrip("\n").rsplit(",", 2) for line in file]
    listed = {row[0]: row[1] for row in rows if len(row) == 3 and row[1]}
    if added := found - set(listed) - {place}:
        return min(added)
    return next((name for name, digest in listed.items() if file_digest(f"{top}/{name}") != digest), "")


def _names(top: str) -> Iterator[str]:
    """Every file and link below a directory."""
    for directory, folders, files in os.walk(top):
        links = [name for name in folders if os.path.islink(f"{directory}/{name}")]
        for name in [*links, *files]:
            yield f"{directory}/{name}"[len(top) + 1 :]


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe would keep us waiting


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _sync(directory: str) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
