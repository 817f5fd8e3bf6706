"""The names of all the tools there can be here, for checking an agent's list."""

from __future__ import annotations

from functools import cache

from gofer.agent.tools.builtin import builtin_tools
from gofer.agent.tools.registry import plugin_tools
from gofer.registry import Registry


@cache
def known_tools() -> frozenset[str]:
    """Built in, from plugins, and from integrations. Looked for once: what is installed stays while we run."""
    brought = (tool.name for tool in [*builtin_tools(), *plugin_tools()])
    installed = Registry.installed().integrations.values()
    return frozenset(brought).union(*(each.tool_names for each in installed))
