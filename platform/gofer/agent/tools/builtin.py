"""The tools Gofer brings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gofer.agent.context.operations import PAGE, listing, load
from gofer.agent.conversation import Delegations, Memories, Trust
from gofer.agent.tools.bash import BASH, BASH_JOB
from gofer.agent.tools.fetch import fetch_tool
from gofer.agent.tools.files import EDIT, FIND, GREP, LS, READ, WRITE
from gofer.agent.tools.registry import RECALL
from gofer.errors import NotFound
from gofer.tool import Arguments, NewTask, Question, Tier, Tool, ToolContext, ToolResult


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


DELEGATE = "delegate"
MAX_TASKS = 4
"""Tasks of one call."""


class TaskArguments(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Literal["research", "execution"] = Field(
        description="research only reads; execution may change files and run commands, one task at a time."
    )
    title: str = Field(min_length=1, max_length=200)
    instructions: str = Field(
        min_length=1,
        max_length=8000,
        description="All that the worker has to know; it sees nothing of this chat.",
    )


class DelegateArguments(Arguments):
    tasks: list[TaskArguments] = Field(min_length=1, max_length=MAX_TASKS)


def delegate_tool(delegations: Delegations) -> Tool[Any]:
    """The tool with which a run has tasks done side by side."""

    async def delegate(arguments: DelegateArguments, context: ToolContext) -> ToolResult:
        why = await delegations.refusal(len(arguments.tasks))
        if why:
            return ToolResult(why, is_error=True)
        given = [NewTask(one.kind, one.title.strip() or "Task", one.instructions) for one in arguments.tasks]
        return ToolResult("", delegation=tuple(given))

    return Tool(
        name=DELEGATE,
        description=(
            "Have up to four independent tasks done side by side by workers, and wait for all of them. Each worker "
            "begins with nothing but its instructions, your identity and the files of this conversation, and returns "
            "a summary, artefacts and open points. Use it for research in several places or for long separate pieces "
            "of work; do small things yourself. Workers cannot ask anybody and cannot delegate."
        ),
        arguments=DelegateArguments,
        run=delegate,
        tier=Tier.READ,
    )


def no_delegate_tool() -> Tool[Any]:
    """Stands in for `delegate` in a worker run and says why there is none."""

    async def refuse(arguments: DelegateArguments, context: ToolContext) -> ToolResult:
        return ToolResult(NOT_FURTHER, is_error=True)

    return Tool(
        name=DELEGATE,
        description="Not for workers.",
        arguments=DelegateArguments,
        run=refuse,
        tier=Tier.READ,
        hidden=True,
    )


NOT_FURTHER = (
    "You are a worker: a delegated task cannot be delegated further. Do it yourself, or finish it and name what is "
    "left among the open points."
)


class RecallArguments(Arguments):
    id: str = Field(default="", max_length=200, description="Such as mem_k3v9; or #12 for message 12.")
    query: str = Field(
        default="",
        max_length=2000,
        description="Instead of an id: words to search everything remembered for.",
    )
    around: int = Field(default=0, ge=0, le=5, description="How many neighbours to show before and after it.")
    full: bool = Field(default=False, description="The whole, instead of the first 4000 characters.")
    start: int = Field(default=0, ge=0, description="The first character to show, to go on from there.")


def recall_tool(memories: Memories, of_run: Trust, most: int) -> Tool[Any]:
    """Every run has it: it gives what everybody in the run's conversation may know, and nothing else."""

    async def recall(arguments: RecallArguments, context: ToolContext) -> ToolResult:
        wanted, query = arguments.id.strip(), arguments.query.strip()
        if bool(wanted) == bool(query):
            return ToolResult("Give either an id or a query.", is_error=True)
        if query:
            return listing(await memories.search(query, narrowed=context.narrowed), of_run)
        found = await memories.get(wanted, narrowed=context.narrowed)
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
            "Use it when you need exact words, numbers or output, rather than doing work again. With a query instead "
            "of an id it searches what was said and noted before, here and wherever everybody here may know it from: "
            "any of the words may fit, in any form; names and months help."
        ),
        arguments=RecallArguments,
        run=recall,
        tier=Tier.READ,
    )


REMEMBER = "remember"
MAX_NOTE = 4000


class RememberArguments(Arguments):
    text: str = Field(
        min_length=1, max_length=MAX_NOTE, description="One thing, in a sentence that stands alone."
    )
    audience: Literal["", "conversation", "person"] = Field(
        default="",
        description="Who may hear of it again: everybody in this conversation, or, where it is private, this person in "
        "their other private conversations too. By default as wide as this conversation allows.",
    )


def remember_tool(memories: Memories) -> Tool[Any]:
    """Keeps notes. It cannot reach everybody whom the agent talks to: that takes an owner's own word."""

    async def remember(arguments: RememberArguments, context: ToolContext) -> ToolResult:
        if not arguments.text.strip():
            return ToolResult("There is nothing to remember: the text is empty.", is_error=True)
        memory_id = await memories.remember(
            arguments.text, arguments.audience, context.call_id, narrowed=context.narrowed
        )
        return ToolResult(f"Remembered as {memory_id}.", progress=True)

    return Tool(
        name=REMEMBER,
        description=(
            "Remember one thing beyond this conversation's prompt: a preference, a decision, a name, a date. Not what "
            "the files or the conversation hold anyhow, and no passwords. Whoever is here can see it and take it back."
        ),
        arguments=RememberArguments,
        run=remember,
        tier=Tier.WRITE,
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
