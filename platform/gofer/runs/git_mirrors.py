"""What is kept of git repositories between jobs, so that a clone need not fetch everything again.

A mirror is a bare repository in a sandbox of its own, into which no agent ever comes: only git runs there, and
fetches through the proxy with the credential of the job at hand, which stays outside. It belongs to one connection
and to the name an integration gave the repository; a job gets what it could have fetched itself a moment ago, for
the fetch comes first. And it is a shortcut, nothing more: whatever is wrong with it, it is removed, and the clone
fetches everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shlex
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import structlog

from gofer_sandbox import Limits, Provider, Sandbox, SandboxError, SandboxOwned, reap
from gofer_sandbox.disk import measure
from gofer_sandbox.files.errors import FileError
from gofer_sandbox.journal import owned
from gofer_sandbox.limits import GIB, MIB
from gofer_sandbox.network import Egress, GitAccess, Rule
from gofer_sandbox.tree import remove

log = structlog.get_logger()

DEPTH = 50
"""Commits of each branch that are kept."""
MAX_EACH = 512 * MIB
"""Bytes of one mirror; what is bigger is not kept."""
MAX_ALL = 4 * GIB
"""Bytes of all of them together; those not used for longest go first."""
MAX_AGE = 14 * 86400.0
"""Seconds after which an unused one is removed."""
AGAIN_AFTER = 3600.0
"""Seconds for which one that could not be had is not tried again."""
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
# What nobody can reach any more is not handed on.
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


class Unusable(Exception):
    """A mirror that is of no use."""


class Mirrors:
    """The mirrors of one machine."""

    def __init__(self, directory: Path, provider: Provider) -> None:
        self._directory = directory
        self._provider = provider
        self._turns: dict[Path, asyncio.Lock] = {}
        self._given_up: dict[Path, float] = {}

    async def seed(self, connection_id: str, name: str, rule: Rule, shell: Sandbox) -> str:
        """Where in the shell a repository lies that has what a clone would fetch; empty when it cannot be had."""
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
        """One that does not work is made anew, once."""
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
            await _update(mirror, gate, _read_only(rule))
            await _copy(mirror, shell)
        await _run(shell, _UNPACK)
        return f"~/{SEED}"

    async def tidy(self, connections: Collection[str]) -> None:
        """Remove those of connections that are gone, those nobody used for long, and what a crash left running."""
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


def _read_only(rule: Rule) -> Rule:
    """The job's rule without leave to push."""
    return replace(rule, git=GitAccess())


async def _update(mirror: Sandbox, gate: Egress, rule: Rule) -> None:
    config = "[gc]\n\tauto = 0\n[core]\n\thooksPath = /dev/null\n" + gate.git_config(rule)
    await mirror.write(".config/git/config", config)
    url = shlex.quote(f"{rule.upstream}{rule.paths[0]}")
    async with gate.grant(rule):
        await _run(mirror, _UPDATE.format(depth=DEPTH, url=url))


async def _copy(mirror: Sandbox, shell: Sandbox) -> None:
    """Bytes from one sandbox to the other, a page at a time."""
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
    """When it was used last: its journal is written with every command."""
    with contextlib.suppress(OSError):
        return (place / "live").stat().st_mtime
    return 0.0
