"""Worker runs: each does one task with the agent's own loop, with narrower tools and no conversation.

A worker run is told its task, the goal, and the results that the task needs; not what was said before. It cannot ask or
message anybody. What it gives is kept on the task's row, where the planner or the run that delegated it reads it. Its
trust and its taint are those of whoever wants the task, and only narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from pydantic import Field
from sqlalchemy import Connection

from gofer.agent.conversation import ConversationMessage, QuestionAnswer, StopSignal
from gofer.agent.outcome import Answered, Failed, Stopped
from gofer.agent.outcome import Outcome as End
from gofer.agent.prices import MICROS
from gofer.agent.tools.builtin import ASK_USER, no_delegate_tool
from gofer.agent.tools.registry import RECALL
from gofer.agent.turn import SENTENCES
from gofer.crash import crash_point
from gofer.errors import ConfigError, NotFound, Temporary
from gofer.goals import tasks as rows
from gofer.goals.planner import PLANNING_STEPS, planner_tools, quoted
from gofer.goals.records import find_goal, request_of
from gofer.goals.report import known_tasks
from gofer.goals.tasks import HIDDEN, OVER, PLAN, REPORT, RESEARCH, STATUS, TaskRecord
from gofer.intake.admit import read_one
from gofer.jobs.fence import hold
from gofer.jobs.outcome import Cancel, Dead, Done, Outcome, Retry, Snooze
from gofer.jobs.queue import Claim
from gofer.jobs.worker import Run
from gofer.runs.agent_files import PROPOSE, AgentSpec
from gofer.runs.answer import WAIT_FOR_PROVIDER, Answerer, WorkerRun
from gofer.runs.build import NoHistory, Ports
from gofer.runs.shells import NoSharedShell, ShellKind
from gofer.runs.spend import cost_of_job
from gofer.settings import Settings
from gofer.store import row_macs
from gofer.store.database import Database
from gofer.store.locks import lock_conversation
from gofer.store.messages import StoredMessage
from gofer.store.tables import Trust, goals
from gofer.tool import Arguments, Shell, Tier, Tool, ToolContext, ToolResult
from gofer.vault.envelope import Vault

FINISH = "finish_task"
READING = frozenset({"fetch", RECALL})
"""Tools beside those of the tier `read` that a worker run for research has."""
NOT_FOR_WORKERS = frozenset({ASK_USER.name, PROPOSE, "send_file"})
"""Tools that speak with people, or for the agent itself."""
REPORT_STEPS = 3
LOCAL = "local"
NARROWED = "Whoever wants this task has read strangers' text."
NO_MODEL = "Workers do not call models here (GOFER_WORKERS=local), so only the planner can do this."
NOTE = f"""\
You are a worker: you do one task for somebody else, who sees only what you return. Nobody reads along, nobody can \
answer a question, and you can message nobody. Do the task and no more, check what you did, and end with \
`{FINISH}`: what came of it in a few sentences, the files or links that show it, and what is left open. If it cannot \
be done, end with the outcome failed, and why; if only a person can decide something, with blocked and the question."""


class FinishArguments(Arguments):
    outcome: Literal["done", "failed", "blocked"]
    summary: str = Field(min_length=1, max_length=8000, description="What came of it, for whoever wanted it.")
    artefacts: list[str] = Field(
        default_factory=list, max_length=50, description="Paths of files, or links, that show it."
    )
    open_points: list[str] = Field(default_factory=list, max_length=50, description="What is left to do.")
    question: str = Field(
        default="", max_length=2000, description="If blocked: what has to be asked of a person."
    )


async def _finish(arguments: FinishArguments, context: ToolContext) -> ToolResult:
    if arguments.outcome == "blocked" and not arguments.question.strip():
        return ToolResult("A blocked task needs the question that has to be asked.", is_error=True)
    return ToolResult("Taken.", details={"task_result": arguments.model_dump()}, ends=True, progress=True)


FINISH_TASK = Tool(
    name=FINISH,
    description="End the task with what came of it. This is your last call.",
    arguments=FinishArguments,
    run=_finish,
    tier=Tier.READ,
)


@dataclass(frozen=True, slots=True)
class Kit:
    """What a worker run of one kind works with."""

    may_use: Callable[[Tool[Any]], bool]
    own: tuple[Tool[Any], ...] = ()
    steps: int | None = None
    takes_text: bool = True
    """Whether its last words are a result."""
    files: ShellKind = "none"
    """How it uses the conversation's files."""
    note: str = ""


def _reads(tool: Tool[Any]) -> bool:
    return (tool.tier is Tier.READ or tool.name in READING) and tool.name not in NOT_FOR_WORKERS


def _kit(task: TaskRecord, others: Sequence[TaskRecord]) -> Kit:
    """The tools and the shell of a task, by its kind. The kind is the sealed one."""
    if task.kind == PLAN:
        known = known_tasks([one for one in others if one.kind not in HIDDEN])
        return Kit(lambda tool: tool.name == RECALL, tuple(planner_tools(known)), PLANNING_STEPS, False)
    if task.kind == REPORT:
        return Kit(lambda tool: False, steps=REPORT_STEPS)
    own = (FINISH_TASK, no_delegate_tool())
    if task.kind == RESEARCH:
        return Kit(_reads, own, files="read", note=NOTE)
    return Kit(lambda tool: tool.name not in NOT_FOR_WORKERS, own, files="share", note=NOTE)


class TaskInbox:
    """The `Inbox` of a worker run: its task, and nothing else."""

    def __init__(self, run: Run, message: ConversationMessage) -> None:
        self._run = run
        self._message = message

    async def unread(self, after: int) -> Sequence[ConversationMessage]:
        return [self._message] if after < self._message.seq else []

    async def stopped(self) -> StopSignal:
        await self._run.cancelled.wait()
        return StopSignal()

    def paused(self) -> bool:
        return False


class NoQuestions:
    async def answer(self, call_id: str) -> QuestionAnswer | None:
        return None


class WorkerRuns:
    """Does tasks. `handle` is the handler of task jobs."""

    def __init__(self, *, settings: Settings, database: Database, vault: Vault, answerer: Answerer) -> None:
        self._settings = settings
        self._database = database
        self._vault = vault
        self._answerer = answerer

    async def handle(self, run: Run) -> Outcome:
        """Do a task, or continue where an earlier process stopped."""
        claim = run.claim
        try:
            task, others, wanted = await self._database.read(partial(_read, vault=self._vault, claim=claim))
            if task.state in OVER:
                return Done()
            await self._database.write(partial(_begin, claim=claim, task_id=task.id))
            crash_point("task.begun")
            return await self._done(run, task, others, wanted)
        except Temporary as error:
            if error.retry_after is not None:
                return Snooze(error.retry_after, error.reason)
            return Retry(error.reason)
        except ConfigError as error:
            return Dead("config", detail=str(error))
        except NotFound:
            return Dead("purged")

    async def _done(self, run: Run, task: TaskRecord, others: Sequence[TaskRecord], wanted: str) -> Outcome:
        if task.kind == STATUS:
            return await self._give(run, task, _status(others))
        if self._settings.workers == LOCAL and task.kind not in HIDDEN:
            return await self._by_rule(run, task)
        try:
            end = await self._work(run, task, others, wanted)
        except NoSharedShell as error:
            return await self._give(run, task, _failed(str(error)), "shell")
        crash_point("task.worked")
        return await self._outcome(run, task, end, _kit(task, others))

    async def _work(self, run: Run, task: TaskRecord, others: Sequence[TaskRecord], wanted: str) -> End:
        kit = _kit(task, others)
        message = _message(task, _context(task, others, wanted))
        return await self._answerer.work(
            run,
            WorkerRun(
                asker=await self._asker(task),
                as_worker=partial(_with_model, task=task),
                limited=partial(_limited, task=task, kit=kit),
                ports=partial(self._ports, run=run, task=task, message=message),
                may_use=kit.may_use,
                own=kit.own,
                files=kit.files,
                trust=Trust(task.trust),
                goal_id=task.goal_id,
            ),
        )

    def _ports(self, shared: Ports, *, run: Run, task: TaskRecord, message: ConversationMessage) -> Ports:
        """The ports of a run over the conversation, narrowed to one task. Only a planner is reminded of what is
        remembered: the others are told what they need, and search for more."""
        reminded = shared.memories is None or task.kind == PLAN
        return replace(
            shared,
            inbox=TaskInbox(run, message),
            history=NoHistory(),
            memories=shared.memories if reminded else self._answerer.memories_of(run.claim),
            questions=NoQuestions(),
            covers=replace(shared.covers, read_seq=0),
            delegations=None,
        )

    async def _asker(self, task: TaskRecord) -> StoredMessage | None:
        """The message that asked, with the task's trust: its integration's tools and grants are the task's."""
        if task.message_seq is None:
            return None
        look = partial(
            read_one, vault=self._vault, conversation_id=task.conversation_id, seq=task.message_seq
        )
        found = await self._database.read(look)
        return None if found is None else replace(found, trust=Trust(task.trust))

    async def _outcome(self, run: Run, task: TaskRecord, end: End, kit: Kit) -> Outcome:
        match end:
            case Answered(result=dict() as result, narrowed=narrowed):
                return await self._give(run, task, {**result, "narrowed": narrowed})
            case Answered(text, narrowed=narrowed) if kit.takes_text:
                return await self._give(run, task, {"outcome": "done", "summary": text, "narrowed": narrowed})
            case Answered(text, narrowed=narrowed):
                return await self._give(run, task, {**_failed(text), "narrowed": narrowed}, "plan.missing")
            case Stopped("user.stop"):
                return Cancel("cancelled", cost=await self._cost(run.claim))
            case Stopped(code, _, text, _, narrowed):
                return await self._give(run, task, {**_failed(text), "narrowed": narrowed}, code)
            case Failed("model.auth"):
                return await self._give(run, task, _failed(SENTENCES["auth"]), "model.auth")
            case Failed(reason, _, _, retry_after, waiting) if waiting:
                return Snooze(retry_after or WAIT_FOR_PROVIDER, reason, await self._cost(run.claim))
            case Failed(reason, _, _, retry_after):
                return Retry(reason, retry_after, cost=await self._cost(run.claim))
            case _:
                return Dead("worker.asked")

    async def _give(self, run: Run, task: TaskRecord, result: Mapping[str, Any], reason: str = "") -> Outcome:
        """Keep what the task gave, then end its job."""
        crash_point("task.finishing")
        cost = await self._cost(run.claim)
        await self._database.write(
            partial(
                _give, vault=self._vault, claim=run.claim, task=task, result=result, reason=reason, cost=cost
            )
        )
        crash_point("task.finished")
        return Done(cost=cost)

    async def _cost(self, claim: Claim) -> float:
        return await self._database.read(partial(cost_of_job, job_id=claim.id))

    async def _by_rule(self, run: Run, task: TaskRecord) -> Outcome:
        """Do a task without a model: search what is remembered, and the conversation's files."""
        if task.kind != RESEARCH:
            return await self._give(run, task, _failed(NO_MODEL), "workers.local")
        words = f"{task.title} {task.instructions}"[:2000]
        found = await self._answerer.memories_of(run.claim).search(words, narrowed=task.narrowed)
        lines = [f"- {' '.join(one.text.split())[:300]} [{one.id}]" for one in found]
        async with self._answerer.lend_worker(run, "read", Trust(task.trust)) as shell:
            files = await _matching_files(shell, words) if shell is not None else []
        lines += [f"- file {path}" for path in files]
        summary = "\n".join(["Found by rule, without a model:", *lines]) if lines else "Nothing was found."
        narrowed = task.narrowed or any(one.untrusted for one in found)
        result = {"outcome": "done", "summary": summary, "artefacts": files, "narrowed": narrowed}
        return await self._give(run, task, result)


async def _matching_files(shell: Shell, words: str) -> list[str]:
    """The conversation's files that have the rarest-looking words, at most twenty."""
    wanted = sorted({word for word in words.split() if word.isalnum() and len(word) > 4}, key=len)[-3:]
    if not wanted:
        return []
    pattern = "|".join(wanted)
    command = f"grep -rlIiE --exclude-dir=.git -e '{pattern}' . 2>/dev/null | head -n 20"
    ran = await shell.run(command, timeout=20)
    return [line.removeprefix("./") for line in ran.output.decode(errors="replace").splitlines()]


def _with_model(spec: AgentSpec, *, task: TaskRecord) -> AgentSpec:
    """The agent with the model of its kind of worker run."""
    if task.kind == RESEARCH and spec.worker_model:
        return spec.model_copy(update={"model": spec.worker_model})
    return spec


def _limited(spec: AgentSpec, *, task: TaskRecord, kit: Kit) -> AgentSpec:
    """The agent as a worker: told so, and within what is left to whoever wants the task."""
    most: dict[str, float] = {}
    if kit.steps is not None:
        most["steps"] = kit.steps
    if task.budget is not None:
        most["job_dollars"] = max(task.budget, 1) / MICROS
    instructions = "\n\n".join(part for part in (spec.instructions.strip(), kit.note) if part)
    return spec.model_copy(update={"limits": spec.limits.narrowed(most), "instructions": instructions})


def _message(task: TaskRecord, context: str) -> ConversationMessage:
    """The task as the one message of its run. What strangers may speak through is quoted."""
    text = f"{task.title}\n\n{task.instructions}" if task.kind not in HIDDEN else task.instructions
    trust: Any = task.trust
    return ConversationMessage(
        seq=1,
        author="Gofer",
        trust=trust,
        text=text if task.narrowed or not context else f"{text}\n\n{context}",
        quoted="\n\n".join(part for part in (NARROWED, context) if part) if task.narrowed else "",
        identity=task.asker,
        background=task.background,
    )


def _context(task: TaskRecord, others: Sequence[TaskRecord], wanted: str) -> str:
    """The goal and the results that a task needs, told and not said."""
    if task.kind in HIDDEN:
        return ""
    parts = [f"It is part of this goal:\n{quoted(wanted)}"] if wanted else []
    needed = [one for one in others if one.number in task.needs and one.kind not in HIDDEN]
    parts += [f"What came of a task before it:\n{quoted(rows.told(one))}" for one in needed]
    return "\n\n".join(parts)


def _failed(summary: str) -> dict[str, Any]:
    return {"outcome": "failed", "summary": summary}


def _status(others: Sequence[TaskRecord]) -> dict[str, Any]:
    """Where a goal stands, counted from its rows."""
    steps = [one for one in others if one.kind not in HIDDEN]
    counted = {
        state: sum(one.state == state for one in steps) for state in dict.fromkeys(s.state for s in steps)
    }
    figures = ", ".join(f"{count} {state}" for state, count in counted.items()) or "no tasks"
    lines = [f"{one.number}. [{one.state}] {one.title}" for one in steps]
    cost = sum(one.cost for one in others)
    summary = "\n".join([f"{figures}; ${cost:.2f} spent on tasks that are over.", *lines])
    points = [one.title for one in steps if one.state in ("failed", "blocked")]
    return {"outcome": "done", "summary": summary, "open_points": points}


def _read(connection: Connection, vault: Vault, claim: Claim) -> tuple[TaskRecord, list[TaskRecord], str]:
    """A task, the others of its goal, and what the goal wants."""
    task = rows.load_task(connection, vault, str(claim.payload["task"]))
    if task.goal_id is None:
        return task, [], ""
    row = find_goal(connection, task.goal_id)
    others = rows.tasks_of_goal(connection, vault, task.goal_id)
    narrowed = task.narrowed or bool(row.narrowed)
    return replace(task, narrowed=narrowed), others, request_of(connection, vault, row).text


def _begin(connection: Connection, claim: Claim, task_id: str) -> None:
    lock_conversation(connection, str(claim.conversation_id))
    hold(connection, claim)
    rows.begin_task(connection, task_id)


def _give(
    connection: Connection,
    vault: Vault,
    claim: Claim,
    task: TaskRecord,
    result: Mapping[str, Any],
    reason: str,
    cost: float,
) -> None:
    """Keep a result under the run's fence; a goal whose worker has read strangers' text is narrowed from then on."""
    lock_conversation(connection, str(claim.conversation_id))
    hold(connection, claim)
    rows.finish_task(connection, vault, task.id, result["outcome"], result, reason=reason, cost=cost)
    if result.get("narrowed") and task.goal_id is not None:
        row_macs.update(connection, goals, goals.c.id == task.goal_id, {"narrowed": True})
