"""`ask_user` and `todo`: a question to a person, and the plan of the run."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gofer.tool import Arguments, Question, Tier, Tool, ToolContext, ToolResult

DAY = 86_400


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
