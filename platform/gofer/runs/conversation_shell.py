"""The shell of one conversation as the tools of a run see it.

It is opened when the first tool needs it. Its commands belong to the sandbox and go on when the run's worker dies: a
later process recovers the last one by the id of its call.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gofer.crash import crash_point
from gofer.runs.shell_access import Mirrors, ShellAccessGrants
from gofer.tool import CommandResult, Entry
from gofer_sandbox import Result, Sandbox
from gofer_sandbox.files.errors import FileError, FileMissing
from gofer_sandbox.network import Callers, Egress

MAX_OUTPUT = 10_000_000
"""Bytes of one command's output that reach the run, which keeps what a model cannot take as a blob."""
PAGE = 1 << 20
UNBEGUN = CommandResult(output=b"", exit_code=None, cancelled=True, note="It was stopped before it began.")

NARROWED = "this run has read strangers' text, so its shell reaches no host but those in GOFER_SANDBOX_NARROWED_HOSTS"
_KINDS = {"file": "file", "directory": "dir", "link": "link"}
MAX_ENTRIES = 4000
BY_PRODUCTS = frozenset(
    {
        ".cache", ".eggs", ".git", ".gradle", ".hypothesis", ".mypy_cache", ".nox", ".pytest_cache", ".ruff_cache",
        ".tox", ".venv", "__pycache__", "node_modules", "venv",
    }
)  # fmt: skip
"""Directories that change when a program runs, although nobody has worked on anything."""
_ENDINGS = (".pyc", ".coverage", ".swp")
_GIT = (".git/HEAD", ".git/logs/HEAD")
"""Files that tell where git's work stands. Git changes its other files when somebody only looks."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """Which hosts shells reach: in any run, and still in one that has read strangers' text."""

    open: tuple[str, ...] = ()
    narrowed: tuple[str, ...] = ()


class ConversationShell:
    """A sandbox as tools see it, opened when the first of them needs it: fulfils `gofer.tool.Shell`."""

    def __init__(
        self,
        directory: Path,
        opening: Callable[[], Awaitable[Sandbox]],
        hosts: Hosts | None = None,
        workspace: Path | None = None,
    ) -> None:
        self.sandbox: Sandbox | None = None
        self.gate: Egress | None = None
        self.equipping: ShellAccessGrants | None = None
        """What the current job may use in the shell."""
        self.mirrors: Mirrors | None = None
        self._opening = opening
        self._turn = asyncio.Lock()
        self._tag_file = directory / "tag"
        self._hosts = hosts or Hosts()
        self._narrowed_file = directory / "narrowed"
        """Exists once a run that had read strangers' text had the shell: what it left running gets no hosts in a later
        run."""
        self._confined: bool | None = None
        """Whether the present run is narrowed, as it said last; None before it has said so."""
        self._changes = WorkspaceChanges(workspace or directory / "workspace")
        self._latest: tuple[str, asyncio.Task[Result]] | None = None
        self._stopped = asyncio.Event()
        """Set when the current command is cancelled; the next command has an event of its own."""
        self.used = time.monotonic()

    async def _sandbox(self) -> Sandbox:
        async with self._turn:
            if self.sandbox is None:
                self.sandbox = await self._opening()
            return self.sandbox

    async def open(self) -> Sandbox:
        """The sandbox, brought up if need be."""
        return await self._sandbox()

    async def run(
        self, command: str, *, timeout: float, tag: str = "", on_output: Callable[[bytes], None] | None = None
    ) -> CommandResult:
        stopped = self._stopped = asyncio.Event()
        try:
            async with unless(stopped):
                sandbox = await self._sandbox()
                await sandbox.pending()  # one that an earlier worker gave comes first, and may be stopped
                await self._equip(sandbox)
        except TimeoutError:
            if not stopped.is_set():
                raise
            return UNBEGUN
        # The id of the call, written before the command starts: a later process recovers the command by it.
        self._tag_file.write_text(tag)
        heard = (lambda _stream, data: on_output(data)) if on_output is not None else None
        task = asyncio.create_task(self._granted(sandbox.run(command, timeout, on_output=heard)))
        task.add_done_callback(_known)
        self._latest = (tag, task)
        # The command belongs to the shell: when another worker takes the run over, it recovers the command.
        try:
            result = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and stopped.is_set():
                return UNBEGUN
            raise
        crash_point("shell.ran")
        return replace(_converted(sandbox, result), changed=await asyncio.to_thread(self._changes.changed))

    async def _equip(self, sandbox: Sandbox) -> None:
        if self.equipping is not None and self.gate is not None:
            self._tag_file.write_text("")
            await self.equipping.put_in(sandbox, self.gate)

    def new_run(self) -> None:
        """Begin for another run, which has not said yet whether it has read strangers' text."""
        self._confined = None

    async def confine(self, *, narrowed: bool) -> None:
        if narrowed == self._confined:
            return
        self._confined = narrowed
        if narrowed and self._narrowed_file.parent.is_dir():
            self._narrowed_file.touch()
        if self.gate is not None and self.sandbox is not None:
            self._let_out(self.gate, self.sandbox)

    def _let_out(self, gate: Egress, sandbox: Sandbox) -> None:
        """Open the hosts that the run may reach. Until the run has said which, as few as possible are open."""
        before = self._narrowed_file.exists()
        if self._confined or (self._confined is None and before):
            gate.allow(self._hosts.narrowed, why=NARROWED)
        else:
            gate.allow(self._hosts.open, Callers.from_now(lambda: sandbox.shell) if before else None)

    def opened(self, sandbox: Sandbox, *, is_new: bool) -> None:
        """The sandbox is open: found again, or new. In a new one nothing is left running."""
        if is_new:
            self._narrowed_file.unlink(missing_ok=True)
        if self._confined:
            self._narrowed_file.touch()
        if self.gate is not None:
            self._let_out(self.gate, sandbox)

    async def _granted(self, command: Awaitable[Result]) -> Result:
        """Open the job's grants for as long as its command runs."""
        if self.equipping is None or self.gate is None:
            return await command
        async with self.equipping.granted(self.gate, await self._sandbox()):
            return await command

    async def recover(self, tag: str) -> CommandResult | None:
        if self._latest is not None and self._latest[0] == tag:
            return _converted(await self._sandbox(), await asyncio.shield(self._latest[1]))
        with contextlib.suppress(
            OSError
        ):  # a TimeoutError, too, when it is stopped before there is a sandbox
            if tag and self._tag_file.read_text() == tag:
                self._stopped = asyncio.Event()
                async with unless(self._stopped):
                    sandbox = await self._sandbox()
                pending = await sandbox.pending()
                return None if pending is None else _converted(sandbox, pending)
        return None

    async def cancel(self) -> None:
        """Cancel the command, also one that has not begun: it may wait for the sandbox, or for its turn in it."""
        self._stopped.set()
        ended = self.sandbox is not None and await self.sandbox.cancel()
        if not ended and self._latest is not None:
            self._latest[1].cancel()

    async def read(self, path: str, *, limit: int) -> bytes:
        with _as_os_error(path):
            return (await (await self._sandbox()).read_bytes(path, limit=limit)).data

    async def write(self, path: str, data: bytes) -> None:
        with _as_os_error(path):
            await (await self._sandbox()).write(path, data)
        self._changes.forget()

    async def list(self, path: str) -> list[Entry]:
        with _as_os_error(path):
            listing = await (await self._sandbox()).list(path)
        return [Entry(one.name, _KINDS.get(one.kind, "other"), one.size) for one in listing.entries]  # type: ignore[arg-type]

    async def seed(self, rule: str) -> str:
        kept = await self.equipping.kept(rule) if self.equipping is not None else None
        sandbox = await self._sandbox()
        if kept is None or self.equipping is None or self.gate is None or self.mirrors is None:
            return ""
        await self._equip(sandbox)
        return await self.mirrors.seed(self.equipping.connection_id, *kept, sandbox)


@contextlib.asynccontextmanager
async def unless(stopped: asyncio.Event | None) -> AsyncIterator[None]:
    """Run the block until somebody stops the run; raises TimeoutError then."""
    loop = asyncio.get_running_loop()
    through = False

    def give_up(_: asyncio.Task[object]) -> None:
        if not through:
            patience.reschedule(loop.time())

    async with asyncio.timeout(None) as patience:
        watch = asyncio.create_task((stopped or asyncio.Event()).wait())
        watch.add_done_callback(give_up)
        try:
            yield
        finally:
            through = True
            watch.cancel()


def _known(task: asyncio.Task[Result]) -> None:
    """Read the error of a command that no run waits for any more, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def _whole(sandbox: Sandbox, number: int) -> tuple[bytes, int]:
    """A command's output as far as it was kept, and how many bytes are missing."""
    data = bytearray()
    offset: int | None = 0
    size = 0
    while offset is not None and len(data) < MAX_OUTPUT:
        page = sandbox.output(number, offset, PAGE)
        data += page.data
        offset, size = page.next_offset, page.size
    return bytes(data), max(0, size - len(data))


def _converted(sandbox: Sandbox, result: Result) -> CommandResult:
    output, dropped = result.output.encode(), result.dropped
    if result.full_output is not None:
        output, dropped = _whole(sandbox, result.number)
    notes = list(result.notes)
    if result.killed:
        notes.append(f"Ended by force: {', '.join(result.killed)}.")
    if result.state_lost:
        notes.append("What this command changed in the shell (variables, directory) is lost.")
    if result.background_lost:
        notes.append(f"These background processes are gone: {', '.join(result.background_lost)}.")
    return CommandResult(
        output=output,
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        cancelled=result.cancelled,
        dropped=dropped,
        note=" ".join(notes),
    )


@contextlib.contextmanager
def _as_os_error(path: str) -> Iterator[None]:
    """Turn the sandbox's file errors into those that the contract of tools names."""
    try:
        yield
    except FileError as error:
        number = errno.ENOENT if isinstance(error, FileMissing) else errno.EACCES
        raise OSError(number, str(error), path) from error


class WorkspaceChanges:
    """Notices changes in one workspace."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: int | None = None

    def changed(self) -> bool:
        """Whether something changed since the last look. The first look finds nothing; takes some milliseconds."""
        before, self._seen = self._seen, hash(tuple(sorted(_entries(self._directory))))
        return before is not None and before != self._seen

    def forget(self) -> None:
        """Forget the last look: the next one is the first again."""
        self._seen = None


def _entries(directory: Path) -> Iterator[tuple[str, int, int]]:
    """Path, size and time of each file, the upper directories first."""
    waiting = deque([("", directory)])
    count = 0
    while waiting and count < MAX_ENTRIES:
        prefix, folder = waiting.popleft()
        try:
            found = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in found:
            count += 1
            path = f"{prefix}{entry.name}"
            try:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in BY_PRODUCTS:
                        waiting.append((f"{path}/", Path(entry.path)))
                        yield path, 0, 0
                elif not entry.name.endswith(_ENDINGS):
                    status = entry.stat(follow_symlinks=False)
                    yield path, status.st_size, status.st_mtime_ns
            except OSError:
                continue
    for name in _GIT:
        try:
            status = os.lstat(directory / name)
        except OSError:
            continue
        yield name, status.st_size, status.st_mtime_ns
