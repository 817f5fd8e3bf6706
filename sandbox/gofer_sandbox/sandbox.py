"""The sandbox a caller holds."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from gofer_sandbox import processes, records, tree
from gofer_sandbox.bubblewrap import Bubblewrap
from gofer_sandbox.errors import GateBlocked, InvalidInput, IsolationUnavailable, SandboxClosed, SandboxGone
from gofer_sandbox.files import BytesPage, Edit, Edited, Listing, TextPage, Written
from gofer_sandbox.files import ConfinedFiles as Files
from gofer_sandbox.journal import Journal, LiveState
from gofer_sandbox.levels import Level
from gofer_sandbox.limits import Limits
from gofer_sandbox.local import Box
from gofer_sandbox.output import page, prune
from gofer_sandbox.provider import Capabilities, Gate, Process, Provider, Share, Spec
from gofer_sandbox.records import Record, Reference
from gofer_sandbox.result import Page, Result
from gofer_sandbox.session import Session
from gofer_sandbox.shell.session import OnOutput
from gofer_sandbox.shell.state import Snapshot

T = TypeVar("T")

_OF_BASH = ("SHELLOPTS", "BASHOPTS", "POSIXLY_CORRECT")
COMMAND_MAXIMUM = 16 * 1024 * 1024
_CUT_SHORT = 141
"""The exit code of a program that ended because nobody read its output any more."""
_SKIPPED = (".git", "node_modules", "__pycache__", ".venv")


class Sandbox:
    """A shell that stays alive between commands."""

    def __init__(
        self,
        provider: Provider | None = None,
        *,
        directory: Path | str | None = None,
        limits: Limits | None = None,
        environment: Mapping[str, str] | None = None,
        readonly: Sequence[Path | str] = (),
        gate: Gate | None = None,
        ephemeral: bool = False,
        survives: bool = True,
        share: Share | None = None,
    ) -> None:
        """`directory` is where the workspace is kept; without one, or when it is `ephemeral`, it goes with the
        sandbox. `readonly` are further host paths to show inside. `environment` must hold no secrets, for
        whatever runs inside can read it. `gate` opens the network; without one there is none. One that does not
        `survive` ends with the process that made it, however that ends, where its provider can see to that. `share` is
        another session's workspace to use instead of one of its own; such a sandbox cannot be attached to again."""
        self._provider: Provider = provider or Bubblewrap()
        name = secrets.token_hex(8)
        self._spec = Spec(
            id=name,
            directory=Path(directory or Path(tempfile.gettempdir(), f"gofer-sandbox-{name}")).absolute(),
            limits=limits or Limits(),
            environment=_environment(environment or {}),
            readonly=tuple(Path(path) for path in readonly),
            survives=survives,
            share=share,
        )
        self._gate = gate
        self._created = time.time()
        self._ephemeral = ephemeral or directory is None
        self._session: Session | None = None
        self._journal: Journal | None = None
        self._lock = asyncio.Lock()
        self._pending: asyncio.Task[Result] | None = None
        self._leaving: asyncio.Task[None] | None = None

    # Lifecycle

    async def __aenter__(self) -> Sandbox:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Make the sandbox and its first shell."""
        if self._session is not None:
            raise InvalidInput("the sandbox is already started")
        if sys.platform != "linux":
            raise IsolationUnavailable(f"sandboxes need Linux: there is no isolation on {sys.platform}")
        _prepare(self._spec.directory)
        self._journal = Journal(self._spec.directory)
        self._journal.live = LiveState()
        self._journal.claim(self.id)
        if not self._ephemeral:
            _forget(self._spec.directory)
        await self._start(self._new_session(self._journal), None, keep=False)

    def _new_session(self, journal: Journal, previous: Reference | None = None) -> Session:
        environment = {**self._spec.environment, **(self._gate.environment if self._gate else {})}
        spec = replace(self._spec, environment=environment, previous=previous)
        return Session(self._provider, spec, journal, self._gate)

    async def _start(self, session: Session, snapshot: Snapshot | None, keep: bool) -> None:
        """A record goes ahead, so that a reaper finds even what a crash in the middle leaves. `keep` the directory if
        it fails."""
        base = self._provider.base
        ahead = Reference(boot=processes.boot_id(), control=str(base / self.id))
        records.put(base, self._record(ahead, Level.NONE, ()))
        try:
            await session.start(snapshot, self._put_record)
        except BaseException:
            await session.destroy()
            records.remove(base, self.id)
            self._let_go(keep)
            raise
        self._session = session

    def _put_record(self, box: Box) -> None:
        """For a reaper to find that box."""
        records.put(self._provider.base, self._record(box.reference, box.capabilities.level, ()))

    async def adopt(self, directory: Path, environment: Mapping[str, str], gate: Gate | None) -> None:
        """Become the session of another directory, which must not be there: ours is moved to that place, and stays when
        the sandbox is closed. For one that was made ahead and that nothing has run in; `environment` and `gate` are
        what it would have been made with."""
        session, base = self._alive(), self._provider.base
        if not session.box.alive():
            raise SandboxGone(f"session {self.id} is not alive any more")
        with records.moving(base):
            os.rename(self._spec.directory, directory)
            self._spec = replace(self._spec, directory=directory, environment=_environment(environment))
            self._ephemeral, self._gate, self._created = False, gate, time.time()
            session.moved(directory)
            session.gate = gate
            records.put(base, self.record)
        await session.open_gate()

    @classmethod
    async def attach(
        cls, record: Record, provider: Provider | None = None, *, gate: Gate | None = None
    ) -> Sandbox:
        """Take over a living session whose process has gone; SandboxGone when it does not live, GateBlocked
        when a process inside took the gate's place while no server was there.

        A command that still runs, or ended meanwhile, is seen through: `pending` gives its result.
        """
        sandbox, journal = cls._of(record, provider, gate)
        session = sandbox._new_session(journal, record.reference)
        try:
            if journal.session not in ("", record.id):  # what the journal says would be another session's
                raise SandboxGone(f"another session has begun in the directory of {record.id}")
            box = await sandbox._provider.find(record)
            if box is None:
                raise SandboxGone(f"session {record.id} is not alive any more; restore it")
            running = await session.take_over(box, _saved(Path(record.directory)))
        except BaseException:  # or nobody, this process included, could attach while it lives
            await session.detach()
            sandbox._let_go(keep=True)
            raise
        sandbox._session = session
        if running:
            await sandbox._lock.acquire()  # now: a command given next comes after it
            sandbox._pending = asyncio.create_task(sandbox._resume())
            # Nobody need ask for the result.
            sandbox._pending.add_done_callback(lambda task: task.cancelled() or task.exception())
        return sandbox

    @classmethod
    async def restore(
        cls,
        record: Record,
        provider: Provider | None = None,
        *,
        gate: Gate | None = None,
        survives: bool = True,
    ) -> Sandbox:
        """Bring a session back: attach to it if it lives and its gate can open, else make it again from its files
        and snapshot.

        The first result then says what was lost.
        """
        notes = []
        try:
            return await cls.attach(record, provider, gate=gate)
        except SandboxGone:
            pass
        except GateBlocked as blocked:
            notes.append(f"{blocked}: the sandbox was ended and made again from its files and last snapshot")
        sandbox, journal = cls._of(record, provider, gate, survives)
        journal.claim(record.id)
        try:
            box = await sandbox._provider.find(record)
            await (box.destroy() if box else sandbox._provider.remove(record))
        except BaseException:
            sandbox._let_go(keep=True)
            raise
        session = sandbox._new_session(journal, record.reference)
        session.news.recreated = True
        session.news.notes += notes
        session.news.background_lost += record.background
        live = journal.live
        if live.running:
            session.news.notes.append(
                f"command {live.number} was running when the sandbox was lost; how it ended is unknown"
            )
            live.running = False
        snapshot = _saved(Path(record.directory))
        live.lost = live.lost or live.number > (snapshot.after if snapshot else 0)
        await sandbox._start(session, snapshot, keep=True)
        return sandbox

    @classmethod
    def _of(
        cls, record: Record, provider: Provider | None, gate: Gate | None, survives: bool = True
    ) -> tuple[Sandbox, Journal]:
        """A sandbox with a record's properties that owns its session, not yet joined to anything alive."""
        sandbox = cls(
            provider,
            directory=record.directory,
            limits=record.limits,
            environment=record.environment,
            readonly=record.readonly,
            gate=gate,
            ephemeral=record.ephemeral,
            survives=survives,
        )
        sandbox._spec, sandbox._created = replace(sandbox._spec, id=record.id), record.created
        if sandbox._provider.name != record.provider:
            raise InvalidInput(
                f"session {record.id} is of {record.provider}, not of {sandbox._provider.name}"
            )
        if not Path(record.directory).is_dir():
            raise SandboxGone(f"the directory of session {record.id} is gone")
        sandbox._journal = Journal(Path(record.directory))
        return sandbox, sandbox._journal

    async def close(self) -> None:
        """End the session with everything in it. Nothing outlives this; who is cancelled in it does not stop it."""
        await self._leave(self._destroy)

    async def detach(self) -> None:
        """Let go of the session without ending it; another process may attach."""
        await self._leave(self._detach)

    async def _leave(self, how: Callable[[Session], Coroutine[None, None, None]]) -> None:
        """Once; who asks again waits with the first."""
        session, self._session = self._session, None
        if session:
            self._leaving = asyncio.create_task(how(session))
        if self._leaving:
            await asyncio.shield(self._leaving)

    async def _destroy(self, session: Session) -> None:
        """Over when a command under way is, too: it may be about to make the sandbox again, and finds it closed."""
        try:
            await session.destroy()
            async with self._lock:
                pass
        except BaseException:  # what is left is for a reaper, who needs the record, and that nobody owns it
            self._let_go(keep=True)
            raise
        records.remove(self._provider.base, self.id)
        self._let_go()

    async def _detach(self, session: Session) -> None:
        await session.detach()
        self._let_go(keep=True)

    def _let_go(self, keep: bool = False) -> None:
        if self._journal:
            self._journal.close()
            self._journal = None
        if self._ephemeral and not keep:
            tree.remove(self._spec.directory)

    def _alive(self) -> Session:
        if self._session is None:
            raise SandboxClosed
        return self._session

    # What it is

    @property
    def id(self) -> str:
        """The session's name."""
        return self._spec.id

    @property
    def capabilities(self) -> Capabilities:
        """What this sandbox can do."""
        return self._alive().box.capabilities

    @property
    def shell(self) -> Process | None:
        """The user's shell, as this machine numbers it; None while there is none."""
        return self._session.shell.process if self._session else None

    @property
    def workspace(self) -> Path:
        """The host's side of /workspace."""
        return self._spec.workspace

    @property
    def record(self) -> Record:
        """What to keep, to find or restore this session; a new one after every command."""
        session = self._alive()
        background = tuple(process.command for process in session.background)
        return self._record(session.box.reference, session.box.capabilities.level, background)

    def _record(self, reference: Reference, level: Level, background: tuple[str, ...]) -> Record:
        assert self._journal is not None
        live, spec = self._journal.live, self._spec
        return Record(
            id=spec.id,
            provider=self._provider.name,
            reference=reference,
            directory=str(spec.directory),
            limits=spec.limits,
            level=level,
            created=self._created,
            last_used=live.started or self._created,
            last_command=live.number,
            running=live.running,
            deadline=live.deadline if live.running else None,
            background=background,
            ephemeral=self._ephemeral,
            environment=dict(spec.environment),
            readonly=tuple(str(path) for path in spec.readonly),
        )

    # Commands

    async def run(
        self,
        command: str | bytes,
        timeout: float = 120.0,
        *,
        separate: bool = False,
        on_output: OnOutput | None = None,
    ) -> Result:
        """Run a command in the shell. `separate` keeps standard error apart; `on_output` gets each piece of
        output with its stream's number as it comes. Commands given at once run one after the other."""
        data, seconds = _command(command), min(_timeout(timeout), self._spec.limits.seconds)
        async with self._lock:
            return self._noted(await self._alive().run(data, seconds, separate, on_output))

    def _noted(self, result: Result) -> Result:
        """A sandbox that was made again is another process now: let a reaper know."""
        if result.recreated:
            records.put(self._provider.base, self.record)
        return result

    async def _resume(self) -> Result:
        try:
            return self._noted(await self._alive().resume())
        finally:
            self._lock.release()

    async def pending(self) -> Result | None:
        """The result of the command that ran when this process attached; None when there was none."""
        return await asyncio.shield(self._pending) if self._pending else None

    async def cancel(self) -> bool:
        """End the running command, whose `run` then returns; False when none runs."""
        session = self._alive()
        if not session.running:
            return False
        session.shell.stop("cancelled by the caller")
        return True

    async def snapshot(self) -> bytes | None:
        """The shell's state as of now, as `restore` would use it. Evaluate it inside a sandbox only."""
        async with self._lock:
            return await self._alive().shell.take_snapshot()

    # Files

    async def read(self, path: str, *, first_line: int = 1, lines: int = 2000) -> TextPage:
        """A page of a text file's lines, counted from 1. Relative paths begin in the workspace."""
        _whole(first_line=first_line, lines=lines)
        return await self._files(lambda files: files.read_text(path, first_line=first_line, lines=lines))

    async def read_bytes(self, path: str, *, offset: int = 0, limit: int | None = None) -> BytesPage:
        """A range of a file's bytes."""
        _whole(offset=offset, limit=0 if limit is None else limit)
        return await self._files(lambda files: files.read_bytes(path, offset=offset, limit=limit))

    async def write(self, path: str, data: str | bytes) -> Written:
        """Put a file in place, whole or not at all, making the directories above it."""
        content = _encoded(data, "content")
        async with self._alive().disk.room(path, len(content)):
            return await self._files(lambda files: files.write(path, content))

    async def edit(self, path: str, edits: Sequence[Edit]) -> Edited:
        """Replace texts that each occur exactly once; all or none."""
        if not all(isinstance(edit, Edit) for edit in edits):
            raise InvalidInput("edits must be a list of Edit(old=…, new=…)")
        return await self._files(lambda files: files.edit(path, edits))

    async def list(self, path: str = ".", *, limit: int = 1000) -> Listing:
        """A directory's entries."""
        _whole(limit=limit)
        return await self._files(lambda files: files.list(path, limit=limit))

    async def _files(self, work: Callable[[Files], T]) -> T:
        box = self._alive().box

        def do() -> T:
            with contextlib.closing(box.files()) as files:
                return work(files)

        return await asyncio.to_thread(do)

    async def find(self, name: str, path: str = ".", *, limit: int = 1000) -> Result:
        """Files whose name matches a pattern, found inside, under the limits, below a path as `read` takes it. Exit
        code 1 when something could not be looked at, which the output names."""
        _check(name=name, path=path)
        pruned = " -o ".join(f"-name {skipped}" for skipped in _SKIPPED)
        where = shlex.quote(f"./{path}" if path.startswith(("-", "(", "!")) else path)  # no option of find's
        return await self._search(
            f"find {where} \\( {pruned} \\) -prune -o -name {shlex.quote(name)} -print 2>&1", limit
        )

    async def grep(
        self, pattern: str, path: str = ".", *, limit: int = 1000, ignore_case: bool = False
    ) -> Result:
        """Lines that match an extended regular expression, found inside, under the limits, below such a path. Exit
        code 1 when there is none, 2 when the expression is invalid or something could not be looked at."""
        _check(pattern=pattern, path=path)
        excluded = " ".join(f"--exclude-dir={skipped}" for skipped in _SKIPPED)
        flags = "-rnIEi" if ignore_case else "-rnIE"
        search = f"grep {flags} {excluded} -e {shlex.quote(pattern)} -- {shlex.quote(path)} 2>&1"
        return await self._search(f"{search} | command cut -c 1-1000", limit)

    async def _search(self, pipeline: str, limit: int) -> Result:
        """Run a pipeline in the workspace, for so many lines; the shell stays where it is. The exit code is the first
        program's, or 0 when it was cut short because there is enough."""
        _whole(limit=limit)
        if not 0 < limit <= 10_000:
            raise InvalidInput(f"limit must be between 1 and 10000, not {limit}")
        home = shlex.quote(self._alive().box.home)
        return await self.run(
            f"(\\builtin set +e +o pipefail; \\builtin cd -- {home} || \\builtin exit\n"
            f"command {pipeline} | command head -n {limit}\n"
            f"\\builtin set -- ${{PIPESTATUS[0]}}; \\builtin exit $(($1 == {_CUT_SHORT} ? 0 : $1)))"
        )

    def output(self, number: int, offset: int = 0, limit: int = 65536, *, stream: int = 1) -> Page:
        """A part of the output that a command's result left out, or, as stream 3, of what the processes that it left
        running printed later; a negative offset counts from the end."""
        kind = {1: "out", 2: "err", 3: "background"}.get(stream)
        if kind is None:
            raise InvalidInput("stream must be 1 for output, 2 for errors or 3 for what came later")
        _whole(number=number, offset=offset, limit=limit)
        return page(self._spec.directory / "output" / f"{number}.{kind}", offset, limit)


def _prepare(directory: Path) -> None:
    """Make a directory with what a session keeps in it; open to pass through, for the session's own user must."""
    directory.mkdir(0o711, parents=True, exist_ok=True)
    directory.chmod(0o711)
    for name in ("workspace", "output"):
        with contextlib.suppress(FileExistsError):
            os.mkdir(f"{directory}/{name}", 0o700)


def _forget(directory: Path) -> None:
    """What an earlier session of that directory left besides its workspace: commands are counted anew."""
    prune(directory / "output", 0)
    (directory / "snapshot").unlink(missing_ok=True)


def _saved(directory: Path) -> Snapshot | None:
    """The last snapshot that was kept."""
    try:
        return Snapshot.read((directory / "snapshot").read_bytes())
    except OSError:
        return None


def _command(command: object) -> bytes:
    data = _encoded(command, "a command")
    if b"\0" in data:
        raise InvalidInput("the command has a NUL byte in it; bash cannot run that")
    if len(data) > COMMAND_MAXIMUM:
        raise InvalidInput(f"the command has {len(data)} bytes, but at most {COMMAND_MAXIMUM} can be run")
    return data


def _encoded(data: object, what: str) -> bytes:
    if not isinstance(data, (str, bytes)):
        raise InvalidInput(f"{what} must be text or bytes, not {type(data).__name__}")
    try:
        return data.encode() if isinstance(data, str) else data
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{what} must be valid text: this has lone surrogates") from error


def _whole(**numbers: object) -> None:
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or abs(number) >= 2**62:
            raise InvalidInput(f"{name} must be a whole number, not {number!r}")


def _timeout(timeout: object) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise InvalidInput(f"timeout must be a number of seconds, not {type(timeout).__name__}")
    if not math.isfinite(timeout) or timeout <= 0:
        raise InvalidInput(f"timeout must be more than zero seconds, not {timeout}")
    return float(timeout)


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    for name, value in environment.items():
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
            raise InvalidInput(f"not a variable's name: {name!r}")
        if name in _OF_BASH:
            raise InvalidInput(
                f"bash sets itself up by {name}, and could not be driven then; use set or shopt inside"
            )
        if not isinstance(value, str) or b"\0" in _encoded(value, f"the value of {name}"):
            raise InvalidInput(f"the value of {name} must be text without NUL")
    return dict(environment)


def _check(**texts: object) -> None:
    for name, text in texts.items():
        if not isinstance(text, str) or not text or "\0" in text:
            raise InvalidInput(f"{name} must be text that is not empty and has no NUL in it")
