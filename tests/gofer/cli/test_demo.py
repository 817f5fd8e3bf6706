"""The demo is a promise to strangers: it must end well, and fail when something is off."""

from __future__ import annotations

import json
from pathlib import Path

from gofer_standins.demo import SCENES
from support.command_line import gofer


def test_the_demo_ends_well_and_leaves_nothing_behind(data_dir: Path, tmp_path: Path) -> None:
    done = gofer(data_dir, "demo", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["ok"]
    assert {step["scene"] for step in told["steps"]} >= {name for name, _ in SCENES}
    assert list(data_dir.iterdir()) == []
