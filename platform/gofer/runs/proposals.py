"""Who an agent is in a run, and how it proposes to change that.

A run keeps the packet that it began with. An agent may propose another section of IDENTITY or USER: the tool makes a
job, and the job asks the owners and writes the file when one of them approves. It may be killed at any point: the file
is replaced as a whole, and a change that was made is recognised and not made again. What is proposed is somebody's
words, so the job keeps it sealed with the conversation's key.
"""

from __future__ import annotations

import asyncio
import base64
import difflib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from sqlalchemy import Connection, func, select

from gofer.connections.context import LoadedConnection, LoadedConnections
from gofer.crash import crash_point
from gofer.errors import Conflict, GoferError, NotFound
from gofer.identity import private_person
from gofer.jobs.control import answer_to
from gofer.jobs.kinds import PROPOSAL
from gofer.jobs.outcome import OWNERS, Dead, Done, Draft, Outcome
from gofer.jobs.queue import SERVICE, Claim, submit
from gofer.jobs.worker import Run
from gofer.outbox.role_questions import ask_role
from gofer.runs.agent_files import AGENT_LAYER, PROPOSE, SETTINGS, AgentFiles, AgentPaths, AgentSpec
from gofer.runs.agent_writer import check_layer
from gofer.runs.layers import PEOPLE, LayerError, read_text, replaced_section, write_atomically
from gofer.runs.store_adapters import StoreBlobs, started_with
from gofer.sanitize import clean, display_name
from gofer.store import audit, events
from gofer.store.database import Database
from gofer.store.encryption import conversation_key, seal, unseal
from gofer.store.ids import new_id
from gofer.store.locks import lock_conversation
from gofer.store.messages import binding_of
from gofer.store.tables import LIVE, JobState, in_state, jobs
from gofer.store.tables import events as event_rows
from gofer.tool import Arguments, Tier, Tool, ToolContext, ToolResult
from gofer.vault.envelope import Vault
from gofer.vault.errors import Tampered

CHANGED = "identity.changed"
"""The kind of event that says that a layer was changed as an owner approved."""
APPROVE, REFUSE = "Approve", "Refuse"
EXPIRES = 7 * 86400.0
MAX_OPEN = 3
"""Proposals of one agent that may wait for an owner at once."""
MAX_TEXT = 4000
QUESTION = (
    "The agent {agent} proposes to change {file}. If you approve, it is told this at the beginning of every run from "
    "then on.\n\nWhy, in its own words: {reason}\n\n```diff\n{diff}\n```"
)
APPLIED = "{by} approved: {file} is changed, and I know it from my next run on."
REFUSED = "{by} refused: {file} stays as it is."
EXPIRED = "Nobody answered in time: {file} stays as it is."
STALE = "{by} approved, but {file} was changed by somebody else meanwhile, so it stays as it is. Propose it again."
NARROWED = "This run has read strangers' text, so it cannot propose who you are."


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Who an agent is in one run, and the tool with which it proposes to change that."""

    database: Database
    vault: Vault
    agents: AgentFiles

    async def fixed(self, claim: Claim, spec: AgentSpec) -> tuple[AgentSpec, tuple[str, str]]:
        """The agent with its identity, which stays the same for the whole run; and the name of that identity in the
        journal."""
        blobs = StoreBlobs(self.database, self.vault, str(claim.conversation_id))
        begun = await self.database.read(started_with, job_id=claim.id)
        kept = await blobs.get(begun) if begun else b""
        if begun is not None and kept is not None:
            return spec.model_copy(update={"instructions": kept.decode()}), (begun, "")
        person = await self.database.read(private_person, conversation_id=str(claim.conversation_id))
        packet = await asyncio.to_thread(self.agents.packet, spec, person)
        name = await blobs.put(packet.text.encode(), "text/markdown") if packet.text else ""
        return spec.model_copy(update={"instructions": packet.text}), (name, packet.digest)

    async def tools(self, claim: Claim, spec: AgentSpec) -> list[Tool[Any]]:
        """The tool to propose who it is. An agent in flat files has it, too: it is told what has to be done first."""
        if not self.agents.layered:
            return []
        person = await self.database.read(private_person, conversation_id=str(claim.conversation_id))
        return [proposal_tool(self.database, self.vault, self.agents, claim, spec.name, person)]


class ProposalArguments(Arguments):
    layer: Literal["IDENTITY", "USER"] = Field(
        description="IDENTITY: your name, voice and self-description. USER: the people you work for."
    )
    heading: str = Field(min_length=1, max_length=100, description="Of the section to write, without marks.")
    text: str = Field(max_length=MAX_TEXT, description="The section in Markdown; empty to remove it.")
    reason: str = Field(min_length=1, max_length=500, description="For the owner who decides.")
    about_this_person: bool = Field(
        default=False,
        description="USER only: what concerns the person you talk to in private, and is told to nobody else.",
    )


@dataclass(frozen=True, slots=True)
class Proposal:
    """A file below `agents/` and what is to be in it."""

    agent: str
    file: str
    base: str
    """A digest of the file that it was made for."""
    text: str
    diff: str
    reason: str


def proposal_tool(
    database: Database, vault: Vault, agents: AgentFiles, claim: Claim, agent: str, person: str | None
) -> Tool[Any]:
    """The tool of one run. Whom a private conversation is with is the platform's word, never the model's."""

    async def propose(arguments: ProposalArguments, context: ToolContext) -> ToolResult:
        if context.narrowed:
            return ToolResult(NARROWED, is_error=True)
        try:
            made = await asyncio.to_thread(_proposal, agents, agent, person, arguments)
            await database.write(
                submit_proposal, vault=vault, claim=claim, call_id=context.call_id, proposal=made
            )
        except GoferError as error:
            return ToolResult(str(error), is_error=True)
        words = "The owners are asked. Go on without it: you will know when a later run begins with it."
        return ToolResult(words, details={"diff": made.diff}, progress=True)

    return Tool(
        name=PROPOSE,
        description=(
            "Propose to change one section of who you are (IDENTITY) or of what you know about the people you work for "
            "(USER). An owner sees the change and decides. Only for what should hold in every later conversation."
        ),
        arguments=ProposalArguments,
        run=propose,
        tier=Tier.WRITE,
        reach="outside",
    )


def _proposal(agents: AgentFiles, agent: str, person: str | None, arguments: ProposalArguments) -> Proposal:
    """What the arguments come to; raises a GoferError that says why it cannot be proposed."""
    given = (arguments.heading, arguments.text, arguments.reason)
    if any(clean(text) != text for text in given) or "\n" in arguments.heading:
        raise Conflict(
            "It has invisible characters or marks, which nobody could approve. Write it in plain text."
        )
    file = f"{arguments.layer}.md"
    if arguments.about_this_person:
        if arguments.layer != "USER" or person is None:
            raise Conflict(
                "Only USER has something about one person, and only where you talk to them in private."
            )
        file = f"{PEOPLE}/{person}.md"
    own, shared = agents.directory / agent / file, agents.directory / file
    paths = agents.paths(agent)
    if paths.folder is None and paths.settings.exists():
        raise Conflict(_move_first(paths))
    before = _text(own) if own.exists() else _text(shared)
    text = replaced_section(before, arguments.heading, arguments.text)
    check_layer(arguments.layer, text)
    if text == before:
        raise Conflict("It says so already.")
    where = str(own.relative_to(agents.directory))
    lines = difflib.unified_diff(before.splitlines(), text.splitlines(), where, where, lineterm="")
    reason = " ".join(arguments.reason.replace("`", "'").split())
    return Proposal(agent, where, _digest(_text(own)), text, "\n".join(lines), reason)


def _move_first(paths: AgentPaths) -> str:
    """What an agent in flat files is told: there is no place for what it proposes, and a folder beside them would be
    an error."""
    folder = f"agents/{paths.name}"
    moves = [f"mv agents/{paths.settings.name} {folder}/{SETTINGS}"]
    if paths.notes.exists():
        moves.append(f"mv agents/{paths.notes.name} {folder}/{AGENT_LAYER}")
    return (
        f"You are in the flat file {paths.settings.name}, which has no place for this. Tell the person who runs Gofer "
        f"to move it into a folder, in the data directory: mkdir {folder} && {' && '.join(moves)}. "
        "Then propose it again."
    )


def _check_place(directory: Path, path: Path) -> None:
    """Raises Conflict for a file that a link would put elsewhere."""
    if not Path(os.path.realpath(path.parent)).is_relative_to(os.path.realpath(directory)):
        raise Conflict(f"{path.parent.name} is a link to elsewhere, where nothing is changed.")


def _text(path: Path) -> str:
    if not path.exists():
        return ""
    try:
        return read_text(path, path.parent)
    except LayerError as error:
        raise Conflict(f"{path.name} {error}. Whoever runs Gofer has to fix it first.") from error


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def submit_proposal(
    connection: Connection, vault: Vault, claim: Claim, call_id: str, proposal: Proposal
) -> None:
    """Make the job that asks the owners; once for a call, however often it is made. Raises Conflict."""
    conversation_id = str(claim.conversation_id)
    lock_conversation(connection, conversation_id)
    waiting = (
        select(func.count())
        .select_from(jobs)
        .where(in_state(*LIVE, JobState.BLOCKED), jobs.c.kind == PROPOSAL)
    )
    mine = jobs.c.lane.startswith(f"{PROPOSAL}:{proposal.agent}/", autoescape=True)
    if int(connection.execute(waiting.where(mine)).scalar_one()) >= MAX_OPEN:
        raise Conflict(f"{MAX_OPEN} proposals of yours wait for an owner already.")
    mark = new_id("proposal")
    key = conversation_key(connection, vault, conversation_id)
    sealed = seal(key, asdict(proposal), PROPOSAL, mark, conversation_id)
    submit(
        connection,
        workspace_id=claim.workspace_id,
        kind=PROPOSAL,
        # What changes the same file is decided one after the other.
        lane=f"{PROPOSAL}:{proposal.file}",
        pool=SERVICE,
        payload={"mark": mark, "sealed": base64.b64encode(sealed).decode()},
        conversation_id=conversation_id,
        connection_id=claim.connection_id,
        unique_key=f"{PROPOSAL}:{claim.id}:{call_id}",
    )


@dataclass(eq=False, repr=False, kw_only=True)
class Proposals:
    """Handles proposal jobs."""

    database: Database
    vault: Vault
    accounts: LoadedConnections
    directory: Path

    async def handle(self, run: Run) -> Outcome:
        """Ask; when an owner has approved, write."""
        claim = run.claim
        try:
            proposal = await self.database.read(_opened, vault=self.vault, claim=claim)
        except (NotFound, Tampered, KeyError, TypeError, ValueError):
            return Dead("proposal.unreadable")
        about = f"{PROPOSAL} {claim.payload['mark']}"
        given = await self.database.read(answer_to, vault=self.vault, job_id=claim.id, call_id=about)
        if not given.asked or given.open:
            connected = await self.accounts.all()
            return await self.database.read(_ask, claim, connected, proposal, about)
        by = display_name(given.by) or "An owner"
        if given.text != APPROVE:
            words = (
                REFUSED.format(by=by, file=proposal.file)
                if given.text
                else EXPIRED.format(file=proposal.file)
            )
            return await self._end(claim, words, "" if given.text else "question.expired")
        crash_point("proposal.approved")
        written = await asyncio.to_thread(_write, self.directory, proposal)
        crash_point("proposal.written")
        if not written and not await self.database.read(_was_noted, job_id=claim.id):
            return await self._end(claim, STALE.format(by=by, file=proposal.file), "proposal.stale")
        await self.database.write(_note, claim=claim, proposal=proposal, by=by)
        crash_point("proposal.noted")
        return await self._end(claim, APPLIED.format(by=by, file=proposal.file))

    async def _end(self, claim: Claim, words: str, reason: str = "") -> Outcome:
        """Tell where it was proposed what became of it."""
        binding = await self.database.read(
            binding_of, conversation_id=claim.conversation_id, connection_id=claim.connection_id
        )
        drafts = (Draft(binding, (words,), "note"),) if binding is not None else ()
        return Done(drafts, reason=reason)


def _opened(connection: Connection, vault: Vault, claim: Claim) -> Proposal:
    conversation_id, payload = str(claim.conversation_id), claim.payload
    key = conversation_key(connection, vault, conversation_id)
    bound = (PROPOSAL, str(payload["mark"]), conversation_id)
    found: Mapping[str, Any] = unseal(key, base64.b64decode(payload["sealed"]), *bound)
    return Proposal(**found)


def _ask(
    connection: Connection, claim: Claim, connected: list[LoadedConnection], proposal: Proposal, about: str
) -> Outcome:
    # A fence in the text would end ours.
    shown = proposal.diff.replace("```", "`\u200b``")
    text = QUESTION.format(agent=proposal.agent, file=proposal.file, reason=proposal.reason, diff=shown)
    return ask_role(
        connection,
        connected,
        role=OWNERS,
        workspace_id=claim.workspace_id,
        text=text,
        about=about,
        choices=(APPROVE, REFUSE),
        expires_after=EXPIRES,
    )


def _write(directory: Path, proposal: Proposal) -> bool:
    """Put the text into the file; False when the file is neither as it was nor as it is to be."""
    path = directory / proposal.file
    try:
        _check_place(directory, path)
        there = read_text(path, path.parent) if path.exists() else ""
    except (Conflict, LayerError):
        return False
    if there == proposal.text:
        return True
    if _digest(there) != proposal.base:
        return False
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(path, proposal.text)
    return True


def _was_noted(connection: Connection, job_id: int) -> bool:
    noted = (event_rows.c.job_id == job_id) & (event_rows.c.kind == CHANGED)
    return connection.execute(select(event_rows.c.id).where(noted).limit(1)).first() is not None


def _note(connection: Connection, claim: Claim, proposal: Proposal, by: str) -> None:
    """Put the change on record, once: in the event log and in the audit log."""
    if _was_noted(connection, claim.id):
        return
    facts = {"agent": proposal.agent, "file": proposal.file, "by": by, "digest": _digest(proposal.text)}
    events.append(connection, job_id=claim.id, owner=claim.owner, fence=claim.fence, kind=CHANGED, data=facts)
    entry = {
        "workspace_id": claim.workspace_id,
        "member_id": "",
        "name": by,
        "via": "question",
        "address": "",
    }
    id_ = audit.append(connection, {**entry, "action": CHANGED, "subject": proposal.file})
    audit.end(connection, id_, status=200, data=facts)
