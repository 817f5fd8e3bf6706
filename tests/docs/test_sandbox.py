"""The sandbox's page against the library: what it shows a stranger first works, and is what gets installed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def test_the_first_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "sandbox.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", page, re.S)
    assert example
    exec(compile(example[1], "docs/sandbox.md", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == "0 hello from /tmp\nyou, still in /tmp\n"


def test_the_library_alone_is_what_gofer_has_of_it() -> None:
    whole, alone = (_project(ROOT / place) for place in ("pyproject.toml", "sandbox/pyproject.toml"))
    for same in ("license", "requires-python"):
        assert alone[same] == whole[same]
    needed = {*alone["dependencies"], *alone["optional-dependencies"]["docker"]}
    assert needed <= {*whole["dependencies"]}


def _project(path: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    return project
