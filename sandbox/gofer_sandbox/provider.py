"""What a provider of sandboxes must give.

The shell's protocol (`shell/`) is the same everywhere: frames and output come out of a `Wire`, commands go
in. A provider makes the box the shell lives in, watches its processes and ends them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gofer_sandbox.errors import IsolationUnavailable
from gofer_sandbox.files import ConfinedFiles
from gofer_sandbox.levels import Level
from gofer_sandbox.limits import Limits
from gofer_sandbox.record import Record, Reference
from gofer_sandbox.shell.frames import Frame

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

    @property
    def workspace(self) -> Path:
        """The directory the sandbox sees as /workspace."""
        return self.directory / "workspace"


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


class Wire(Protocol):
    """How commands get in and frames and output get out."""

    def open(self, listener: Listener) -> None:
        """Begin to deliver."""

    def hear(self) -> object:
        """Deliver the frames that are there already."""

    def trust(self, shell: int, expected: int) -> None:
        """Whom to believe: the shell of an earlier server's journal, or the one that it had been told to expect."""

    def submit(self, number: int, command: bytes, separate: bool, snapshot: bool, before: int) -> None:
        """Hand one command to the shell, and have it leave a snapshot first, if so. `before` is how the command before
        ended, which this one finds in `$?`."""

    def submit_again(self) -> None:
        """Hand over the running command's lines once more, should they have got lost; it does not run twice."""

    def resume(self, number: int, separate: bool) -> None:
        """Go on reading the output of a command that another process submitted."""

    def adopt(self, running: bool) -> None:
        """Go on reading what earlier commands' processes print; `running` when a command is to be resumed."""

    @property
    def current(self) -> list[str]:
        """What the running command's outputs are called."""

    @property
    def keeps_output(self) -> bool:
        """Whether what the running command prints is kept while no server is there."""

    def finish(self) -> None:
        """Deliver the rest of the command's output."""

    def settle(self) -> None:
        """Do what was left to do after a command's end, so that its caller need not wait for it."""

    def ask_snapshot(self) -> None:
        """Have an idle shell say its state."""

    def ask_small_snapshots(self) -> None:
        """From now on have it only name what is large."""

    def keep(self, snapshot: bytes) -> None:
        """Leave the shell's state to the server that comes after."""

    def kept(self) -> bytes:
        """What the server before left of it."""

    def put_state(self, state: bytes, options: bytes) -> None:
        """What the next shell shall begin with, and the options it sets last."""

    def go(self, death: int) -> None:
        """Let the keeper start the next shell after that death."""

    def rest(self) -> None:
        """Let go of what only saves time, for a session that is not used."""

    def close(self) -> None:
        """Stop delivering and let go of everything."""


class Box(Protocol):
    """One living sandbox: its processes, its files, its wire."""

    reference: Reference
    capabilities: Capabilities
    home: str
    """The workspace, as the sandbox sees it."""

    def wire(self) -> Wire:
        """A new wire to it; one at a time."""

    def alive(self) -> bool:
        """Whether PID 1 inside still runs."""

    def files(self) -> ConfinedFiles:
        """Access to its files; one at a time, to be closed."""

    def rouse(self) -> None:
        """Have PID 1 inside go on, should somebody inside have stopped it by tracing it."""

    def on_death(self, callback: Callable[[], None]) -> None:
        """Call back, once, when PID 1 inside has ended; not where the wire hangs up then."""

    def lost(self) -> None:
        """Take it for dead from now on."""

    def rest(self) -> None:
        """Let go of what only saves time, for a session that is not used."""

    def channel(self) -> str:
        """What the shell's lines come from, as its keeper would call it."""

    def clock(self) -> int:
        """Now, in the unit of `Process.start`."""

    def processes(self) -> list[Process]:
        """Everything inside but PID 1; parents before children."""

    def background(self, shell: Process | None) -> list[Process]:
        """Everything inside but PID 1 and the shell."""

    def alone(self, shell: Process) -> bool:
        """Whether nothing runs inside but PID 1 and the shell; quick, for every command asks. False where there is no
        quick way to tell."""

    def shell(self, inner: int = 0) -> Process | None:
        """The child of PID 1 that was started as a shell, and calls itself `inner` where that is known."""

    def process(self, pid: int) -> Process | None:
        """The child of PID 1 that this machine numbers so, whatever it is by now."""

    def lives(self, process: Process) -> bool:
        """Whether a process is still there."""

    def busy(self, shell: Process) -> bool:
        """Whether the shell is in the middle of a command; False where that cannot be seen."""

    def waits(self, shell: Process) -> bool:
        """Whether the shell waits without running a command; False where that cannot be seen."""

    def signal(self, processes: Sequence[Process], number: int) -> None:
        """Signal those that are still what they were."""

    async def sweep(self, spare: Callable[[Process], bool]) -> list[Process]:
        """End, all at once, every process inside but PID 1 and the spared; [] where that is not possible."""

    def pressure(self) -> Pressure:
        """How often limits were hit."""

    async def destroy(self) -> None:
        """End it with everything inside, leaving no process and no zombie; keep the spec's directory."""

    def detach(self) -> None:
        """Let go without ending it."""


class Provider(Protocol):
    """Makes sandboxes of one kind."""

    name: str
    reserve: int
    """Free space of the machine, in bytes, below which no workspace may grow."""

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
