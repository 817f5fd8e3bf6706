"""The agent's pages against its code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gofer.agent.context.compressor import ContextSettings
from gofer.agent.limits import LimitSettings
from gofer.agent.prices import Price
from gofer.agent.tools.builtin import builtin_tools
from gofer.runs.agent_files import AgentSpec

ROOT = Path(__file__).parents[2]
CODE = re.compile(r'"((?:user|limit|budget|price|loop|model)\.[a-z]+)"')


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text("utf-8")


def codes() -> list[str]:
    sources = (ROOT / "platform/gofer/agent").glob("*.py")
    found = {code for source in sources for code in CODE.findall(source.read_text("utf-8"))}
    return sorted(found - {"limit.near"})


@pytest.mark.parametrize("code", codes())
def test_every_way_to_stop_is_documented(code: str) -> None:
    assert f"`{code}`" in page("limits")


def test_every_setting_is_documented_with_its_default() -> None:
    for name in AgentSpec.model_fields:
        assert f"| `{name}` |" in page("agents"), name
    for name, field in ContextSettings.model_fields.items():
        assert f"| `{name}` | {field.default} |" in page("agents"), name
    for name, field in LimitSettings.model_fields.items():
        row = re.search(rf"\| `{name}` \| ([\d.]+) \|", page("limits"))
        assert row, name
        assert float(row.group(1)) == field.default, name
    for name in Price.model_fields:
        assert f"`{name}`" in page("models"), name


@pytest.mark.parametrize("tool", builtin_tools(), ids=lambda tool: tool.name)
def test_every_tool_is_documented_with_its_tier(tool: object) -> None:
    assert f"| `{tool.name}` | {tool.tier} |" in page("tools")  # type: ignore[attr-defined]
