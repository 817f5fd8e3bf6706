"""One version: what is built, what the changelog begins with, what CI tries, and what a release says it is made of."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

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


def pinned() -> dict[tuple[str, str], set[str]]:
    """The packages that Gofer runs with, by name and version, each with the hashes that are installed."""
    found: dict[tuple[str, str], set[str]] = {}
    for entry in (ROOT / "requirements.lock").read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        if entry.strip() and not entry.lstrip().startswith("#"):
            name, version = entry.split(";")[0].split(" --hash")[0].strip().split("==")
            found[name, version.split()[0]] = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", entry))
    return found


def test_every_package_is_pinned_with_its_hashes() -> None:
    assert len(pinned()) > 30
    assert all(pinned().values())


@pytest.mark.slow(long=True)
def test_a_release_lists_every_package_with_its_hashes(tmp_path: Path) -> None:
    """`make release` in a copy of the tree: the list is of what is installed, and of nothing else."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "x", "-C", tmp_path], input=archive, check=True)
    made = subprocess.run(
        ["sh", "scripts/release", str(Path(sys.executable).parent)],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    dist = tmp_path / "dist"
    listed: dict[str, Any] = json.loads((dist / f"gofer-{__version__}.cdx.json").read_text(encoding="utf-8"))
    assert listed["bomFormat"] == "CycloneDX"
    ours = listed["metadata"]["component"]
    assert (ours["name"], ours["version"], ours["type"]) == ("gofer", __version__, "application")
    assert {
        (each["name"], each["version"]): {
            found["content"]
            for place in each["externalReferences"]
            for found in place.get("hashes", ())
            if found["alg"] == "SHA-256"
        }
        for each in listed["components"]
    } == pinned()
    assert str(tmp_path) not in json.dumps(listed)
    sums = dict(line.split("  ")[::-1] for line in (dist / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {path.name for path in dist.iterdir()} - {"SHA256SUMS"}
    for name, digest in sums.items():
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest
    (wheel,) = dist.glob("*.whl")
    required = {
        re.split(r"[^A-Za-z0-9._-]", line.removeprefix("Requires-Dist: "))[0].lower().replace("_", "-")
        for line in zipfile.ZipFile(wheel)
        .read(f"gofer-{__version__}.dist-info/METADATA")
        .decode()
        .splitlines()
        if line.startswith("Requires-Dist: ") and "extra ==" not in line
    }
    assert required
    assert required <= {name for name, _ in pinned()}


def test_images_can_be_pinned_without_a_change_to_the_files() -> None:
    """By their digest, in .env: the guide says how."""
    composed = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
    foreign = {each["image"] for each in composed.values() if "build" not in each}
    assert foreign
    guide = (ROOT / "docs/deploying.md").read_text(encoding="utf-8")
    for image in foreign:
        name, default = re.fullmatch(r"\$\{(\w+):-(.+)\}", image).groups()  # type: ignore[union-attr]
        assert f"{name}={default}@sha256:" in guide
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) == {"python:${PYTHON}"}
    assert "PYTHON_TAG=3.11-slim-bookworm@sha256:" in guide
