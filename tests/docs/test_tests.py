"""tests/README.md against the tests."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS / "README.md").read_text(encoding="utf-8")


def test_every_slow_file_is_named_with_its_reason() -> None:
    rows = [line for line in PAGE.partition("## Slow by nature")[2].splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`([\w/]+\.py)`", row.split("|")[1])]
    marked = {
        str(file.relative_to(TESTS))
        for file in TESTS.rglob("*.py")
        if re.search(r"pytest\.mark\.slow\b", file.read_text(encoding="utf-8"))
    }
    assert sorted(listed) == sorted(marked)
    assert all(cell.strip() for row in rows for cell in row.split("|")[1:-1])


def test_every_folder_is_described() -> None:
    described = set(re.findall(r"`(\w+)/", PAGE.partition("## How long")[0]))
    assert {file.parent.relative_to(TESTS).parts[0] for file in TESTS.rglob("*/*.py")} <= described
