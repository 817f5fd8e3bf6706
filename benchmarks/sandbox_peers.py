"""The sandbox's peers, each in an environment of its own under `.bench/`, measured by a script run there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENTS = Path(".bench")

_SWE_REX = """
import asyncio, json, statistics, sys, time
from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
from swerex.runtime.local import LocalRuntime

async def main():
    runtime = LocalRuntime()
    began = time.perf_counter()
    await runtime.create_session(CreateBashSessionRequest())
    created = time.perf_counter() - began
    times = []
    for _ in range(int(sys.argv[1])):
        began = time.perf_counter()
        await runtime.run_in_session(BashAction(command="true", check="silent"))
        times.append(time.perf_counter() - began)
    await runtime.close()
    print(json.dumps({"create": created, "command": statistics.median(times)}))

asyncio.run(main())
"""

_OPENHANDS = """
import json, statistics, sys, tempfile, time
from openhands.tools.terminal import TerminalAction
from openhands.tools.terminal.terminal import create_terminal_session

began = time.perf_counter()
session = create_terminal_session(tempfile.mkdtemp(), terminal_type="tmux")
session.initialize()
created = time.perf_counter() - began
session.execute(TerminalAction(command="true"))
times = []
for _ in range(int(sys.argv[1])):
    began = time.perf_counter()
    session.execute(TerminalAction(command="true"))
    times.append(time.perf_counter() - began)
session.close()
print(json.dumps({"create": created, "command": statistics.median(times)}))
"""


@dataclass(frozen=True)
class Figures:
    """Seconds: to make a session, and the median of running `true` in it."""

    create: float
    command: float


@dataclass(frozen=True)
class Peer:
    """A package from the index with what must come with it, the oldest Python it runs on, and how it is measured."""

    name: str
    package: str
    python: tuple[int, int]
    script: str
    requirements: tuple[str, ...] = ()

    def measure(self, rounds: int) -> Figures | str:
        """The figures, or why there are none."""
        try:
            python = self._environment()
            done = subprocess.run(
                [python, "-c", self.script, str(rounds)],
                capture_output=True,
                text=True,
                timeout=300,
                check=True,
            )
            return Figures(**json.loads(done.stdout.strip().splitlines()[-1]))
        except subprocess.SubprocessError as error:
            said = str(getattr(error, "stderr", "") or error).strip().splitlines()
            return f"not measured: {said[-1][:100] if said else error}"
        except (OSError, ValueError, IndexError, LookupError) as error:
            return f"not measured: {error}"

    def _environment(self) -> Path:
        place = ENVIRONMENTS / self.package
        python = place / "bin" / "python"
        if not (place / ".ready").exists():
            subprocess.run([_interpreter(self.python), "-m", "venv", place], check=True, capture_output=True)
            uv = shutil.which("uv")
            pip = (
                [uv, "pip", "install", "--python", str(python)]
                if uv
                else [str(python), "-m", "pip", "install"]
            )
            subprocess.run(
                [*pip, "--quiet", *(self.requirements or [self.package])],
                check=True,
                capture_output=True,
                timeout=600,
            )
            (place / ".ready").touch()
        return python


PEERS = (
    Peer("SWE-ReX", "swe-rex", (3, 10), _SWE_REX, ("swe-rex==1.4.0",)),
    # Both halves of one release: left to itself, pip pairs a new one with an old one that it does not run with.
    Peer(
        "OpenHands' tmux terminal",
        "openhands-tools",
        (3, 12),
        _OPENHANDS,
        ("openhands-tools==1.49.1", "openhands-sdk==1.49.1"),
    ),
)


def _interpreter(oldest: tuple[int, int]) -> str:
    """A Python that is new enough: ours, or any that is installed."""
    if sys.version_info[:2] >= oldest:
        return sys.executable
    names = [f"python3.{minor}" for minor in range(oldest[1], oldest[1] + 4)]
    installed = [*(shutil.which(name) for name in names)]
    for version in sorted(Path.home().glob(".pyenv/versions/3.*/bin")):
        installed += [str(version / name) for name in names]
    for path in filter(None, installed):
        runs = os.access(path, os.X_OK) and subprocess.run([path, "-c", ""], capture_output=True, check=False)
        if runs and runs.returncode == 0:
            return path
    raise LookupError(f"no Python {oldest[0]}.{oldest[1]} or newer")
