"""What people do to jobs: cancel, redrive, answer a question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, case, select, update

from gofer.errors import Conflict, Forbidden, Malformed, NotFound
from gofer.jobs.children import (
    FOR_ALL,
    FOR_ANY,
    SIGNALLED,
    children_of,
    close_tasks,
    ready_parents,
)
from gofer.jobs.ensure import ensure_answer, ensure_job, live_state
from gofer.jobs.kinds import ANSWER, DELIVER, TASK
from gofer.jobs.lanes import promote_behind
from gofer.jobs.outcome import (
    ENDS_QUESTION,
    MEMBERS,
    OWNERS,
    PAUSE_REQUESTED,
    PAUSE_SECONDS,
    PAUSED,
    Draft,
)
from gofer.jobs.queue import lock_lane
from gofer.jobs.reply_planner import plan_replies
from gofer.store import events as log
from gofer.store import fast_sql, row_macs
from gofer.store.db_time import now
from gofer.store.encryption import conversation_key, seal, unseal
from gofer.store.locks import lock_conversation
from gofer.store.tables import (
    FINAL,
    LIVE,
    JobState,
    ReplyState,
    bindings,
    conversations,
    in_state,
    jobs,
    participants,
    questions,
    replies,
)
from gofer.vault.envelope import DataKey, Vault


def find_job(connection: Connection, job_id: int) -> Any:
    """A job's row; raises NotFound."""
    row = connection.execute(select(jobs).where(jobs.c.id == job_id)).one_or_none()
    if row is None:
        raise no_job(job_id)
    return row


def no_job(job_id: int) -> NotFound:
    """The error for a job that is not there."""
    return NotFound(f"There is no job {job_id}. `gofer jobs list` shows those there are.")


def _hold(connection: Connection, job_id: int) -> Any:
    """The job's row under the locks its end would take: conversation (or lane) first, then the job."""
    row = find_job(connection, job_id)
    if row.conversation_id is not None:
        lock_conversation(connection, row.conversation_id)
    else:
        lock_lane(connection, row.lane)
    return connection.execute(select(jobs).where(jobs.c.id == job_id).with_for_update()).one()


def _number(connection: Connection, job_id: int, **values: Any) -> Any:
    return connection.execute(
        update(jobs)
        .where(jobs.c.id == job_id)
        .values(event_seq=jobs.c.event_seq + 1, **values)
        .returning(jobs.c.event_seq, jobs.c.workspace_id, jobs.c.conversation_id)
    ).one()


def cancel(connection: Connection, job_id: int, *, by: str) -> JobState:
    """Ask a job to stop. Returns its state after that.

    A running job stops when its worker looks next, a moment later. A waiting job becomes ready, so that a worker ends
    it the same way and says so in the chat. A blocked job has not begun and ends here, and so does a task that nobody
    works on, of which no chat is told: it may wait long for a worker. The stop does not cover what is
    said from now on; that gets a job of its own. The jobs that it has made stop with it.
    """
    row = _hold(connection, job_id)
    was = JobState(row.state)
    if was in FINAL:
        raise Conflict(f"Job {job_id} has already ended ({was}).")
    values: dict[str, Any] = {"cancel_requested": True}
    if row.participant_id is not None and row.covers_to is None:
        values |= {"covers_to": _LAST_SEQ}
    ends_here = was is JobState.BLOCKED or (row.kind == TASK and was is not JobState.RUNNING)
    if ends_here:
        values |= {"state": JobState.CANCELLED, "reason": "cancelled", "finished_at": now()}
    elif was is not JobState.RUNNING:
        values |= {"state": JobState.READY}
    numbered = _number(connection, job_id, **values)
    # Also for one that waits no longer: the message that stops it may have woken it first.
    open_ones = (questions.c.job_id == job_id) & questions.c.answered_at.is_(None)
    connection.execute(update(questions).where(open_ones).values(answered_at=now()))
    log.record(
        connection, "job.cancel_requested", numbered.workspace_id, job_id=job_id, seq=numbered.event_seq,
        conversation_id=numbered.conversation_id, data={"by": by, "was": was},
    )  # fmt: skip
    for child in children_of(connection, job_id):
        cancel(connection, child, by=by)
    if ends_here:
        _end_unbegun(connection, row)
    return JobState(values.get("state", was))


def _end_unbegun(connection: Connection, row: Any) -> None:
    if row.state != JobState.BLOCKED:
        promote_behind(connection, [row.id])
    if row.kind == TASK:
        close_tasks(connection, [(row.id, JobState.CANCELLED, "cancelled")])
    if row.parent_id is not None:
        ready_parents(connection, {row.parent_id})


def pause(connection: Connection, job_id: int, *, by: str) -> JobState:
    """Let a run do nothing more until it is resumed. Returns its state after that.

    A running one goes on to the end of its step. What is said meanwhile is kept, and read afterwards. Raises Conflict
    for one that waits for an answer or for other jobs: it stands still already.
    """
    row = _hold(connection, job_id)
    was = JobState(row.state)
    if row.kind != ANSWER or was in FINAL or row.cancel_requested:
        raise Conflict(f"Job {job_id} cannot be paused: it is no run that goes on.")
    if was in (JobState.WAITING, JobState.BLOCKED):
        raise Conflict(f"Job {job_id} waits already. It can only be cancelled.")
    if is_paused(row):
        return was
    asleep = {"state": JobState.SCHEDULED, "run_at": now() + PAUSE_SECONDS, "reason": PAUSED}
    values: dict[str, Any] = {"reason": PAUSE_REQUESTED} if was is JobState.RUNNING else asleep
    note_event(connection, job_id, "job.paused", {"by": by, "was": was}, **values)
    return JobState(values.get("state", was))


def resume(connection: Connection, job_id: int, *, by: str) -> JobState:
    """Let a run go on that was paused. Returns its state after that; raises Conflict when it is not paused."""
    row = _hold(connection, job_id)
    if not is_paused(row):
        raise Conflict(f"Job {job_id} is not paused.")
    sleeps = row.state == JobState.SCHEDULED
    ready = {"state": JobState.READY, "run_at": now()} if sleeps else {}
    note_event(connection, job_id, "job.resumed", {"by": by}, reason="", **ready)
    return JobState(ready.get("state", row.state))


def is_paused(job: Any) -> bool:
    """Whether a job is paused, or will be at the end of its step."""
    return (job.state, job.reason) in (
        (JobState.SCHEDULED, PAUSED),
        (JobState.RUNNING, PAUSE_REQUESTED),
    )


def signal(connection: Connection, job_id: int, *, by: str) -> bool:
    """Tell a job that something it depends on has changed. Returns whether workers should look.

    A job that snoozes or waits for jobs becomes ready. One that runs goes on once more after its present run. Raises
    NotFound.
    """
    row = _hold(connection, job_id)
    waits = row.state == JobState.WAITING and row.reason in (FOR_ALL, FOR_ANY)
    sleeps = waits or (row.state == JobState.SCHEDULED and row.reason != PAUSED)
    if not sleeps and row.state != JobState.RUNNING:
        return False
    values = {"state": JobState.READY, "run_at": now()} if sleeps else {}
    numbered = _number(connection, job_id, **values)
    log.record(
        connection, SIGNALLED, numbered.workspace_id, job_id=job_id, seq=numbered.event_seq, fence=row.fence,
        conversation_id=numbered.conversation_id, data={"by": by},
    )  # fmt: skip
    return True


_LAST_SEQ = (
    select(conversations.c.last_seq).where(conversations.c.id == jobs.c.conversation_id).scalar_subquery()
)


def cancel_conversation(connection: Connection, conversation_id: str, *, by: str) -> int:
    """Ask every agent at work in a conversation to stop. Returns how many were at work. The caller holds its lock."""
    return _cancel_all(connection, jobs.c.conversation_id == conversation_id, by)


def _cancel_all(connection: Connection, which: ColumnElement[bool], by: str) -> int:
    query = select(jobs.c.id).where(
        which, jobs.c.kind == ANSWER, in_state(*LIVE, JobState.BLOCKED), ~jobs.c.cancel_requested
    )
    ids = list(connection.execute(query).scalars())
    for job_id in ids:
        cancel(connection, job_id, by=by)
    return len(ids)


def begin_afresh(connection: Connection, conversation_id: str, seq: int, *, by: str) -> int:
    """Let the agents of a conversation forget what was said up to a message, and end their work on it. Returns how many
    were at work.

    What they have not answered ends as well. An agent that was spoken to after that message keeps working. The caller
    holds the conversation's lock.
    """
    stopped = 0
    remembering = (participants.c.conversation_id == conversation_id) & (participants.c.epoch_seq < seq)
    for one in connection.execute(select(participants).where(remembering)).all():
        values = {"epoch_seq": seq}
        if one.wake_seq <= seq:
            stopped += _cancel_all(connection, jobs.c.participant_id == one.id, by)
            values |= {"read_seq": max(one.read_seq, seq)}
        connection.execute(update(participants).where(participants.c.id == one.id).values(**values))
    return stopped


def redrive(connection: Connection, job_id: int, *, by: str) -> JobState:
    """Run a dead or cancelled job again, with its history and at least one more try."""
    row = _hold(connection, job_id)
    if row.state not in (JobState.DEAD, JobState.CANCELLED):
        raise Conflict(f"Job {job_id} is {row.state}; only a dead or cancelled job can be redriven.")
    if row.parent_id is not None and not _waits_for_children(connection, row.parent_id):
        raise Conflict(
            f"Nobody waits for job {job_id} any more: job {row.parent_id}, which made it, went on."
        )
    taken = connection.execute(
        select(jobs.c.id).where(jobs.c.lane == row.lane, in_state(*LIVE)).limit(1)
    ).first()
    state = JobState.BLOCKED if taken else JobState.READY
    numbered = _number(
        connection,
        job_id,
        state=state,
        reason="redriven",
        cancel_requested=False,
        run_at=now(),
        finished_at=None,
        max_attempts=max(row.max_attempts, row.attempts + 1),
    )
    if row.kind == DELIVER:
        _send_again(connection, job_id)
    log.record(
        connection, "job.redriven", numbered.workspace_id, job_id=job_id, seq=numbered.event_seq,
        conversation_id=numbered.conversation_id, data={"by": by, "was": row.state},
    )  # fmt: skip
    return state


def _waits_for_children(connection: Connection, job_id: int) -> bool:
    waits = in_state(JobState.WAITING) & jobs.c.reason.in_((FOR_ALL, FOR_ANY))
    return connection.execute(select(jobs.c.id).where(jobs.c.id == job_id, waits)).first() is not None


def _send_again(connection: Connection, job_id: int) -> None:
    """Put the parts that a deliver job gave up back into the ledger, in their old order."""
    exists_outside = replies.c.external_id != ""
    connection.execute(
        update(replies)
        .where(replies.c.failed_in == job_id, replies.c.state == ReplyState.FAILED)
        .values(
            state=case((exists_outside, ReplyState.PLACED.value), else_=ReplyState.PLANNED.value),
            reason="",
            failed_in=None,
        )
    )


def answer(
    connection: Connection,
    vault: Vault,
    question_id: str,
    text: str,
    *,
    by: str,
    trust: str = "owner",
    name: str = "",
    said_in: str = "",
) -> int:
    """Answer a Question; its job becomes ready. Returns the job's id. `name` is what the run is told of `by`.

    A question of a role may stand in several places. The first answer counts; the places other than the conversation
    `said_in` are told. Raises Forbidden for somebody who does not have the role.
    """
    question = connection.execute(select(questions).where(questions.c.id == question_id)).one_or_none()
    if question is None:
        raise NotFound(f"There is no question {question_id}. `gofer questions list` shows those open.")
    row_macs.require(connection, questions, question)
    _check_role(question.asked_of, trust)
    row = _hold(connection, question.job_id)
    sealed = None
    if row.conversation_id is not None:
        key = conversation_key(connection, vault, row.conversation_id)
        text = _chosen(key, question, text)
        said = {"text": text, "by": name or by, "trust": trust}
        sealed = seal(key, said, "answer", question_id)
    settled = connection.execute(
        update(questions)
        .where(questions.c.id == question_id, questions.c.answered_at.is_(None))
        .values(answered_at=now(), answer=sealed)
    )
    if settled.rowcount != 1 or row.state in FINAL:
        raise Conflict("That question is no longer open.")
    if question.asked_of in ROLES and sealed is not None:
        _tell_others(connection, vault, row, question_id, f"{name or by}: {text}", said_in)
    if row.state == JobState.RUNNING:
        signal(connection, row.id, by=by)  # it may have looked for the answer too early
    # One that sleeps or is ready finds the answer when it runs.
    ready = {"state": JobState.READY, "run_at": now()} if row.state == JobState.WAITING else {}
    note_event(connection, row.id, "question.answered", {"question": question_id, "by": by}, **ready)
    return int(row.id)


ROLES = {OWNERS: ("owner",), MEMBERS: ("owner", "member")}
"""The roles of people who may answer a question to a role."""
NO_WORDS = ("goal ", "budget ")
"""How the `call_id` begins of what a goal asks and words do not answer: whether and by whom it is wanted, and money."""
ANSWERED = "`{said}`\n\nThat answers the question above; nothing is left to do."


def _check_role(asked_of: str, trust: str) -> None:
    if asked_of in ROLES and trust not in ROLES[asked_of]:
        raise Forbidden(
            "Only an owner may answer this." if asked_of == OWNERS else "This is for members only."
        )


def _chosen(key: DataKey, question: Any, text: str) -> str:
    """What was answered: one of the choices, or words where those are taken."""
    if question.choices is None:
        return text
    choices = [str(choice) for choice in unseal(key, question.choices, "choices", question.id)]
    found = [choice for choice in choices if choice.casefold() == text.strip().casefold()]
    if found:
        return found[0]
    if choices and (question.asked_of in ROLES or str(question.call_id).startswith(NO_WORDS)):
        raise Malformed(f"Answer with one of: {', '.join(choices)}.")
    return text


def _tell_others(
    connection: Connection, vault: Vault, job: Any, question_id: str, said: str, said_in: str
) -> None:
    """Tell every other place where a question stands who answered it and what."""
    key = conversation_key(connection, vault, job.conversation_id)
    query = (
        select(replies, bindings.c.conversation_id.label("held_in"))
        .join(bindings, bindings.c.id == replies.c.binding_id)
        .where(replies.c.job_id == job.id, replies.c.kind == "note", replies.c.sealed.is_not(None))
        .order_by(replies.c.id)
    )
    places = [
        row.binding_id
        for row in connection.execute(query).all()
        if row.held_in != said_in
        and unseal(key, row.sealed, "reply", row.job_id, row.kind, row.part).get("question") == question_id
    ]
    # In words of somebody's own nothing may look like a link or a mark.
    words = ANSWERED.format(said=" ".join(said.replace("`", "'").split())[:300])
    facts = {ENDS_QUESTION: question_id}
    drafts = tuple(Draft(place, (words,), "note", facts=facts) for place in dict.fromkeys(places))
    plan_replies(connection, vault, job, drafts)


def withdraw(connection: Connection, vault: Vault, question_id: str, *, why: str) -> None:
    """Close a question that needs no answer any more, and say why wherever it stands. Its job goes on without one."""
    asked = select(questions.c.job_id).where(questions.c.id == question_id)
    row = _hold(connection, int(connection.execute(asked).scalar_one()))
    closed = connection.execute(
        update(questions)
        .where(questions.c.id == question_id, questions.c.answered_at.is_(None))
        .values(answered_at=now())
    )
    if closed.rowcount == 1 and row.state == JobState.WAITING:
        _tell_others(connection, vault, row, question_id, why, "")
        ready = {"state": JobState.READY, "run_at": now()}
        note_event(connection, row.id, "question.withdrawn", {"question": question_id}, **ready)


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """What became of a question that a job asked."""

    asked: bool = False
    open: bool = False
    text: str = ""
    """Empty when nobody answered in time."""
    by: str = ""


def answer_to(connection: Connection, vault: Vault, job_id: int, call_id: str) -> GivenAnswer:
    """What was answered to a job's last question about something."""
    # A job's row is not signed, the question's is: an answer is good for what was asked, and for nothing else.
    asked = questions.c.job_id == job_id, questions.c.call_id == call_id
    row = connection.execute(
        select(questions).where(*asked).order_by(questions.c.asked_at.desc()).limit(1)
    ).one_or_none()
    if row is None:
        return GivenAnswer()
    if row.answer is None or row.conversation_id is None or not row_macs.fits(connection, questions, row):
        return GivenAnswer(asked=True, open=row.answered_at is None)
    said = unseal(conversation_key(connection, vault, row.conversation_id), row.answer, "answer", row.id)
    return GivenAnswer(True, False, str(said["text"]), str(said["by"]))


def note_event(connection: Connection, job_id: int, kind: str, data: dict[str, Any], **values: Any) -> None:
    """Record an event of a job, and change its row. The caller holds the job's locks."""
    numbered = _number(connection, job_id, **values)
    log.record(
        connection, kind, numbered.workspace_id, job_id=job_id, seq=numbered.event_seq,
        conversation_id=numbered.conversation_id, data=data,
    )  # fmt: skip


def expire_questions(connection: Connection) -> int:
    """Wake the jobs whose question nobody answered in time. They go on, and are told so."""
    overdue = connection.execute(
        select(questions.c.id, questions.c.job_id).where(
            questions.c.answered_at.is_(None), questions.c.expires_at < now()
        )
    ).all()
    for question in overdue:
        row = _hold(connection, question.job_id)
        closed = connection.execute(
            update(questions)
            .where(questions.c.id == question.id, questions.c.answered_at.is_(None))
            .values(answered_at=now())
        )
        # If it was answered in the meantime, the job may wait for something else by now.
        if closed.rowcount == 1 and row.state == JobState.WAITING:
            ready = {"state": JobState.READY, "run_at": now()}
            note_event(connection, row.id, "question.expired", {"question": question.id}, **ready)
    return len(overdue)


def wake_participant(
    connection: Connection,
    participant_id: str,
    seq: int,
    workspace_id: str,
    *,
    via: str,
    delay: float = 0,
    patient: bool = False,
    asleep: bool = False,
) -> bool:
    """Raise the participant's `wake_seq` to a message, and make its job unless it has one. The caller holds the
    conversation's lock.

    With `patient`, a job that waits for somebody's answer is left waiting. With `asleep`, no job is made.
    """
    row = fast_sql.first(connection, _WAKE, {"who": participant_id, "seq_": seq})
    if asleep:
        return False
    if row is None:
        # A later message has woken it already, or it has dealt with this one: an edit of something old.
        return ensure_answer(connection, participant_id, delay=delay)
    return row.wake_seq > row.read_seq and ensure_job(
        connection, row, workspace_id, live=row.live, via=via, delay=delay, patient=patient
    )


_WAKE = (
    update(participants)
    .where(participants.c.id == bindparam("who"), participants.c.wake_seq < bindparam("seq_"))
    .values(wake_seq=bindparam("seq_"))
    .returning(
        participants.c.id,
        participants.c.conversation_id,
        participants.c.agent_id,
        participants.c.read_seq,
        participants.c.wake_seq,
        participants.c.priority,
        live_state(bindparam("who")).label("live"),
    )
)


def set_closed(connection: Connection, conversation_id: str, *, closed: bool, by: str) -> bool:
    """Close a conversation or open it again; returns whether workers should look. What came while it was closed wakes
    the agents that are asleep meanwhile. Raises NotFound."""
    lock_conversation(connection, conversation_id)
    row = connection.execute(
        select(conversations.c.closed_at, conversations.c.workspace_id).where(
            conversations.c.id == conversation_id
        )
    ).one_or_none()
    if row is None:
        raise NotFound("There is no such conversation. It may have been purged.")
    if (row.closed_at is not None) == closed:
        return False
    values = {"closed_at": now() if closed else None}
    connection.execute(update(conversations).where(conversations.c.id == conversation_id).values(**values))
    log.record(
        connection, "conversation.changed", row.workspace_id, conversation_id=conversation_id,
        data={"closed": closed, "by": by},
    )  # fmt: skip
    here = select(participants.c.id).where(participants.c.conversation_id == conversation_id)
    return sum(ensure_answer(connection, each) for each in connection.execute(here).scalars().all()) > 0
