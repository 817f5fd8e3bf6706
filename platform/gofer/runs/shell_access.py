"""What a job may use in its shell: ways out that are open only while one of its commands runs, files, and mirrors of
git repositories.

A mirror is a bare repository in a sandbox of its own, which no agent enters. Only git runs there. It fetches through
the proxy with the credential of the current job, which stays outside. A mirror belongs to one connection and to the
name that an integration gave the repository. The fetch comes first, so a job gets only what it could have fetched
itself a moment ago. When anything is wrong with a mirror, it is removed, and the clone fetches everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from gofer.errors import ServiceError
from gofer.integration import EgressRule, JobScope, ShellAccess
from gofer_sandbox import Limits, Provider, Sandbox, SandboxError, SandboxOwned, reap
from gofer_sandbox.disk import measure
from gofer_sandbox.files.errors import FileError
from gofer_sandbox.journal import owned
from gofer_sandbox.limits import GIB, MIB
from gofer_sandbox.network import Callers, Credential, Egress, GitAccess, Rule, Unanswered
from gofer_sandbox.tree import remove

log = structlog.get_logger()
GIT_CONFIG = ".config/git/gofer"
"""Where git's way through the proxy is written, for an integration's own configuration to include."""
SETUP_TIMEOUT = 30.0
PATIENCE = 10.0
"""Seconds that a stopping process waits for credentials to be given back."""
DEPTH = 50
"""Commits of each branch that are kept."""
MAX_EACH = 512 * MIB
"""Bytes of one mirror; a bigger repository is not mirrored."""
MAX_ALL = 4 * GIB
"""Bytes of all mirrors together; the least recently used go first."""
MAX_AGE = 14 * 86400.0
"""Seconds after which an unused mirror is removed."""
AGAIN_AFTER = 3600.0
"""Seconds after a failure before a mirror is tried again."""
FETCH_TIMEOUT = 120.0
PAGE = 8 * MIB
SEED = ".cache/gofer/seed"
"""Where in a shell the repository to begin from is put; nothing is checked out in it."""
_PARTS = ".cache/gofer/parts"
_PACK = "mirror.git/seed.pack"
_UPDATE = """set -e; cd ~; [ -e mirror.git/HEAD ] || git init -q --bare mirror.git; cd mirror.git
known() {{ git for-each-ref; ls objects/pack; }}
was=$(known)
git fetch -q --depth {depth} --prune --no-tags {url} '+refs/heads/*:refs/heads/*'
# A grant that no process can reach is not passed on.
if [ "$was" != "$(known)" ]; then git repack -adq; git prune --expire=now; fi
git pack-refs --all; touch shallow
set -- objects/pack/*.pack; [ $# = 1 ]; ln -f "$1" seed.pack
"""
_UNPACK = """set -e; cd ~/.cache/gofer; rm -rf seed; git init -q seed; cd seed/.git
cat ../../parts/pack-* | git index-pack --stdin > ../../parts/said
[ ! -s ../../parts/shallow ] || cp ../../parts/shallow shallow
sed s,refs/heads/,refs/remotes/origin/, ../../parts/refs > packed-refs
rm -rf ../../parts; git rev-list --objects --all --quiet
"""


class ShellAccessGrants:
    """What one job may use in its shell: fetched when its first command needs it, forgotten when the job ends."""

    def __init__(
        self,
        fetch: Callable[[], Awaitable[ShellAccess | None]],
        connection_id: str = "",
    ) -> None:
        self._fetch = fetch
        self._turn = asyncio.Lock()
        self._fetched = False
        self._equipment: ShellAccess | None = None
        self._rules: tuple[Rule, ...] = ()
        self._put_in = False
        self._callers: Callers | None = None
        self.connection_id = connection_id

    async def get(self) -> ShellAccess | None:
        """The job's shell access; None when it has none."""
        async with self._turn:
            if not self._fetched:
                self._equipment = await self._fetch()
                self._rules = tuple(_rule(self._equipment, one) for one in _rules_of(self._equipment))
                self._fetched = True
            return self._equipment

    async def kept(self, name: str) -> tuple[str, Rule] | None:
        """A grant by its name, with the key that its repository is stored under; None when it is not stored."""
        equipment = await self.get()
        for one, rule in zip(_rules_of(equipment), self._rules, strict=True):
            if one.name == name and one.keep and rule.git is not None:
                return one.keep, rule
        return None

    async def put_in(self, sandbox: Sandbox, gate: Egress) -> None:
        """Write the job's files and settings into the shell, once."""
        equipment = await self.get()
        async with self._turn:
            if equipment is None or self._put_in:
                return
            for path, content in equipment.files.items():
                await sandbox.write(path, content)
            await sandbox.write(
                GIT_CONFIG, "".join(gate.git_config(rule) for rule in self._rules if rule.git)
            )
            if equipment.setup:
                await sandbox.run(equipment.setup, SETUP_TIMEOUT)
            self._put_in = True

    @contextlib.asynccontextmanager
    async def granted(self, gate: Egress, sandbox: Sandbox) -> AsyncIterator[None]:
        """Open the grants within this block, for processes that the job's commands start. Processes that earlier jobs
        left in the shell get none."""
        await self.get()
        self._callers = self._callers or Callers.from_now(lambda: sandbox.shell)
        async with contextlib.AsyncExitStack() as stack:
            for rule in self._rules:
                await stack.enter_async_context(gate.grant(rule, self._callers))
            yield

    def close(self) -> None:
        """Open no grant any more: the job has ended, and so have its credentials."""
        self._equipment, self._rules = None, ()


def _rules_of(equipment: ShellAccess | None) -> tuple[EgressRule, ...]:
    return equipment.rules if equipment is not None else ()


def _rule(equipment: ShellAccess | None, one: EgressRule) -> Rule:
    assert equipment is not None
    user, password = equipment.user, one.password or equipment.password
    return Rule(
        name=one.name,
        upstream=one.upstream,
        paths=one.paths,
        methods=one.methods,
        credential=Credential.basic(user, password) if password and isinstance(password, str) else None,
        git=None
        if one.git_push is None
        else GitAccess(
            push=one.git_push,
            objections=_objections(one.git_objections, "whether it may be pushed to cannot be found out now"),
            commit_objections=_objections(
                one.git_commit_objections, "whether it may be read cannot be found out now"
            ),
        ),
        allow_private=one.allow_private,
        lender=None if isinstance(password, str) else _credential_lookup(user, password),
        moved=_address_lookup(one),
    )


def _address_lookup(one: EgressRule) -> Callable[[], Awaitable[Sequence[str]]] | None:
    ask = one.moved
    if ask is None:
        return None

    async def moved() -> Sequence[str]:
        with _as_silence("where it is now cannot be found out"):
            return await ask()

    return moved


def _credential_lookup(
    user: str, ask: Callable[[str], Awaitable[str]]
) -> Callable[[Credential | None], Awaitable[Credential]]:
    given: tuple[Credential | None, str] = (None, "")

    async def lend(refused: Credential | None) -> Credential:
        nonlocal given
        # A credential older than the current one was renewed already.
        old = given[1] if refused is not None and refused is given[0] else ""
        with _as_silence("the credential cannot be had now"):
            password = await ask(old)
        if password != given[1]:
            given = (Credential.basic(user, password), password)
        assert given[0] is not None
        return given[0]

    return lend


Objections = Callable[[Sequence[str]], Awaitable[Mapping[str, str]]]


def _objections(ask: Objections | None, told: str) -> Objections | None:
    if ask is None:
        return None

    async def objections(names: Sequence[str]) -> Mapping[str, str]:
        with _as_silence(told):
            return await ask(names)

    return objections


@contextlib.contextmanager
def _as_silence(told: str) -> Iterator[None]:
    """A service's failure as the sandbox's error. What cannot be looked up stays closed."""
    try:
        yield
    except ServiceError as error:
        raise Unanswered(f"{told}: {error}") from error


class Loans:
    """Makes the JobScope that integrations see, and ends it."""

    def __init__(self) -> None:
        self._endings: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def job(self) -> AsyncIterator[JobScope]:
        """The scope of one job, which ends with the block. Its answer waits until what it was lent is given back."""
        job, stopped = JobScope(), False
        try:
            yield job
        except asyncio.CancelledError:
            # A stopped run does not wait for other people's servers; `close` does.
            stopped = True
            raise
        finally:
            ending = self._end(job)
            if not stopped:
                await asyncio.shield(ending)

    def _end(self, job: JobScope) -> asyncio.Task[None]:
        ending = asyncio.create_task(job.end(), name="job-end")
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        return ending

    async def close(self) -> None:
        """Wait for the scopes that are still being ended."""
        if self._endings:
            await asyncio.wait(self._endings, timeout=PATIENCE)


class Unusable(Exception):
    """A mirror that cannot be used."""


class Mirrors:
    """The mirrors of one machine."""

    def __init__(self, directory: Path, provider: Provider) -> None:
        self._directory = directory
        self._provider = provider
        self._turns: dict[Path, asyncio.Lock] = {}
        self._given_up: dict[Path, float] = {}

    async def seed(self, connection_id: str, name: str, rule: Rule, shell: Sandbox) -> str:
        """The path in the shell of a repository that has what a clone would fetch; empty when there is none."""
        place = self._directory / connection_id / hashlib.sha256(name.encode()).hexdigest()[:24]
        async with self._turns.setdefault(place, asyncio.Lock()):
            if self._given_up.get(place, 0.0) > time.monotonic():
                return ""
            try:
                return await self._seeded(place, rule, shell)
            except SandboxOwned:
                return ""  # another process of this machine is at it
            except (SandboxError, FileError, OSError, Unusable) as error:
                log.info("mirror.unusable", connection=connection_id, error=str(error)[:300])
                self._given_up[place] = time.monotonic() + AGAIN_AFTER
                await asyncio.to_thread(remove, place)
                return ""
            finally:
                await asyncio.to_thread(self._keep_within, MAX_ALL)

    async def _seeded(self, place: Path, rule: Rule, shell: Sandbox) -> str:
        """The seed of a mirror. A mirror that does not work is made again, once."""
        if await asyncio.to_thread((place / "workspace" / "mirror.git").exists):
            try:
                return await self._handed_over(place, rule, shell)
            except (FileError, Unusable) as error:
                log.info("mirror.made_anew", error=str(error)[:300])
                await asyncio.to_thread(remove, place)
        return await self._handed_over(place, rule, shell)

    async def _handed_over(self, place: Path, rule: Rule, shell: Sandbox) -> str:
        gate = Egress()
        limits = Limits(disk=2 * MAX_EACH, file_size=MAX_EACH, idle=FETCH_TIMEOUT)
        async with Sandbox(self._provider, directory=place, limits=limits, gate=gate) as mirror:
            await _update(mirror, gate, replace(rule, git=GitAccess()))
            await _copy(mirror, shell)
        await _run(shell, _UNPACK)
        return f"~/{SEED}"

    async def tidy(self, connections: Collection[str]) -> None:
        """Remove the mirrors of removed connections, those that nobody used for long, and what a crash left running."""
        await reap(self._provider, (), within=self._directory)
        await asyncio.to_thread(self._tidy, connections)

    def _tidy(self, connections: Collection[str]) -> None:
        for place in self._places():
            unused = time.time() - _last_used(place) > MAX_AGE
            if (unused or place.parent.name not in connections) and not owned(place):
                remove(place)

    def _keep_within(self, most: int) -> None:
        sizes = {place: measure(place).size for place in self._places()}
        for place in sorted(sizes, key=_last_used):
            if sum(sizes.values()) <= most:
                return
            if not owned(place):
                remove(place)
                del sizes[place]

    def _places(self) -> Iterator[Path]:
        yield from self._directory.glob("*/*/")


async def _update(mirror: Sandbox, gate: Egress, rule: Rule) -> None:
    config = "[gc]\n\tauto = 0\n[core]\n\thooksPath = /dev/null\n" + gate.git_config(rule)
    await mirror.write(".config/git/config", config)
    url = shlex.quote(f"{rule.upstream}{rule.paths[0]}")
    async with gate.grant(rule):
        await _run(mirror, _UPDATE.format(depth=DEPTH, url=url))


async def _copy(mirror: Sandbox, shell: Sandbox) -> None:
    """Copy bytes from one sandbox to the other, a page at a time."""
    offset = 0
    while True:
        page = await mirror.read_bytes(_PACK, offset=offset, limit=PAGE)
        if page.size > MAX_EACH:
            raise Unusable("it is too big")
        await shell.write(f"{_PARTS}/pack-{offset:012d}", page.data)
        offset += len(page.data)
        if offset >= page.size or not page.data:
            break
    for name, inside in (("shallow", "shallow"), ("refs", "packed-refs")):
        await shell.write(f"{_PARTS}/{name}", (await mirror.read_bytes(f"mirror.git/{inside}")).data)


async def _run(sandbox: Sandbox, script: str) -> None:
    result = await sandbox.run(f"bash -c {shlex.quote(script)} 2>&1", FETCH_TIMEOUT)
    if result.exit_code != 0:
        raise Unusable(result.output.strip()[-300:] or f"git ended with {result.exit_code}")


def _last_used(place: Path) -> float:
    """When a mirror was last used: its journal is written with every command."""
    with contextlib.suppress(OSError):
        return (place / "live").stat().st_mtime
    return 0.0
