"""`bash`: commands in the conversation's shell, in front or in the background; and how any output is made to
fit a model: cleaned, masked, and cut in the middle, with counts and a way to the rest."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeVar

from pydantic import Field

from gofer.agent.transcript import cap
from gofer.sanitize import clean
from gofer.tool import Arguments, Blobs, CommandResult, Shell, Tier, Tool, ToolContext, ToolResult

DEFAULT_TIMEOUT = 120
MAX_TIMEOUT = 1800
_HOME = "/tmp/.gofer-background"  # noqa: S108 - inside the sandbox, which has a /tmp of its own
_PAGE = 16_000

T = TypeVar("T")

NO_SHELL = ToolResult(
    "There is no shell: this machine cannot isolate commands. `gofer doctor` says what is missing.",
    is_error=True,
)


class BashArguments(Arguments):
    command: str = Field(
        min_length=1, max_length=200_000, description="What to run; bash, several lines allowed."
    )
    timeout: int = Field(
        default=DEFAULT_TIMEOUT,
        ge=1,
        le=MAX_TIMEOUT,
        description="Seconds until it is ended, with its children.",
    )
    background: bool = Field(
        default=False, description="Start it and return at once with a job id; see bash_job."
    )


class JobArguments(Arguments):
    action: Literal["output", "kill", "list"]
    job: str = Field(default="", pattern=r"^[a-z0-9]{0,32}$", description="The id that bash gave.")
    offset: int = Field(
        default=0, ge=0, description="Bytes of output to skip; the last result said where to go on."
    )


async def bash(arguments: BashArguments, context: ToolContext) -> ToolResult:
    if context.shell is None:
        return NO_SHELL
    if arguments.background:
        return await _start(arguments.command, context.shell, context.call_id)
    result = await _run(arguments, context, context.shell)
    return command_result(result)


async def _run(arguments: BashArguments, context: ToolContext, shell: Shell) -> CommandResult:
    def on_output(data: bytes) -> None:
        if context.on_output is not None:
            context.on_output(data.decode("utf-8", "replace"))

    timeout = max(1.0, min(arguments.timeout, context.seconds_left))
    running = asyncio.ensure_future(
        shell.run(arguments.command, timeout=timeout, tag=context.call_id, on_output=on_output)
    )
    return await wait_or_cancel(running, context.stopping, shell)


async def wait_or_cancel(
    running: asyncio.Future[T], stopping: Callable[[], Awaitable[None]] | None, shell: Shell
) -> T:
    """Wait for a command, ending it when somebody stops the run.

    A mere cancellation leaves the command alone: it means that this worker goes away, and another will reattach.
    """
    waiting: list[asyncio.Future[Any]] = [running]
    if stopping is not None:
        waiting.append(asyncio.ensure_future(stopping()))
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            await shell.cancel()
        return await running
    finally:
        for task in waiting:
            task.cancel()
            with contextlib.suppress(BaseException):
                await task


def command_result(result: CommandResult) -> ToolResult:
    """A finished command as the model reads it."""
    text = result.output.decode("utf-8", "replace")
    if result.cancelled:
        text = cap(text)  # whoever stops it does not want to wait while all of it is read
    notes = []
    if result.dropped:
        notes.append(f"{result.dropped} bytes in the middle were not kept")
    if result.timed_out:
        notes.append("timed out and was ended, with its children")
    if result.cancelled:
        notes.append("stopped before its end")
    if result.exit_code is None and not (result.timed_out or result.cancelled):
        notes.append("exit code unknown")
    elif result.exit_code:
        notes.append(f"exit code {result.exit_code}")
    notes += [result.note] if result.note else []
    tail = f"[{'; '.join(notes)}]" if notes else ""
    return ToolResult(
        "\n".join(part for part in (text.rstrip("\n"), tail) if part),
        is_error=result.timed_out or result.cancelled,
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        truncated=bool(result.dropped),
        more=f"The whole output is in the shell at {result.spool}." if result.spool else "",
        progress=result.changed,
    )


async def _start(command: str, shell: Shell, call_id: str) -> ToolResult:
    """Start a command whose output and exit code outlive us, as files in the shell."""
    job = "".join(char for char in call_id.lower() if char.isalnum())[-12:]
    base = f"{_HOME}/{job}"
    inner = f"echo $$ >{base}.pid; bash {base}.sh >{base}.log 2>&1 </dev/null; echo $? >{base}.rc"
    script = (
        f"mkdir -p {_HOME}; printf %s {shlex.quote(command)} >{base}.sh\n"
        f"setsid bash -c {shlex.quote(inner)} </dev/null >/dev/null 2>&1 &\n"
        f"for i in 1 2 3 4 5 6 7 8 9; do [ -e {base}.pid ] && break; sleep 0.05; done"
    )
    result = await shell.run(script, timeout=20)
    if result.exit_code:
        return command_result(result)
    text = (
        f'Started in the background as job {job}. Use bash_job(action="output", job="{job}") to look at it.'
    )
    return ToolResult(text, details={"job": job})


async def bash_job(arguments: JobArguments, context: ToolContext) -> ToolResult:
    if context.shell is None:
        return NO_SHELL
    if arguments.action == "list":
        return command_result(await context.shell.run(_LIST, timeout=20))
    if not arguments.job:
        return ToolResult("Say which job.", is_error=True)
    base = f"{_HOME}/{arguments.job}"
    if arguments.action == "kill":
        return command_result(await context.shell.run(_KILL.format(base=base), timeout=20))
    return await _output(base, arguments.offset, context.shell)


_LIST = (
    f'(cd {_HOME} 2>/dev/null && for f in *.sh; do j=${{f%.sh}}; [ -e "$f" ] || continue; '
    'if [ -e "$j.rc" ]; then s="exited $(cat "$j.rc")"; else s=running; fi; '
    'echo "$j $s: $(head -c 100 "$f" | head -1)"; done)'
)
_KILL = (
    "([ -e {base}.pid ] || {{ echo 'There is no such job.'; exit 1; }}; p=$(cat {base}.pid); "
    "kill -TERM -- -$p 2>/dev/null || kill -TERM $p 2>/dev/null; sleep 0.3; "
    "kill -KILL -- -$p 2>/dev/null || kill -KILL $p 2>/dev/null; [ -e {base}.rc ] || echo killed >{base}.rc; "
    "echo Killed.)"
)


async def _output(base: str, offset: int, shell: Shell) -> ToolResult:
    script = (
        f"([ -e {base}.sh ] || {{ echo 'There is no such job.'; exit 1; }}; "
        f'if [ -e {base}.rc ]; then echo "exited $(cat {base}.rc)"; else echo running; fi; '
        f"stat -c %s {base}.log 2>/dev/null || echo 0; tail -c +{offset + 1} {base}.log 2>/dev/null | head -c {_PAGE})"
    )
    result = await shell.run(script, timeout=20)
    if result.exit_code:
        return command_result(result)
    state, _, rest = result.output.partition(b"\n")
    size, _, page = rest.partition(b"\n")
    end = offset + len(page)
    text = page.decode("utf-8", "replace")
    status = f"[{state.decode()}; {size.decode()} bytes in all; go on with offset {end}]"
    return ToolResult(f"{text}\n{status}" if text else status, truncated=end < int(size or 0))


BASH = Tool(
    name="bash",
    description=(
        "Run a bash command in your sandboxed shell and get its output (stdout and stderr together) and exit code. "
        "Directory, variables, functions and background processes stay between calls. There is no terminal and no "
        "input: give flags instead of answering prompts. Long output is cut in the middle. Commands that do not end "
        "by themselves, such as servers, need background=true."
    ),
    arguments=BashArguments,
    run=bash,
    tier=Tier.EXEC,
    # The shell ends the command by itself; this is only for a shell that does not answer.
    timeout_of=lambda arguments: arguments.timeout + 15,
)
BASH_JOB = Tool(
    name="bash_job",
    description=(
        "Look after commands started with bash(background=true): action output (new output from offset on, and "
        "whether it runs or has exited), kill, or list."
    ),
    arguments=JobArguments,
    run=bash_job,
    tier=Tier.EXEC,
    timeout=40,
    polling=True,
)


MAX_CHARACTERS = 24_000
MAX_LINE = 2_000
MAX_BLOB = 10_000_000
MUCH = 100_000
"""Characters from which on a thread does the work, so that others need not wait."""
OVERLAP = 50_000
"""Characters; more than the longest secret has in its longest encoding."""
_LONG_LINE = re.compile(rf"^[^\n]{{{MAX_LINE + 1},}}", re.M)


class Masking(Protocol):
    """Masks a text that arrives in pieces, also where a secret is split between two."""

    def feed(self, chunk: str) -> str: ...

    def end_of_line(self) -> str: ...

    def flush(self) -> str: ...


class Masker(Protocol):
    """Hides secrets."""

    def redact(self, text: str) -> str: ...

    def stream(self) -> Masking: ...


class NoMask:
    """For a run that knows no secrets."""

    def redact(self, text: str) -> str:
        return text

    def stream(self) -> Masking:
        return self

    def feed(self, chunk: str) -> str:
        return chunk

    def end_of_line(self) -> str:
        return ""

    def flush(self) -> str:
        return ""


class Glimpse:
    """Shows watchers what a call prints, masked, and no more a second than can be masked beside other work.

    What is left out comes with the result. The masker still sees the end of it, so that a secret that begins there is
    not shown either.
    """

    def __init__(self, mask: Masker, clock: Callable[[], float] = time.monotonic) -> None:
        self._mask = mask
        self._stream = mask.stream()
        self._clock = clock
        self._since = clock()
        self._shown = 0
        self._missed = ""

    def feed(self, text: str) -> str:
        if (now := self._clock()) - self._since >= 1:
            self._since, self._shown = now, 0
        if self._shown >= MUCH:
            self._missed = (self._missed + text[-OVERLAP:])[-OVERLAP:]
            return ""
        self._shown += len(text)
        if not self._missed:
            return self._stream.feed(text) + self._stream.end_of_line()
        self._stream = self._mask.stream()
        self._stream.feed(self._missed)
        self._missed = ""
        return f"\n[…]\n{self._stream.feed(text)}"


async def fit(
    result: ToolResult, mask: Masker, blobs: Blobs | None, most: int = MAX_CHARACTERS
) -> ToolResult:
    """The result as model and journal get it. What does not fit is kept as a blob, masked as well."""
    if result.pieces:  # fitted when it was remembered, and to be given back as it was
        return replace(result, content=mask.redact(result.content))
    if len(result.content) > MUCH:
        text, short = await asyncio.to_thread(_fitted, result.content, mask, most)
    else:
        text, short = _fitted(result.content, mask, most)
    result = replace(result, details=_masked(dict(result.details), mask))
    if short == text:
        return replace(result, content=text)
    more = result.more
    if blobs is not None and not more:
        ref = await blobs.put(text.encode()[:MAX_BLOB], "text/plain")
        more = f'The whole is kept: read it in parts with read(path="output:{ref}", offset=1).'
    return replace(result, content=f"{short}\n[{more}]" if more else short, truncated=True, more=more)


def _fitted(content: str, mask: Masker, most: int) -> tuple[str, str]:
    text = mask.redact(clean(content))
    return text, shorten(text, most)


def _masked(value: Any, mask: Masker) -> Any:
    if isinstance(value, str):
        return mask.redact(value)
    if isinstance(value, dict):
        return {key: _masked(inner, mask) for key, inner in value.items()}
    return [_masked(inner, mask) for inner in value] if isinstance(value, list | tuple) else value


def shorten(text: str, most: int = MAX_CHARACTERS) -> str:
    """Head and tail, and no endless lines."""
    text = _LONG_LINE.sub(lambda line: _short_line(line[0]), text)
    if len(text) <= most:
        return text
    head, tail = _cut_back(text[: most // 2]), _cut_forward(text[-most // 2 :])
    missing = text[len(head) : len(text) - len(tail)]
    lines_missing = missing.count("\n")
    return f"{head}\n[… {len(missing)} characters, {lines_missing} lines left out …]\n{tail}"


def _short_line(line: str) -> str:
    return (
        f"{line[: MAX_LINE - 200]} [… {len(line) - MAX_LINE + 100} characters of this line …] {line[-100:]}"
    )


def _cut_back(text: str) -> str:
    end = text.rfind("\n")
    return text[:end] if end > len(text) // 2 else text


def _cut_forward(text: str) -> str:
    start = text.find("\n")
    return text[start + 1 :] if 0 <= start < len(text) // 2 else text
