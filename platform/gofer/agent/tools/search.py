"""`find` and `grep`, run inside the shell so that its limits hold for them."""

from __future__ import annotations

import shlex

from pydantic import Field

from gofer.agent.tools.bash import NO_SHELL, command_result
from gofer.tool import Arguments, Tier, Tool, ToolContext, ToolResult

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
