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


THREATS = TESTS / "security" / "README.md"


def test_every_test_that_is_named_by_threat_exists() -> None:
    rows = [line for line in THREATS.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    named = [name for row in rows for name in re.findall(r"`((?:\w+/)*test_\w+\.py(?:::\w+)?)`", row)]
    assert named
    for name in named:
        path, _, function = name.partition("::")
        file = TESTS / path if "/" in path else THREATS.parent / path
        assert file.is_file(), name
        found = re.search(rf"^(?:async )?def {function}\b", file.read_text(encoding="utf-8"), re.M)
        assert found or not function, name
    files = {file.name for file in THREATS.parent.glob("test_*.py")}
    assert files <= {name.partition("::")[0] for name in named}, "each file has a row"
