"""All the tools there are: built in, from integrations, from plugins. Each comes in through the same door."""

from __future__ import annotations

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


class Registry:
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
            ToolSpec(tool.name, tool.description, small_schema(tool), tool.strict)
            for tool in sorted(self._tools.values(), key=lambda tool: tool.name)
            if policy.refuses(tool, narrowed=False) is None
        ]


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
