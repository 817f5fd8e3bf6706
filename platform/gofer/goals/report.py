"""The words of goals for people: the plan, and the one report at the end."""

from __future__ import annotations

from collections.abc import Sequence

from gofer.goals.tasks import TaskRecord

MARKS = {"done": "✓", "running": "▸", "failed": "✗", "blocked": "?", "dropped": "–"}
MAX_LINE = 300
"""Characters of what came of one task."""
WHY = {
    "budget": "its budget is used up",
    "overdue": "its time is over",
    "replans": "changing the plan did not help",
    "plan.missing": "I could not make a plan for it",
    "tasks": "none of its tasks worked",
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
