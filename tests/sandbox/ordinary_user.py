"""Runs a test file again as a user without any rights, when the suite itself runs as root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UID = 29999


def rerun(name: str, only: str = "") -> None:
    """Fail as that file fails for an ordinary user; skip, saying so, where this half cannot run.

    `only` chooses tests, as pytest's -k does.
    """
    if os.geteuid() != 0:
        pytest.skip("the suite already runs as an ordinary user; the root half did not run")
    home = tempfile.mkdtemp(prefix="user-")
    os.chown(home, UID, UID)
    roots = [ROOT / "sandbox", ROOT / "tests", sysconfig.get_paths()["purelib"]]
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": home,
        "TMPDIR": home,
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(map(str, roots)),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [_python(environment), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-c", str(ROOT / "pyproject.toml"), "-o", "asyncio_default_fixture_loop_scope=function"]
    # The suite's own conftest is the platform's, which this user's path does not have.
    command += ["--confcutdir", str(Path(__file__).parent), "-k", only, str(Path(__file__).parent / name)]
    result = _as_user(command, environment, home)
    shutil.rmtree(home, ignore_errors=True)
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]


def _python(environment: dict[str, str]) -> str:
    """An interpreter the user may run: ours may live in root's home."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        try:
            _as_user([python, "-c", "import pytest"], environment, "/").check_returncode()
        except (OSError, subprocess.CalledProcessError):
            continue
        return python
    pytest.skip("an ordinary user cannot run any Python here; this half did not run")


def _as_user(
    command: list[str], environment: dict[str, str], directory: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        user=UID,
        group=UID,
        extra_groups=[],
        env=environment,
        cwd=directory,
        capture_output=True,
        text=True,
    )
