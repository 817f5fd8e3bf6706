"""What a provider of sandboxes must give.

The shell's protocol (`shell/`) is the same everywhere: frames and output come out of a wire, commands go in. A provider
makes the box the shell lives in, watches its processes and ends them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gofer_sandbox.errors import IsolationUnavailable
from gofer_sandbox.levels import Level
from gofer_sandbox.limits import Limits
from gofer_sandbox.records import Record, Reference
from gofer_sandbox.shell.frames import Frame

if TYPE_CHECKING:
    from gofer_sandbox.local import Box

WATCHED = "watched"
"""The disk limit is held by looking, for the file system does not hold it."""
PROJECT_QUOTA, IMAGE = "project quota", "image"
"""The file system holds it: the machine's, or one of the session's own."""


_FORGEABLE = "what is left running can forge a later command's exit code"
_DISK = {
    WATCHED: "the disk limit is watched: what is written between two looks may exceed it",
    PROJECT_QUOTA: "the disk limit is held by the file system (project quota)",
    IMAGE: "the disk limit is held by a file system for each session (image)",
}


@dataclass(frozen=True, slots=True)
class Feature:
    """One thing that was tried, and what to do where it failed."""

    name: str
    ok: bool
    detail: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What a probe found."""

    provider: str
    level: Level
    features: tuple[Feature, ...] = ()
    disk_by: str = WATCHED
    attested: bool = False
    """Whether the kernel says who reports how a command ended; else anything with the session's user id can."""

    @property
    def summary(self) -> str:
        """The level in plain words, what holds the disk limit, and whether reports can be forged."""
        forgeable = "" if self.attested else f"; {_FORGEABLE}"
        return f"{self.provider}: {self.level.words}; {_DISK[self.disk_by]}{forgeable}"

    @property
    def words(self) -> str:
        """The same, then whatever failed with its fix."""
        failed = [
            f"- {feature.name}: {feature.detail}" + (f"\n  {feature.fix}" if feature.fix else "")
            for feature in self.features
            if not feature.ok
        ]
        return "\n".join([self.summary, *failed])

    def require(self, minimum: Level) -> None:
        """Raise IsolationUnavailable, with what to do about it, below that level; and always without isolation."""
        wanted = max(minimum, Level.ISOLATED)
        if self.level < minimum or self.level is Level.NONE:
            raise IsolationUnavailable(
                f"the sandbox needs the level {wanted.name} ({wanted.words}), but:\n{self.words}"
            )


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one sandbox can do."""

    provider: str
    level: Level
    survives_server: bool
    """Commands go on while no server is there, and `attach` finds them."""
    network: bool
    """Whether egress rules can be enforced."""
    limits_by: str
    """"cgroup v2", "cgroup v1", "rlimits", "engine" or "nothing"."""
    disk_by: str = WATCHED
    """What holds the workspace to its limit: WATCHED, PROJECT_QUOTA or IMAGE."""


@dataclass(frozen=True, slots=True)
class Share:
    """The workspace of another session, to be used by this one as well. That session lives as long as this one, so that
    its user stays its own."""

    workspace: Path
    uid: int
    gid: int
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Spec:
    """What a new sandbox shall be."""

    id: str
    directory: Path
    """On disk: `workspace`, `snapshot` and `output` live in it."""
    limits: Limits
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the shell starts with, besides the defaults. Never secrets."""
    readonly: Sequence[Path] = ()
    """Further host paths to show, read-only, at the same place."""
    previous: Reference | None = None
    """What this sandbox was before, when it is made again."""
    survives: bool = True
    """Whether it goes on when its server dies; else it ends with it."""
    share: Share | None = None
    """The other session whose workspace it uses, if it has none of its own."""

    @property
    def workspace(self) -> Path:
        """The directory the sandbox sees as /workspace."""
        return self.share.workspace if self.share else self.directory / "workspace"


@dataclass(frozen=True, slots=True)
class Process:
    """One process inside."""

    pid: int
    """As the machine that runs the library numbers it, or as the provider does."""
    parent: int
    start: int
    """In the machine's clock ticks since boot, comparable with `Box.clock`."""
    command: str


@dataclass(frozen=True, slots=True)
class Pressure:
    """How often the limits were hit since the sandbox began."""

    processes: int = 0
    memory: int = 0


class Listener(Protocol):
    """Where a wire delivers what comes out of the sandbox. Output is taken from the pipe it waits in, so that what was
    not yet kept is still there when the server is killed. Contract: no call raises but as it says."""

    def frame(self, frame: Frame, sender: int) -> None:
        """What the shell or its keeper says. `sender` is the pid that the kernel attests, 0 where it attests none. What
        must outlive the server is in the journal on return of `commit`."""

    def commit(self) -> None:
        """Put down in the journal what became of the frames so far: they are about to be taken off the channel."""

    def hung_up(self) -> None:
        """Nobody inside can speak any more."""

    def forged(self, sender: int) -> None:
        """Somebody who is neither goes on writing in their name."""

    def output(self, stream: int, source: int, size: int) -> int:
        """Take a piece of the running command's output, stream 1 or 2, from a pipe, and say how much it was; nothing
        at the pipe's end, BlockingIOError when it is only empty."""

    def background(self, number: int, source: int, size: int) -> bool:
        """Take a piece of what a command that has ended left running still prints, likewise; False at the end."""


class Provider(Protocol):
    """Makes sandboxes of one kind."""

    name: str
    reserve: int
    """Free space of the machine, in bytes, below which no workspace may grow."""
    shares: bool
    """Whether a session may use another one's workspace."""

    @property
    def base(self) -> Path:
        """Where what belongs to this machine's sessions is kept: control files and records."""

    async def probe(self) -> Report:
        """Try every feature for real; the answer may be kept for the provider's life."""

    async def start(self, spec: Spec) -> Box:
        """A new sandbox, its keeper about to start the first shell."""

    async def find(self, record: Record) -> Box | None:
        """The living sandbox of a record, now owned by this process; None when it is gone."""

    async def remove(self, record: Record) -> None:
        """Remove what a session that is gone left behind, save its directory."""


class Gate(Protocol):
    """What opens a sandbox's network, from outside."""

    environment: Mapping[str, str]
    """What programs inside need to find it; known before it opens. No secrets."""

    async def open(self, reference: Reference) -> None:
        """Begin to serve that sandbox; called again when the sandbox was made again. GateBlocked when a
        process inside is in the way."""

    async def close(self) -> None:
        """Serve nothing more."""
