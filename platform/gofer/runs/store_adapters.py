"""The ports of a run over the store: journal, inbox, history, questions and blobs of one claimed job."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import structlog
from sqlalchemy import Connection, Integer, bindparam, select, type_coerce, update
from sqlalchemy.types import NullType

from gofer.agent.context.compressor import MAX_RULES
from gofer.agent.context.operations import placeholder, rules_in_force
from gofer.agent.conversation import (
    ConversationMessage,
    Picture,
    QuestionAnswer,
    StopSignal,
    Summary,
    Tombstone,
)
from gofer.agent.journal import KINDS, JournalEvent
from gofer.agent.models.documents import MAX_PDF, PDF
from gofer.agent.models.images import ENOUGH_BYTES, SHOWN
from gofer.agent.state import named_covers
from gofer.crash import crash_point
from gofer.errors import NotFound
from gofer.intake.admit import BLOB_REF, Admitter, unread
from gofer.integration import Attachment
from gofer.jobs.outcome import PAUSE_REQUESTED
from gofer.jobs.queue import Claim
from gofer.jobs.reply_planner import SAID, agent_author
from gofer.jobs.worker import Run
from gofer.memory.records import forgotten_turns, turn_id
from gofer.runs.memories import filled_in, keep_event, rules_of_run
from gofer.store import events, fast_sql, row_macs, tables
from gofer.store.blobs import put_blob, read_blob
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.encryption import conversation_key, seal, unseal
from gofer.store.messages import StoredMessage, open_content
from gofer.store.tables import ASIDE, SCHEDULE, messages, participants, questions, replies
from gofer.vault.envelope import DataKey, Vault
from gofer.vault.errors import Tampered

log = structlog.get_logger()

CHECKPOINT = "context.checkpoint"
SHRINKING = ("context.cleared", CHECKPOINT)
"""Events that take something out of the prompt."""

Write = Callable[[str, bytes], Awaitable[None]]
"""Writes a file into the run's shell."""


@dataclass(eq=False)
class StoreJournal:
    """The `Journal` of a job: its rows of the event log, words sealed, every append under the fence."""

    database: Database
    vault: Vault
    claim: Claim
    memory: bool = True
    redact: Callable[[str], str] = str
    run: Run | None = None
    """Told whether a pause is asked for, by every write: none begins a step after it."""

    async def append(self, kind: str, data: dict[str, Any], parent_id: int | None = None) -> int:
        crash_point("journal.appending")
        appended = await self.database.write(
            append_event,
            vault=self.vault,
            claim=self.claim,
            kind=kind,
            data=data,
            parent_id=parent_id,
            memory=self.memory,
        )
        crash_point("journal.appended")
        if kind in SHRINKING:
            crash_point("memory.kept")
        if self.run is not None:
            self.run.pause_read = appended.reason == PAUSE_REQUESTED
        return appended.id

    async def load(self) -> Sequence[JournalEvent]:
        return await self.database.read(
            load_events,
            vault=self.vault,
            conversation_id=_of(self.claim),
            job_id=self.claim.id,
            redact=self.redact,
        )


def append_event(
    connection: Connection,
    vault: Vault,
    claim: Claim,
    kind: str,
    data: dict[str, Any],
    parent_id: int | None,
    memory: bool = True,
) -> events.Appended:
    """Store one event of a run, and with it what is to be remembered; a checkpoint is also kept for the participant's
    later runs."""
    key = conversation_key(connection, vault, _of(claim))
    words = {name: value for name, value in data.items() if name in KINDS[kind].words}
    if words.get("pieces"):
        words["content"] = placeholder(words["pieces"])
    facts = {name: value for name, value in data.items() if name not in words}
    appended = events.append(
        connection,
        job_id=claim.id,
        owner=claim.owner,
        fence=claim.fence,
        kind=kind,
        version=KINDS[kind].version,
        data=facts,
        key=key,
        words=words,
        parent_id=parent_id,
    )
    if kind == "tool.finished" and data["asked"]:
        # Answered by what somebody wrote instead of a press: nobody is to be asked any longer.
        asked = (questions.c.job_id == claim.id) & (questions.c.call_id == data["call_id"])
        connection.execute(
            update(questions).where(asked, questions.c.answered_at.is_(None)).values(answered_at=now())
        )
    if memory:
        keep_event(connection, vault, claim, key, kind, data)
    if kind == CHECKPOINT and claim.participant_id is not None:
        kept = {name: data[name] for name in ("summary", "rules", "covers_to", "narrowed", "asked")}
        kept["id"] = data.get("id", "")
        kept["covers"], kept["covers_more"] = named_covers(data)
        connection.execute(
            update(participants)
            .where(participants.c.id == claim.participant_id)
            .values(summary=seal(key, kept, "summary", claim.participant_id))
        )
    if kind in SHRINKING:
        crash_point("memory.keeping")
    return appended


def load_events(
    connection: Connection,
    vault: Vault,
    conversation_id: str,
    job_id: int,
    redact: Callable[[str], str] = str,
) -> list[JournalEvent]:
    """The agent's events of a job, opened, with what was recalled."""
    key = conversation_key(connection, vault, conversation_id)
    rows = [row for row in events.of_job(connection, job_id) if row["kind"] in KINDS]
    return [_event(connection, vault, key, row, redact) for row in rows]


def started_with(connection: Connection, job_id: int) -> str | None:
    """What names the text of who the agent is in a run that has begun; None for one that has not, or does not say."""
    data = fast_sql.scalar(connection, _STARTED, {"job": job_id})
    return None if data is None else data.get("identity")


_STARTED = (
    select(tables.events.c.data)
    .where(tables.events.c.job_id == bindparam("job"), tables.events.c.kind == "run.started")
    .order_by(tables.events.c.seq)
    .limit(1)
)


def _event(
    connection: Connection, vault: Vault, key: DataKey, row: dict[str, Any], redact: Callable[[str], str]
) -> JournalEvent:
    data = {**row["data"], **events.open_words(key, row)}
    data = filled_in(connection, vault, data, redact)
    return JournalEvent(row["id"], row["kind"], data, row["parent_id"], row["version"])


class StoreInbox:
    """The `Inbox` of a run: what is unread, admitted; and the wish to stop."""

    def __init__(
        self, database: Database, vault: Vault, *, admitter: Admitter, run: Run, files: FilesIn
    ) -> None:
        self._database = database
        self._vault = vault
        self._admitter = admitter
        self._run = run
        self._files = files

    async def unread(self, after: int) -> Sequence[ConversationMessage]:
        claim = self._run.claim
        found = await self._database.read(unread, vault=self._vault, claim=claim, after=after)
        own = agent_author(claim.agent_id or "")
        admitted = await self._admitter.admit(
            claim, [read for read in found if read.message.author.id != own]
        )
        if any(read.message.quote_is_ours for read in admitted):
            admitted = await self._database.read(
                _with_origins, vault=self._vault, claim=claim, admitted=admitted
            )
        return [conversation_message(read, files=await self._files.place(read)) for read in admitted]

    async def stopped(self) -> StopSignal:
        await self._run.cancelled.wait()
        return StopSignal()

    def paused(self) -> bool:
        return self._run.paused or self._run.pause_read


def _with_origins(
    connection: Connection, vault: Vault, claim: Claim, admitted: list[StoredMessage]
) -> list[StoredMessage]:
    """The messages; of those that answer what a narrowed run said, the quoted words are strangers'."""
    key = conversation_key(connection, vault, _of(claim))
    return [
        replace(read, message=replace(read.message, quote_is_ours=False))
        if read.message.quoted
        and read.message.quote_is_ours
        and _answers_narrowed(connection, key, _of(claim), read.message.reply_to)
        else read
        for read in admitted
    ]


def _answers_narrowed(connection: Connection, key: DataKey, conversation_id: str, reply_to: str) -> bool:
    """Whether what a message answers is a reply of ours that strangers may speak through; also when that is not known
    any more."""
    if not reply_to:
        return False
    query = select(replies).where(
        replies.c.conversation_id == conversation_id, replies.c.external_id == reply_to
    )
    rows = connection.execute(query).all()
    return any(
        row.sealed is None
        or unseal(key, row.sealed, "reply", row.job_id, row.kind, row.part).get("narrowed", False)
        for row in rows
    )


class FilesIn:
    """Puts what came with a message into the run's shell, so that tools can work on it."""

    def __init__(self, database: Database, vault: Vault, claim: Claim, write: Write | None) -> None:
        self._database = database
        self._vault = vault
        self._claim = claim
        self._write = write
        self._placed: set[str] = set()

    async def place(self, read: StoredMessage) -> tuple[str, ...]:
        """Where each attachment went that the model does not see as it is, or what became of it."""
        told = []
        for number, attachment in enumerate(read.message.attachments, 1):
            seen = _is_picture(attachment)
            if seen and (attachment.size <= ENOUGH_BYTES or self._write is None):
                continue
            if not attachment.ref.startswith(BLOB_REF):
                told.append(f"{attachment.name or 'a file'} (not fetched)")
            elif self._write is None:
                told.append(f"{attachment.name or 'a file'} (no shell to put it in)")
            else:
                told.append(await self._place(read.seq, number, attachment.ref, attachment.name))
        return tuple(told)

    async def _place(self, seq: int, number: int, ref: str, name: str) -> str:
        path = f"inbox/{seq}-{number}-{_clean_name(name)}"
        if path not in self._placed and self._write is not None:
            content = await self._database.read(
                read_blob,
                vault=self._vault,
                conversation_id=_of(self._claim),
                digest=ref.removeprefix(BLOB_REF),
            )
            await self._write(path, content)
            self._placed.add(path)
        return path


def _is_picture(attachment: Attachment) -> bool:
    """Whether a model can be shown it, if in a smaller version."""
    return attachment.media_type in SHOWN and attachment.ref.startswith(BLOB_REF)


def _is_document(attachment: Attachment) -> bool:
    """Whether a model that takes PDFs can be shown it; its file is put into the shell in any case."""
    fits = attachment.ref.startswith(BLOB_REF) and attachment.size <= MAX_PDF
    return fits and attachment.media_type == PDF


def _clean_name(name: str) -> str:
    kept = "".join(char if char.isalnum() or char in "._-" else "_" for char in name).strip("._")
    return kept[-80:] or "file"


def conversation_message(read: StoredMessage, files: tuple[str, ...] = ()) -> ConversationMessage:
    """A message as the agent knows it."""
    return ConversationMessage(
        seq=read.seq,
        author=read.message.author.name or read.message.author.id,
        trust=read.trust.value,
        text=read.message.text,
        addressed=read.message.addressed,
        pictures=_pictures(read.message.attachments),
        files=files,
        quoted=read.message.quoted,
        quote_is_ours=read.message.quote_is_ours,
        background=read.message.event == SCHEDULE,
        identity=f"{read.connection_id or ''}/{read.message.author.id}",
    )


def _pictures(attachments: Iterable[Attachment]) -> tuple[Picture, ...]:
    return tuple(
        Picture(one.ref.removeprefix(BLOB_REF), one.media_type, one.name, one.size)
        for one in attachments
        if _is_picture(one) or _is_document(one)
    )


@dataclass(eq=False, repr=False)
class StoreHistory:
    """The `History` of a participant, within its epoch."""

    database: Database
    vault: Vault
    claim: Claim
    _: KW_ONLY
    memory: bool = True
    tell_damaged: Callable[[Sequence[str]], Awaitable[None]] | None = None

    async def summary(self) -> Summary | None:
        try:
            return await self.database.read(_summary, vault=self.vault, claim=self.claim, memory=self.memory)
        except Tampered:  # the messages themselves are there, and are summed up anew when they are too many
            log.warning("memory.summary_damaged", conversation=self.claim.conversation_id)
            return None

    async def between(self, after: int, to: int, *, newest: int) -> Sequence[ConversationMessage]:
        found, damaged = await self.database.read(
            _between, vault=self.vault, claim=self.claim, after=after, to=to, newest=newest
        )
        if damaged and self.tell_damaged is not None:
            await self.tell_damaged(damaged)
        return found

    async def answer(self, number: int) -> str | None:
        return await self.database.read(_own_answer, vault=self.vault, claim=self.claim, number=number)


def _summary(connection: Connection, vault: Vault, claim: Claim, memory: bool) -> Summary | None:
    row = connection.execute(
        select(participants).where(participants.c.id == claim.participant_id)
    ).one_or_none()
    if row is None or row.summary is None:
        return None
    key = conversation_key(connection, vault, _of(claim))
    kept = unseal(key, row.summary, "summary", row.id)
    if kept["covers_to"] <= row.epoch_seq:
        return None
    rules = kept["rules"]
    if memory:
        rules = rules_in_force(rules_of_run(connection, vault, claim), {}, rules)[-MAX_RULES:]
    return Summary(
        kept["summary"],
        tuple(rules),
        kept["covers_to"],
        kept["narrowed"],
        tuple(kept.get("asked", ())),
        kept.get("id", ""),
        tuple(Tombstone(**each) for each in kept.get("covers", ())) if memory else (),
        kept.get("covers_more", 0),
    )


def _between(
    connection: Connection, vault: Vault, claim: Claim, after: int, to: int, newest: int
) -> tuple[list[ConversationMessage], list[str]]:
    """The messages up to `to`, and then the agent's own replies to them, which have later numbers; and the ids of those
    that do not open, without which a run goes on."""
    own = agent_author(claim.agent_id or "")
    place = {"here": claim.conversation_id, "own": own, "participant": claim.participant_id}
    found = fast_sql.fetch(connection, _HISTORY, {**place, "after": after, "upto": to, "newest": newest})
    key = conversation_key(connection, vault, _of(claim))
    forgotten = forgotten_turns(connection, _of(claim))
    said, damaged = [], []
    for row in reversed(found):
        if row.seq in forgotten:
            continue
        try:
            said.append(_open_message(connection, key, row, own, to))
        except Tampered:
            damaged.append(turn_id(_of(claim), row.seq))
    return said, damaged


_SAID = messages.c
_EPOCH = (
    select(participants.c.epoch_seq).where(participants.c.id == bindparam("participant")).scalar_subquery()
)
"""The last message before the participant's conversation began anew."""
_HISTORY = (
    # As the driver gives it: for a float, SQLAlchemy would have to know how Postgres sends it.
    select(type_coerce(_SAID.created_at, NullType()).label("created_at"), _SAID.author, _SAID.sealed)
    .add_columns(_SAID.seq, _SAID.conversation_id, _SAID.connection_id)
    .where(_SAID.conversation_id == bindparam("here"), _SAID.sealed.is_not(None))
    .where(*(_SAID.event != event for event in ASIDE))
    .where(_SAID.seq > bindparam("after"), _SAID.seq > _EPOCH)
    .where((_SAID.seq <= bindparam("upto")) | ((_SAID.author == bindparam("own")) & (_SAID.event == "reply")))
    .order_by(_SAID.seq.desc())
    .limit(bindparam("newest", type_=Integer))
)


def _own_answer(connection: Connection, vault: Vault, claim: Claim, number: int) -> str | None:
    own = agent_author(claim.agent_id or "")
    query = (
        select(messages)
        .where(messages.c.conversation_id == claim.conversation_id, messages.c.sealed.is_not(None))
        .where(messages.c.seq == number, messages.c.seq > _EPOCH, messages.c.author == own)
    )
    row = connection.execute(query, {"participant": claim.participant_id}).one_or_none()
    if row is None:
        return None
    return _open_message(connection, conversation_key(connection, vault, _of(claim)), row, own, row.seq).text


def _open_message(connection: Connection, key: DataKey, row: Any, own: str, to: int) -> ConversationMessage:
    """A message of the history. A prompt has hundreds of them, so they are made of their stored fields at once."""
    kept = open_content(key, row)
    author, text, quoted = kept["author"]["id"], kept["text"], kept.get("quoted", "")
    quote_is_ours = kept.get("quoted_here", False)
    if (
        quoted
        and quote_is_ours
        and _answers_narrowed(connection, key, row.conversation_id, kept.get("reply_to", ""))
    ):
        quoted = ""  # Later runs do not need it, and would be narrowed by it until a new epoch.
    by_us = row.author == author == own
    said = kept["facts"].get(SAID) if by_us and kept.get("facts") else None
    attached = kept.get("attachments")
    return ConversationMessage(
        seq=min(row.seq, to),
        author=kept["author"].get("name") or author,
        trust=kept.get("trust", "unknown"),
        text=text if said is None else str(said),
        addressed=kept["addressed"],
        by_us=by_us,
        pictures=_pictures(Attachment(**one) for one in attached) if attached else (),
        quoted=quoted,
        quote_is_ours=quote_is_ours,
        background=kept.get("event") == SCHEDULE,
        identity=f"{kept.get('came_by', row.connection_id) or ''}/{author}",
        at=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(row.created_at)),
        number=row.seq if by_us else 0,
        ours="" if said is None else text.replace(str(said), "", 1).strip(),
    )


class StoreQuestions:
    """The `Questions` of a job."""

    def __init__(self, database: Database, vault: Vault, claim: Claim) -> None:
        self._database = database
        self._vault = vault
        self._claim = claim

    async def answer(self, call_id: str) -> QuestionAnswer | None:
        return await self._database.read(_answer, vault=self._vault, claim=self._claim, call_id=call_id)


def _answer(connection: Connection, vault: Vault, claim: Claim, call_id: str) -> QuestionAnswer | None:
    query = select(questions).where(questions.c.job_id == claim.id, questions.c.call_id == call_id)
    row = connection.execute(query.order_by(questions.c.asked_at.desc()).limit(1)).one_or_none()
    if row is None or row.answered_at is None:
        return None
    if row.answer is None or not row_macs.fits(connection, questions, row):
        return QuestionAnswer(expired=True)
    kept = unseal(conversation_key(connection, vault, _of(claim)), row.answer, "answer", row.id)
    return QuestionAnswer(kept["text"], kept["by"], kept["trust"])


class StoreBlobs:
    """The `Blobs` of a conversation."""

    def __init__(self, database: Database, vault: Vault, conversation_id: str) -> None:
        self._database = database
        self._vault = vault
        self._conversation_id = conversation_id

    async def put(self, data: bytes, media_type: str) -> str:
        return await self._database.write(
            put_blob,
            vault=self._vault,
            conversation_id=self._conversation_id,
            data=data,
            media_type=media_type,
        )

    async def get(self, ref: str) -> bytes | None:
        try:
            return await self._database.read(
                read_blob, vault=self._vault, conversation_id=self._conversation_id, digest=ref
            )
        except NotFound:
            return None


def _of(claim: Claim) -> str:
    assert claim.conversation_id is not None
    return claim.conversation_id
