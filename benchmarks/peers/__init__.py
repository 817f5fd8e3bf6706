"""Other queues doing the same nothing, each in an environment of its own under `.bench/`."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Measured

ENVIRONMENTS = Path(".bench")


@dataclass(frozen=True, slots=True)
class Peer:
    """A queue to compare with: what to install, and the script beside this file that runs it."""

    name: str
    requirements: tuple[str, ...]
    script: str

    async def measure(self, where: str, *, jobs: int, samples: int) -> Measured | None:
        """Run it over a database; None, with the reason on stderr, when it cannot be had."""
        try:
            python = await self._installed()
            found = await _output(
                str(python), str(Path(__file__).parent / self.script), where, str(jobs), str(samples)
            )
        except OSError as error:
            print(f"{self.name} is left out: {error}", file=sys.stderr)
            return None
        values: dict[str, Any] = json.loads(found.splitlines()[-1])
        return Measured(values["drain"], values["starts"])

    async def _installed(self) -> Path:
        folder = (ENVIRONMENTS / self.name.lower()).absolute()
        python = folder / "bin" / "python"
        stamp = folder / ".installed"
        if stamp.exists() and stamp.read_text() == repr(self.requirements):
            return python
        print(f"installing {self.name} into {folder.relative_to(Path.cwd())} …", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        await _output(sys.executable, "-m", "venv", str(folder))
        await _output(str(python), "-m", "pip", "install", "--quiet", *self.requirements)
        stamp.write_text(repr(self.requirements))
        return python


async def _output(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 300)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise OSError(f"{Path(command[1]).name} took more than five minutes") from None
    if process.returncode != 0:
        raise OSError(err.decode(errors="replace").strip()[-800:] or f"exit code {process.returncode}")
    return out.decode()


HUEY = Peer("Huey", ("huey==3.5.4",), "with_huey.py")
DBOS = Peer("DBOS", ("dbos==3.3.0",), "with_dbos.py")
PGQUEUER = Peer("PgQueuer", ("pgqueuer[asyncpg]==1.6.0",), "with_pgqueuer.py")
PROCRASTINATE = Peer(
    "Procrastinate", ("procrastinate==3.10.0", "psycopg[binary,pool]==3.3.8"), "with_procrastinate.py"
)
