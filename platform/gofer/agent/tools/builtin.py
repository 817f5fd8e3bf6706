"""The tools Gofer brings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gofer.agent.context.operations import PAGE, load
from gofer.agent.conversation import Memories, Trust
from gofer.agent.tools.bash import BASH, BASH_JOB
from gofer.agent.tools.fetch import fetch_tool
from gofer.agent.tools.files import EDIT, FIND, GREP, LS, READ, WRITE
from gofer.agent.tools.registry import RECALL
from gofer.errors import NotFound
from gofer.tool import Arguments, Question, Tier, Tool, ToolContext, ToolResult


def builtin_tools() -> list[Tool[Any]]:
    return [BASH, BASH_JOB, READ, WRITE, EDIT, LS, FIND, GREP, fetch_tool(), ASK_USER, TODO]


DAY = 86_400
EARLIER_ANSWER = "earlier_answer"


class AskArguments(Arguments):
    question: str = Field(min_length=1, max_length=4000)
    choices: list[str] = Field(
        default_factory=list, max_length=8, description="Offered as buttons where possible."
    )


class Item(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    text: str = Field(min_length=1, max_length=500)
    state: Literal["open", "doing", "done", "dropped"] = "open"


class TodoArguments(Arguments):
    items: list[Item] = Field(max_length=100)


class EarlierAnswerArguments(Arguments):
    number: int = Field(description="As the note says that stands in its place.")


async def ask_user(arguments: AskArguments, context: ToolContext) -> ToolResult:
    choices = tuple(choice[:100] for choice in arguments.choices if choice.strip())
    return ToolResult("", question=Question(arguments.question, choices, expires_after=7 * DAY))


async def todo(arguments: TodoArguments, context: ToolContext) -> ToolResult:
    plan = [{"text": item.text, "state": item.state} for item in arguments.items]
    marks = {"open": " ", "doing": ">", "done": "x", "dropped": "-"}
    lines = [f"[{marks[item['state']]}] {item['text']}" for item in plan]
    changed = plan != context.notes.get("plan", [])
    return ToolResult("\n".join(lines) or "The plan is empty.", details={"plan": plan}, progress=changed)


ASK_USER = Tool(
    name="ask_user",
    description=(
        "Ask the person you work for, and wait for the answer, however long it takes. Only for what nobody but they "
        "can know or decide; otherwise choose sensibly and say what you chose."
    ),
    arguments=AskArguments,
    run=ask_user,
    tier=Tier.READ,
)
TODO = Tool(
    name="todo",
    description="Keep the plan of a longer task: give the whole list each time, with what is open, doing and done.",
    arguments=TodoArguments,
    run=todo,
    tier=Tier.READ,
)


class RecallArguments(Arguments):
    id: str = Field(min_length=1, max_length=200, description="A memory id, such as mem_k3v9.")
    around: int = Field(default=0, ge=0, le=5, description="How many neighbours to show before and after it.")
    full: bool = Field(default=False, description="The whole, instead of the first 4000 characters.")
    start: int = Field(default=0, ge=0, description="The first character to show, to go on from there.")


def recall_tool(memories: Memories, of_run: Trust, most: int) -> Tool[Any]:
    """Every run has it: it gives back what the run's own conversation has had, and nothing else."""

    async def recall(arguments: RecallArguments, context: ToolContext) -> ToolResult:
        found = await memories.get(arguments.id.strip())
        if of_run == "stranger" and found.kind != "turn":
            raise NotFound("Only messages of this conversation can be recalled for a stranger.")
        beside = await memories.around(found.id, arguments.around) if arguments.around else ((), ())
        length = most if arguments.full else min(PAGE, most)
        return load(found, of_run, start=arguments.start, length=length, neighbours=beside)

    return Tool(
        name=RECALL,
        description=(
            "Read something again that is not in the prompt any more, exactly as it was. Lines such as "
            '[mem_k3v9 evicted: … recall("mem_k3v9")] give the ids; a message has the number at the end of its id. '
            "Use it when you need exact words, numbers or output, rather than doing work again."
        ),
        arguments=RecallArguments,
        run=recall,
        tier=Tier.READ,
    )


def earlier_answer_tool(answer: Callable[[int], Awaitable[str | None]]) -> Tool[Any]:
    """Every run has it, whatever the agent's list says: it gives the agent nothing but its own words."""

    async def read(arguments: EarlierAnswerArguments, context: ToolContext) -> ToolResult:
        text = await answer(arguments.number)
        if text is None:
            return ToolResult("You gave no answer with this number in this conversation.", is_error=True)
        return ToolResult(text, untrusted=True)

    return Tool(
        name=EARLIER_ANSWER,
        description=(
            "Read an answer of yours that is left out of this conversation, because you had read strangers' text when "
            "you gave it. Only when the request needs it: this run then reaches nothing beyond this conversation."
        ),
        arguments=EarlierAnswerArguments,
        run=read,
        tier=Tier.READ,
    )
