"""What people and agents ask about participants: wake one, acknowledge, unblock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select, update

from gofer.errors import Conflict, Malformed, NotFound
from gofer.jobs.control import signal
from gofer.jobs.kinds import ANSWER
from gofer.jobs.queue import submit
from gofer.runs.answer import TRIGGER
from gofer.runs.posts import Post, submit_post
from gofer.runtimes import hops as hop_rows
from gofer.runtimes.chain import ChainRules, next_hop
from gofer.runtimes.records import facts_of, runtime_for
from gofer.runtimes.safeguards import SafeguardRules, why_not
from gofer.store import events as log
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.db_time import now
from gofer.store.ids import new_id
from gofer.store.locks import lock_conversation
from gofer.store.tables import LIVE, JobState, agents, bindings, conversations, in_state, jobs, participants
from gofer.vault.envelope import Vault


@dataclass(frozen=True, slots=True)
class TriggerWish:
    """That a participant be woken."""

    by: str
    reason: str = ""
    force: bool = False
    agent: str = ""
    """The agent that asks; empty for a person."""


def find_participant(connection: Connection, conversation_id: str, agent: str) -> Any:
    """An agent's part in a conversation, with the agent's name; raises NotFound."""
    query = (
        select(
            participants, agents.c.name.label("agent"), conversations.c.last_seq, conversations.c.closed_at
        )
        .join(agents, agents.c.id == participants.c.agent_id)
        .join(conversations, conversations.c.id == participants.c.conversation_id)
        .where(participants.c.conversation_id == conversation_id, agents.c.name == agent)
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFound(
            f"{agent[:40]!r} takes no part in this conversation. `list_participants`, or `gofer runtimes "
            "participants`, shows who does."
        )
    return row


def unread_of(row: Any) -> int:
    """How many messages a participant has not acknowledged, up to the last that wants it."""
    return max(0, int(row.wake_seq) - int(row.ack_seq or 0))


def trigger(
    connection: Connection,
    *,
    conversation_id: str,
    agent: str,
    kind: str | None,
    fallback: str,
    wish: TriggerWish,
    heartbeat: float,
    chain: ChainRules,
    safeguards: SafeguardRules,
    wake_when_closed: bool,
) -> dict[str, Any]:
    """Wake a participant; returns the envelope: what is done, by which job, and why. Idempotent: while one Trigger is
    live there is no second one."""
    lock_conversation(connection, conversation_id)
    row = find_participant(connection, conversation_id, agent)
    trace = new_id("trace")
    envelope: dict[str, Any] = {"job": None, "runtime": None, "reason": "", "trace": trace}
    if kind is None:
        return {**envelope, "action": "refused", "reason": "agent.not_external"}
    if row.closed_at is not None and not wake_when_closed:
        return {**envelope, "action": "refused", "reason": "conversation.closed"}
    live = connection.execute(
        select(jobs.c.id, jobs.c.payload).where(jobs.c.lane == row.id, in_state(*LIVE, JobState.BLOCKED))
    ).first()
    if live is not None:
        if wish.force:
            forced = {**live.payload, TRIGGER: {**live.payload.get(TRIGGER, {}), "force": True}}
            connection.execute(update(jobs).where(jobs.c.id == live.id).values(payload=forced))
            hop_rows.force_deferred(connection, live.id)
            signal(connection, live.id, by=wish.by)
        return {**envelope, "action": "already_pending", "job": live.id}
    stopped = "" if wish.force else why_not(connection, row, safeguards)
    if stopped:
        return {**envelope, "action": "refused", "reason": stopped}
    runtime = runtime_for(connection, row.agent_id, kind, heartbeat)
    step = next_hop((), facts_of(runtime, heartbeat) if runtime is not None else None, chain)
    envelope["runtime"] = runtime.name if runtime is not None else None
    job_id = _submit(connection, row, wish, trace)
    through = step.action in ("live", "resume", "spawn")
    action = "enqueued" if through else "fallback_required"
    would = f"{step.action}:{fallback}" if step.action == "fallback" else step.action
    return {**envelope, "action": action, "job": job_id, "reason": step.why, "next": would}


def _submit(connection: Connection, row: Any, wish: TriggerWish, trace: str) -> int:
    connection.execute(
        update(participants)
        .where(participants.c.id == row.id, participants.c.wake_seq < row.last_seq)
        .values(wake_seq=row.last_seq)
    )
    place = connection.execute(
        select(bindings.c.connection_id)
        .where(bindings.c.conversation_id == row.conversation_id)
        .order_by(bindings.c.id)
        .limit(1)
    ).scalar()
    asked = {
        "by": wish.by,
        "agent": wish.agent,
        "reason": wish.reason,
        "force": wish.force,
        "to": row.last_seq,
        "trace": trace,
    }
    made = submit(
        connection,
        workspace_id=FIRST_WORKSPACE,
        kind=ANSWER,
        lane=row.id,
        priority=row.priority,
        payload={TRIGGER: asked},
        conversation_id=row.conversation_id,
        participant_id=row.id,
        agent_id=row.agent_id,
        connection_id=place,
        covers_from=row.read_seq,
    )
    if made is None:
        raise Conflict("The Trigger was not made. Ask again.")
    return made


def acknowledge(
    connection: Connection,
    *,
    conversation_id: str,
    agent: str,
    seq: int | None,
    hop: tuple[int, int] | None,
    done: bool,
    answer_within: float,
) -> dict[str, Any]:
    """Keep that an agent itself has read a conversation up to a message, or what a hop told it."""
    lock_conversation(connection, conversation_id)
    row = find_participant(connection, conversation_id, agent)
    if seq is None and hop is None:
        raise Malformed("seq: say up to which message it is read, or name the trigger and hop.")
    if seq is not None and seq > row.last_seq:
        raise Conflict(f"There is no message {seq} yet; the last is {row.last_seq}.")
    ignored = ""
    if hop is not None:
        found = hop_rows.find_hop(connection, conversation_id, agent, *hop)
        ignored = hop_rows.acknowledge(connection, found, done=done, answer_within=answer_within)
        seq = max(seq or 0, found.covers_to)
    read = max(row.ack_seq or 0, seq or 0)
    _raise_ack(connection, row.id, read)
    return {"conversation_id": conversation_id, "ack_seq": read, "ignored": bool(ignored), "reason": ignored}


def say_for_hop(
    connection: Connection, vault: Vault, *, conversation_id: str, agent: str, hop: tuple[int, int], text: str
) -> dict[str, Any]:
    """Say an external agent's answer to a hop in the conversation, once. Words for a hop that is over, or that was
    never handed out, are kept and never sent."""
    row = hop_rows.find_hop(connection, conversation_id, agent, *hop)
    said = vault.mac_key("hop").digest(conversation_id, " ".join(text.split()))
    counts = row.state != hop_rows.QUEUED and hop_rows.answered(connection, row, said)
    repeated = row.state == hop_rows.ANSWERED
    key = f"post:{hop[0]}:{hop[1]}" if counts or repeated else f"late:{hop[0]}:{hop[1]}:{said[:32]}"
    job_id = submit_post(
        connection,
        vault,
        Post(text),
        workspace_id=FIRST_WORKSPACE,
        conversation_id=conversation_id,
        agent=agent,
        unique_key=key,
        answers=row.covers_to,
        late=not counts and not repeated,
    )
    if counts:
        _raise_ack(connection, row.participant_id, row.covers_to)
        return {"job_id": job_id, "result": "accepted", "reason": ""}
    if repeated:
        return {"job_id": job_id, "result": "repeat", "reason": "hop.answered"}
    hop_rows.note_late(connection, row, job_id)
    return {"job_id": job_id, "result": "kept", "reason": hop_rows.late_reason(row)}


def _raise_ack(connection: Connection, participant_id: str, seq: int) -> None:
    behind = func.coalesce(participants.c.ack_seq, 0) < seq
    connection.execute(
        update(participants).where(participants.c.id == participant_id, behind).values(ack_seq=seq)
    )


def unblock(connection: Connection, conversation_id: str, agent: str, *, by: str) -> None:
    """Let a blocked participant be woken again; raises Conflict when it is not blocked."""
    lock_conversation(connection, conversation_id)
    row = find_participant(connection, conversation_id, agent)
    if row.blocked_at is None:
        raise Conflict(f"{agent} is not blocked in this conversation.")
    free = {"blocked_at": None, "blocked_reason": None, "unblocked_at": now()}
    connection.execute(update(participants).where(participants.c.id == row.id).values(**free))
    log.record(
        connection, "trigger.unblocked", FIRST_WORKSPACE, conversation_id=conversation_id,
        data={"agent": agent, "by": by, "was": row.blocked_reason},
    )  # fmt: skip
