"""What a job brings into its shell: ways out that are open only while one of its commands runs, and files."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

from gofer.errors import ServiceError
from gofer.integration import EgressRule, JobScope, ShellAccess
from gofer_sandbox import Sandbox
from gofer_sandbox.network import Callers, Credential, Egress, GitAccess, Rule, Unanswered

GIT_CONFIG = ".config/git/gofer"
"""Where git's way through the proxy is written, for an integration's own configuration to include."""
SETUP_TIMEOUT = 30.0


class ShellAccessGrants:
    """One job's equipment, fetched when its first command needs it and forgotten when the job ends."""

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
        """The equipment; None when the job has none."""
        async with self._turn:
            if not self._fetched:
                self._equipment = await self._fetch()
                self._rules = tuple(_rule(self._equipment, one) for one in _rules_of(self._equipment))
                self._fetched = True
            return self._equipment

    async def kept(self, name: str) -> tuple[str, Rule] | None:
        """A way out by its name, with what its repository is kept under; None when it is not to be kept."""
        equipment = await self.get()
        for one, rule in zip(_rules_of(equipment), self._rules, strict=True):
            if one.name == name and one.keep and rule.git is not None:
                return one.keep, rule
        return None

    async def put_in(self, sandbox: Sandbox, gate: Egress) -> None:
        """Bring files and settings into the shell, once for the job."""
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
        """The ways out are open within this block to what the job's commands start; not to what earlier jobs left
        behind in the shell."""
        await self.get()
        self._callers = self._callers or Callers.from_now(lambda: sandbox.shell)
        async with contextlib.AsyncExitStack() as stack:
            for rule in self._rules:
                await stack.enter_async_context(gate.grant(rule, self._callers))
            yield

    def close(self) -> None:
        """Open nothing any more: the job ends, and its credentials with it."""
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
        # One that was given before the last is renewed already.
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
    """A service's failure, in the sandbox's words. What is not known is not open."""
    try:
        yield
    except ServiceError as error:
        raise Unanswered(f"{told}: {error}") from error


PATIENCE = 10.0
"""Seconds that a process which ends waits for what still has to be given back."""


class Loans:
    """Makes the JobScope that integrations see, and ends it."""

    def __init__(self) -> None:
        self._endings: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def job(self) -> AsyncIterator[JobScope]:
        """One job, for as long as the block lasts. Its answer waits for the end of what it was lent."""
        job, stopped = JobScope(), False
        try:
            yield job
        except asyncio.CancelledError:
            # Whoever stops a run does not wait for other people's servers; `close` does.
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
        """Wait for what is being given back."""
        if self._endings:
            await asyncio.wait(self._endings, timeout=PATIENCE)
