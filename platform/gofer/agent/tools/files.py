"""`read`, `write`, `edit` and `ls`: files in the conversation's shell."""

from __future__ import annotations

import asyncio
import difflib
import re
import shlex

from pydantic import BaseModel, ConfigDict, Field

from gofer.agent.models.images import image_type, problem
from gofer.agent.tools.bash import MAX_LINE, NO_SHELL, command_result
from gofer.tool import Arguments, Image, Tier, Tool, ToolContext, ToolResult

MAX_FILE = 10_000_000
PAGE_LINES = 1000
COMPARED_LINES, COMPARED_LENGTH = 2000, 500
"""Lines, and characters of each, in which one like another is looked for: it takes long."""
PAGE_CHARACTERS = 22_000
_KEPT = re.compile(r"output:([A-Za-z0-9_-]{8,128})")


class ReadArguments(Arguments):
    path: str = Field(min_length=1, max_length=4096)
    offset: int = Field(default=1, ge=1, description="First line to show.")
    limit: int = Field(default=PAGE_LINES, ge=1, le=5000, description="How many lines.")


class WriteArguments(Arguments):
    path: str = Field(min_length=1, max_length=4096)
    content: str = Field(max_length=1_000_000)


class Replacement(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    old: str = Field(min_length=1, description="Text that is in the file exactly once, white space included.")
    new: str


class EditArguments(Arguments):
    path: str = Field(min_length=1, max_length=4096)
    edits: list[Replacement] = Field(min_length=1, max_length=100)


class ListArguments(Arguments):
    path: str = Field(default=".", min_length=1, max_length=4096)


async def read(arguments: ReadArguments, context: ToolContext) -> ToolResult:
    kept = _KEPT.fullmatch(arguments.path)
    if kept:
        found = await context.blobs.get(kept.group(1)) if context.blobs else None
        if found is None:
            return ToolResult(f"There is nothing kept as {arguments.path}.", is_error=True)
        return _page(found, arguments)
    if context.shell is None:
        return NO_SHELL
    data = await context.shell.read(arguments.path, limit=MAX_FILE)
    if image_type(data) is not None:
        return _picture(data, arguments.path)
    if b"\0" in data[:8000]:
        return ToolResult(
            f"{arguments.path} is binary ({len(data)} bytes). Use bash to look into it.", is_error=True
        )
    return _page(data, arguments)


def _picture(data: bytes, path: str) -> ToolResult:
    if (why := problem(data)) is not None:
        return ToolResult(f"{path} cannot be shown: {why}.", is_error=True)
    kind = image_type(data) or ""
    return ToolResult(f"{path}, {kind}, {len(data)} bytes:", images=(Image(kind, data),))


def _page(data: bytes, arguments: ReadArguments) -> ToolResult:
    lines = data.decode("utf-8", "replace").splitlines()
    if not lines:
        return ToolResult("(empty file)")
    if arguments.offset > len(lines):
        return ToolResult(f"The file has only {len(lines)} lines.", is_error=True)
    shown: list[str] = []
    size = 0
    for number, line in enumerate(lines[arguments.offset - 1 :][: arguments.limit], arguments.offset):
        text = f"{number:6}\t{line[:MAX_LINE]}" + (" [cut]" if len(line) > MAX_LINE else "")
        size += len(text) + 1
        if shown and size > PAGE_CHARACTERS:
            break
        shown.append(text)
    last = arguments.offset + len(shown) - 1
    if last >= len(lines):
        return ToolResult("\n".join(shown))
    more = f"{len(lines) - last} more lines; go on with offset={last + 1}."
    return ToolResult("\n".join([*shown, f"[{more}]"]), truncated=True, more=more)


async def write(arguments: WriteArguments, context: ToolContext) -> ToolResult:
    if context.shell is None:
        return NO_SHELL
    before = await _text_or_none(arguments.path, context)
    await context.shell.write(arguments.path, arguments.content.encode("utf-8", "surrogatepass"))
    details = {"diff": _diff(before or "", arguments.content, arguments.path)}
    verb = "Wrote" if before is None else "Replaced"
    text = f"{verb} {arguments.path}, lines: {len(arguments.content.splitlines())}."
    return ToolResult(text, details=details, progress=before != arguments.content)


async def _text_or_none(path: str, context: ToolContext) -> str | None:
    assert context.shell is not None
    try:
        return (await context.shell.read(path, limit=MAX_FILE)).decode("utf-8", "replace")
    except OSError:
        return None


async def edit(arguments: EditArguments, context: ToolContext) -> ToolResult:
    if context.shell is None:
        return NO_SHELL
    raw = await context.shell.read(arguments.path, limit=MAX_FILE)
    if len(raw) >= MAX_FILE:
        return ToolResult(f"{arguments.path} is too large to edit; use bash.", is_error=True)
    try:
        text = before = raw.decode("utf-8")
    except UnicodeDecodeError:
        return ToolResult(f"{arguments.path} is not UTF-8 text; use bash.", is_error=True)
    for number, one in enumerate(arguments.edits, 1):
        count = text.count(one.old)
        if count != 1:
            return ToolResult(await asyncio.to_thread(_mismatch, number, count, one.old, text), is_error=True)
        text = text.replace(one.old, one.new, 1)
    await context.shell.write(arguments.path, text.encode())
    diff = _diff(before, text, arguments.path)
    done = f"Edited {arguments.path}, edits made: {len(arguments.edits)}."
    return ToolResult(done, details={"diff": diff}, progress=text != before)


def _mismatch(number: int, count: int, old: str, text: str) -> str:
    if count > 1:
        return f"Edit {number}: the old text is there {count} times. Give more of its surroundings. Nothing changed."
    near = _nearest(old.splitlines()[0], text) if old.strip() else ""
    hint = f" The nearest line is: {near!r}." if near else ""
    return f"Edit {number}: the old text is not in the file exactly as given.{hint} Nothing changed."


def _nearest(wanted: str, text: str) -> str:
    """A line that was probably meant: the same but for white space, or one of the first few much like it."""
    lines = [line for line in text.splitlines() if len(line) <= COMPARED_LENGTH]
    words = wanted.split()
    if (same := next((line for line in lines if line.split() == words), "")) != "":
        return same
    likely = difflib.get_close_matches(wanted[:COMPARED_LENGTH], lines[:COMPARED_LINES], 1, 0.6)
    return likely[0] if likely else ""


def _diff(before: str, after: str, path: str) -> str:
    if len(before) + len(after) > 400_000:
        return "(too large for a diff)"
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), path, path, lineterm="", n=2)
    return "\n".join(lines)[:20_000]


async def ls(arguments: ListArguments, context: ToolContext) -> ToolResult:
    if context.shell is None:
        return NO_SHELL
    entries = sorted(await context.shell.list(arguments.path), key=lambda entry: entry.name)
    marks = {"dir": "/", "link": "@", "file": "", "other": "?"}
    lines = [f"{entry.size:>10} {entry.name}{marks[entry.kind]}" for entry in entries]
    return ToolResult("\n".join(lines) or "(empty directory)")


READ = Tool(
    name="read",
    description=(
        "Show a file with line numbers, or look at an image. Shows up to 1000 lines; go on with offset. A path such "
        "as output:… shows output that was too long for a result."
    ),
    arguments=ReadArguments,
    run=read,
    tier=Tier.READ,
    parallel=True,
)
WRITE = Tool(
    name="write",
    description="Create a file, or replace a whole one. Parent directories are made. To change part of it, use edit.",
    arguments=WriteArguments,
    run=write,
    tier=Tier.WRITE,
)
EDIT = Tool(
    name="edit",
    description=(
        "Replace pieces of a file. Each old text must be in the file exactly once, without the line numbers that "
        "read shows; edits apply in order, and if one does not match, none is made."
    ),
    arguments=EditArguments,
    run=edit,
    tier=Tier.WRITE,
)
LS = Tool(
    name="ls",
    description="List a directory: size and name; / marks directories, @ links.",
    arguments=ListArguments,
    run=ls,
    tier=Tier.READ,
    parallel=True,
)


MAX_HITS = 200
TIMEOUT = 30
_SKIP = r"\( -name .git -o -name node_modules -o -name .venv -o -name __pycache__ \) -prune -o"


class FindArguments(Arguments):
    pattern: str = Field(min_length=1, max_length=500, description="A glob on the name, such as *.py")
    path: str = Field(default=".", min_length=1, max_length=4096)


class GrepArguments(Arguments):
    pattern: str = Field(min_length=1, max_length=2000, description="An extended regular expression.")
    path: str = Field(default=".", min_length=1, max_length=4096)
    glob: str = Field(default="", max_length=200, description="Only in files with such names, as *.py")
    ignore_case: bool = False


async def find(arguments: FindArguments, context: ToolContext) -> ToolResult:
    path, pattern = _path(arguments.path), shlex.quote(arguments.pattern)
    return await _search(f"find {path} {_SKIP} -name {pattern} -print", context)


async def grep(arguments: GrepArguments, context: ToolContext) -> ToolResult:
    flags = "-rnIE" + ("i" if arguments.ignore_case else "")
    names = f"--include={shlex.quote(arguments.glob)} " if arguments.glob else ""
    skip = "--exclude-dir=.git --exclude-dir=node_modules --exclude-dir=.venv --exclude-dir=__pycache__"
    pattern = shlex.quote(arguments.pattern)
    return await _search(f"grep {flags} {skip} {names}-e {pattern} -- {_path(arguments.path)}", context)


def _path(path: str) -> str:
    return shlex.quote(f"./{path}" if path.startswith("-") else path)


async def _search(command: str, context: ToolContext) -> ToolResult:
    if context.shell is None:
        return NO_SHELL
    # A subshell, so that neither options nor the directory of the session change.
    script = f"({command} 2>&1 | head -n {MAX_HITS + 1}; exit ${{PIPESTATUS[0]}})"
    result = await context.shell.run(script, timeout=min(TIMEOUT, max(1.0, context.seconds_left)))
    if result.timed_out or result.cancelled or result.exit_code is None:
        return command_result(result)
    lines = result.output.decode("utf-8", "replace").splitlines()
    if not lines:
        return ToolResult("Nothing found.")
    if len(lines) <= MAX_HITS:
        return ToolResult("\n".join(lines), is_error=(result.exit_code or 0) > 1 and len(lines) == 1)
    more = f"More than {MAX_HITS} hits; narrow the pattern or the path."
    return ToolResult("\n".join([*lines[:MAX_HITS], f"[{more}]"]), truncated=True, more=more)


FIND = Tool(
    name="find",
    description="Find files and directories by name below a path. Skips .git, node_modules and the like.",
    arguments=FindArguments,
    run=find,
    tier=Tier.READ,
    timeout=TIMEOUT + 10,
)
GREP = Tool(
    name="grep",
    description="Search text files below a path by regular expression; gives file:line:text.",
    arguments=GrepArguments,
    run=grep,
    tier=Tier.READ,
    timeout=TIMEOUT + 10,
)
