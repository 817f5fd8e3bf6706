"""Plans: their schema, what makes one unusable, and what the planner is told.

A plan is made by a model and carried out by tasks, so nothing of it is believed: a plan that cannot be carried out goes
back to the model with one sentence for each fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gofer.tool import Arguments, Tier, Tool, ToolContext, ToolResult

MAX_TASKS = 20
"""Tasks of a goal that are not over, at any time."""
MAX_REPLANS = 5
"""Changes of a plan before a person is asked."""
MAX_PLANNING_TRIES = 3
"""Runs of the planner in a row that end without a plan, before a person is asked."""
PLANNING_STEPS = 12
"""Model calls of one run of the planner."""
SUBMIT_PLAN, ASK_PERSON = "submit_plan", "ask_person"
UNDONE_STATES = frozenset({"failed", "blocked", "dropped"})
"""States of a task that is over and of which nothing came."""


class PlannedTask(BaseModel):
    """One task as the planner writes it."""

    model_config = ConfigDict(extra="forbid", strict=True)
    title: str = Field(min_length=1, max_length=120, description="What is done, in a few words.")
    kind: Literal["research", "execution", "status"] = Field(
        description="research: finds something out and changes nothing. execution: changes files or the world, one at "
        "a time. status: adds up where the goal stands, without a model."
    )
    instructions: str = Field(
        max_length=8000,
        description="What whoever does it has to know; they see neither this talk nor other tasks.",
    )
    needs: list[int] = Field(max_length=MAX_TASKS, description="Numbers of the tasks whose results it needs.")
    replaces: list[int] = Field(
        default_factory=list,
        max_length=MAX_TASKS,
        description="Numbers of earlier tasks that did not work and that it is done in place of; usually none.",
    )


class PlanArguments(Arguments):
    """A whole plan, or what becomes of the rest of one."""

    reply: str = Field(max_length=1000, description="What to tell the person at once, in a sentence or two.")
    tasks: list[PlannedTask] = Field(
        max_length=MAX_TASKS, description="New tasks, in the order of their numbers."
    )
    keep: list[int] = Field(
        max_length=MAX_TASKS,
        description="Numbers of earlier tasks that have not begun and stay in the plan; empty in a first plan.",
    )
    without: list[int] = Field(
        default_factory=list,
        max_length=MAX_TASKS,
        description="Numbers of earlier tasks that did not work and that the goal does not need; usually none.",
    )
    remember: list[str] = Field(
        max_length=5, description="Facts worth keeping beyond this goal; usually none."
    )


class AskPersonArguments(Arguments):
    """Something that only the person can decide."""

    question: str = Field(min_length=1, max_length=2000)
    choices: list[str] = Field(
        max_length=6, description="Answers to choose from; empty for an open question."
    )


@dataclass(frozen=True, slots=True)
class KnownTask:
    """A task of the goal as the planner sees it."""

    number: int
    title: str
    kind: str
    state: str
    needs: tuple[int, ...] = ()
    summary: str = ""
    """What came of it, or why it failed."""
    question: str = ""

    def line(self) -> str:
        """One line for the planner."""
        needs = f", needs {', '.join(map(str, self.needs))}" if self.needs else ""
        end = f": {' '.join(self.summary.split())}" if self.summary else ""
        asks = f" It asks: {self.question}" if self.question else ""
        return f"{self.number}. [{self.state}] {self.title} ({self.kind}{needs}){end}{asks}"


def plan_errors(plan: PlanArguments, known: Sequence[KnownTask]) -> list[str]:
    """Why a plan cannot be carried out, one sentence each; empty for a good one."""
    states = {task.number: task.state for task in known}
    first = next_number(known)
    numbers = range(first, first + len(plan.tasks))
    kept = [number for number in plan.keep if states.get(number) == "queued"]
    errors = [f"Task {n} cannot be kept: {_unfit(states, n)}." for n in plan.keep if n not in kept]
    errors += [
        f"Task {task.number} cannot be kept: it needs task {needed}, which is {states[needed]}."
        for task in known
        if task.number in kept
        for needed in task.needs
        if states.get(needed) in ("failed", "blocked")
    ]
    errors += [
        f"Task {n} cannot be done without: {_unfit(states, n)}."
        for n in plan.without
        if states.get(n) not in UNDONE_STATES
    ]
    for number, task in zip(numbers, plan.tasks, strict=True):
        errors += _task_errors(number, task, states, kept, numbers)
    running = sum(state == "running" for state in states.values())
    if (total := len(plan.tasks) + len(kept) + running) > MAX_TASKS:
        errors.append(f"A plan has at most {MAX_TASKS} tasks that are not over; this one would have {total}.")
    if not plan.tasks and not known:
        errors.append("A first plan needs at least one task.")
    if not errors and (cycle := _cycle(dict(zip(numbers, (task.needs for task in plan.tasks), strict=True)))):
        errors.append(f"These tasks wait for each other: {', '.join(map(str, cycle))}.")
    return errors


def next_number(known: Iterable[KnownTask]) -> int:
    """The number of the first new task."""
    return max((task.number for task in known), default=0) + 1


def _unfit(states: Mapping[int, str], number: int) -> str:
    return f"it is {states[number]}" if number in states else "there is none with that number"


def _task_errors(
    number: int, task: PlannedTask, states: Mapping[int, str], kept: Sequence[int], numbers: range
) -> list[str]:
    errors = []
    if not task.title.strip():
        errors.append(f"Task {number} has an empty title.")
    if not task.instructions.strip() and task.kind != "status":
        errors.append(f"Task {number} has no instructions.")
    errors += [
        f"Task {number} cannot replace task {n}: {_unfit(states, n)}."
        for n in task.replaces
        if states.get(n) not in UNDONE_STATES
    ]
    for needed in task.needs:
        if needed == number:
            errors.append(f"Task {number} needs itself.")
        elif needed not in numbers and needed not in kept and states.get(needed) not in ("done", "running"):
            what = f"is {states[needed]}" if needed in states else "does not exist"
            errors.append(f"Task {number} needs task {needed}, which {what}.")
    return errors


def _cycle(needs: Mapping[int, Sequence[int]]) -> list[int]:
    """The new tasks that can never begin, because each waits for another of them."""
    waiting = {number: {needed for needed in of if needed in needs} for number, of in needs.items()}
    while free := [number for number, of in waiting.items() if not of]:
        for number in free:
            del waiting[number]
        for of in waiting.values():
            of.difference_update(free)
    return sorted(waiting)


def planner_tools(known: Sequence[KnownTask]) -> list[Tool[Any]]:
    """The tools with which a run of the planner ends."""

    async def submit(arguments: PlanArguments, context: ToolContext) -> ToolResult:
        if errors := plan_errors(arguments, known):
            faults = "\n".join(f"- {error}" for error in errors[:10])
            return ToolResult(
                f"This plan cannot be carried out:\n{faults}\nSubmit a better one.", is_error=True
            )
        result = {"outcome": "done", "plan": arguments.model_dump()}
        return ToolResult("The plan is taken.", details={"task_result": result}, ends=True, progress=True)

    async def ask(arguments: AskPersonArguments, context: ToolContext) -> ToolResult:
        choices = [choice[:60] for choice in arguments.choices if choice.strip()]
        result = {"outcome": "blocked", "question": arguments.question, "choices": choices}
        return ToolResult("They are asked.", details={"task_result": result}, ends=True, progress=True)

    return [
        Tool(
            SUBMIT_PLAN,
            "Submit the plan. The first new task has the number "
            f"{next_number(known)}, the next one more, and so on; `needs` uses these numbers.",
            PlanArguments,
            submit,
            Tier.READ,
            strict=True,
        ),
        Tool(
            ASK_PERSON,
            "Ask the person who wants the goal, instead of planning: only for what nobody but they can decide.",
            AskPersonArguments,
            ask,
            Tier.READ,
            strict=True,
        ),
    ]


PROMPT = f"""\
You plan a goal; you do not work on it yourself. Others carry the tasks out, each alone: it sees its own instructions, \
the goal, and the results of the tasks it needs, and nothing else.

Make as few tasks as do the job, at most {MAX_TASKS}. What does not depend on each other runs side by side. Use \
research for what only reads, execution for what changes something. Write instructions that stand alone. The report \
at the end is not a task. End with `{SUBMIT_PLAN}`, or with `{ASK_PERSON}` when the goal cannot be planned without the \
person; text alone is no plan."""

CHANGE = """\
The plan has to change. Look at what was done and said so far, and submit what becomes of the rest: which waiting \
tasks stay (`keep`), and which new tasks come. What is done stays done, what runs goes on, and waiting tasks that you \
do not keep are dropped. What did not work leaves the goal failed, unless a new task `replaces` it, or you name it in \
`without` because the goal is reached without it. Submit no tasks and keep none when nothing more can be done."""


def quoted(text: str) -> str:
    """Words that are told, not said: no line of them stands for itself."""
    return "\n".join(f"> {line}" for line in text.strip().splitlines())


def said_since(words: Sequence[str]) -> str:
    """What people said about a goal, as a part of its own; empty when nobody did."""
    lines = "\n".join(f"- {' '.join(each.split())}" for each in words)
    return f"What was said about it since, in order:\n{lines}\n\n" if lines else ""


def planning_request(
    text: str, known: Sequence[KnownTask], words: Sequence[str], left: str = "", *, replanning: bool
) -> str:
    """What the planner is asked."""
    parts = [PROMPT, f"The goal, in the person's words:\n{quoted(text)}"]
    if known:
        parts.append("The tasks so far:\n" + "\n".join(task.line() for task in known))
    parts.append(said_since(words).strip())
    if left:
        parts.append(left)
    return "\n\n".join([*filter(None, parts), *([CHANGE] if replanning else [])])
