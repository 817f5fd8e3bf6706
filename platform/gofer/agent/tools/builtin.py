"""The tools Gofer brings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gofer.agent.tools.bash import BASH, BASH_JOB
from gofer.agent.tools.fetch import fetch_tool
from gofer.agent.tools.files import EDIT, FIND, GREP, LS, READ, WRITE
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
