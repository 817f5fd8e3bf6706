"""The words of goals: what is asked of people and of whoever writes the report, the plan, and the report itself."""

from __future__ import annotations

from collections.abc import Sequence

from gofer.goals.planner import KnownTask, quoted, said_since
from gofer.goals.tasks import TaskRecord

APPROVAL = "Here is the plan:\n{plan}\n\nMay I begin?"
CONSENT = "This is more than one step. Shall I make it a goal, plan it, and report when it is done?\n\n{text}"
WHICH = "Several agents hear this conversation. Who takes this goal?"
NO_PLAN = "I could not make a plan for this goal. Say it in other words, or choose."
TOO_OFTEN = "I have changed the plan {count} times, and it still does not work: {why}. What now?"
NO_MONEY = (
    "The budget of this goal is used up: ${spent:.2f} of ${budget:.2f}. Shall I go on with as much again?"
)
MAX_SUMMARY = 2000
"""Characters of a result that the planner reads."""

MARKS = {"done": "✓", "running": "▸", "failed": "✗", "blocked": "?", "dropped": "–"}
MAX_LINE = 300
"""Characters of what came of one task."""
WHY = {
    "budget": "its budget is used up",
    "overdue": "its time is over",
    "replans": "changing the plan did not help",
    "plan.missing": "I could not make a plan for it",
    "tasks": "not all of it worked",
    "refused": "an owner refused the plan",
    "question.expired": "nobody answered in time",
    "agent": "nobody said which agent takes it",
    "role.lost": "whoever asked for it may not ask me for anything any more",
}
REASONS = {
    "replanned": "left out when the plan changed",
    "cancelled": "stopped",
    "ended": "not needed any more",
    "budget": "no money left",
    "overdue": "no time left",
    "tasks": "what it needs did not work",
    "worker.lost": "its process stopped each time",
}


def plan_lines(tasks: Sequence[TaskRecord]) -> str:
    """The plan, one line for each task."""
    return "\n".join(f"{MARKS.get(task.state, '·')} {task.number}. {task.title}" for task in tasks)


def announcement(reply: str, tasks: Sequence[TaskRecord]) -> str:
    """What is said once where no message can be kept up to date."""
    return "\n\n".join(part for part in (reply.strip(), f"The plan:\n{plan_lines(tasks)}") if part)


def report(
    state: str,
    reason: str,
    tasks: Sequence[TaskRecord],
    *,
    words: str,
    dollars: float,
    seconds: float,
    url: str,
) -> str:
    """The report: what was done, what was not, what it cost, and where to see more."""
    done = [task for task in tasks if task.state == "done"]
    parts = [_head(state, reason), words.strip()]
    if done and not words.strip():
        parts.append("\n\n".join(f"**{task.title}**\n{_result(task)}" for task in done))
    elif done:
        parts.append("Done:\n" + "\n".join(f"- {task.title}" for task in done))
    if missing := [task for task in tasks if task.state != "done"]:
        parts.append("Not done:\n" + "\n".join(f"- {task.title} ({_why(task)})" for task in missing))
    cost = f"It cost ${dollars:.4f}" if dollars else "It cost nothing"
    more = f" The whole story: {url}" if url else ""
    parts.append(f"{cost} and took {_span(seconds)}.{more}")
    return "\n\n".join(part for part in parts if part)


def _head(state: str, reason: str) -> str:
    if state == "done":
        return ""
    if state == "cancelled" and reason == "cancelled":
        return "This goal was cancelled."
    return f"I have stopped working on this goal: {WHY.get(reason, reason or 'it failed')}."


def _result(task: TaskRecord) -> str:
    return str((task.result or {}).get("summary") or "done").strip()


def _why(task: TaskRecord) -> str:
    said = " ".join(str((task.result or {}).get("summary") or "").split())
    known = REASONS.get(task.reason, task.reason)
    if task.state == "failed":
        return (f"failed: {said or known}" if said or known else "failed")[:MAX_LINE]
    return (known or said or task.state)[:MAX_LINE]


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def known_tasks(tasks: Sequence[TaskRecord]) -> list[KnownTask]:
    """Tasks as the planner and whoever writes the report see them."""
    return [
        KnownTask(
            task.number,
            task.title,
            task.kind,
            # One that was started cannot be dropped any more.
            "running" if task.state == "queued" and task.job_id is not None else task.state,
            tuple(task.needs),
            _summary(task),
            str((task.result or {}).get("question") or ""),
        )
        for task in tasks
    ]


def _summary(task: TaskRecord) -> str:
    found = str((task.result or {}).get("summary") or "").strip()
    return found[:MAX_SUMMARY] or (task.reason if task.state in ("failed", "dropped") else "")


def report_request(text: str, known: Sequence[KnownTask], words: Sequence[str]) -> str:
    """What whoever writes the report is asked."""
    lines = "\n".join(task.line() for task in known)
    return (
        f"A goal has come to its end. It was:\n{quoted(text)}\n\n{said_since(words)}"
        f"What came of its tasks:\n{lines}\n\n"
        "Write the answer for the person who wanted it: what they wanted to know or have, first; then what could not "
        "be done, if anything. Plain words, no list of tasks (they see one), no more than a page. Use only what stands "
        "here."
    )
