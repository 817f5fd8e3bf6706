"""The tables: one for each noun of the glossary, one sentence per column that needs one.

Times are seconds since 1970 by the database's clock. Columns called `sealed` hold bytes encrypted with the
conversation's data key, so that purging the key purges them wherever they are, later backups included.
"""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    false,
    literal_column,
    text,
)

METADATA = MetaData()

# SQLite only numbers rows by itself when the column is exactly INTEGER.
Serial = BigInteger().with_variant(Integer(), "sqlite")


# Without this, SQLite gives the id of a pruned last row to the next one, and a follower would skip it.
_NEVER_REUSE_IDS: dict[str, Any] = {"sqlite_autoincrement": True}


class JobState(StrEnum):
    """Where a job stands."""

    READY = "ready"
    """May be claimed now."""
    BLOCKED = "blocked"
    """Its lane is taken; becomes ready when the lane is free."""
    RUNNING = "running"
    """A worker holds it under a lease."""
    SCHEDULED = "scheduled"
    """Becomes ready at `run_at`: delayed, retried or snoozed."""
    WAITING = "waiting"
    """A Question is open; holds no lease and no slot."""
    DONE = "done"
    """Finished."""
    DEAD = "dead"
    """Given up, with a reason; can be redriven."""
    CANCELLED = "cancelled"
    """Stopped because somebody asked."""


LIVE = (JobState.READY, JobState.RUNNING, JobState.SCHEDULED, JobState.WAITING)
"""The states that take a lane."""

FINAL = (JobState.DONE, JobState.DEAD, JobState.CANCELLED)


def in_state(*states: JobState, of: str = "job") -> ColumnElement[bool]:
    """A condition on a job's state, spelled out: a bound parameter would hide the partial indexes from planners.

    Without a type, because SQLite's dialect compares a Boolean with 1, which hides them as well.
    """
    quoted = ",".join(f"'{state}'" for state in states)
    return literal_column(f"{of}.state = {quoted}" if len(states) == 1 else f"{of}.state IN ({quoted})")


ENDED_BADLY: ColumnElement[bool] = literal_column("job.state IN ('dead','cancelled')")
"""Said beside the state itself where one of the two is looked for: SQLite's planner draws no such conclusion."""


class ReplyState(StrEnum):
    """Where one part of a reply stands."""

    PLANNED = "planned"
    """To be sent; nothing is known to exist outside."""
    PLACED = "placed"
    """Exists outside under `external_id`, perhaps not yet complete."""
    SENT = "sent"
    """Complete."""
    FAILED = "failed"
    """Will not be sent; `reason` says why."""


FORGOTTEN = "forgotten"
"""The event of what an agent said at the end of work that it was told to forget."""

DELAY = "delay"
"""The event of a word that an answer has to wait: for people, not for models."""

ASIDE = ("command", "button", "place", FORGOTTEN, DELAY)
"""Events of messages that are no part of what an agent reads; most of them the platform deals with itself."""

SCHEDULE = "schedule"
"""The event of a message that a schedule says: nobody waits for its answer."""

IS_UNSENT: ColumnElement[bool] = literal_column("reply.state IN ('planned','placed')")
"""Spelled out for the planner, like `in_state`."""


class Trust(StrEnum):
    """How far the author of a message is trusted."""

    UNKNOWN = "unknown"
    """Not looked at yet."""
    OWNER = "owner"
    MEMBER = "member"
    STRANGER = "stranger"


class _Mac(LargeBinary):
    """Bytes as they are read: SQLite lets somebody put a text there, and a row must be readable to be refused."""

    def result_processor(self, dialect: Any, coltype: object) -> Any:
        if dialect.name == "sqlite":
            return None
        return super().result_processor(dialect, coltype)  # type: ignore[no-untyped-call]


def _column(
    name: str,
    type_: Any,
    *,
    key: bool = False,
    of: str | None = None,
    cascade: bool = False,
    nullable: bool = False,
    **more: Any,
) -> Column[Any]:
    """A column, NOT NULL unless it says otherwise; `of` is the column it refers to, and `cascade` goes with its row."""
    refers = [ForeignKey(of, ondelete="CASCADE" if cascade else None)] if of else []
    return Column(name, type_, *refers, primary_key=key, nullable=nullable, **more)


_text = partial(_column, type_=String)
_int = partial(_column, type_=Integer)
_big = partial(_column, type_=BigInteger, autoincrement=False)
_float = partial(_column, type_=Float)
_bool = partial(_column, type_=Boolean)
_json = partial(_column, type_=JSON)
_bytes = partial(_column, type_=LargeBinary)
_serial = partial(_column, "id", Serial, key=True, autoincrement=True)
_mac = partial(_column, "mac", _Mac, nullable=True)
"""What `gofer.store.signed` signs the row with; NULL in a row that the release before wrote."""


def _where(condition: str) -> dict[str, Any]:
    """The same partial-index condition for both databases."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


workspaces = Table(
    "workspace",
    METADATA,
    _text("id", key=True),
    _text("name"),
    _float("created_at"),
)
"""The tenant boundary: every row belongs to one."""

master_keys = Table(
    "master_key",
    METADATA,
    # The key's fingerprint.
    _text("id", key=True),
    _bytes("canary"),
    _bool("active", default=True),
    _float("created_at"),
)
"""A canary sealed by each master key that has been active, so that a wrong key is noticed at start."""

secrets = Table(
    "secret",
    METADATA,
    _text("id", key=True),
    _text("workspace_id", of="workspace.id"),
    # What it belongs to: a connection's id, or "" for the workspace.
    _text("owner"),
    _text("name"),
    # This secret's own data key, wrapped by the master key.
    _bytes("data_key"),
    _bytes("sealed"),
    _float("created_at"),
    _float("used_at", nullable=True),
    Index("secret_by_name", "workspace_id", "owner", "name", unique=True),
)
"""An encrypted value, readable only through the vault."""

connections = Table(
    "connection",
    METADATA,
    # Also the last part of its webhook URL.
    _text("id", key=True),
    _text("workspace_id", of="workspace.id"),
    _text("integration"),
    _text("name"),
    _bool("enabled", default=True),
    _json("settings"),
    # How many of its jobs may run at once, over all workers; None for no bound.
    _int("max_running", nullable=True),
    # The name of the agent that answers what no route fits; None for the instance's default agent.
    _text("agent", nullable=True),
    # Wrapped by the master key; seals deliveries that belong to no conversation. None before the first of
    # them.
    _bytes("data_key", nullable=True),
    _float("created_at"),
    _mac(),
)
"""One configured account of an Integration."""

principals = Table(
    "principal",
    METADATA,
    _text("id", key=True),
    _text("workspace_id", of="workspace.id"),
    _text("name"),
    # owner or member; strangers have no row.
    _text("role"),
    _float("created_at"),
    _mac(),
)
"""A person or bot, with its role here."""

identities = Table(
    "identity",
    METADATA,
    _text("id", key=True),
    _text("workspace_id", of="workspace.id"),
    _text("principal_id", of="principal.id", index=True),
    _text("integration"),
    # The service's own, unchangeable id of the person; never a name.
    _text("subject"),
    _mac(),
    Index("identity_by_subject", "workspace_id", "integration", "subject", unique=True),
)
"""Who a Principal is on one service."""

pairings = Table(
    "pairing",
    METADATA,
    _text("id", key=True),
    _text("workspace_id", of="workspace.id"),
    _text("connection_id"),
    # A hash of the code; the code itself is shown once and kept nowhere.
    _text("digest"),
    _text("role"),
    _float("created_at"),
    _float("expires_at"),
    _float("used_at", nullable=True),
    _text("used_by", default=""),
    # Who made it, to be known elsewhere, too: whoever presents it is that person.
    _text("principal_id", nullable=True),
    _mac(),
    Index("pairing_by_digest", "connection_id", "digest", unique=True),
)
"""A code that makes whoever presents it to a Connection a Principal, or one that is there, once and soon."""

strangers = Table(
    "stranger",
    METADATA,
    _text("connection_id", key=True),
    _text("subject", key=True),
    # When they were last told that they are not known.
    _float("told_at", nullable=True),
    # Wrong codes since `guessing_since`.
    _int("guesses", default=0),
    _float("guessing_since", default=0),
)
"""Somebody unknown at a Connection: what keeps guessing and pestering within bounds."""

members = Table(
    "member",
    METADATA,
    _text("id", key=True),
    _text("workspace_id", of="workspace.id"),
    # What they sign in with; lower case.
    _text("name"),
    # owner, operator or viewer.
    _text("role"),
    # An Argon2id hash in PHC form; empty while they sign in by links only.
    _text("password", default=""),
    _float("created_at"),
    _float("signed_in_at", nullable=True),
    _mac(),
    Index("member_by_name", "workspace_id", "name", unique=True),
)
"""Somebody who may sign in here."""

web_sessions = Table(
    "web_session",
    METADATA,
    # A hash of the cookie's value, which itself is kept nowhere.
    _text("digest", key=True),
    _text("member_id", of="member.id", cascade=True, index=True),
    # How it began: password or link.
    _text("by"),
    _text("address", default=""),
    # The browser, in its own words.
    _text("agent", default=""),
    _float("created_at"),
    _float("seen_at"),
    _float("expires_at"),
    # When its owner last gave their password or a fresh link; None since it began.
    _float("confirmed_at", nullable=True),
    _mac(),
)
"""A signed-in browser."""

api_tokens = Table(
    "api_token",
    METADATA,
    _text("id", key=True),
    _text("member_id", of="member.id", cascade=True, index=True),
    _text("name"),
    # A hash of the token, which itself is shown once and kept nowhere.
    _text("digest"),
    # read, write or admin: the most it may do, whatever the member may.
    _text("scope"),
    # `noun:scope` words where it may use those nouns only, such as `jobs:write messages:read`.
    _text("scopes", nullable=True),
    _float("created_at"),
    _float("expires_at", nullable=True),
    _float("used_at", nullable=True),
    _mac(),
    Index("api_token_by_digest", "digest", unique=True),
)
"""A program's way in, in the name of a Member."""

sign_in_links = Table(
    "sign_in_link",
    METADATA,
    _text("digest", key=True),
    _text("member_id", of="member.id", cascade=True, index=True),
    _float("created_at"),
    _float("expires_at"),
    _float("used_at", nullable=True),
    _mac(),
)
"""A link that signs a Member in, once and soon."""

sign_in_delays = Table(
    "sign_in_delay",
    METADATA,
    # A hash of the name or address.
    _text("key", key=True),
    _int("failures", default=0),
    _float("failed_at"),
    _float("until", default=0),
)
"""How long a name or an address must wait after failed sign-ins."""

audit_entries = Table(
    "audit_entry",
    METADATA,
    _serial(),
    _text("workspace_id"),
    # Empty for the command line.
    _text("member_id"),
    _text("name"),
    # session, token or socket.
    _text("via"),
    _text("address", default=""),
    # What was asked, such as `jobs.cancel`.
    _text("action"),
    # What it was asked of.
    _text("subject", default=""),
    _json("data"),
    # How it was answered; 0 while it is not known.
    _int("status", default=0),
    _float("at"),
    # Its number in the chain; NULL in an entry that the release before wrote.
    _big("place", nullable=True),
    # A hash over the link before and everything here but how it ended.
    _bytes("link", nullable=True),
    # Over its link, status and data, once it has ended.
    _bytes("end_mac", nullable=True),
    Index("audit_entry_by_place", "place", unique=True),
    **_NEVER_REUSE_IDS,
)
"""A change somebody asked for. Written before the change is made, so none goes unrecorded."""

audit_heads = Table(
    "audit_head",
    METADATA,
    # Always `head`.
    _text("id", key=True),
    _big("place", default=0),
    _bytes("link"),
    _bytes("mac"),
)
"""Where the chain of the audit log ends, signed: a log that was cut or emptied does not lead there."""

idempotency_keys = Table(
    "idempotency_key",
    METADATA,
    _text("member_id", key=True),
    _text("key", key=True),
    # A hash of what was asked: the same key with another request is a mistake.
    _text("fingerprint"),
    # 0 while it is being done.
    _int("status", default=0),
    # Its location and body; empty when the body held a secret, which is shown once.
    _text("answer", default=""),
    _float("created_at"),
    Index("idempotency_key_by_time", "created_at"),
)
"""A request that may be repeated without being done twice, and what it was answered."""

agents = Table(
    "agent",
    METADATA,
    _text("id", key=True),
    _text("workspace_id", of="workspace.id"),
    _text("name"),
    _text("model"),
    _json("settings"),
    # How many of its jobs may run at once, over all workers; None for no bound.
    _int("max_running", nullable=True),
    _float("created_at"),
    _mac(),
    Index("agent_by_name", "workspace_id", "name", unique=True),
)
"""An identity, a model, a set of tools and limits."""

routes = Table(
    "route",
    METADATA,
    _text("id", key=True),
    _text("workspace_id", of="workspace.id"),
    _text("agent_id", of="agent.id", index=True),
    # None hears every connection.
    _text("connection_id", of="connection.id", nullable=True, index=True),
    # An event kind, or a prefix ending in `*`.
    _text("event", default="*"),
    # What wakes the agent: any addressed message, or one trigger (mention, command, label …).
    _text("trigger", default="any"),
    # Of the jobs it makes; lower runs first.
    _int("priority", default=0),
    # `route`: the first that fits answers. `also`: answers beside it. `default`: answers what no route fits.
    _text("kind", server_default="route"),
    # The order in which routes are tried; the most specific comes first.
    _int("rank", server_default="0"),
    _mac(),
)
"""Which Agent hears which events."""

conversations = Table(
    "conversation",
    METADATA,
    _text("id", key=True),
    _text("workspace_id", of="workspace.id"),
    _text("kind"),
    _text("title"),
    # Wrapped by the master key; None once purged, and with it everything sealed.
    _bytes("data_key", nullable=True),
    _big("last_seq", default=0),
    # The agent that an owner chose for it; None for those that the routes say.
    _text("agent_id", nullable=True),
    # The model that an owner chose for it; empty for the agent's own.
    _text("model", default=""),
    _float("created_at"),
    _float("purged_at", nullable=True),
)
"""An ordered list of messages; its row is the lock that intake and the end of a job share."""

bindings = Table(
    "binding",
    METADATA,
    _text("id", key=True),
    _text("conversation_id", of="conversation.id", cascade=True, index=True),
    _text("connection_id", of="connection.id"),
    # The service's reference: a chat and topic, a repository and number.
    _text("ref"),
    # What the place is for ever, where its reference is a name that another may get.
    _text("lasting", nullable=True),
    Index("binding_by_ref", "connection_id", "ref", unique=True),
    Index("binding_by_lasting", "connection_id", "lasting", **_where("lasting IS NOT NULL")),
)
"""Where a Conversation meets the outside."""

deliveries = Table(
    "delivery",
    METADATA,
    _serial(),
    _text("workspace_id", of="workspace.id"),
    _text("connection_id", of="connection.id"),
    # The service's id, or a hash where it has none: what makes a repeat a repeat.
    _text("external_id"),
    # A keyed digest of its body: what makes the same body again a repeat.
    _text("body_hash"),
    # How it came: webhook, poll, catchup, replay, schedule.
    _text("source"),
    _text("event"),
    # Why it became no message, if it did not.
    _text("note", default=""),
    _text("conversation_id", of="conversation.id", cascade=True, nullable=True, index=True),
    _int("message_seq", nullable=True),
    # Headers (without the secret ones) and body.
    _bytes("sealed", nullable=True),
    # A keyed digest of the service's own id of what was said, where delivery ids are not signed: it stays
    # when the words are pruned or purged, so that a repeat is known for ever.
    _text("message_digest", nullable=True),
    _float("received_at"),
    Index("delivery_by_external_id", "connection_id", "external_id", unique=True),
    Index("delivery_by_body", "connection_id", "body_hash", "received_at"),
    Index(
        "delivery_by_message",
        "connection_id",
        "message_digest",
        unique=True,
        **_where("message_digest IS NOT NULL"),
    ),
    Index("delivery_by_time", "received_at"),
    Index("delivery_of_connection", "connection_id", "id"),
    Index("delivery_noted", "received_at", **_where("conversation_id IS NULL AND sealed IS NOT NULL")),
    **_NEVER_REUSE_IDS,
)
"""One inbound request or polled update, kept as received."""

messages = Table(
    "message",
    METADATA,
    _text("conversation_id", key=True, of="conversation.id", cascade=True),
    _big("seq", key=True),
    # The integration's id of the author, or `agent:<id>`.
    _text("author"),
    _bool("addressed"),
    _text("trust", default=Trust.UNKNOWN),
    _text("event"),
    _text("connection_id", nullable=True),
    # This message's id at the service; replies and edits refer to it.
    _text("external_id", default=""),
    # Text, author's name, attachments and facts, as `gofer.store.content` writes them.
    _bytes("sealed", nullable=True),
    _float("admitted_at", nullable=True),
    _float("created_at"),
    Index("message_of_stranger", "connection_id", "author", "admitted_at", **_where("trust = 'stranger'")),
)
"""One entry in a Conversation."""

blobs = Table(
    "blob",
    METADATA,
    _text("conversation_id", key=True, of="conversation.id", cascade=True),
    _text("hash", key=True),
    _text("media_type"),
    _int("size"),
    _bytes("sealed"),
    _float("created_at"),
)
"""Bytes by keyed digest, within one Conversation so that purging it is real."""

participants = Table(
    "participant",
    METADATA,
    _text("id", key=True),
    _text("conversation_id", of="conversation.id", cascade=True),
    _text("agent_id", of="agent.id"),
    # What it has dealt with.
    _big("read_seq", default=0),
    # The last message or trigger that wants it; a Job exists while this is ahead of `read_seq`.
    _big("wake_seq", default=0),
    # Where its memory of the conversation begins; `/new` moves it.
    _big("epoch_seq", default=0),
    _int("priority", default=0),
    # What is kept of everything its last checkpoint covers, sealed.
    _bytes("summary", nullable=True),
    Index("participant_by_agent", "conversation_id", "agent_id", unique=True),
    Index("participant_wanted", "id", **_where("wake_seq > read_seq")),
)
"""An Agent in a Conversation."""

jobs = Table(
    "job",
    METADATA,
    # Assigned in order; the order of work, never a clock.
    _serial(),
    _text("workspace_id", of="workspace.id"),
    _text("kind"),
    # Which of a worker's slots it takes: agent (may last hours) or service (short errands, never starved).
    _text("pool", default="agent"),
    _text("state"),
    # What it must not run beside; for an agent's answer, its Participant.
    _text("lane"),
    # Lower runs first.
    _int("priority", default=0),
    _float("run_at", default=0),
    # Tries that count; a snooze gives its try back.
    _int("attempts", default=0),
    _int("max_attempts", default=5),
    # Grows at each claim and is never reused; every write of a run carries it.
    _big("fence", default=0),
    # The process that holds the lease; a fresh id per process start.
    _text("owner", nullable=True),
    _float("lease_until", nullable=True),
    _bool("cancel_requested", default=False),
    # The number of its last event.
    _big("event_seq", default=0),
    _text("conversation_id", of="conversation.id", cascade=True, nullable=True),
    _text("participant_id", of="participant.id", cascade=True, nullable=True),
    _text("agent_id", nullable=True),
    _text("connection_id", nullable=True),
    # Messages after this one are what it answers …
    _big("covers_from", default=0),
    # … up to this one; None until its end is known.
    _big("covers_to", nullable=True),
    _json("payload"),
    # At most one job ever has it; what makes a cron tick happen once.
    _text("unique_key", nullable=True),
    # Code of why it is where it is.
    _text("reason", default=""),
    _float("created_at"),
    _float("finished_at", nullable=True),
    # The database itself refuses a second live job in a lane, whatever the code does.
    Index(
        "job_one_live_per_lane",
        "lane",
        unique=True,
        **_where("state IN ('ready','running','scheduled','waiting')"),
    ),
    Index("job_ready", "pool", "priority", "id", **_where("state = 'ready'")),
    Index("job_scheduled", "run_at", **_where("state = 'scheduled'")),
    Index("job_blocked", "lane", "id", **_where("state = 'blocked'")),
    Index("job_leased", "lease_until", **_where("state = 'running'")),
    Index("job_finished", "finished_at", **_where("finished_at IS NOT NULL")),
    Index("job_unique_key", "unique_key", unique=True, **_where("unique_key IS NOT NULL")),
    Index("job_of_conversation", "conversation_id", "id"),
    Index("job_of_agent", "agent_id", "id", **_where("agent_id IS NOT NULL")),
    Index("job_of_connection", "connection_id", "id", **_where("connection_id IS NOT NULL")),
    Index("job_ended_badly", "state", "id", **_where("state IN ('dead','cancelled')")),
    **_NEVER_REUSE_IDS,
)
"""A durable promise to do one piece of work."""

attempts = Table(
    "attempt",
    METADATA,
    _column("job_id", Serial, key=True, of="job.id", cascade=True),
    _big("fence", key=True),
    _int("number"),
    _text("owner"),
    _float("started_at"),
    _float("ended_at", nullable=True),
    # done, retry, snoozed, waiting, cancelled, dead, lost; empty while it runs.
    _text("outcome", default=""),
    _text("reason", default=""),
    # In dollars.
    _float("cost", default=0),
)
"""One try at a Job by one worker."""

questions = Table(
    "question",
    METADATA,
    _text("id", key=True),
    _big("job_id", of="job.id", cascade=True, index=True, default=0),
    # The tool call that asked it.
    _text("call_id", default=""),
    _text("conversation_id", of="conversation.id", cascade=True, nullable=True),
    # Who may answer: an author's id, or empty for any member.
    _text("asked_of", default=""),
    _bytes("sealed", nullable=True),
    # What may be answered by a button, sealed.
    _bytes("choices", nullable=True),
    # Sealed like the question.
    _bytes("answer", nullable=True),
    _float("asked_at"),
    _float("expires_at", nullable=True),
    _float("answered_at", nullable=True),
    _mac(),
    Index("question_open", "expires_at", **_where("answered_at IS NULL")),
)
"""Something a run asks a person."""

replies = Table(
    "reply",
    METADATA,
    _serial(),
    _text("workspace_id", of="workspace.id"),
    _text("conversation_id", of="conversation.id", cascade=True),
    _text("binding_id", of="binding.id", cascade=True),
    _big("job_id", of="job.id", cascade=True, default=0),
    # final, error or note.
    _text("kind", default="final"),
    _int("part"),
    _int("parts"),
    # The external id of the message it answers.
    _text("reply_to", default=""),
    _bytes("sealed", nullable=True),
    _text("state", default=ReplyState.PLANNED),
    _text("external_id", default=""),
    # How often sending it was begun; more than none means that it may exist outside.
    _int("tries", default=0),
    _text("reason", default=""),
    _float("created_at"),
    _float("sent_at", nullable=True),
    # After a takeover: when to repeat the final edit, past any late write of the old owner.
    _float("confirm_at", nullable=True),
    # The deliver job that gave it up; redriving that job sends it again.
    _big("failed_in", nullable=True),
    Index("reply_once", "job_id", "kind", "part", unique=True),
    Index("reply_unsent", "binding_id", "id", **_where("state IN ('planned','placed')")),
    Index("reply_to_confirm", "binding_id", **_where("confirm_at IS NOT NULL")),
    Index("reply_of_conversation", "conversation_id", "id"),
    Index("reply_failed_in", "failed_in", **_where("failed_in IS NOT NULL")),
    **_NEVER_REUSE_IDS,
)
"""One part of something we send."""

showings = Table(
    "showing",
    METADATA,
    _column("job_id", Serial, key=True, of="job.id", cascade=True),
    _text("connection_id"),
    _text("ref"),
    _text("external_id"),
)
"""What a service shows while a job works (a progress message), so that it is removed whoever ends the job."""

events = Table(
    "event",
    METADATA,
    _serial(),
    _text("workspace_id"),
    _text("kind"),
    _int("version", default=1),
    _big("parent_id", nullable=True),
    _text("conversation_id", of="conversation.id", cascade=True, nullable=True),
    _big("job_id", of="job.id", cascade=True, nullable=True),
    # Its number within the job.
    _big("seq", nullable=True),
    # Which Attempt it belongs to.
    _big("fence", nullable=True),
    _big("delivery_id", nullable=True),
    _big("reply_id", nullable=True),
    # Facts without anybody's words.
    _json("data"),
    # Words.
    _bytes("sealed", nullable=True),
    # The writing transaction on Postgres, by which followers wait for those that commit late; 0 on SQLite.
    _big("tx", default=0),
    _float("at"),
    Index("event_of_job", "job_id", "seq", unique=True),
    Index("event_of_conversation", "conversation_id", "id"),
    Index("event_in_order", "tx", "id"),
    Index("event_of_no_job", "at", **_where("job_id IS NULL")),
    **_NEVER_REUSE_IDS,
)
"""One row of the append-only log."""

spends = Table(
    "spend",
    METADATA,
    _serial(),
    _text("workspace_id"),
    _text("agent_id"),
    _text("conversation_id"),
    # Where the work came from.
    _text("connection_id", default=""),
    _big("job_id", default=0),
    # Which call of the job.
    _text("key"),
    # Which model was called; empty until the call is settled.
    _text("model", default=""),
    # In the workspace's time zone, such as 2026-11-16.
    _text("day"),
    # Millionths of a dollar: the worst case until the call is settled, then what it cost.
    _big("micros", default=0),
    _bool("settled", default=False),
    # For a job nobody waits for.
    _bool("background", default=False, server_default=false()),
    Index("spend_once", "job_id", "key", unique=True),
    Index("spend_of_agent", "agent_id", "day"),
    # Covers what the costs are summed up by, so that no row is read for it.
    Index("spend_by_day", "day", "agent_id", "model", "connection_id", "micros"),
    Index("spend_of_conversation", "conversation_id"),
)
"""Money set aside for, or paid for, one model call. Outlives its job: budgets and bills need it."""

shells = Table(
    "shell",
    METADATA,
    _text("conversation_id", key=True, of="conversation.id", cascade=True),
    _text("agent_id", key=True),
    _json("record"),
    # Of the run it was made for; it is made anew when that rises.
    _text("trust"),
    _float("used_at"),
    _mac(),
)
"""The sandboxed session of a Conversation and Agent, as the sandbox needs it to attach again."""

schedules = Table(
    "schedule",
    METADATA,
    _text("id", key=True),
    _text("workspace_id", of="workspace.id"),
    _text("name"),
    _text("cron"),
    _text("timezone", default="UTC"),
    # What to do with runs missed while nobody was there: skip, once or all.
    _text("missed", default="once"),
    _text("kind"),
    _json("payload"),
    _bool("enabled", default=True),
    _float("next_at", default=0),
    _float("created_at"),
    _mac(),
    Index("schedule_by_name", "workspace_id", "name", unique=True),
)
"""A job to make again and again."""

workers = Table(
    "worker",
    METADATA,
    # Fresh at each start; the owner that leases name.
    _text("id", key=True),
    _text("host"),
    _int("pid"),
    _text("roles"),
    _text("version"),
    _float("started_at"),
    _float("seen_at"),
)
"""A process that is or was there."""
