"""Tools by name, who may call them, and how a call is run.

Built-in tools, those of integrations and those of plugins are registered the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any

import structlog
from pydantic import BaseModel, ValidationError

from gofer.agent.conversation import Trust
from gofer.agent.interfaces import Ran, Status, Surroundings
from gofer.agent.model import Block, ToolSpec
from gofer.agent.state import Call
from gofer.agent.tools.bash import (
    MAX_CHARACTERS,
    Glimpse,
    Masker,
    NoMask,
    command_result,
    fit,
    wait_or_cancel,
)
from gofer.agent.transcript import OUTCOME_UNKNOWN, plain
from gofer.errors import ConfigError, Fenced, GoferError, Temporary
from gofer.tool import Blobs, Shell, Tier, Tool, ToolContext, ToolResult
from gofer.validation import field_errors

log = structlog.get_logger()
GROUP = "gofer.tools"
RECALL = "recall"
"""The tool whose results are places in memories."""
_NAME = re.compile(r"[a-z0-9_-]{1,64}")
CALL_TOOL = "call_tool"
"""The tool with which a model calls a tool that it was not told of."""
GRACE = 15
"""Seconds beyond its time-out in which a tool may end by itself."""
LETTING_GO = 5
"""Seconds that a cancelled tool is waited for."""
TIERS_BY_TRUST: dict[Trust, frozenset[Tier]] = {
    "owner": frozenset(Tier),
    "member": frozenset(Tier),
    "stranger": frozenset({Tier.READ}),
    "unknown": frozenset(),
}


@dataclass(frozen=True, slots=True)
class Policy:
    """Who may call what: by the agent's allowlist, by who asked for the run, and by what the run has read.

    Checked when a tool runs; what is offered follows the same rules, so that a model is not tempted.
    """

    allowed: Collection[str]
    """Names on the agent's list; `*` stands for all."""
    trust: Trust

    def refuses(self, tool: Tool[Any], *, narrowed: bool) -> str | None:
        """Why this tool may not run now; None when it may."""
        if "*" not in self.allowed and tool.name not in self.allowed:
            return f"The tool {tool.name} is not on this agent's list."
        if tool.tier not in TIERS_BY_TRUST[self.trust]:
            return f"A {self.trust} asked for this run, so tools of the tier {tool.tier} are closed."
        if narrowed and tool.reach == "outside":
            return (
                f"This run has read text by strangers, so {tool.name}, which reaches beyond this conversation, "
                "is closed for the rest of it."
            )
        return None


class ToolRegistry:
    """Tools by name."""

    def __init__(self, tools: Iterable[Tool[Any]]) -> None:
        self._tools: dict[str, Tool[Any]] = {}
        for tool in tools:
            self._add(tool)

    def _add(self, tool: Tool[Any]) -> None:
        if not _NAME.fullmatch(tool.name):
            raise ConfigError(f"{tool.name!r} is no name for a tool: use 1 to 64 of a-z, 0-9, _ and -.")
        if tool.name in self._tools:
            raise ConfigError(
                f"Two tools are called {tool.name}. Rename one, or remove the plugin that brings it."
            )
        self._tools[tool.name] = tool

    def __iter__(self) -> Iterator[Tool[Any]]:
        return iter(self._tools.values())

    def get(self, name: str) -> Tool[Any] | None:
        return self._tools.get(name)

    def offered(self, policy: Policy) -> list[ToolSpec]:
        """The tools that a model is told of, in a stable order. They stay the same for the whole run."""
        return [
            _spec(tool)
            for tool in sorted(self._tools.values(), key=lambda tool: tool.name)
            if not tool.hidden and policy.refuses(tool, narrowed=False) is None
        ]


def _spec(tool: Tool[Any]) -> ToolSpec:
    arguments: type[BaseModel] = tool.arguments
    strict = _strict_schema(arguments) if tool.strict else None
    if strict is None:
        return ToolSpec(tool.name, tool.description, small_schema(tool))
    return ToolSpec(tool.name, tool.description, strict, strict=True)


def small_schema(tool: Tool[Any]) -> dict[str, Any]:
    """The arguments' JSON schema without the titles pydantic adds."""
    arguments: type[BaseModel] = tool.arguments
    return _schema(arguments)


@lru_cache(maxsize=1000)
def _schema(arguments: type[BaseModel]) -> dict[str, Any]:
    # Made once per class: every run needs them all, and pydantic takes its time.
    return _without_titles(arguments.model_json_schema())


def _without_titles(schema: dict[str, Any]) -> dict[str, Any]:
    small: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "title" and isinstance(value, str):
            continue
        if key == "properties":
            small[key] = {name: _without_titles(inner) for name, inner in value.items()}
        elif isinstance(value, dict):
            small[key] = _without_titles(value)
        elif isinstance(value, list):
            small[key] = [_without_titles(item) if isinstance(item, dict) else item for item in value]
        else:
            small[key] = value
    if small.get("type") == "object":
        small.pop("description", None)
    return small


STRICT_KEYWORDS = ("type", "enum", "const", "description", "$ref")
"""What providers take in a strict schema, beside what nests."""


@lru_cache(maxsize=1000)
def _strict_schema(arguments: type[BaseModel]) -> dict[str, Any] | None:
    """The schema as Anthropic and OpenAI take it for strict tools; None if they take no such schema.

    Every field is required, and an object has no others. Bounds and defaults are refused by both, so the model reads
    them in the description; the runner holds it to them."""
    try:
        return _strict(_schema(arguments))
    except ValueError:
        return None


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}
    strict = {key: value for key, value in schema.items() if key in STRICT_KEYWORDS}
    if schema.get("type") == "object":
        if schema.get("additionalProperties"):
            raise ValueError("an object of any fields cannot be strict")
        fields = {name: _strict(inner) for name, inner in schema.get("properties", {}).items()}
        strict |= {"properties": fields, "required": list(fields), "additionalProperties": False}
    if "items" in schema:
        strict["items"] = _strict(schema["items"])
    if variants := schema.get("anyOf") or schema.get("oneOf"):
        strict["anyOf"] = [_strict(one) for one in variants]
    if "$defs" in schema:
        strict["$defs"] = {name: _strict(inner) for name, inner in schema["$defs"].items()}
    if not strict.keys() & {"type", "enum", "const", "anyOf"}:
        raise ValueError("a value of any type cannot be strict")
    nested = {
        "properties",
        "required",
        "additionalProperties",
        "items",
        "anyOf",
        "oneOf",
        "$defs",
        "discriminator",
    }
    rest = {key: value for key, value in schema.items() if key not in nested and key not in STRICT_KEYWORDS}
    if rest:
        bounds = ", ".join(f"{key}: {json.dumps(value)}" for key, value in rest.items())
        strict["description"] = f"{schema.get('description', '')} ({bounds})".strip()
    return strict


def _usable(tools: Iterable[Any]) -> list[Tool[Any]]:
    """A plugin's tools, if all of them can be offered to a model; raises what is wrong otherwise."""
    brought = list(tools)
    for tool in brought:
        if not isinstance(tool, Tool):
            raise TypeError(f"{type(tool).__name__} is no Tool")
        if not _NAME.fullmatch(tool.name):
            raise ValueError(f"{tool.name!r} is no name for a tool: use 1 to 64 of a-z, 0-9, _ and -")
        small_schema(tool)
    return brought


def plugin_tools() -> list[Tool[Any]]:
    """Tools of installed plugins: each entry point is a function that returns them. A broken one costs only itself."""
    found: list[Tool[Any]] = []
    for point in entry_points(group=GROUP):
        try:
            found += _usable(point.load()())
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's code may fail in any way
            log.error("plugin.broken", plugin=point.value, error=f"{type(error).__name__}: {error}")
    return found


@dataclass(eq=False)
class ToolRunner:
    """The tools of one run: a call is looked up, allowed, parsed strictly, timed, and answered in any case.

    Contract: `run` does not raise but for cancellation. Whatever a model asks for, it gets an answer it can act on.
    """

    registry: ToolRegistry
    policy: Policy
    shell: Shell | None
    blobs: Blobs | None
    mask: Masker = field(default_factory=NoMask)
    allowed_hosts: tuple[str, ...] = ()
    max_characters: int = MAX_CHARACTERS

    def offered(self) -> list[ToolSpec]:
        return self.registry.offered(self.policy)

    def tier(self, call: Call) -> str:
        tool = self.registry.get(self._meant(call).name)
        return str(tool.tier) if tool else ""

    def _meant(self, call: Call) -> Call:
        """The call of a hidden tool that `call_tool` stands for; any other call as it is."""
        if call.name != CALL_TOOL or call.malformed:
            return call
        name, arguments = call.input.get("name"), call.input.get("arguments", {})
        tool = self.registry.get(name) if isinstance(name, str) else None
        if tool is None or not tool.hidden or not isinstance(arguments, dict):
            return call
        return replace(call, name=tool.name, input=arguments)

    def parallel(self, call: Call) -> bool:
        tool = self.registry.get(call.name)
        return tool is not None and tool.parallel

    def polling(self, call: Call) -> bool:
        tool = self.registry.get(call.name)
        return tool is not None and tool.polling

    def refusal(self, call: Call, *, narrowed: bool) -> Ran | None:
        """Why this call must not run at all; None when it may."""
        call = self._meant(call)
        tool = self.registry.get(call.name)
        if tool is None:
            names = ", ".join(spec.name for spec in self.offered())
            return _refused("malformed", f"There is no tool called {call.name[:80]!r}. There are: {names}.")
        if (why := self.policy.refuses(tool, narrowed=narrowed)) is not None:
            return _refused("refused", why)
        if call.malformed:
            return _refused(
                "malformed", f"The arguments were not understood, so nothing was run. {call.malformed}"
            )
        parsed = _parse(tool, call)
        return parsed if isinstance(parsed, Ran) else None

    async def run(self, call: Call, around: Surroundings) -> Ran:
        """Run a call that was not refused."""
        call = self._meant(call)
        tool = self.registry.get(call.name)
        assert tool is not None
        arguments = _parse(tool, call)
        if isinstance(arguments, Ran):
            return arguments
        if self.shell is not None:
            await self.shell.confine(narrowed=around.narrowed)
        context = self._context(call, around)
        wanted = tool.timeout_of(arguments) if tool.timeout_of else tool.timeout
        ran = await _guarded(tool, arguments, context, min(wanted, around.seconds_left + GRACE))
        if tool.name != RECALL and ran.result.pieces:  # only what is remembered may pass unshortened
            ran = replace(ran, result=replace(ran.result, pieces=()))
        return replace(ran, result=await fit(ran.result, self.mask, self.blobs, self.max_characters))

    async def pictures(self, result: ToolResult) -> list[Block]:
        """The result's images as blocks that point to blobs."""
        if self.blobs is None:
            return []
        return [
            {
                "type": "image",
                "blob": await self.blobs.put(image.data, image.media_type),
                "media_type": image.media_type,
            }
            for image in result.images
        ]

    async def recover(self, call: Call, around: Surroundings) -> Ran | None:
        """The true outcome of a command that was under way when its worker died, if the shell knows it."""
        if call.tier != Tier.EXEC or self.shell is None:
            return None
        await self.shell.confine(narrowed=around.narrowed)
        with contextlib.suppress(OSError, GoferError):
            recovering = asyncio.ensure_future(self.shell.recover(call.id))
            found = await wait_or_cancel(recovering, around.stopping, self.shell)
            if found is not None:
                known = found.exit_code is not None or found.timed_out or found.cancelled
                result = command_result(found)
                if not known:
                    words = f"{OUTCOME_UNKNOWN}\nWhat it had printed:\n{result.content}"
                    result = ToolResult(words, is_error=True)
                return Ran(
                    await fit(result, self.mask, self.blobs, self.max_characters),
                    "ok" if known else "unknown",
                )
        return None

    def _context(self, call: Call, around: Surroundings) -> ToolContext:
        live = Glimpse(self.mask)
        return ToolContext(
            call_id=call.id,
            shell=self.shell,
            blobs=self.blobs,
            narrowed=around.narrowed,
            allowed_hosts=self.allowed_hosts,
            stopping=around.stopping,
            on_output=lambda text: around.on_output(call.id, live.feed(text)),
            notes={"plan": around.plan},
            seconds_left=around.seconds_left,
        )


def _parse(tool: Tool[Any], call: Call) -> BaseModel | Ran:
    try:
        # Through JSON, so that strict mode still takes a list for a tuple and a string for a literal.
        parsed: BaseModel = tool.arguments.model_validate_json(json.dumps(call.input))
    except ValidationError as error:
        problems = "; ".join(str(one) for one in field_errors(error)[:5])
        return _refused("malformed", f"Wrong arguments for {tool.name}, so nothing was run. {problems}")
    except (ValueError, RecursionError) as error:
        return _refused("malformed", f"Wrong arguments for {tool.name}, so nothing was run. {error}")
    return parsed


def _refused(status: Status, text: str) -> Ran:
    return Ran(ToolResult(text, is_error=True), status)


async def _guarded(tool: Tool[Any], arguments: BaseModel, context: ToolContext, timeout: float) -> Ran:
    try:
        result = _sound(await _run_with_timeout(timeout, _contained(tool, arguments, context)))
    except TimeoutError:
        text = f"{tool.name} did not end within {timeout:g} seconds and was given up."
        return Ran(ToolResult(text, is_error=True, timed_out=True), "error")
    except Fenced:
        raise
    except OSError as error:
        return Ran(ToolResult(_os_error(error), is_error=True), "error")
    except Temporary as error:
        return Ran(_error_result(error), "error", error.retry_after)
    except GoferError as error:
        return Ran(_error_result(error), "error")
    except Exception as error:  # noqa: BLE001 - a tool may raise anything; the run must not end for it
        return Ran(ToolResult(f"{tool.name} failed: {type(error).__name__}: {error}", is_error=True), "error")
    return Ran(result, "error" if result.is_error else "ok")


def _error_result(error: GoferError) -> ToolResult:
    if not error.repeats_others:
        return ToolResult(str(error), is_error=True)
    return ToolResult(f"It failed:\n<quoted>\n{plain(str(error))}\n</quoted>", is_error=True, untrusted=True)


async def _contained(tool: Tool[Any], arguments: BaseModel, context: ToolContext) -> ToolResult:
    try:
        return await tool.run(arguments, context)
    except SystemExit as error:  # it would end the whole server
        raise RuntimeError(f"it called exit({error.code})") from error


def _sound(result: ToolResult) -> ToolResult:
    """Check that a result can be journaled; raises TypeError for anything else, and for details that are not JSON."""
    if not isinstance(result, ToolResult):
        raise TypeError(f"it returned {type(result).__name__} instead of a ToolResult")
    return replace(result, content=str(result.content), details=json.loads(json.dumps(dict(result.details))))


async def _run_with_timeout(timeout: float, work: Awaitable[ToolResult]) -> ToolResult:
    """The result of a tool; raises TimeoutError. A tool that cannot be cancelled is left behind."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(
        lambda done: done.cancelled() or done.exception()
    )  # nobody may be left to look at it
    try:
        await asyncio.wait({task}, timeout=timeout)
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=LETTING_GO)


def _os_error(error: OSError) -> str:
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{error.strerror or error}"
