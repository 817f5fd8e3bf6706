"""Changes that an agent makes to Gofer itself: it works on a copy of the source in its shell and proposes a diff.

The tool makes a job. The job applies the diff to a clean copy of the release that runs, builds the wheel in a sandbox,
has it check itself and stages it. From there on it is a release like any other: nothing of it runs before an owner has
approved it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, func, select

import gofer
from gofer.crash import crash_point
from gofer.errors import Conflict, GoferError
from gofer.jobs.kinds import RELEASE_BUILD
from gofer.jobs.outcome import Dead, Done, Draft, Outcome
from gofer.jobs.queue import AGENT, Claim, submit
from gofer.jobs.worker import Run
from gofer.releases.lifecycle import open_home
from gofer.releases.source import (
    MAX_DIFF,
    apply_diff,
    describe_changes,
    parse_diff,
    release_source,
    source_archive,
    source_digest,
    write_source,
)
from gofer.releases.stage import Change, stage
from gofer.releases.trial import build_in_sandbox, try_release
from gofer.runs.agent_files import GET_SOURCE, PROPOSE_RELEASE, AgentSpec
from gofer.runs.store_adapters import StoreBlobs
from gofer.sanitize import clean, display_name
from gofer.settings import Settings
from gofer.store.database import Database
from gofer.store.locks import lock_conversation
from gofer.store.messages import StoredMessage, binding_of
from gofer.store.tables import LIVE, SCHEDULE, JobState, Trust, in_state, jobs
from gofer.tool import Arguments, Tier, Tool, ToolContext, ToolResult
from gofer.vault.envelope import Vault
from gofer_supervisor.home import Release

MAX_OPEN = 3
"""Changes that may wait to be built at once."""
SHELL_TIMEOUT = 120.0
FOLDER = "/workspace/gofer-source"
"""Where the source lies in the shell."""
BASE = "gofer-release"
"""The tag of the commit that holds the source as it was given."""
ARCHIVE, DIFF = "/workspace/.gofer-source.tar.gz", "/workspace/.gofer-change.diff"
UNPACK = f"""(set -e; rm -rf {FOLDER}; mkdir {FOLDER}; tar -xzf {ARCHIVE} -C {FOLDER}; rm {ARCHIVE}; cd {FOLDER}
git init -q; git add -A; git -c user.name=Gofer -c user.email=gofer@localhost commit -q -m 'The release that runs'
git tag {BASE})"""
TAKE_DIFF = f"""(set -e; cd {FOLDER}; git add -A -N .
git -c core.quotepath=off diff --no-color --no-ext-diff --no-textconv --no-renames \\
  --src-prefix=a/ --dst-prefix=b/ -U3 {BASE} -- . > {DIFF})"""
GIVEN = (
    f"The source of Gofer {{version}} (the release that runs) lies in {FOLDER}, a git repository with one commit. "
    f"Change it there, then call `{PROPOSE_RELEASE}`. Other packages than those in requirements.lock cannot be used."
)
PROPOSED = (
    "The change is being built and checked: {changes}. The owners are asked whether it may run. "
    "Go on without it: what became of it is said here."
)
STAGED = "Release `{build}` is built from the change, and its own check found no fault. The owners are asked."
REFUSED = "The change of Gofer was not staged: {why}"
NARROWED = "This run has read strangers' text, so it cannot change Gofer."
UNSUPERVISED = (
    "Gofer is not run by `gofer up`, so nothing could deploy a change of it. Tell whoever runs Gofer."
)


class SourceArguments(Arguments):
    pass


class ReleaseArguments(Arguments):
    summary: str = Field(
        min_length=1, max_length=500, description="What the change does, for the owners who decide."
    )


@dataclass(frozen=True, slots=True)
class SelfUpdate:
    """The tools of a run that may change Gofer, and the handler of the job that builds what it proposes."""

    settings: Settings
    database: Database
    vault: Vault

    def tools(self, claim: Claim, spec: AgentSpec, asker: StoredMessage) -> list[Tool[Any]]:
        """Both tools, for an agent with the right whom an owner asked; else none."""
        nobody = asker.message.event == SCHEDULE or asker.message.author.is_bot
        if not spec.self_update or asker.trust is not Trust.OWNER or nobody:
            return []  # a schedule speaks in an owner's name, and no owner asks now
        asked_by = display_name(asker.message.author.name) or "an owner"
        return [
            Tool(
                name=GET_SOURCE,
                description=(
                    f"Put a copy of Gofer's own source into {FOLDER}, to change it when an owner asks for that. "
                    "A copy that lies there is replaced. Nothing that you change there runs by itself."
                ),
                arguments=SourceArguments,
                run=self._give_source,
                tier=Tier.EXEC,
                timeout=SHELL_TIMEOUT,
                reach="outside",
            ),
            Tool(
                name=PROPOSE_RELEASE,
                description=(
                    f"Propose the change that you made in {FOLDER} as a release of Gofer. It is built and checked, and "
                    "every owner sees the whole diff and decides whether it runs."
                ),
                arguments=ReleaseArguments,
                run=partial(self._propose, claim, spec.name, asked_by),
                tier=Tier.EXEC,
                timeout=SHELL_TIMEOUT,
                reach="outside",
            ),
        ]

    def _refusal(self, context: ToolContext) -> str:
        """Why nothing can be proposed here; empty when it can."""
        if context.narrowed:
            return NARROWED
        if not self.settings.build:
            return UNSUPERVISED
        return "" if context.shell is not None else "There is no shell here to change the source in."

    async def _give_source(self, arguments: SourceArguments, context: ToolContext) -> ToolResult:
        if why := self._refusal(context):
            return ToolResult(why, is_error=True)
        assert context.shell is not None
        files = await asyncio.to_thread(release_source)
        await context.shell.write(ARCHIVE, await asyncio.to_thread(source_archive, files))
        ran = await context.shell.run(UNPACK, timeout=SHELL_TIMEOUT, tag=context.call_id)
        if ran.exit_code != 0:
            return ToolResult(_last_line(ran.output, "The source could not be unpacked"), is_error=True)
        facts = {"files": len(files), "digest": source_digest(files)}
        return ToolResult(GIVEN.format(version=gofer.__version__), details=facts, progress=True)

    async def _propose(
        self, claim: Claim, agent: str, asked_by: str, arguments: ReleaseArguments, context: ToolContext
    ) -> ToolResult:
        if why := self._refusal(context):
            return ToolResult(why, is_error=True)
        assert context.shell is not None
        assert context.blobs is not None
        ran = await context.shell.run(TAKE_DIFF, timeout=SHELL_TIMEOUT, tag=context.call_id)
        if ran.exit_code != 0:
            return ToolResult(
                _last_line(ran.output, f"There is no diff. Call `{GET_SOURCE}` first"), is_error=True
            )
        diff = await context.shell.read(DIFF, limit=MAX_DIFF + 1)
        summary = " ".join(clean(arguments.summary).replace("`", "'").split())
        proposed = {
            "diff": diff.decode("utf-8", "replace"),
            "summary": summary,
            "agent": agent,
            "by": asked_by,
        }
        try:
            changes = await asyncio.to_thread(parse_diff, diff)
            await asyncio.to_thread(lambda: apply_diff(release_source(), changes))
            kept = await context.blobs.put(json.dumps(proposed).encode(), "application/json")
            await self.database.write(
                partial(submit_change, claim=claim, call_id=context.call_id, change=kept)
            )
        except GoferError as error:
            return ToolResult(str(error), is_error=True)
        told = describe_changes(changes)
        return ToolResult(PROPOSED.format(changes=told), details={"diff": proposed["diff"]}, progress=True)

    async def build(self, run: Run) -> Outcome:
        """Build, check and stage a proposed change; say in its conversation what became of it."""
        claim = run.claim
        blobs = StoreBlobs(self.database, self.vault, str(claim.conversation_id))
        kept = await blobs.get(str(claim.payload["change"]))
        if kept is None:
            return Dead("change.gone", detail="The conversation in which it was proposed was purged.")
        stopping = threading.Event()
        change = Change(**json.loads(kept), mark=f"{claim.id}")
        try:
            build = await _in_thread(partial(self._stage, change, stopping), stopping)
        except GoferError as error:
            words = REFUSED.format(why=error)
            return Done(await self._note(claim, words), reason="release.refused")
        crash_point("release.staged")
        return Done(await self._note(claim, STAGED.format(build=build)))

    def _stage(self, change: Change, stopping: threading.Event) -> str:
        files = apply_diff(release_source(), parse_diff(change.diff.encode()))
        home = open_home(self.settings)
        home.prepare()
        with tempfile.TemporaryDirectory(prefix="gofer-change-") as folder:
            place = Path(folder, "workspace", "source")
            write_source(files, place)
            wheel = build_in_sandbox(running_release(self.settings.build), Path(folder), stopping)
            check = partial(try_release, store=self.settings.sqlite_path, stopping=stopping)
            return stage(home, wheel, check, change=change).build

    async def _note(self, claim: Claim, words: str) -> tuple[Draft, ...]:
        binding = await self.database.read(
            partial(binding_of, conversation_id=claim.conversation_id, connection_id=claim.connection_id)
        )
        return (Draft(binding, (words,), "note"),) if binding is not None else ()


def running_release(build: str) -> Release:
    """The release that this process is of."""
    path = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return Release(build=build, version=gofer.__version__, python=sys.executable, path=path)


def submit_change(connection: Connection, claim: Claim, call_id: str, change: str) -> None:
    """Make the job that builds a change; once for a call, however often it is made. Raises Conflict."""
    lock_conversation(connection, str(claim.conversation_id))
    waiting = in_state(*LIVE, JobState.BLOCKED), jobs.c.kind == RELEASE_BUILD
    count = select(func.count()).select_from(jobs).where(*waiting)
    if int(connection.execute(count).scalar_one()) >= MAX_OPEN:
        raise Conflict(f"{MAX_OPEN} changes wait to be built already.")
    submit(
        connection,
        workspace_id=claim.workspace_id,
        kind=RELEASE_BUILD,
        lane=RELEASE_BUILD,
        pool=AGENT,
        payload={"change": change},
        conversation_id=claim.conversation_id,
        connection_id=claim.connection_id,
        unique_key=f"{RELEASE_BUILD}:{claim.id}:{call_id}",
    )


async def _in_thread(work: Any, stopping: threading.Event) -> str:
    """Run blocking work; when the job is taken away, tell the work to stop, and wait until it has."""
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return str(await asyncio.shield(working))
    except asyncio.CancelledError:
        stopping.set()
        await asyncio.wait([working])
        raise


def _last_line(output: bytes, otherwise: str) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return f"{otherwise}: {lines[-1][:500]}" if lines else f"{otherwise}."
