"""An MCP server's tools as tools of ours: names without clashes, schemas that were looked at, results that fit."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pydantic import Field, RootModel, model_validator

from gofer.agent.tools.registry import CALL_TOOL
from gofer.agent.transcript import plain, quoted
from gofer.errors import GoferError
from gofer.mcp.settings import McpServerSettings
from gofer.tool import Arguments, Image, Tier, Tool, ToolContext, ToolResult

if TYPE_CHECKING:
    import mcp_types

MAX_TOOLS = 500
"""Of one server."""
MAX_SCHEMA = 20_000
"""Characters of a tool's schema."""
MAX_DEPTH = 24
MAX_DESCRIPTION = 2000
MAX_TEXT = 2_000_000
"""Characters of a result; what a model cannot take of it is kept as a blob."""
MAX_IMAGES, MAX_IMAGE = 8, 5_000_000
PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
MAX_OFFERED = 5000
"""Characters of the schemas and descriptions of MCP tools that a prompt has room for. Beyond that they are searched."""
FIND_TOOLS = "find_tools"
MAX_FOUND = 8
_UNCHECKED = frozenset({"pattern", "patternProperties", "format", "$comment", "default", "examples", "title"})
"""What is not checked here: a pattern of a stranger's can take hours."""
_WORDS = frozenset({"description", "title", "$comment"})
_OTHER = re.compile(r"[^a-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool as its server describes it, once it was looked at."""

    server: str
    name: str
    """What the server calls it."""
    title: str
    """What the model calls it."""
    description: str
    schema: dict[str, Any]
    arguments: type[McpArguments] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ToolList:
    """What a server offers, and what of it is left out, with the reason."""

    tools: tuple[ServerTool, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)


Caller = Callable[[str, dict[str, Any], ToolContext], Awaitable["mcp_types.CallToolResult"]]


class McpArguments(RootModel[dict[str, Any]]):
    """The arguments of an MCP tool; each tool has a subclass with its schema."""


def _arguments_of(schema: dict[str, Any]) -> type[McpArguments]:
    from jsonschema import Draft202012Validator

    validator = Draft202012Validator(_checkable(schema))

    class Given(McpArguments):
        @classmethod
        def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
            return schema

        @model_validator(mode="after")
        def _fits(self) -> Given:
            for error in validator.iter_errors(self.root):
                place = ".".join(str(part) for part in error.absolute_path)
                raise ValueError(f"{place}: {error.message[:300]}" if place else error.message[:300])
            return self

    return Given


def _checkable(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            key: _checkable(value)
            if key != "properties"
            else {name: _checkable(one) for name, one in value.items()}
            for key, value in schema.items()
            if key not in _UNCHECKED
        }
    return [_checkable(one) for one in schema] if isinstance(schema, list) else schema


def look_at(server: str, settings: McpServerSettings, offered: Iterable[mcp_types.Tool]) -> ToolList:
    """What of a server's list can be used. A tool that cannot is left out; the others are not."""
    tools: dict[str, ServerTool] = {}
    left_out: dict[str, str] = {}
    for tool in offered:
        shown = plain(tool.name)[:80]
        if not settings.allows(tool.name):
            continue
        if len(tools) >= MAX_TOOLS:
            left_out[shown] = f"the server has more than {MAX_TOOLS} tools"
            break
        try:
            schema = _cleaned(check_schema(tool.input_schema))
            title = _title(server, tool.name, tools)
            described = " ".join(plain(tool.description or tool.title or "").split())[:MAX_DESCRIPTION]
            if described and not settings.trusted:
                described = f"A tool of the MCP server {server}, which describes it so:\n{quoted(described)}"
            tools[title] = ServerTool(server, tool.name, title, described, schema, _arguments_of(schema))
        except Exception as error:  # noqa: BLE001 - a stranger's schema may break its reader in any way
            left_out[shown] = str(error)[:300] or type(error).__name__
    return ToolList(tuple(tools.values()), left_out)


def _cleaned(schema: Any) -> Any:
    """A schema whose words are plain text: what describes an argument is the server's text too. Names and values that
    the server is to be sent stay as they are."""
    if isinstance(schema, list):
        return [_cleaned(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: plain(value)[:MAX_DESCRIPTION]
        if key in _WORDS and isinstance(value, str)
        else {name: _cleaned(one) for name, one in value.items()}
        if key == "properties" and isinstance(value, dict)
        else _cleaned(value)
        for key, value in schema.items()
    }


def _title(server: str, name: str, taken: Mapping[str, Any]) -> str:
    """`mcp__SERVER__tool`, within what providers take; one that would clash, or was changed, has a mark of its own."""
    plain_name = _OTHER.sub("_", name.lower())
    title = f"mcp__{server}__{plain_name}"
    if not plain_name.strip("_"):
        raise ValueError("it has no name that can be said")
    if plain_name == name and len(title) <= 64 and title not in taken:
        return title
    return f"{title[:55]}_{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"


def check_schema(schema: Any) -> dict[str, Any]:
    """A schema that can be shown to a model and checked against; raises ValueError with what is wrong."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    _check_shape(schema)
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise ValueError("its arguments are no object")
    if len(json.dumps(schema)) > MAX_SCHEMA:
        raise ValueError(f"its schema has more than {MAX_SCHEMA} characters")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"its schema is not valid: {error.message[:200]}") from None
    resolved = _without_refs(schema, schema, ())
    assert isinstance(resolved, dict)
    for key in ("$defs", "definitions", "$schema", "$id", "$anchor"):
        resolved.pop(key, None)
    if len(json.dumps(resolved)) > MAX_SCHEMA:
        raise ValueError(f"its schema, written out, has more than {MAX_SCHEMA} characters")
    return {"type": "object", **resolved}


def _check_shape(schema: Any) -> None:
    """Neither too deep nor too wide, looked at without recursion."""
    stack: list[tuple[Any, int]] = [(schema, 0)]
    seen = 0
    while stack:
        value, depth = stack.pop()
        seen += 1
        if depth > MAX_DEPTH or seen > MAX_SCHEMA:
            raise ValueError("its schema is too deep or too large")
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        stack.extend((one, depth + 1) for one in inner)


def _without_refs(value: Any, root: dict[str, Any], within: tuple[str, ...]) -> Any:
    """A schema with what it refers to written out, which providers take everywhere. Raises ValueError for one that
    refers to itself, or to another document."""
    if isinstance(value, list):
        return [_without_refs(one, root, within) for one in value]
    if not isinstance(value, dict):
        return value
    reference = value.get("$ref", value.get("$dynamicRef"))
    if isinstance(reference, str):
        if reference in within:
            raise ValueError("its schema refers to itself")
        if len(within) > MAX_DEPTH:
            raise ValueError("its schema is too deep")
        target = _target(reference, root)
        beside = {key: one for key, one in value.items() if key not in ("$ref", "$dynamicRef")}
        return _without_refs({**target, **beside}, root, (*within, reference))
    if within and len(json.dumps(value)) > MAX_SCHEMA:
        raise ValueError("its schema is too large")
    return {
        key: _without_refs(one, root, within)
        for key, one in value.items()
        if key not in ("$defs", "definitions")
    }


def _target(reference: str, root: dict[str, Any]) -> dict[str, Any]:
    if not reference.startswith("#"):
        raise ValueError("its schema refers to another document")
    found: Any = root
    for part in [part for part in reference[1:].split("/") if part]:
        key = part.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        raise ValueError(f"its schema refers to {reference[:60]!r}, which is not there")
    return found


def as_tool(
    tool: ServerTool,
    settings: McpServerSettings,
    call: Caller,
    remark: Callable[[], Awaitable[str]],
    *,
    hidden: bool,
) -> Tool[McpArguments]:
    """A tool of ours that calls one of a server's. Its tier is what the agent's file says, never what the server
    says. A remark of ours stands below what the server answered."""

    async def run(given: McpArguments, context: ToolContext) -> ToolResult:
        try:
            answered = await call(tool.name, given.root, context)
        except GoferError as error:
            error.repeats_others = error.repeats_others and not settings.trusted
            raise
        result = read_result(tool.server, answered, trusted=settings.trusted)
        told = await remark()
        return replace(result, content=f"{result.content}\n{told}") if told else result

    return Tool(
        name=tool.title,
        description=tool.description or f"The tool {tool.name} of the MCP server {tool.server}.",
        arguments=tool.arguments,
        run=run,
        tier=settings.tier_of(tool.name),
        # The server has its own time for starting and for answering; what is beyond both is cut off.
        timeout=settings.timeout + settings.start_timeout + 5,
        reach="outside" if settings.reaches_out and not settings.keep_open else "own",
        hidden=hidden,
    )


def read_result(server: str, answered: mcp_types.CallToolResult, *, trusted: bool) -> ToolResult:
    """A server's answer for the model. Words are strangers' unless the agent's file trusts the server."""
    texts: list[str] = []
    images: list[Image] = []
    for block in answered.content:
        _take(block, texts, images)
    if not texts and answered.structured_content is not None:
        texts.append(json.dumps(answered.structured_content, ensure_ascii=False))
    text = "\n".join(texts)
    cut = len(text) > MAX_TEXT
    text = plain(text[:MAX_TEXT]) or ("(nothing but pictures)" if images else "(an empty answer)")
    content = text if trusted else f"{server} answered:\n<quoted>\n{text}\n</quoted>"
    return ToolResult(
        content,
        is_error=bool(answered.is_error),
        truncated=cut,
        images=tuple(images),
        untrusted=not trusted,
    )


def _take(block: Any, texts: list[str], images: list[Image]) -> None:
    kind = block.type
    if kind == "text":
        texts.append(block.text)
    elif kind == "image":
        texts.extend(_picture(block.data, block.mime_type, images))
    elif kind == "resource":
        inside = block.resource
        if (text := getattr(inside, "text", None)) is not None:
            texts.append(f"{inside.uri}\n{text}")
        else:
            texts.extend(
                _picture(inside.blob, inside.mime_type or "", images) or [f"(the file {inside.uri})"]
            )
    elif kind == "resource_link":
        texts.append(f"{block.name}: {block.uri}" + (f"\n{block.description}" if block.description else ""))
    else:
        texts.append(f"({kind} that cannot be shown)")


def _picture(data: str, media_type: str, images: list[Image]) -> list[str]:
    """Keep a picture; or say why there is none."""
    if media_type not in PICTURES:
        return [f"({plain(media_type)[:60] or 'data'} that cannot be shown)"]
    if len(images) >= MAX_IMAGES or len(data) > MAX_IMAGE * 4 // 3 + 4:
        return ["(a picture too many or too large to be shown)"]
    try:
        images.append(Image(media_type, base64.b64decode(data, validate=True)))
    except (binascii.Error, ValueError):
        return ["(a picture that cannot be read)"]
    return []


# Tools that are too many for a prompt.


class FindToolsArguments(Arguments):
    query: str = Field(min_length=1, max_length=200, description="Words for what you want to do.")


class CallToolArguments(Arguments):
    name: str = Field(min_length=1, max_length=64, description="As find_tools gave it.")
    arguments: dict[str, Any] = Field(default_factory=dict)


def fits_prompt(tools: Iterable[ServerTool]) -> bool:
    """Whether the tools can all be told to the model."""
    return (
        sum(len(tool.title) + len(tool.description) + len(json.dumps(tool.schema)) for tool in tools)
        <= MAX_OFFERED
    )


def search_tools(tools: tuple[ServerTool, ...]) -> list[Tool[Any]]:
    """`find_tools` and `call_tool`, in the place of tools that a prompt has no room for."""
    names = ", ".join(sorted({tool.server for tool in tools}))[:200]

    async def find(given: FindToolsArguments, context: ToolContext) -> ToolResult:
        found = _best(given.query, tools)
        if not found:
            return ToolResult(f"No tool fits. The servers are: {names}. Try other words.")
        blocks = [
            f"{tool.title}: {tool.description}\narguments: {json.dumps(tool.schema, ensure_ascii=False)}"
            for tool in found
        ]
        return ToolResult("\n\n".join(blocks))

    async def call(given: CallToolArguments, context: ToolContext) -> ToolResult:
        return ToolResult(f"There is no tool {given.name!r}. Look for one with {FIND_TOOLS}.", is_error=True)

    return [
        Tool(
            name=FIND_TOOLS,
            description=f"Find tools among {len(tools)} of the MCP servers {names}. Gives names and arguments.",
            arguments=FindToolsArguments,
            run=find,
            tier=Tier.READ,
            parallel=True,
        ),
        Tool(
            name=CALL_TOOL,
            description=f"Call a tool that {FIND_TOOLS} has found, by its name and with its arguments.",
            arguments=CallToolArguments,
            run=call,
            tier=Tier.READ,
        ),
    ]


_WORD = re.compile(r"[a-z0-9]+")


def _best(query: str, tools: tuple[ServerTool, ...]) -> list[ServerTool]:
    """The tools that share most with the query; a word in the name counts thrice."""
    wanted = {word for word in _WORD.findall(query.lower()) if len(word) > 1}

    def score(tool: ServerTool) -> int:
        name = set(_WORD.findall(tool.title.replace("_", " ")))
        text = set(_WORD.findall(f"{tool.description} {' '.join(tool.schema.get('properties', {}))}".lower()))
        near = sum(1 for word in wanted if any(one.startswith(word[:4]) for one in name | text))
        return 3 * len(wanted & name) + 2 * len(wanted & text) + near

    scored = sorted(((score(tool), tool.title, tool) for tool in tools), key=lambda one: (-one[0], one[1]))
    return [tool for points, _, tool in scored[:MAX_FOUND] if points > 0]
