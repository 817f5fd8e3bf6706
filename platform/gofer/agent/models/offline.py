"""The offline model: no key, no network, no guessing. It runs what it is told to run, and says what it is.

A line that begins with `$`, in a message of an owner or member that is meant for it, is a command for the shell.
`$tool NAME {json}` calls any tool. Asked to plan a goal, it makes a task of each such line. Everything else is answered
with what this is and how to add a real model. It never stands in for a model that failed.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

from gofer.agent.model import (
    Block,
    Delta,
    Features,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    Turn,
    Usage,
    call_block,
)
from gofer.agent.state import texts
from gofer.agent.transcript import TOLD, meant, note

LABEL = "(offline model)"
WHAT_IT_IS = (
    f"{LABEL} I am Gofer without a language model. I can run commands for you: begin a line with `$`, "
    "for example `$ uname -a`.\n\n"
    'Any tool can be called with a line such as `$tool read {"path": "notes.txt"}`.\n\n'
    "To have a real model, give Gofer a key: on its Welcome page, by `gofer secrets put anthropic_key`, or in "
    "`GOFER_ANTHROPIC_KEY`. The page about models in the docs has the rest, local models included."
)
KEPT = "The plan stays as it is: only a real model can change one. For other commands, make another goal."
PLAN = "submit_plan"
"""The tool that ends the planning of a goal."""
FINISH = "finish_task"
"""The tool that ends a task with what came of it."""
MAX_PLANNED = 20
MAX_SUMMARY = 8000
_EXIT_CODE = re.compile(r"\[(?:[^]\n]*; )?exit code (?:unknown|[1-9][0-9]*)[^]\n]*\]\s*\Z")
"""How the result of a command ends that failed, or of which nobody knows whether it did."""
_WAITING_TASK = re.compile(r"^([0-9]+)\. \[queued\] .* \([a-z]+(?:, needs ([0-9, ]+))?\)$", re.M)
"""A task of an earlier plan that has not begun, as the planner is told of it."""
_TOOL = re.compile(r"tool\s++([a-z0-9_-]{1,64})\s*+(\{.*\})?+\s*+")


class Offline:
    """Deterministic: the same messages give the same answer."""

    name = "offline/offline"
    context_window = 1_000_000
    features = Features()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        turn = self._turn(request)
        for text in texts(turn.content):
            yield Delta("text", text)
        yield turn

    def _turn(self, request: ModelRequest) -> Turn:
        messages = request.messages
        malformed: dict[str, str] = {}
        calls = list(_calls(messages[-1], len(messages), malformed)) if request.use_tools else []
        if any(tool.name == PLAN for tool in request.tools):
            calls = [_plan(messages, malformed)] if len(messages) == 1 and _planned_lines(messages) else []
        if any(tool.name == FINISH for tool in request.tools) and not calls and not _succeeded(messages):
            calls = [_give_up(messages, malformed)]
        if calls:
            return Turn(calls, "tool_use", Usage(), self.name, message_id=None, malformed=malformed)
        block: Block = {"type": "text", "text": _report(messages) or WHAT_IT_IS}
        return Turn([block], "end", Usage(), self.name, message_id=None)


def _planned_lines(messages: tuple[ModelMessage, ...]) -> list[str]:
    """The commands of a goal, which is quoted in what the planner is asked."""
    said = [
        meant(block)
        for message in messages
        for block in message["content"]
        if _may_order(block.get("origin"))
    ]
    return [line[2:].strip() for text in said for line in text.splitlines() if line.startswith("> $")]


def _before(number: int) -> list[int]:
    """The number of the task before the one with this index."""
    return [number] if number else []


def _task_title(commands: str) -> str:
    """The first of some commands, without the sign that would have it run again."""
    first, _, rest = commands[1:].strip().partition("\n")
    more = f" and {len(rest.splitlines())} more" if rest else ""
    return first[:100] + more


def _plan(messages: tuple[ModelMessage, ...], malformed: dict[str, str]) -> Block:
    """One task for each command, one after the other, the last with all that are left. A plan that was made before is
    kept as it is, without the tasks that wait for one that did not work."""
    asked = "\n".join(meant(block) for block in messages[0]["content"])
    if "\nThe tasks so far:\n" in asked:
        given = {"reply": f"{LABEL} {KEPT}", "tasks": [], "keep": _runnable_tasks(asked)}
        return call_block("offline_plan", PLAN, json.dumps({**given, "remember": []}), malformed)
    lines = _planned_lines(messages)
    last = MAX_PLANNED - 1
    each = [*lines[:last], *(["\n".join(lines[last:])] if lines[last:] else [])]
    tasks = [
        {"title": _task_title(line), "kind": "execution", "instructions": line, "needs": _before(number)}
        for number, line in enumerate(each)
    ]
    plan = {"reply": f"{LABEL} One task for each command.", "tasks": tasks, "keep": [], "remember": []}
    return call_block("offline_plan", PLAN, json.dumps(plan), malformed)


def _runnable_tasks(asked: str) -> list[int]:
    """Waiting tasks that do not depend, directly or not, on a failed task."""
    stuck = {int(number) for number in re.findall(r"^([0-9]+)\. \[(?:failed|blocked)\]", asked, re.M)}
    waiting = {
        int(number): {int(each) for each in needs.split(",")} if needs else set()
        for number, needs in _WAITING_TASK.findall(asked)
    }
    while more := {number for number, needs in waiting.items() if needs & stuck} - stuck:
        stuck |= more
    return [number for number in waiting if number not in stuck]


def _calls(message: ModelMessage, position: int, malformed: dict[str, str]) -> Iterator[Block]:
    for number, line in enumerate(_command_lines(message)):
        name, arguments = _parse(line)
        yield call_block(f"offline_{position}_{number}", name, arguments, malformed)


def _command_lines(message: ModelMessage) -> Iterator[str]:
    """The commands that nobody has dealt with: not those of a run that was stopped or failed, which are never repeated
    blindly."""
    blocks = message["content"]
    ended = note(TOLD)["text"].removesuffix("</note>")
    dealt_with = [n for n, block in enumerate(blocks, 1) if block.get("text", "").startswith(ended)]
    for block in blocks[max(dealt_with, default=0) :]:
        if not _may_order(block.get("origin")):
            continue
        for line in meant(block).splitlines():
            if line.lstrip().startswith("$") and line.lstrip()[1:].strip():
                yield line.lstrip()[1:]


def _may_order(origin: dict[str, Any] | None) -> bool:
    """Only what owners and members say to it: not talk among people, nor an edit of what was done already."""
    if origin is None or origin["quoted"] or not origin.get("addressed", True):
        return False
    return origin["trust"] in ("owner", "member")


def _parse(line: str) -> tuple[str, str]:
    called = _TOOL.fullmatch(line)
    if called is None:
        return "bash", json.dumps({"command": line.strip()})
    return called.group(1), called.group(2) or "{}"


def _report(messages: tuple[ModelMessage, ...]) -> str:
    """Everything the run has done, also for messages that came while it worked; empty if it has done nothing."""
    blocks = [block for message in messages for block in message["content"]]
    asked = {block["id"]: block for block in blocks if block["type"] == "tool_use"}
    parts = [LABEL]
    for result in blocks:
        if result["type"] == "tool_result":
            parts.append(_shown(f"$ {_title(asked[result['tool_use_id']])}"))
            parts += [_fenced(text) for text in texts(result["content"])]
    return "\n".join(parts) if len(parts) > 1 else ""


def _succeeded(messages: tuple[ModelMessage, ...]) -> bool:
    """Whether it was told to do something, and all of it worked."""
    results = [block for one in messages for block in one["content"] if block["type"] == "tool_result"]
    return bool(results) and not any(
        one.get("is_error") or _EXIT_CODE.search("\n".join(texts(one["content"]))) for one in results
    )


def _give_up(messages: tuple[ModelMessage, ...], malformed: dict[str, str]) -> Block:
    """Say of a task that it failed, with all that it gave."""
    result = {"outcome": "failed", "summary": (_report(messages) or WHAT_IT_IS)[:MAX_SUMMARY]}
    return call_block("offline_finish", FINISH, json.dumps(result), malformed)


def _title(call: Block) -> str:
    command = call["input"].get("command") if call["name"] == "bash" else None
    return str(command or f"{call['name']} {json.dumps(call['input'])}")


def _shown(command: str) -> str:
    """A command as code, so that nothing in it is taken for Markdown."""
    marks = _marks(command, 1)
    if "\n" in command or len(marks) > 2:
        return _fenced(command)
    return f"{marks} {command} {marks}" if command.endswith("`") else f"{marks}{command}{marks}"


def _fenced(text: str) -> str:
    marks = _marks(text, 3)
    return f"{marks}\n{text}\n{marks}"


def _marks(text: str, least: int) -> str:
    """More backticks than there are in a row in the text."""
    return "`" * max(least, 1 + max(map(len, re.findall("`+", text)), default=0))
