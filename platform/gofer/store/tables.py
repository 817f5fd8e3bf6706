"""The tables: one class per noun of the glossary, one sentence per column that needs one.

Times are seconds since 1970 by the database's clock. Columns called `sealed` hold bytes encrypted with the
conversation's data key, so that purging the key purges them wherever they are, later backups included.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, cast

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    false,
    literal_column,
    text,
)
from sqlmodel import Field, SQLModel

# Rows are read and written by the tables' columns: a validator for each class would be built at every start for nobody.
SQLModel.model_config["defer_build"] = True

# SQLite only numbers rows by itself when the column is exactly INTEGER.
Serial = BigInteger().with_variant(Integer(), "sqlite")


# Without this, SQLite gives the id of a pruned last row to the next one, and a follower would skip it.
_NEVER_REUSE_IDS = {"sqlite_autoincrement": True}


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
    """For the answer to a Question, or for other jobs (`reason` says which); holds no lease and no slot."""
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
"""A condition to add beside the state: SQLite's planner does not infer it."""


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

CANARY = "canary"
"""The name of the connection and the conversation in which a new release talks to itself, and how their ids begin."""

DELAY = "delay"
"""The event of a word that an answer has to wait: for people, not for models."""

SUPERVISED = (
    "worker.spawned",
    "worker.exited",
    "worker.unhealthy",
    "worker.crash_loop",
    "revision.started",
    "revision.promoted",
    "revision.rolled_back",
)
"""The kinds of events that the supervisor leaves for the log. They are never pruned: they say what ran when."""
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


def _serial(**kwargs: Any) -> Any:
    return Field(default=None, sa_column=Column(Serial, primary_key=True, autoincrement=True), **kwargs)


def _big(
    *, default: int | None = 0, nullable: bool = False, foreign: str | None = None, index: bool = False
) -> Any:
    constraint = [ForeignKey(foreign, ondelete="CASCADE")] if foreign else []
    return Field(
        default=default,
        sa_column=Column(BigInteger, *constraint, nullable=nullable, index=index, default=default),
    )


def _json() -> Any:
    return Field(default_factory=dict, sa_column=Column(JSON, nullable=False))


def _bytes(*, nullable: bool = False) -> Any:
    return Field(default=None, sa_column=Column(LargeBinary, nullable=nullable))


class _Mac(LargeBinary):
    """Bytes as they are read: SQLite lets somebody put a text there, and a row must be readable to be refused."""

    def result_processor(self, dialect: Any, coltype: object) -> Any:
        if dialect.name == "sqlite":
            return None
        return super().result_processor(dialect, coltype)  # type: ignore[no-untyped-call]


def _mac() -> Any:
    """What `gofer.store.row_macs` signs the row with; NULL in a row that the release before wrote."""
    return Field(default=None, sa_column=Column(_Mac, nullable=True))


def _where(condition: str) -> dict[str, Any]:
    """The condition of a partial index. `store/postgres.py` copies it for Postgres: to name it here would load
    SQLAlchemy's dialect of a database that most never use."""
    return {"sqlite_where": text(condition)}


class Workspace(SQLModel, table=True):
    """The tenant boundary: every row belongs to one."""

    id: str = Field(primary_key=True)
    name: str
    created_at: float


class MasterKey(SQLModel, table=True):
    """A canary sealed by each master key that has been active, so that a wrong key is noticed at start."""

    __tablename__ = "master_key"

    id: str = Field(primary_key=True)
    """The key's fingerprint."""
    canary: bytes = _bytes()
    active: bool = True
    created_at: float


class Secret(SQLModel, table=True):
    """An encrypted value, readable only through the vault."""

    __table_args__ = (Index("secret_by_name", "workspace_id", "owner", "name", unique=True),)

    id: str = Field(primary_key=True)
    workspace_id: str = Field(foreign_key="workspace.id")
    owner: str
    """What it belongs to: a connection's id, or "" for the workspace."""
    name: str
    data_key: bytes = _bytes()
    """This secret's own data key, wrapped by the master key."""
    sealed: bytes = _bytes()
    created_at: float
    used_at: float | None = None


class Connection(SQLModel, table=True):
    """One configured account of an Integration."""

    id: str = Field(primary_key=True)
    """Also the last part of its webhook URL."""
    workspace_id: str = Field(foreign_key="workspace.id")
    integration: str
    name: str
    enabled: bool = True
    settings: dict[str, Any] = _json()
    max_running: int | None = None
    """How many of its jobs may run at once, over all workers; None for no bound."""
    agent: str | None = None
    """The name of the agent that answers what no route fits; None for the instance's default agent."""
    data_key: bytes | None = _bytes(nullable=True)
    """Wrapped by the master key; seals deliveries that belong to no conversation. None before the first of them."""
    created_at: float
    mac: bytes | None = _mac()


class Principal(SQLModel, table=True):
    """A person or bot, with its role here."""

    id: str = Field(primary_key=True)
    workspace_id: str = Field(foreign_key="workspace.id")
    name: str
    role: str
    """owner or member; viewer for a Member who may only look: a stranger to agents. Strangers have no row."""
    created_at: float
    mac: bytes | None = _mac()


class Identity(SQLModel, table=True):
    """Who a Principal is on one service."""

    __table_args__ = (Index("identity_by_subject", "workspace_id", "integration", "subject", unique=True),)

    id: str = Field(primary_key=True)
    workspace_id: str = Field(foreign_key="workspace.id")
    principal_id: str = Field(foreign_key="principal.id", index=True)
    integration: str
    subject: str
    """The service's own, unchangeable id of the person; never a name."""
    mac: bytes | None = _mac()


class Pairing(SQLModel, table=True):
    """A code that makes whoever presents it to a Connection a Principal, or one that is there, once and soon."""

    __table_args__ = (Index("pairing_by_digest", "connection_id", "digest", unique=True),)

    id: str = Field(primary_key=True)
    workspace_id: str = Field(foreign_key="workspace.id")
    connection_id: str
    digest: str
    """A hash of the code; the code itself is shown once and kept nowhere."""
    role: str
    created_at: float
    expires_at: float
    used_at: float | None = None
    used_by: str = ""
    principal_id: str | None = None
    """Who made it, to be known elsewhere, too: whoever presents it is that person."""
    mac: bytes | None = _mac()


class Stranger(SQLModel, table=True):
    """Somebody unknown at a Connection: what keeps guessing and pestering within bounds."""

    connection_id: str = Field(primary_key=True)
    subject: str = Field(primary_key=True)
    told_at: float | None = None
    """When they were last told that they are not known."""
    guesses: int = 0
    """Wrong codes since `guessing_since`."""
    guessing_since: float = 0


class Member(SQLModel, table=True):
    """Somebody who may sign in here."""

    __table_args__ = (Index("member_by_name", "workspace_id", "name", unique=True),)

    id: str = Field(primary_key=True)
    workspace_id: str = Field(foreign_key="workspace.id")
    name: str
    """What they sign in with; lower case."""
    role: str
    """owner, operator or viewer."""
    password: str = ""
    """An Argon2id hash in PHC form; empty while they sign in by links only."""
    created_at: float
    signed_in_at: float | None = None
    mac: bytes | None = _mac()


class WebSession(SQLModel, table=True):
    """A signed-in browser."""

    __tablename__ = "web_session"

    digest: str = Field(primary_key=True)
    """A hash of the cookie's value, which itself is kept nowhere."""
    member_id: str = Field(foreign_key="member.id", index=True, ondelete="CASCADE")
    by: str
    """How it began: password or link."""
    address: str = ""
    agent: str = ""
    """The browser, in its own words."""
    created_at: float
    seen_at: float
    expires_at: float
    confirmed_at: float | None = None
    """When its owner last gave their password or a fresh link; None since it began."""
    mac: bytes | None = _mac()


class ApiToken(SQLModel, table=True):
    """A program's way in, in the name of a Member."""

    __tablename__ = "api_token"
    __table_args__ = (Index("api_token_by_digest", "digest", unique=True),)

    id: str = Field(primary_key=True)
    member_id: str = Field(foreign_key="member.id", index=True, ondelete="CASCADE")
    name: str
    digest: str
    """A hash of the token, which itself is shown once and kept nowhere."""
    scope: str
    """read, write or admin: the most it may do, whatever the member may."""
    scopes: str | None = None
    """`noun:scope` words where it may use those nouns only, such as `jobs:write messages:read`."""
    created_at: float
    expires_at: float | None = None
    used_at: float | None = None
    mac: bytes | None = _mac()


class Device(SQLModel, table=True):
    """A key that a program connects with over the gateway protocol, in the name of a Member."""

    id: str = Field(primary_key=True)
    """The hash of its public key, in hex."""
    member_id: str = Field(foreign_key="member.id", index=True, ondelete="CASCADE")
    name: str
    scopes: str
    """What its token may do at most: words such as `operator.write`."""
    digest: str | None = None
    """A hash of its token, which itself is shown once and kept nowhere."""
    created_at: float
    paired_at: float | None = None
    """When an owner let it in; None while it waits for that."""
    used_at: float | None = None
    mac: bytes | None = _mac()


class SignInLink(SQLModel, table=True):
    """A link that signs a Member in, once and soon."""

    __tablename__ = "sign_in_link"

    digest: str = Field(primary_key=True)
    member_id: str = Field(foreign_key="member.id", index=True, ondelete="CASCADE")
    created_at: float
    expires_at: float
    used_at: float | None = None
    mac: bytes | None = _mac()


class SignInDelay(SQLModel, table=True):
    """How long a name or an address must wait after failed sign-ins."""

    __tablename__ = "sign_in_delay"

    key: str = Field(primary_key=True)
    """A hash of the name or address."""
    failures: int = 0
    failed_at: float
    until: float = 0


class AuditEntry(SQLModel, table=True):
    """A change somebody asked for. Written before the change is made, so none goes unrecorded."""

    __tablename__ = "audit_entry"
    __table_args__ = (Index("audit_entry_by_place", "place", unique=True), _NEVER_REUSE_IDS)

    id: int | None = _serial()
    workspace_id: str
    member_id: str
    """Empty for the command line."""
    name: str
    via: str
    """session, token or socket."""
    address: str = ""
    action: str
    """What was asked, such as `jobs.cancel`."""
    subject: str = ""
    """What it was asked of."""
    data: dict[str, Any] = _json()
    status: int = 0
    """How it was answered; 0 while it is not known."""
    at: float
    place: int | None = _big(default=None, nullable=True)
    """Its number in the chain; NULL in an entry that the release before wrote."""
    link: bytes | None = _bytes(nullable=True)
    """A hash over the link before and everything here but how it ended."""
    end_mac: bytes | None = _bytes(nullable=True)
    """Over its link, status and data, once it has ended."""


class AuditHead(SQLModel, table=True):
    """Where the chain of the audit log ends, signed: a log that was cut or emptied does not lead there."""

    __tablename__ = "audit_head"

    id: str = Field(primary_key=True)
    """Always `head`."""
    place: int = _big()
    link: bytes = _bytes()
    mac: bytes = _bytes()


class IdempotencyKey(SQLModel, table=True):
    """A request that may be repeated without being done twice, and what it was answered."""

    __tablename__ = "idempotency_key"
    __table_args__ = (Index("idempotency_key_by_time", "created_at"),)

    member_id: str = Field(primary_key=True)
    key: str = Field(primary_key=True)
    fingerprint: str
    """A hash of what was asked: the same key with another request is a mistake."""
    status: int = 0
    """0 while it is being done."""
    answer: str = ""
    """Its location and body; empty when the body held a secret, which is shown once."""
    created_at: float


class Agent(SQLModel, table=True):
    """An identity, a model, a set of tools and limits."""

    __table_args__ = (Index("agent_by_name", "workspace_id", "name", unique=True),)

    id: str = Field(primary_key=True)
    workspace_id: str = Field(foreign_key="workspace.id")
    name: str
    model: str
    settings: dict[str, Any] = _json()
    max_running: int | None = None
    """How many of its jobs may run at once, over all workers; None for no bound."""
    load: dict[str, Any] | None = Field(
        default=None, sa_column=Column(JSON(none_as_null=True), nullable=True)
    )
    """What `gofer.goals.load` counts of its tasks."""
    created_at: float
    mac: bytes | None = _mac()


class Route(SQLModel, table=True):
    """Which Agent hears which events."""

    id: str = Field(primary_key=True)
    workspace_id: str = Field(foreign_key="workspace.id")
    agent_id: str = Field(foreign_key="agent.id", index=True)
    connection_id: str | None = Field(default=None, foreign_key="connection.id", index=True)
    """None hears every connection."""
    event: str = "*"
    """An event kind, or a prefix ending in `*`."""
    trigger: str = "any"
    """What wakes the agent: any addressed message, or one trigger (mention, command, label …)."""
    priority: int = 0
    """Of the jobs it makes; lower runs first."""
    kind: str = Field(default="route", sa_column=Column(String, nullable=False, server_default="route"))
    """`route`: the first that fits answers. `also`: answers beside it. `default`: answers what no route fits."""
    rank: int = Field(default=0, sa_column=Column(Integer, nullable=False, server_default="0"))
    """The order in which routes are tried; the most specific comes first."""
    mac: bytes | None = _mac()


class Conversation(SQLModel, table=True):
    """An ordered list of messages; its row is the lock that intake and the end of a job share."""

    id: str = Field(primary_key=True)
    workspace_id: str = Field(foreign_key="workspace.id")
    kind: str
    title: str
    data_key: bytes | None = _bytes(nullable=True)
    """Wrapped by the master key; None once purged, and with it everything sealed."""
    last_seq: int = _big()
    agent_id: str | None = None
    """The agent that an owner chose for it; None for those that the routes say."""
    model: str = Field(default="", sa_column=Column(String, nullable=False, default=""))
    """The model that an owner chose for it; empty for the agent's own."""
    private: bool | None = None
    """Whether nobody but one person and Gofer reads it, as its integration said; None (not known) counts as no."""
    pruned_replies: int | None = _big(default=None, nullable=True)
    """How many of its replies were pruned, so that the numbers of the others stay; None for none."""
    created_at: float
    purged_at: float | None = None
    closed_at: float | None = None
    """When its place was closed, such as an issue; no external agent is woken there then. None while it is open."""


class Binding(SQLModel, table=True):
    """Where a Conversation meets the outside."""

    __table_args__ = (
        Index("binding_by_ref", "connection_id", "ref", unique=True),
        Index("binding_by_lasting", "connection_id", "lasting", **_where("lasting IS NOT NULL")),
    )

    id: str = Field(primary_key=True)
    conversation_id: str = Field(foreign_key="conversation.id", index=True, ondelete="CASCADE")
    connection_id: str = Field(foreign_key="connection.id")
    ref: str
    """The service's reference: a chat and topic, a repository and number."""
    lasting: str | None = None
    """Stable id of the place when its reference can be renamed or reused."""


class Delivery(SQLModel, table=True):
    """One inbound request or polled update, kept as received."""

    __table_args__ = (
        Index("delivery_by_external_id", "connection_id", "external_id", unique=True),
        Index("delivery_by_body", "connection_id", "body_hash", "received_at"),
        Index(
            "delivery_by_message",
            "connection_id",
            "message_digest",
            unique=True,
            **_where("message_digest IS NOT NULL"),
        ),
        Index("delivery_to_prune", "received_at", **_where("message_digest IS NULL OR sealed IS NOT NULL")),
        Index("delivery_of_connection", "connection_id", "id"),
        Index("delivery_noted", "received_at", **_where("conversation_id IS NULL AND sealed IS NOT NULL")),
        _NEVER_REUSE_IDS,
    )

    id: int | None = _serial()
    workspace_id: str = Field(foreign_key="workspace.id")
    connection_id: str = Field(foreign_key="connection.id")
    external_id: str
    """The service's id, or a hash where it has none: what makes a repeat a repeat."""
    body_hash: str
    """A keyed digest of its body: what makes the same body again a repeat."""
    source: str
    """How it came: webhook, poll, catchup, replay, schedule, button."""
    event: str
    note: str = ""
    """Why it became no message, if it did not."""
    conversation_id: str | None = Field(
        default=None, foreign_key="conversation.id", index=True, ondelete="CASCADE"
    )
    message_seq: int | None = None
    sealed: bytes | None = _bytes(nullable=True)
    """Headers (without the secret ones) and body."""
    message_digest: str | None = None
    """A keyed digest of the service's own id of what was said, where delivery ids are not signed: it stays when the
    words are pruned or purged, so that a repeat is known for ever."""
    received_at: float


class Message(SQLModel, table=True):
    """One entry in a Conversation."""

    __table_args__ = (
        Index(
            "message_of_stranger", "connection_id", "author", "admitted_at", **_where("trust = 'stranger'")
        ),
    )

    conversation_id: str = Field(foreign_key="conversation.id", primary_key=True, ondelete="CASCADE")
    seq: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    author: str
    """The integration's id of the author, or `agent:<id>`."""
    addressed: bool
    trust: str = Trust.UNKNOWN
    event: str
    connection_id: str | None = None
    external_id: str = ""
    """This message's id at the service; replies and edits refer to it."""
    sealed: bytes | None = _bytes(nullable=True)
    """Text, author's name, attachments and facts, as `gofer.store.messages` writes them."""
    admitted_at: float | None = None
    created_at: float


class Blob(SQLModel, table=True):
    """Bytes by keyed digest, within one Conversation so that purging it is real."""

    conversation_id: str = Field(foreign_key="conversation.id", primary_key=True, ondelete="CASCADE")
    hash: str = Field(primary_key=True)
    media_type: str
    size: int
    sealed: bytes = _bytes()
    created_at: float


class Participant(SQLModel, table=True):
    """An Agent in a Conversation."""

    __table_args__ = (
        Index("participant_by_agent", "conversation_id", "agent_id", unique=True),
        Index("participant_wanted", "id", **_where("wake_seq > read_seq")),
    )

    id: str = Field(primary_key=True)
    conversation_id: str = Field(foreign_key="conversation.id", ondelete="CASCADE")
    agent_id: str = Field(foreign_key="agent.id")
    read_seq: int = _big()
    """What it has dealt with."""
    wake_seq: int = _big()
    """The last message or trigger that wants it; a Job exists while this is ahead of `read_seq`."""
    epoch_seq: int = _big()
    """Where its memory of the conversation begins; `/new` moves it."""
    priority: int = 0
    summary: bytes | None = _bytes(nullable=True)
    """What is kept of everything its last checkpoint covers, sealed."""
    muted_at: float | None = None
    """When somebody there asked that the agent's heartbeat writes nothing there; None while it may."""
    ack_seq: int | None = _big(default=None, nullable=True)
    """The last message that an external agent itself said it has read; None when it never said so."""
    blocked_at: float | None = None
    """When an external agent was stopped here because it got nowhere; a person unblocks it."""
    blocked_reason: str | None = None
    """The code of why."""
    unblocked_at: float | None = None
    """When a person last unblocked it: what came before does not count against it."""


class Job(SQLModel, table=True):
    """A durable promise to do one piece of work."""

    __table_args__ = (
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
        Index("job_of_parent", "parent_id", **_where("parent_id IS NOT NULL")),
        _NEVER_REUSE_IDS,
    )

    id: int | None = _serial()
    """Assigned in order; the order of work, never a clock."""
    workspace_id: str = Field(foreign_key="workspace.id")
    kind: str
    pool: str = "agent"
    """Which of a worker's slots it takes: agent (may last hours), service (short errands, never starved) or worker
    (tasks, beside which answers keep their slots)."""
    state: str
    lane: str
    """What it must not run beside; for an agent's answer, its Participant."""
    priority: int = 0
    """Lower runs first."""
    run_at: float = 0
    attempts: int = 0
    """Tries that count; a snooze gives its try back."""
    max_attempts: int = 5
    fence: int = _big()
    """Grows at each claim and is never reused; every write of a run carries it."""
    owner: str | None = None
    """The process that holds the lease; a fresh id per process start."""
    lease_until: float | None = None
    cancel_requested: bool = False
    event_seq: int = _big()
    """The number of its last event."""
    conversation_id: str | None = Field(default=None, foreign_key="conversation.id", ondelete="CASCADE")
    participant_id: str | None = Field(default=None, foreign_key="participant.id", ondelete="CASCADE")
    agent_id: str | None = None
    connection_id: str | None = None
    covers_from: int = _big()
    """Messages after this one are what it answers …"""
    covers_to: int | None = _big(default=None, nullable=True)
    """… up to this one; None until its end is known."""
    payload: dict[str, Any] = _json()
    unique_key: str | None = None
    """At most one job ever has it; what makes a cron tick happen once."""
    parent_id: int | None = _big(default=None, nullable=True)
    """The job that made it and may wait for it, in the same conversation."""
    reason: str = ""
    """Code of why it is where it is."""
    created_at: float
    finished_at: float | None = None


class Attempt(SQLModel, table=True):
    """One try at a Job by one worker."""

    job_id: int = Field(sa_column=Column(Serial, ForeignKey("job.id", ondelete="CASCADE"), primary_key=True))
    fence: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    number: int
    owner: str
    started_at: float
    ended_at: float | None = None
    outcome: str = ""
    """done, retry, snoozed, waiting, cancelled, dead, lost; empty while it runs."""
    reason: str = ""
    cost: float = 0
    """In dollars."""


class Question(SQLModel, table=True):
    """Something a run asks a person."""

    __table_args__ = (Index("question_open", "expires_at", **_where("answered_at IS NULL")),)

    id: str = Field(primary_key=True)
    job_id: int = _big(foreign="job.id", index=True)
    call_id: str = ""
    """The tool call that asked it."""
    conversation_id: str | None = Field(default=None, foreign_key="conversation.id", ondelete="CASCADE")
    asked_of: str = ""
    """Who may answer: an author's id, a role such as `role:owner`, or empty for any member."""
    sealed: bytes | None = _bytes(nullable=True)
    choices: bytes | None = _bytes(nullable=True)
    """What may be answered by a button, sealed."""
    answer: bytes | None = _bytes(nullable=True)
    """Sealed like the question."""
    asked_at: float
    expires_at: float | None = None
    answered_at: float | None = None
    mac: bytes | None = _mac()


class Reply(SQLModel, table=True):
    """One part of something we send."""

    __table_args__ = (
        Index("reply_once", "job_id", "kind", "part", unique=True),
        Index("reply_unsent", "binding_id", "id", **_where("state IN ('planned','placed')")),
        Index("reply_to_confirm", "binding_id", **_where("confirm_at IS NOT NULL")),
        Index("reply_of_conversation", "conversation_id", "id"),
        Index("reply_failed_in", "failed_in", **_where("failed_in IS NOT NULL")),
        _NEVER_REUSE_IDS,
    )

    id: int | None = _serial()
    workspace_id: str = Field(foreign_key="workspace.id")
    conversation_id: str = Field(foreign_key="conversation.id", ondelete="CASCADE")
    binding_id: str = Field(foreign_key="binding.id", ondelete="CASCADE")
    job_id: int = _big(foreign="job.id")
    kind: str = "final"
    """final, error or note."""
    part: int
    parts: int
    reply_to: str = ""
    """The external id of the message it answers."""
    sealed: bytes | None = _bytes(nullable=True)
    state: str = ReplyState.PLANNED
    external_id: str = ""
    tries: int = 0
    """How often sending it was begun; more than none means that it may exist outside."""
    reason: str = ""
    created_at: float
    sent_at: float | None = None
    confirm_at: float | None = None
    """After a takeover: when to repeat the final edit, past any late write of the old owner."""
    failed_in: int | None = _big(default=None, nullable=True)
    """The deliver job that gave it up; redriving that job sends it again."""


class Showing(SQLModel, table=True):
    """What a service shows while a job works (a progress message), so that it is removed whoever ends the job."""

    job_id: int = Field(sa_column=Column(Serial, ForeignKey("job.id", ondelete="CASCADE"), primary_key=True))
    connection_id: str
    ref: str
    external_id: str


class Event(SQLModel, table=True):
    """One row of the append-only log."""

    __table_args__ = (
        Index("event_of_job", "job_id", "seq", unique=True),
        Index("event_of_conversation", "conversation_id", "id"),
        Index("event_in_order", "tx", "id"),
        Index("event_of_no_job", "at", **_where("job_id IS NULL")),
        Index("event_of_supervisor", "id", **_where(f"kind IN {SUPERVISED}")),
        _NEVER_REUSE_IDS,
    )

    id: int | None = _serial()
    workspace_id: str
    kind: str
    version: int = 1
    parent_id: int | None = _big(default=None, nullable=True)
    conversation_id: str | None = Field(default=None, foreign_key="conversation.id", ondelete="CASCADE")
    job_id: int | None = _big(default=None, nullable=True, foreign="job.id")
    seq: int | None = _big(default=None, nullable=True)
    """Its number within the job."""
    fence: int | None = _big(default=None, nullable=True)
    """Which Attempt it belongs to."""
    delivery_id: int | None = _big(default=None, nullable=True)
    reply_id: int | None = _big(default=None, nullable=True)
    data: dict[str, Any] = _json()
    """Facts without anybody's words."""
    sealed: bytes | None = _bytes(nullable=True)
    """Words."""
    tx: int = _big()
    """The writing transaction on Postgres, by which followers wait for those that commit late; 0 on SQLite."""
    at: float


class Spend(SQLModel, table=True):
    """Money set aside for, or paid for, one model call. Outlives its job: budgets and bills need it."""

    __table_args__ = (
        Index("spend_once", "job_id", "key", unique=True),
        Index("spend_of_agent", "agent_id", "day"),
        # Covers what the costs are summed up by, so that no row is read for it.
        Index("spend_by_day", "day", "agent_id", "model", "connection_id", "micros"),
        Index("spend_of_conversation", "conversation_id"),
        Index("spend_of_goal", "goal_id", **_where("goal_id IS NOT NULL")),
    )

    id: int | None = _serial()
    workspace_id: str
    agent_id: str
    conversation_id: str
    connection_id: str = ""
    """Where the work came from."""
    job_id: int = _big()
    key: str
    """Which call of the job."""
    model: str = ""
    """Which model was called; empty until the call is settled."""
    day: str
    """In the workspace's time zone, such as 2026-11-16."""
    micros: int = _big()
    """Millionths of a dollar: the worst case until the call is settled, then what it cost."""
    settled: bool = False
    background: bool = Field(
        default=False, sa_column=Column(Boolean, nullable=False, server_default=false(), default=False)
    )
    """For a job nobody waits for."""
    goal_id: str | None = None
    """The Goal it was spent for."""


class Shell(SQLModel, table=True):
    """The sandboxed session of a Conversation and Agent, as the sandbox needs it to attach again."""

    conversation_id: str = Field(foreign_key="conversation.id", primary_key=True, ondelete="CASCADE")
    agent_id: str = Field(primary_key=True)
    record: dict[str, Any] = _json()
    trust: str
    """Trust of the run it was made for; a run with more trust gets a new shell."""
    used_at: float
    mac: bytes | None = _mac()


class MemoryIndex(SQLModel, table=True):
    """How far the memories of a scope can be searched."""

    __tablename__ = "memory_index"
    __table_args__ = (Index("memory_index_by_scope", "scope_id", unique=True), _NEVER_REUSE_IDS)

    id: int | None = _serial()
    scope_id: str
    """A conversation, a person or an agent, as `gofer.memory.scopes` names them."""
    documents: int = 0
    """How many memories it has; also its version, because it only grows."""
    length: int = _big()
    """Terms of all of them."""
    upto_seq: int = _big()
    """The last message of a conversation that it has."""
    generation: int = 0
    """Of the key that its terms are hashed with; `gofer memory reindex` begins another."""
    made_at: float


class MemoryPosting(SQLModel, table=True):
    """Which memories of a block have a term, sealed."""

    __tablename__ = "memory_posting"
    __table_args__ = {"sqlite_with_rowid": False}

    index_id: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    term: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    """A keyed hash of 63 bits; 0 and 1 are no terms: `gofer.memory.index` says what they are."""
    block: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    sealed: bytes = _bytes()


class Schedule(SQLModel, table=True):
    """A job to make again and again."""

    __table_args__ = (Index("schedule_by_name", "workspace_id", "name", unique=True),)

    id: str = Field(primary_key=True)
    workspace_id: str = Field(foreign_key="workspace.id")
    name: str
    cron: str
    timezone: str = "UTC"
    missed: str = "once"
    """What to do with runs missed while nobody was there: skip, once or all."""
    kind: str
    payload: dict[str, Any] = _json()
    enabled: bool = True
    next_at: float = 0
    created_at: float
    mac: bytes | None = _mac()


class Memory(SQLModel, table=True):
    """One version of something that is remembered. A turn has a row only once somebody forgot it.

    What a version says (text, kind, trust, source, covers) is inside `sealed`, which is bound to the scope, the id and
    the version. The columns are for look-ups.
    """

    __table_args__ = (
        Index("memory_in_force", "scope_id", "kind", "id", **_where("valid_to IS NULL")),
        Index("memory_of_conversation", "conversation_id"),
        Index("memory_to_index", "scope_id", **_where("NOT indexed")),
    )

    id: str = Field(primary_key=True)
    """`mem_…`; never given to anything else."""
    version: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    scope_id: str
    """Who may know it: `conversation:…`, `person:…` or `agent:…`. Its key seals it."""
    kind: str
    """turn, result, plan, summary, note or rule."""
    state: str = "live"
    """live or forgotten."""
    conversation_id: str | None = None
    """Where it came from. The source may be purged before it."""
    message_seq: int | None = _big(default=None, nullable=True)
    job_id: int | None = _big(default=None, nullable=True)
    call_id: str = ""
    trust: str
    """Of whoever said it."""
    sealed: bytes | None = _bytes(nullable=True)
    """Its text and what is known of it; None in a version that forgets, and once purged."""
    gist: bytes | None = _bytes(nullable=True)
    """What it is about in at most 160 characters, sealed apart, so that a list opens no texts."""
    size: int = 0
    """Characters of its text."""
    valid_from: float
    valid_to: float | None = None
    """When a later version took its place; None for the version in force."""
    indexed: bool = Field(
        default=False, sa_column=Column(Boolean, nullable=False, server_default=false(), default=False)
    )
    """Whether it can be searched for."""


class Goal(SQLModel, table=True):
    """Something that a person wants: planned, done by Tasks, and reported once."""

    __table_args__ = (
        Index("goal_of_conversation", "conversation_id", "created_at"),
        Index("goal_under_way", "agent_id", **_where("finished_at IS NULL")),
    )

    id: str = Field(primary_key=True)
    """`goal_…`."""
    workspace_id: str = Field(foreign_key="workspace.id")
    conversation_id: str = Field(foreign_key="conversation.id", ondelete="CASCADE")
    connection_id: str | None = None
    """Where it was asked for."""
    agent_id: str
    participant_id: str
    asked_by: str
    """Who wants it: the author of the message, as its service knows them."""
    trust: str
    """Of whoever wants it. Its Tasks have no more."""
    narrowed: bool = False
    """A Task has read strangers' text: what comes of it has a stranger's trust."""
    message_seq: int | None = _big(default=None, nullable=True)
    """The message that asked for it."""
    sealed: bytes | None = _bytes(nullable=True)
    """What is wanted."""
    state: str
    """planning, active, blocked, paused, done, failed or cancelled."""
    reason: str = ""
    """Code of why it is where it is."""
    budget: int | None = _big(default=None, nullable=True)
    """Millionths of a dollar that it may cost; None for no budget of its own."""
    spent: int = _big()
    until: float | None = None
    """When it has to be done."""
    replans: int = 0
    """How often its plan was changed."""
    needs_approval: bool = False
    """Whether somebody has to approve its plan before work begins."""
    job_id: int | None = _big(default=None, nullable=True)
    """The job that drives it."""
    event_seq: int = _big()
    """Grows with each change."""
    created_at: float
    changed_at: float
    finished_at: float | None = None
    mac: bytes | None = _mac()


class Task(SQLModel, table=True):
    """A piece of work for a Worker run: one of a Goal, or one that a run delegated."""

    __table_args__ = (
        Index("task_of_goal", "goal_id", "number", **_where("goal_id IS NOT NULL")),
        Index("task_of_run", "parent_job_id", "call_id", "number", unique=True),
        Index("task_of_conversation", "conversation_id", "created_at"),
        Index("task_unfinished", "agent_id", "state", **_where("finished_at IS NULL")),
    )

    id: str = Field(primary_key=True)
    """`task_…`."""
    workspace_id: str = Field(foreign_key="workspace.id")
    conversation_id: str = Field(foreign_key="conversation.id", ondelete="CASCADE")
    agent_id: str
    """Whose worker does it."""
    goal_id: str | None = Field(default=None, foreign_key="goal.id", ondelete="CASCADE")
    parent_job_id: int | None = _big(default=None, nullable=True)
    """The run that delegated it."""
    call_id: str = ""
    """The tool call that delegated it."""
    number: int
    """Its place in the order."""
    kind: str
    """research, execution or status; plan and report are what a Goal's driver asks of a model."""
    state: str
    """queued, running, done, failed, blocked or dropped."""
    needs: list[int] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    """The numbers of the tasks that it depends on."""
    sealed: bytes | None = _bytes(nullable=True)
    """Title, instructions, and what decides what it may do: kind and trust."""
    result: bytes | None = _bytes(nullable=True)
    """Summary, artefacts and open points, sealed."""
    reason: str = ""
    """Code of why it is where it is."""
    job_id: int | None = _big(default=None, nullable=True)
    """The job of its last try."""
    tries: int = 0
    cost: float = 0
    """In dollars."""
    created_at: float
    started_at: float | None = None
    finished_at: float | None = None


class HeartbeatFinding(SQLModel, table=True):
    """Something that an agent's heartbeat found in a conversation, and what became of it. It has nobody's words."""

    __tablename__ = "heartbeat_finding"
    __table_args__ = (
        Index("heartbeat_finding_once", "key", unique=True),
        Index("heartbeat_finding_in_conversation", "conversation_id", "settled_at"),
        Index("heartbeat_finding_of_agent", "agent_id", "found_at"),
        Index("heartbeat_finding_of_job", "job_id"),
        Index("heartbeat_finding_of_subject", "agent_id", "subject", "found_at"),
    )

    id: str = Field(primary_key=True)
    agent_id: str
    conversation_id: str = Field(foreign_key="conversation.id", ondelete="CASCADE")
    """Where it belongs, and where alone it is told."""
    code: str
    """What was found, such as `question.unanswered`."""
    subject: str
    """What it is about: a question, a job, a connection, an item of HEARTBEAT.md."""
    key: str
    """Agent, code, subject and period: the same thing is found once."""
    recommendation: str
    """The code of what is recommended."""
    state: str = "found"
    """found, nudged, quiet (the run chose to say nothing) or dropped."""
    reason: str = ""
    """Why it was dropped or stayed quiet."""
    job_id: int | None = _big(default=None, nullable=True)
    """The heartbeat job that deals with it; the job may be pruned before the finding."""
    found_at: float
    settled_at: float | None = None
    """When it was decided what becomes of it."""


class Runtime(SQLModel, table=True):
    """An external agent's process as Gofer knows it."""

    __table_args__ = (
        Index("runtime_by_name", "name", unique=True),
        Index("runtime_of_agent", "agent_id"),
    )

    id: str = Field(primary_key=True)
    name: str
    agent_id: str = Field(foreign_key="agent.id")
    kind: str
    """tmux, acp or callback."""
    member_id: str
    """Whose it is: only this member's host may announce it and gets its orders."""
    host: str = ""
    """The machine of the host that announced it last."""
    program: str = ""
    """What runs there, as the host says."""
    session: str = ""
    """Its session there; empty for none."""
    can_resume: bool = False
    can_spawn: bool = False
    """Whether Gofer may ask its host for these: what the host says its own file has a command for."""
    reported: str = "registered"
    """registered (never seen), live, idle or offline: what its host said last."""
    seen_at: float | None = None
    """When its host last announced it."""
    active_at: float | None = None
    """When its session last did something: it was seen alive, acknowledged or answered."""
    crashes: list[float] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    """When its session died by itself, the last few times."""
    drained_at: float | None = None
    """When somebody asked that it gets nothing new; None while it may."""
    callback_url: str = ""
    callback_secret: str = ""
    """The name of the secret that signs requests to the address."""
    created_at: float
    mac: bytes | None = _mac()


class Hop(SQLModel, table=True):
    """One step of a Trigger: one delivery to a runtime, or the end of the chain. It has nobody's words."""

    __table_args__ = (
        Index("hop_for_host", "host", "deadline", **_where("state IN ('queued','taken')")),
        Index("hop_of_agent", "agent_id", "created_at"),
        Index("hop_of_conversation", "conversation_id", "created_at"),
    )

    job_id: int = Field(sa_column=Column(Serial, ForeignKey("job.id", ondelete="CASCADE"), primary_key=True))
    number: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    conversation_id: str = Field(foreign_key="conversation.id", ondelete="CASCADE")
    agent_id: str
    runtime_id: str | None = None
    """Where it goes; None for a hop that needs no runtime. The runtime may be removed before it."""
    host: str = ""
    action: str
    """live, resume, spawn, fallback or dead_letter."""
    state: str
    """queued, taken, delivered, acknowledged, answered, read, failed or cancelled."""
    reason: str = ""
    """Code of why it ended, or of what holds it up."""
    tries: int = 0
    """How often a host took it."""
    covers_to: int = _big()
    """The last message that it tells of."""
    fence: int = _big()
    """Of the attempt that made it."""
    said: str = ""
    """A keyed digest of what was answered, to notice the same words again."""
    deadline: float
    """When the Trigger goes on without it."""
    created_at: float
    delivered_at: float | None = None
    ended_at: float | None = None


class Worker(SQLModel, table=True):
    """A process that is or was there."""

    id: str = Field(primary_key=True)
    """Fresh at each start; the owner that leases name."""
    host: str
    pid: int
    roles: str
    version: str
    started_at: float
    seen_at: float


def table(model: type[SQLModel]) -> Table:
    """The Core table behind a class, for the engine's hot statements."""
    return cast(Table, model.__table__)  # type: ignore[attr-defined]


workspaces = table(Workspace)
master_keys = table(MasterKey)
secrets = table(Secret)
connections = table(Connection)
principals = table(Principal)
identities = table(Identity)
pairings = table(Pairing)
strangers = table(Stranger)
members = table(Member)
web_sessions = table(WebSession)
api_tokens = table(ApiToken)
devices = table(Device)
sign_in_links = table(SignInLink)
sign_in_delays = table(SignInDelay)
audit_entries = table(AuditEntry)
audit_heads = table(AuditHead)
idempotency_keys = table(IdempotencyKey)
agents = table(Agent)
routes = table(Route)
conversations = table(Conversation)
bindings = table(Binding)
deliveries = table(Delivery)
messages = table(Message)
blobs = table(Blob)
participants = table(Participant)
jobs = table(Job)
attempts = table(Attempt)
questions = table(Question)
replies = table(Reply)
showings = table(Showing)
events = table(Event)
spends = table(Spend)
shells = table(Shell)
memory_indexes = table(MemoryIndex)
memory_postings = table(MemoryPosting)
schedules = table(Schedule)
memories = table(Memory)
goals = table(Goal)
tasks = table(Task)
heartbeat_findings = table(HeartbeatFinding)
runtimes = table(Runtime)
hops = table(Hop)
workers = table(Worker)

# No code makes an object of a table's class: give back what would map objects to rows, more than 1 MiB. The classes
# lose `__table__` with it; the tables above stay.
SQLModel._sa_registry.dispose()
