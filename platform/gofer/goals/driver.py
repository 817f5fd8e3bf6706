"""The job that drives a goal: a state machine over rows, without a model.

Each pass is one transaction: it reads the goal and its tasks, makes and starts the tasks that are due, and says what to
wait for. So it may be killed anywhere; the next pass finds the rows as they are. What calls a model is a task of its
own: the planner, the workers, whoever writes the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, func, select, update

from gofer.goals import records
from gofer.goals.planner import (
    MAX_PLANNING_TRIES,
    MAX_REPLANS,
    PlanArguments,
    next_number,
    plan_errors,
    planning_request,
    quoted,
)
from gofer.goals.report import (
    APPROVAL,
    CONSENT,
    NO_MONEY,
    NO_PLAN,
    TOO_OFTEN,
    WHICH,
    known_tasks,
    plan_lines,
    report_request,
)
from gofer.goals.tasks import (
    HIDDEN,
    OVER,
    PLAN,
    REPORT,
    TaskRecord,
    drop_task,
    fail_task,
    lost_tasks,
    new_task,
    start_task,
    tasks_of_goal,
)
from gofer.jobs import control
from gofer.jobs.fence import hold
from gofer.jobs.outcome import Draft
from gofer.jobs.queue import Claim
from gofer.jobs.reply_planner import plan_replies
from gofer.store import fast_sql, row_macs
from gofer.store.db_time import now
from gofer.store.locks import lock_conversation
from gofer.store.tables import FINAL, goals, jobs, questions, spends, tasks
from gofer.vault.envelope import Vault

APPROVE, REFUSE = "Approve", "Refuse"
AGAIN, FINISH = "Try again", "Finish with what there is"
YES, NO = "Yes", "No"
PAUSED_FOR = 7 * 86400.0
"""Seconds after which the driver of a paused goal looks once more."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that a goal is driven by."""

    parallel: int = 2
    announced: Callable[[Pass], tuple[Draft, ...]] = lambda this: ()
    """What to say when a plan was taken."""
    memory: bool = True
    """Whether anything is remembered."""


@dataclass(frozen=True, slots=True)
class WaitForTasks:
    """Tasks are under way: look again when one of them ends."""

    job_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """Somebody has to say how to go on. Tasks that run go on meanwhile."""

    text: str
    about: str
    """The question's id; never reused for another question of this goal."""
    choices: tuple[str, ...] = ()
    of_owners: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing is to be done until somebody says so."""

    seconds: float = PAUSED_FOR


@dataclass(frozen=True, slots=True)
class GoalEnd:
    """The goal is over."""

    state: str
    reason: str = ""


Step = WaitForTasks | Ask | Pause | GoalEnd


@dataclass(slots=True)
class Pass:
    """One pass over a goal, within its transaction."""

    connection: Connection
    vault: Vault
    claim: Claim
    rules: Rules
    goal: Any = None
    asked: records.GoalRequest = field(default_factory=lambda: records.GoalRequest(""))
    tasks: list[TaskRecord] = field(default_factory=list)

    def read(self) -> None:
        """Read the goal and its tasks as they are now."""
        self.goal = records.find_goal(self.connection, str(self.claim.payload["goal"]))
        self.tasks = tasks_of_goal(self.connection, self.vault, self.goal.id)

    @property
    def steps(self) -> list[TaskRecord]:
        """The tasks that people see."""
        return [task for task in self.tasks if task.kind not in HIDDEN]

    @property
    def plans(self) -> list[TaskRecord]:
        return [task for task in self.tasks if task.kind == PLAN]


def advance(connection: Connection, vault: Vault, claim: Claim, rules: Rules) -> tuple[Pass, Step]:
    """Take a goal as far as it goes now; returns what it waits for. Raises NotFound for a purged one."""
    lock_conversation(connection, str(claim.conversation_id))
    hold(connection, claim)
    this = Pass(connection, vault, claim, rules)
    this.read()
    if this.goal.state in records.OVER:
        return this, GoalEnd(this.goal.state, this.goal.reason)
    this.asked = records.request_of(connection, vault, this.goal)
    _settle_lost(this)
    step = _stopped(this) or _unready(this) or _drive(this)
    if isinstance(step, GoalEnd):
        _end(this, step)
    return this, step


def _settle_lost(this: Pass) -> None:
    """A task whose job ended without a word of its own has failed."""
    lost = lost_tasks(this.connection, this.goal.id)
    for task_id, ended in lost:
        fail_task(this.connection, task_id, f"job.{ended}")
    if lost:
        this.read()


def _stopped(this: Pass) -> Step | None:
    """Whether somebody stopped the goal, or it may not go on."""
    if this.goal.reason == records.CANCEL:
        return GoalEnd("cancelled", "cancelled")
    trust = records.trust_now(this.connection, this.goal, this.asked)
    if not trust:
        return GoalEnd("cancelled", "role.lost")
    if trust != this.goal.trust:
        row_macs.update(this.connection, goals, goals.c.id == this.goal.id, {"trust": trust})
        this.read()
    if this.goal.until is not None and this.connection.execute(select(now() > this.goal.until)).scalar():
        return GoalEnd("failed", "overdue")
    if this.goal.state == "paused":
        return _wait(this) or Pause()
    return None


def _unready(this: Pass) -> Step | None:
    """What has to be settled before a goal is planned: whether it is wanted, and who takes it."""
    if this.goal.reason == "consent":
        given = _answer(this, "goal consent")
        if given is None:
            return Ask(CONSENT.format(text=quoted(this.asked.text)[:1000]), "goal consent", (YES, NO))
        if given.text != YES:
            return GoalEnd("cancelled", "declined")
        _move(this, "blocked" if this.asked.agents else "planning", "agent" if this.asked.agents else "")
    if this.goal.reason == "agent":
        given = _answer(this, "goal agent")
        if given is None:
            return Ask(WHICH, "goal agent", this.asked.agents)
        if given.text not in this.asked.agents:
            return GoalEnd("cancelled", "agent")
        records.choose_agent(this.connection, this.goal, given.text)
        _move(this, "planning")
    return None


def _drive(this: Pass) -> Step:
    """Plan, begin what is due, and end when nothing is left."""
    over = _over_budget(this)
    if over is not None:
        return over
    planning = _plan(this)
    if isinstance(planning, Ask | GoalEnd):
        if isinstance(planning, Ask):
            _move(this, "blocked", planning.about.partition(" ")[0])
            _dispatch(this)
        return planning
    if this.goal.state in ("blocked", "planning") and this.steps:
        _move(this, "active")
    _dispatch(this)
    return _wait(this) or _report(this)


def _over_budget(this: Pass) -> Step | None:
    spent = int(fast_sql.scalar(this.connection, _SPENT, {"goal": this.goal.id}))
    if spent != this.goal.spent:
        this.connection.execute(update(goals).where(goals.c.id == this.goal.id).values(spent=spent))
        this.goal = records.find_goal(this.connection, this.goal.id)
    budget = this.goal.budget
    if budget is None or spent < budget:
        return None
    if this.steps and _nothing_left(this):
        return _verdict(this)  # the report is made by rule
    about = f"budget {budget}"
    given = _answer(this, about)
    if given is None:
        _move(this, "blocked", "budget")
        return Ask(NO_MONEY.format(spent=spent / 1e6, budget=budget / 1e6), about, (YES, FINISH))
    if given.text != YES:
        return GoalEnd("failed", "budget")
    row_macs.update(this.connection, goals, goals.c.id == this.goal.id, {"budget": 2 * budget})
    this.read()
    _move(this, "active" if this.steps else "planning")
    return None


def _nothing_left(this: Pass) -> bool:
    """Whether all tasks are over, and the planner has nothing to look at."""
    planned = all(plan.reason in ("applied", "answered") for plan in this.plans[-1:])
    return planned and all(task.state in OVER for task in this.steps) and not any(_unplanned(this))


_SPENT = select(func.coalesce(func.sum(spends.c.micros), 0)).where(spends.c.goal_id == bindparam("goal"))


def _plan(this: Pass) -> Step | None:
    """Have the plan made or changed where that is due; None when there is nothing to ask."""
    last = this.plans[-1] if this.plans else None
    if last is not None and last.state not in OVER:
        return None
    if last is not None and last.reason not in ("applied", "answered"):
        step = _take_plan(this, last)
        if step is not None:
            return step
        last = this.plans[-1]
        if last.state not in OVER:
            return None
    if last is None:
        _begin_planning(this)
        return None
    step = _approval(this)
    if step is not None:
        return step
    return _replan(this)


def _take_plan(this: Pass, plan: TaskRecord) -> Step | None:
    """What the planner's last run came to."""
    result = plan.result or {}
    if plan.state == "done" and "plan" in result and _apply(this, plan, result["plan"]):
        return None
    if plan.state == "blocked" and result.get("question"):
        return _ask_for(this, plan, result)
    failed = 0
    for task in reversed(this.plans):
        if task.reason in ("applied", "answered"):
            break
        failed += 1
    if failed % MAX_PLANNING_TRIES:
        _begin_planning(this)
        return None
    given = _answer(this, _about(plan))
    if given is None:
        return Ask(NO_PLAN, _about(plan), (AGAIN, FINISH))
    if given.text in ("", FINISH):
        return GoalEnd("failed", "plan.missing")
    if given.text != AGAIN:
        _pass_answer_on(this, given)
    _mark(this, plan, "answered")
    _begin_planning(this)
    return None


def _ask_for(this: Pass, task: TaskRecord, result: Mapping[str, Any]) -> Step | None:
    """Ask what a task wants to know. The answer goes to the planner."""
    given = _answer(this, _about(task))
    if given is None:
        choices = tuple(str(choice) for choice in result.get("choices", ()))
        return Ask(str(result["question"]), _about(task), choices)
    _pass_answer_on(this, given, f"Asked {result['question']!r}, ")
    if task.kind == PLAN:
        _mark(this, task, "answered")
    _begin_planning(this)
    return None


def _about(task: TaskRecord) -> str:
    """The id of a task's question."""
    return f"{'plan' if task.kind == PLAN else 'task'} {task.id}"


def _apply(this: Pass, task: TaskRecord, content: Mapping[str, Any]) -> bool:
    """Make the tasks of a plan; False when it does not fit any more what happened meanwhile."""
    plan = PlanArguments.model_validate(content)
    known = known_tasks(this.steps)
    waiting = {task.number for task in known if task.state == "queued"}
    plan.keep = [number for number in plan.keep if number in waiting]  # the others have begun meanwhile
    if plan_errors(plan, known):
        return False
    for old in this.steps:
        if old.state == "queued" and old.job_id is None and old.number not in plan.keep:
            drop_task(this.connection, old.id, "replanned")
    first = next_number(known)
    for number, new in enumerate(plan.tasks, first):
        new_task(
            this.connection,
            this.vault,
            goal=this.goal,
            number=number,
            kind=new.kind,
            title=new.title.strip(),
            instructions=new.instructions.strip(),
            needs=new.needs,
        )
    if this.rules.memory:
        records.keep_facts(this.connection, this.vault, this.goal, plan.remember)
    _mark(this, task, "applied")
    facts = {"tasks": len(plan.tasks), "kept": len(plan.keep), "replans": this.goal.replans}
    records.note(this.connection, this.goal, "goal.planned", facts)
    this.read()
    plan_replies(this.connection, this.vault, this.claim, this.rules.announced(this))
    return True


def _approval(this: Pass) -> Step | None:
    """Where an owner wants to see plans first, work begins when one has approved."""
    if not this.goal.needs_approval or not this.steps:
        return None
    about = f"approve {this.plans[-1].id}"
    given = _answer(this, about)
    if given is None:
        return Ask(APPROVAL.format(plan=plan_lines(this.steps)), about, (APPROVE, REFUSE), of_owners=True)
    if given.text != APPROVE:
        return GoalEnd("cancelled", "refused" if given.text else "question.expired")
    row_macs.update(this.connection, goals, goals.c.id == this.goal.id, {"needs_approval": False})
    this.read()
    return None


def _replan(this: Pass) -> Step | None:
    """Change the plan when a task failed or asks, or somebody said something new."""
    stuck, words = _unplanned(this)
    if not stuck and not words:
        return None
    asking = next(
        (task for task in stuck if task.state == "blocked" and (task.result or {}).get("question")), None
    )
    if asking is not None and (not words or _answer(this, _about(asking)) is not None):
        return _ask_for(this, asking, asking.result or {})
    if this.goal.replans < MAX_REPLANS:
        _begin_planning(this)
        return None
    why = f"“{stuck[0].title}” did not work" if stuck else "what was asked for changed"
    about = f"limit {len(this.plans)}"
    given = _answer(this, about)
    if given is None:
        return Ask(TOO_OFTEN.format(count=this.goal.replans, why=why), about, (AGAIN, FINISH))
    if given.text in ("", FINISH):
        return GoalEnd("failed", "replans")
    if given.text != AGAIN:
        _pass_answer_on(this, given)
    this.connection.execute(update(goals).where(goals.c.id == this.goal.id).values(replans=0))
    this.read()
    _begin_planning(this)
    return None


def _unplanned(this: Pass) -> tuple[list[TaskRecord], list[records.Word]]:
    """What no run of the planner has looked at: tasks that did not work, and what was said."""
    dealt_with = {number for plan in this.plans for number in plan.needs}
    stuck = [t for t in this.steps if t.state in ("failed", "blocked") and t.number not in dealt_with]
    return stuck, records.words_about(this.connection, this.vault, this.goal, after=_last_planned_seq(this))


def _begin_planning(this: Pass) -> None:
    """Start a run of the planner, which hears everything that was said so far."""
    words = records.words_about(this.connection, this.vault, this.goal)
    replanning = any(plan.reason == "applied" for plan in this.plans)
    request = planning_request(
        this.asked.text, known_tasks(this.steps), [word.line() for word in words], replanning=replanning
    )
    task_id = new_task(
        this.connection,
        this.vault,
        goal=this.goal,
        number=0,
        kind=PLAN,
        title="Plan the goal",
        instructions=request,
        # What this plan deals with: tasks that did not work, and the last words that it has heard.
        needs=[task.number for task in this.steps if task.state in ("failed", "blocked")],
        call_id=_words_mark(words),
    )
    start_task(this.connection, task_id, parent=this.claim)
    if replanning:
        again = goals.c.replans + (0 if this.plans[-1].reason not in ("applied", "answered") else 1)
        this.connection.execute(update(goals).where(goals.c.id == this.goal.id).values(replans=again))
    _move(this, this.goal.state if this.steps else "planning")
    this.read()


def _words_mark(words: Sequence[records.Word]) -> str:
    """The mark of a planner's task that reads these words."""
    return f"heard:{words[-1].seq if words else 0}"


def _last_planned_seq(this: Pass) -> int:
    """The number of the last words that a run of the planner has read."""
    return max((int(plan.call_id.partition(":")[2] or 0) for plan in this.plans), default=0)


def _dispatch(this: Pass) -> None:
    """Start the tasks that are due, no more than may run side by side."""
    if this.goal.needs_approval:
        return
    done = {task.number for task in this.steps if task.state in ("done", "dropped")}
    running = sum(task.state not in OVER and task.job_id is not None for task in this.steps)
    begun = False
    for task in this.steps:
        if running >= this.rules.parallel:
            break
        if task.state == "queued" and task.job_id is None and done.issuperset(task.needs):
            start_task(this.connection, task.id, parent=this.claim)
            running += 1
            begun = True
    if begun:
        this.read()


def _wait(this: Pass) -> Step | None:
    """Wait for what is under way, if anything is."""
    under_way = [task.job_id for task in this.tasks if task.state not in OVER and task.job_id is not None]
    return WaitForTasks(tuple(under_way)) if under_way else None


def _report(this: Pass) -> Step:
    """Have the report written, again if something was said or done since; when that fails, it is made by rule."""
    words = records.words_about(this.connection, this.vault, this.goal)
    done = [task.number for task in this.steps if task.state == "done"]
    written = any(
        (task.kind, task.call_id, list(task.needs)) == (REPORT, _words_mark(words), done)
        for task in this.tasks
    )
    if written or not done:
        return _verdict(this)
    task_id = new_task(
        this.connection,
        this.vault,
        goal=this.goal,
        number=0,
        kind=REPORT,
        title="Write the report",
        instructions=report_request(
            this.asked.text, known_tasks(this.steps), [word.line() for word in words]
        ),
        needs=done,
        call_id=_words_mark(words),
    )
    start_task(this.connection, task_id, parent=this.claim)
    this.read()
    return _wait(this) or _verdict(this)


def _verdict(this: Pass) -> GoalEnd:
    """Whether a goal that has come to its end is done: something was, and nothing that it needs is missing.

    What did not work is made up for when a plan says that the goal does without, or that a task which was not dropped
    replaces it. A plan that says of no task what it replaces means everything that it knew of.
    """
    made_up_for: set[int] = set()
    steps = iter(this.steps)  # plans made them in this order
    for plan in this.plans:
        content = (plan.result or {}).get("plan") if plan.reason == "applied" else None
        if not content:
            continue
        made = [(new, next(steps)) for new in content["tasks"]]
        named = any(new.get("replaces") for new in content["tasks"])
        made_up_for.update(content.get("without", ()))
        for new, task in made:
            if task.state != "dropped" and task.kind != "status":
                made_up_for.update(new.get("replaces", ()) if named else plan.needs)
    missing = [t for t in this.steps if t.state not in ("done", "dropped") and t.number not in made_up_for]
    if missing or not any(task.state == "done" for task in this.steps):
        return GoalEnd("failed", "tasks")
    return GoalEnd("done")


def _end(this: Pass, end: GoalEnd) -> None:
    """Drop what has not ended, stop what runs, and write the end down. The reply follows with the job's own end."""
    for task in this.tasks:
        if task.state in OVER:
            continue
        drop_task(this.connection, task.id, end.reason or "ended")
        if task.job_id is not None and not _is_over(this.connection, task.job_id):
            control.cancel(this.connection, task.job_id, by=f"goal:{this.goal.id}")
    asked = (questions.c.job_id == this.claim.id) & questions.c.answered_at.is_(None)
    this.connection.execute(update(questions).where(asked).values(answered_at=now()))
    records.set_state(this.connection, this.goal, end.state, end.reason)
    this.read()


def _is_over(connection: Connection, job_id: int) -> bool:
    state = connection.execute(select(jobs.c.state).where(jobs.c.id == job_id)).scalar()
    return state is None or state in FINAL


def _answer(this: Pass, about: str) -> control.GivenAnswer | None:
    """The answer to a question of this goal; None while nobody has been asked or nobody has answered."""
    given = control.answer_to(this.connection, this.vault, this.claim.id, about)
    return given if given.asked and not given.open else None


def _pass_answer_on(this: Pass, given: control.GivenAnswer, before: str = "") -> None:
    """Pass an answer on to the planner."""
    text = f"{before}they answered: {given.text}" if given.text else f"{before}nobody answered in time."
    records.note_words(
        this.connection, this.vault, this.goal, text if before else given.text or text, by="question",
        name=given.by, trust=this.goal.trust,
    )  # fmt: skip


def _move(this: Pass, state: str, reason: str = "") -> None:
    if records.set_state(this.connection, this.goal, state, reason):
        this.read()


def _mark(this: Pass, task: TaskRecord, reason: str) -> None:
    """Note on a run of the planner that it has been dealt with."""
    this.connection.execute(update(tasks).where(tasks.c.id == task.id).values(reason=reason))
    this.read()
