"""Goals as their rows hold them: made, read, steered by people, and ended.

Every change takes the conversation's lock first and is an event of the goal's job. What people say about a goal is an
event with sealed words, so that the planner hears it in order and a purge destroys it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, func, select, true, update

from gofer.errors import Conflict, Malformed, NotFound, TooOften
from gofer.identity import role_now
from gofer.jobs import control
from gofer.jobs.children import children_of
from gofer.jobs.kinds import GOAL
from gofer.jobs.queue import SERVICE, submit
from gofer.memory.notes import keep_note
from gofer.memory.records import Source
from gofer.memory.scopes import conversation_scope
from gofer.store import events, fast_sql, row_macs
from gofer.store.db_time import now
from gofer.store.encryption import conversation_key, seal, unseal
from gofer.store.ids import new_id
from gofer.store.locks import lock_conversation
from gofer.store.tables import (
    JobState,
    agents,
    connections,
    goals,
    in_state,
    jobs,
    questions,
    tasks,
)
from gofer.store.tables import events as event_rows
from gofer.vault.envelope import Vault

STATES = ("planning", "active", "blocked", "paused", "done", "failed", "cancelled")
OVER = frozenset({"done", "failed", "cancelled"})
MAX_TEXT = 8000
MAX_FACT = 1000
"""Characters of something that the planner wants remembered."""
MAX_WORDS = 4000
"""Characters of what somebody says about a goal."""
MAX_A_MINUTE, MAX_A_MINUTE_EACH, MAX_A_MINUTE_OF_ALL = 20, 100, 500
"""Goals within a minute: of one conversation, of one person, and of everybody."""
MAX_ATTEMPTS = 1000
"""Tries of the job that drives a goal: each pass of it is short, and none may be the last because processes died."""
CANCEL = "cancel"
"""The reason of a goal that somebody has cancelled, until its driver ends it."""
TOLD = "told"
"""The change in an event that records somebody's words about the goal."""
TOO_MANY = "{count} goals are under way already, which is as many as I take on. Ask again when one has ended."
TOO_MANY_EACH = (
    "{count} goals of yours are under way already, and others need room as well. Ask again when one has ended, or end "
    "one: `/goals` lists those of a conversation."
)
TOO_FAST = "That is more goals than I take in a minute. Ask again in a minute."


@dataclass(frozen=True, slots=True)
class GoalRequest:
    """What somebody wants, and what is needed to answer them where they asked."""

    text: str
    name: str = ""
    """Of whoever asked."""
    external_id: str = ""
    """Of the message that asked, at its service."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    agents: tuple[str, ...] = ()
    """Names of the agents to choose from, when several hear the conversation and none is chosen."""
    paired: bool = False
    """Whether whoever asked had a role of ours. Others were let in by the service they wrote from."""
    consent: bool = False
    """An agent suggested it: the person is asked first."""


@dataclass(frozen=True, slots=True)
class NewGoal:
    """A goal about to be made."""

    asked: GoalRequest
    workspace_id: str
    conversation_id: str
    connection_id: str | None
    agent_id: str
    participant_id: str
    asked_by: str
    trust: str
    narrowed: bool = False
    message_seq: int | None = None
    budget: int | None = None
    until: float | None = None
    needs_approval: bool = False


@dataclass(frozen=True, slots=True)
class Word:
    """Something that somebody said about a goal, or that it was told by a button."""

    seq: int
    text: str
    by: str
    trust: str

    def line(self) -> str:
        """For the planner, which has to know whose word it is."""
        return f"{self.by or 'Somebody'} ({self.trust}): {self.text}"


def create_goal(connection: Connection, vault: Vault, new: NewGoal, *, most: int) -> str:
    """Make a goal and the job that drives it; returns its id. The same message makes one goal, however often it is
    handled. Raises TooOften when there are too many, with a sentence for the person."""
    lock_conversation(connection, new.conversation_id)
    if (there := _made_before(connection, new)) is not None:
        return there
    _check_length(new.asked.text, MAX_TEXT)
    _check_bounds(connection, new, most)
    goal_id = new_id("goal")
    key = conversation_key(connection, vault, new.conversation_id)
    reason = "consent" if new.asked.consent else "agent" if new.asked.agents else ""
    asked = {**asdict(new.asked), "facts": dict(new.asked.facts)}
    asked["paired"] = _role(connection, new) != ""
    row = {
        "id": goal_id,
        **{name: getattr(new, name) for name in _COPIED},
        "sealed": seal(key, asked, "goal", goal_id),
        "state": "blocked" if reason else "planning",
        "reason": reason,
        "spent": 0,
        "replans": 0,
        "event_seq": 0,
        "created_at": now(),
        "changed_at": now(),
    }
    row_macs.insert(connection, goals, row)
    job_id = submit(
        connection,
        workspace_id=new.workspace_id,
        kind=GOAL,
        lane=f"{GOAL}:{goal_id}",
        pool=SERVICE,
        payload={"goal": goal_id},
        max_attempts=MAX_ATTEMPTS,
        conversation_id=new.conversation_id,
        agent_id=new.agent_id,
        connection_id=new.connection_id,
        unique_key=f"{GOAL}:{goal_id}",
    )
    connection.execute(update(goals).where(goals.c.id == goal_id).values(job_id=job_id))
    note(
        connection, find_goal(connection, goal_id), "goal.changed", {"change": "made", "state": row["state"]}
    )
    return goal_id


_COPIED = (
    "workspace_id", "conversation_id", "connection_id", "agent_id", "participant_id", "asked_by", "trust",
    "narrowed", "message_seq", "budget", "until", "needs_approval",
)  # fmt: skip


def _made_before(connection: Connection, new: NewGoal) -> str | None:
    if new.message_seq is None:
        return None
    same = (goals.c.conversation_id == new.conversation_id) & (goals.c.message_seq == new.message_seq)
    return connection.execute(select(goals.c.id).where(same).limit(1)).scalar()


def _check_length(text: str, most: int) -> None:
    """Raise Malformed for words that are too long: what is cut off could change what is done."""
    if len(text) > most:
        raise Malformed(
            f"That has {len(text)} characters, and at most {most} are taken here. Say it shorter, or put the rest into "
            "a file of this conversation and name it."
        )


def _check_bounds(connection: Connection, new: NewGoal, most: int) -> None:
    """Raise TooOften when there are too many goals. One person never has more than half of what an agent takes on, also
    with goals that only wait for an answer."""
    live = (goals.c.agent_id == new.agent_id) & goals.c.finished_at.is_(None)
    _check_count(connection, live, most, TOO_MANY)
    _check_count(connection, live & (goals.c.asked_by == new.asked_by), share(most), TOO_MANY_EACH)
    lately = goals.c.created_at > now() - 60
    _check_count(
        connection, lately & (goals.c.conversation_id == new.conversation_id), MAX_A_MINUTE, TOO_FAST
    )
    _check_count(connection, lately & (goals.c.asked_by == new.asked_by), MAX_A_MINUTE_EACH, TOO_FAST)
    _check_count(connection, lately, MAX_A_MINUTE_OF_ALL, TOO_FAST)


def _check_count(connection: Connection, which: ColumnElement[bool], most: int, words: str) -> None:
    count = int(connection.execute(select(func.count()).select_from(goals).where(which)).scalar_one())
    if count >= most:
        raise TooOften(words.format(count=count), retry_after=60)


def share(most: int) -> int:
    """How many of an agent's goals one person may have."""
    return (most + 1) // 2


def refuse_if_full(connection: Connection, most: int, agent: str = "", asked_by: str = "") -> None:
    """Raise TooOften when the named agent, or every agent, has as many goals under way as it takes on, of everybody or
    of whoever asks."""
    bounds: list[tuple[ColumnElement[bool], int, str]] = [(true(), most, TOO_MANY)]
    if asked_by:
        bounds.append((goals.c.asked_by == asked_by, share(most), TOO_MANY_EACH))
    for which, bound, words in bounds:
        live = (goals.c.agent_id == agents.c.id) & goals.c.finished_at.is_(None) & which
        query = (
            select(func.count(goals.c.id)).select_from(agents.outerjoin(goals, live)).group_by(agents.c.id)
        )
        counts = connection.execute(query.where(agents.c.name == agent) if agent else query).scalars().all()
        if counts and min(counts) >= bound:
            raise TooOften(words.format(count=min(counts)), retry_after=60)


def find_goal(connection: Connection, goal_id: str) -> Any:
    """A goal's row; raises NotFound, and RowRefused for one that somebody else wrote."""
    row = fast_sql.first(connection, _GOAL, {"goal": goal_id})
    if row is None:
        raise NotFound(f"There is no goal {goal_id[:40]!r}. `gofer goals list` shows those there are.")
    row_macs.require(connection, goals, row)
    return row


_GOAL = select(goals).where(goals.c.id == bindparam("goal"))


def hold_goal(connection: Connection, goal_id: str) -> Any:
    """A goal's row, under its conversation's lock."""
    lock_conversation(connection, find_goal(connection, goal_id).conversation_id)
    return find_goal(connection, goal_id)


def request_of(connection: Connection, vault: Vault, goal: Any) -> GoalRequest:
    """What was asked; raises NotFound when the conversation is purged."""
    if goal.sealed is None:
        raise NotFound("This goal's conversation was purged.")
    key = conversation_key(connection, vault, goal.conversation_id)
    found: dict[str, Any] = unseal(key, goal.sealed, "goal", goal.id)
    found["agents"] = tuple(found["agents"])
    return GoalRequest(**found)


def goals_in(
    connection: Connection, conversation_id: str, *, live: bool = False, limit: int = 20
) -> Sequence[Any]:
    """The goals of a conversation, the newest first."""
    query = select(goals).where(goals.c.conversation_id == conversation_id)
    if live:
        query = query.where(goals.c.finished_at.is_(None))
    found = connection.execute(query.order_by(goals.c.created_at.desc(), goals.c.id).limit(limit)).all()
    return [row for row in found if row_macs.fits(connection, goals, row)]


def note(
    connection: Connection,
    goal: Any,
    kind: str,
    data: Mapping[str, Any],
    *,
    vault: Vault | None = None,
    words: Mapping[str, Any] | None = None,
) -> int:
    """Record something as an event of the goal's job; returns its number. Words are sealed."""
    seq = int(
        connection.execute(
            update(jobs)
            .where(jobs.c.id == goal.job_id)
            .values(event_seq=jobs.c.event_seq + 1)
            .returning(jobs.c.event_seq)
        ).scalar_one()
    )
    sealed = None
    if vault is not None and words is not None:
        sealed = seal(
            conversation_key(connection, vault, goal.conversation_id), words, "event", int(goal.job_id), seq
        )
    events.record(
        connection, kind, goal.workspace_id, conversation_id=goal.conversation_id, job_id=goal.job_id, seq=seq,
        data={"goal": goal.id, **data}, sealed=sealed,
    )  # fmt: skip
    return seq


def set_state(connection: Connection, goal: Any, state: str, reason: str = "", **data: Any) -> bool:
    """Move a goal to a state, and record it; returns whether it was not there already."""
    if (goal.state, goal.reason) == (state, reason):
        return False
    ended = {"finished_at": now()} if state in OVER else {}
    connection.execute(
        update(goals)
        .where(goals.c.id == goal.id)
        .values(state=state, reason=reason, changed_at=now(), event_seq=goals.c.event_seq + 1, **ended)
    )
    kind = "goal.blocked" if state == "blocked" else "goal.changed"
    note(
        connection,
        goal,
        kind,
        {"change": "state", "state": state, "was": goal.state, "reason": reason, **data},
    )
    return True


def words_about(connection: Connection, vault: Vault, goal: Any, *, after: int = 0) -> list[Word]:
    """What people said about a goal after an event's number, in order."""
    rows = fast_sql.fetch(connection, _SAID_ABOUT, {"job": goal.job_id, "after": after})
    if not rows:
        return []
    key = conversation_key(connection, vault, goal.conversation_id)
    found = [(row, events.open_words(key, row._asdict())) for row in rows]
    return [
        Word(row.seq, str(said["text"]), str(said["by"]), str(said["trust"]))
        for row, said in found
        if row.data.get("change") == TOLD
    ]


_SAID_ABOUT = (
    select(event_rows)
    .where(event_rows.c.job_id == bindparam("job"), event_rows.c.kind == "goal.changed")
    .where(event_rows.c.seq > bindparam("after"), event_rows.c.sealed.is_not(None))
    .order_by(event_rows.c.seq)
)


# What people do to goals. `by` names them for the log, in the way of `jobs.control`.


def pause(connection: Connection, goal_id: str, *, by: str) -> str:
    """Begin nothing more of a goal; what runs goes on to its end. Returns the state."""
    goal = _steerable(connection, goal_id)
    if goal.state == "paused":
        return "paused"
    set_state(connection, goal, "paused", f"{goal.state}:{goal.reason}", by=by)
    _wake(connection, goal, by)
    return "paused"


def resume(connection: Connection, goal_id: str, *, by: str) -> str:
    """Go on with a goal that was paused. Returns the state."""
    goal = _steerable(connection, goal_id)
    if goal.state != "paused":
        raise Conflict(f"This goal is not paused, it is {goal.state}.")
    state, _, reason = str(goal.reason).partition(":")
    set_state(connection, goal, state, reason, by=by)
    _wake(connection, goal, by)
    return state


def cancel(connection: Connection, goal_id: str, *, by: str) -> str:
    """End a goal: what runs of it is stopped at once, and its driver reports how far it got. Nothing takes it back."""
    goal = _live(connection, goal_id)
    set_state(connection, goal, goal.state, CANCEL, by=by)
    for child in children_of(connection, int(goal.job_id)):
        control.cancel(connection, child, by=by)
    _wake(connection, goal, by)
    return "cancelled"


def tell(
    connection: Connection, vault: Vault, goal_id: str, text: str, *, by: str, name: str, trust: str
) -> str:
    """Say something about a goal: it answers the goal's open question, or goes to the planner. Returns which."""
    goal = _steerable(connection, goal_id)
    if not text.strip():
        raise Conflict("There is nothing in it.")
    text = text.strip()
    _check_length(text, MAX_WORDS)
    waiting = (questions.c.job_id == goal.job_id) & questions.c.answered_at.is_(None)
    question = connection.execute(select(questions.c.id).where(waiting).limit(1)).scalar()
    if question is not None:
        control.answer(connection, vault, question, text, by=by, trust=trust, name=name)
        return "answered"
    note_words(connection, vault, goal, text, by=by, name=name, trust=trust)
    _wake(connection, goal, by)
    return TOLD


def note_words(
    connection: Connection, vault: Vault, goal: Any, text: str, *, by: str, name: str, trust: str
) -> int:
    """Keep somebody's words for the planner."""
    words = {"text": text, "by": name or by, "trust": trust}
    return note(connection, goal, "goal.changed", {"change": TOLD, "by": by}, vault=vault, words=words)


def _steerable(connection: Connection, goal_id: str) -> Any:
    goal = _live(connection, goal_id)
    if goal.reason == CANCEL:
        raise Conflict("This goal is being cancelled. It reports in a moment.")
    return goal


def _live(connection: Connection, goal_id: str) -> Any:
    goal = hold_goal(connection, goal_id)
    if goal.state in OVER:
        raise Conflict(f"This goal has ended already ({goal.state}).")
    return goal


def _wake(connection: Connection, goal: Any, by: str) -> None:
    """Have the driver look, whatever it waits for; also once more, if it is looking now."""
    if control.signal(connection, int(goal.job_id), by=by):
        return
    connection.execute(
        update(jobs)
        .where(jobs.c.id == goal.job_id, in_state(JobState.WAITING))
        .values(state=JobState.READY, run_at=now())
    )


def wake_ended(connection: Connection, vault: Vault) -> int:
    """Have the driver look at goals that have to end although nothing of them moves: their time is over, or whoever
    asked has lost their role. Returns how many."""
    query = (
        select(goals, (goals.c.until < now()).label("late"))
        .join(jobs, jobs.c.id == goals.c.job_id)
        .where(goals.c.finished_at.is_(None), in_state(JobState.WAITING, JobState.SCHEDULED))
        .order_by(goals.c.conversation_id)  # locks are taken in this order everywhere
    )
    ended = [row for row in connection.execute(query).all() if row.late or _lost_role(connection, vault, row)]
    for row in ended:
        lock_conversation(connection, row.conversation_id)
        _wake(connection, row, "time" if row.late else "role")
    return len(ended)


def _lost_role(connection: Connection, vault: Vault, goal: Any) -> bool:
    if _role(connection, goal) or goal.sealed is None or not row_macs.fits(connection, goals, goal):
        return False
    return not trust_now(connection, goal, request_of(connection, vault, goal))


def trust_now(connection: Connection, goal: Any, asked: GoalRequest) -> str:
    """How far whoever wants the goal is trusted at this moment, and never further than when they asked; empty when they
    have lost the role that they asked with. Whom a service let in, such as a maintainer on GitHub, stays so."""
    if not asked.paired:
        return str(goal.trust)
    role = _role(connection, goal)
    return "member" if role == "owner" and goal.trust == "member" else role


def _role(connection: Connection, goal: Any) -> str:
    """The role of whoever asked; empty for none."""
    via = select(connections.c.integration).where(connections.c.id == goal.connection_id)
    integration = connection.execute(via).scalar()
    return "" if integration is None else role_now(connection, goal.workspace_id, integration, goal.asked_by)


def choose_agent(connection: Connection, goal: Any, name: str) -> None:
    """Give a goal, and the job that drives it, to an agent."""
    here = (agents.c.workspace_id == goal.workspace_id) & (agents.c.name == name)
    chosen = connection.execute(select(agents.c.id).where(here)).scalar_one()
    row_macs.update(connection, goals, goals.c.id == goal.id, {"agent_id": chosen})
    connection.execute(update(jobs).where(jobs.c.id == goal.job_id).values(agent_id=chosen))


def keep_facts(connection: Connection, vault: Vault, goal: Any, facts: Sequence[str]) -> None:
    """Note for the conversation what the planner wants kept beyond the goal."""
    for text in filter(None, (fact.strip()[:MAX_FACT] for fact in facts)):
        keep_note(
            connection,
            vault,
            scope_id=conversation_scope(goal.conversation_id),
            text=text,
            trust="stranger" if goal.narrowed else goal.trust,
            author=agent_name(connection, goal.agent_id),
            source=Source(goal.conversation_id, goal.message_seq, goal.job_id),
            untrusted=goal.narrowed,
            reason="goal",
        )


def task_count(connection: Connection, goal_id: str) -> tuple[int, int]:
    """How many of a goal's tasks are done, and how many there are; without those that were dropped."""
    query = select(tasks.c.state).where(
        tasks.c.goal_id == goal_id, tasks.c.number > 0, tasks.c.state != "dropped"
    )
    states = connection.execute(query).scalars().all()
    return sum(state == "done" for state in states), len(states)


def agent_name(connection: Connection, agent_id: str) -> str:
    """An agent's name."""
    return connection.execute(select(agents.c.name).where(agents.c.id == agent_id)).scalar() or ""
