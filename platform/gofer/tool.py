"""The contract of a tool: a named function with a schema, a risk tier and limits, that a model may call.

An integration returns Tools from `Integration.tools`; a plugin exports a function that returns them through
the entry point group `gofer.tools`. docs/tools.md has an example to copy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from gofer.sanitize import defuse

Reach = Literal["own", "allowlist", "outside"]
"""How far a tool reaches: its own conversation and shell, hosts on the agent's allowlist, or anything."""


class Tier(StrEnum):
    """What harm a tool can do. Risk is the tool's, never read off its arguments."""

    READ = "read"
    """Looks, and may be run again after a crash."""
    WRITE = "write"
    """Changes files or other state of its own conversation."""
    EXEC = "exec"
    """Runs programs."""
    NETWORK = "network"
    """Speaks with hosts outside."""


class Arguments(BaseModel):
    """Base of a tool's arguments: nothing unknown, no guessing of types."""

    model_config = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True)
class Image:
    """A picture for the model."""

    media_type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool answers."""

    content: str
    """For the model."""
    is_error: bool = False
    """The tool could not do it. A command that ran and exited with 1 is not an error of the tool."""
    exit_code: int | None = None
    timed_out: bool = False
    truncated: bool = False
    more: str = ""
    """How to get what was left out."""
    images: tuple[Image, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """JSON for people: a diff, a plan."""
    untrusted: bool = False
    """Strangers wrote the content: the run loses reach once it has read this."""
    progress: bool = False
    """Files changed, a plan item moved or a message was delivered, whatever the content looks like."""
    question: Question | None = None
    """Ask a person and wait; the answer becomes the call's result."""
    delegation: tuple[NewTask, ...] = ()
    """Have these tasks done and wait; their results become the call's result."""
    ends: bool = False
    """The run ends with this content."""
    cost: int = 0
    """What it has cost, in millionths of a dollar, where others paid for the run."""
    pieces: tuple[str | Mapping[str, Any], ...] = ()
    """Of what is recalled: the content as words of ours and as places in memories (id, version, start, end). The
    journal keeps these instead, so that purging a memory takes it out of every run that has recalled it."""


@dataclass(frozen=True, slots=True)
class Question:
    """Something to ask a person. The job waits for the answer without holding anything."""

    text: str
    choices: tuple[str, ...] = ()
    expires_after: float | None = None
    """Seconds."""


@dataclass(frozen=True, slots=True)
class NewTask:
    """A piece of work to give to a worker run."""

    kind: str
    """research or execution."""
    title: str
    instructions: str


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command in the shell ended."""

    output: bytes
    exit_code: int | None
    """None when it is not known."""
    timed_out: bool = False
    cancelled: bool = False
    dropped: int = 0
    """Bytes in the middle that were not kept."""
    spool: str = ""
    """Where inside the shell the whole output lies, if it does."""
    note: str = ""
    """Anything a person should know: state lost, processes killed."""
    changed: bool = False
    """Files of the workspace changed while it ran, as far as can be seen."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a directory."""

    name: str
    kind: Literal["file", "dir", "link", "other"]
    size: int = 0


class Shell(Protocol):
    """The sandboxed session of a conversation, as tools see it. Paths are the sandbox's own.

    File methods raise `OSError` (not found, is a directory, denied …) with the path as the sandbox sees it.
    """

    async def run(
        self, command: str, *, timeout: float, tag: str = "", on_output: Callable[[bytes], None] | None = None
    ) -> CommandResult:
        """Run a command to its end. `tag` names it, so that `recover` finds it after a restart."""
        ...

    async def recover(self, tag: str) -> CommandResult | None:
        """The outcome of a command an earlier process started, waiting for it if need be; None if unknown."""
        ...

    async def confine(self, *, narrowed: bool) -> None:
        """Said before each call of a run: whether it has read strangers' text. Then the shell reaches only what the
        run's own integration brought, and hosts that a setting keeps open."""
        ...

    async def cancel(self) -> None:
        """End the command that is running now; its `run` then returns what there is."""
        ...

    async def read(self, path: str, *, limit: int) -> bytes:
        """At most `limit` bytes of a regular file."""
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Replace a file as a whole, making parent directories."""
        ...

    async def list(self, path: str) -> list[Entry]:
        """The entries of a directory."""
        ...

    async def seed(self, rule: str) -> str:
        """Where a git repository lies that has what is kept (`EgressRule.keep`) of the one behind a rule of this
        job, brought up to date, for a clone to begin from; empty when there is none. It is the caller's to move."""
        ...


class Blobs(Protocol):
    """Bytes by hash, of this conversation only."""

    async def put(self, data: bytes, media_type: str) -> str: ...

    async def get(self, ref: str) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a running tool has in its hands."""

    call_id: str
    shell: Shell | None = None
    """None where no sandbox can be had."""
    blobs: Blobs | None = None
    narrowed: bool = False
    """The run has read strangers' text, so its reach is limited."""
    allowed_hosts: tuple[str, ...] = ()
    """Hosts that stay reachable when narrowed."""
    stopping: Callable[[], Awaitable[None]] | None = None
    """Returns when somebody stops the run; a tool that holds something lets go then."""
    on_output: Callable[[str], None] | None = None
    """For live listeners."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What the run remembers for tools, such as the plan."""
    seconds_left: float = 3600
    """Working time left to the run; nothing should be started for longer."""

    def outgoing(self, text: str, *, here: str = "", people: Collection[str] = ()) -> str:
        """Text of the model's that a tool sends to people: in a narrowed run it mentions nobody but `people`, commands
        no bot, closes no issue but `here`, and has no pictures from elsewhere."""
        return defuse(text, here=here, people=people) if self.narrowed else text


A = TypeVar("A", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Tool(Generic[A]):
    """A function with a schema, a tier and limits."""

    name: str
    """1 to 64 of a-z, 0-9, _ and -."""
    description: str
    """For the model; written like a man page."""
    arguments: type[A]
    run: Callable[[A, ToolContext], Awaitable[ToolResult]]
    """May raise; the model is then told what went wrong, and the run goes on. When it raises `Temporary` with
    `retry_after`, the run waits that long without holding anything and makes the whole call again: a tool that
    does so must be safe to repeat up to that point."""
    tier: Tier
    timeout: float = 60
    """Seconds, before it is ended and reported as timed out."""
    parallel: bool = False
    """May run beside other calls of the same turn."""
    polling: bool = False
    """Asking again with the same arguments is what it is for."""
    reach: Reach = "own"
    strict: bool = False
    """Hold the model to the schema while it writes the arguments, where its provider can. The model then gives a value
    for every field; let it be None where a field may be left out."""
    hidden: bool = False
    """Not told to the model, which finds it with `find_tools` and calls it with `call_tool`."""
    timeout_of: Callable[[A], float] | None = None
    """When the arguments choose the time-out."""
