"""One version: what is built, what the changelog begins with, and what CI tries."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from hatchling.builders.wheel import WheelBuilder

from gofer import __version__

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("project", [".", "sandbox"])
def test_each_package_has_the_version_that_gofer_says(project: str) -> None:
    assert WheelBuilder(str(ROOT / project)).metadata.version == __version__


def test_the_changelog_begins_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert releases[0].split()[0] == __version__
    for release in releases:
        assert re.fullmatch(r"\d+\.\d+\.\d+ \((unreleased|\d{4}-\d\d-\d\d)\)", release)
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= {"Added", "Changed", "Fixed", "Removed"}


def test_ci_tries_every_python_from_the_oldest_on_with_our_own_command() -> None:
    job = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]["test"]
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "requires-python"
    ]
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert oldest == ">=3.11"
    assert {"run": ".ci/run"} in job["steps"]
