"""All the tools there are: built in, from integrations, from plugins. Each comes in through the same door."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any

import structlog
from pydantic import BaseModel

from gofer.agent.model import ToolSpec
from gofer.agent.tools.policy import Policy
from gofer.errors import ConfigError
from gofer.tool import Tool

log = structlog.get_logger()

GROUP = "gofer.tools"
_NAME = re.compile(r"[a-z0-9_-]{1,64}")


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
        """What a model is told of, in a stable order. It stays the same for the whole run."""
        return [
            _spec(tool)
            for tool in sorted(self._tools.values(), key=lambda tool: tool.name)
            if policy.refuses(tool, narrowed=False) is None
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


KEPT = ("type", "enum", "const", "description", "$ref")
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
    strict = {key: value for key, value in schema.items() if key in KEPT}
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
    rest = {key: value for key, value in schema.items() if key not in nested and key not in KEPT}
    if rest:
        bounds = ", ".join(f"{key}: {json.dumps(value)}" for key, value in rest.items())
        strict["description"] = f"{schema.get('description', '')} ({bounds})".strip()
    return strict


def _usable(tools: Iterable[Any]) -> list[Tool[Any]]:
    """What a plugin brings, if all of it can be offered to a model; raises what is wrong."""
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
