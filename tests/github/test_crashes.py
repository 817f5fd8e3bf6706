"""Kill -9 in the middle of a job on GitHub: afterwards there is exactly one of everything."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from e2e.invariants import settled
from e2e.process import Gofer, free_port
from github_scene import FIX, Scene, gofer
from gofer.crash import EXIT_CODE
from gofer.rehearsal.github import git


@dataclass
class Doomed:
    """Processes of one installation."""

    data_dir: Path
    port: int = field(default_factory=free_port)
    started: list[Gofer] = field(default_factory=list)

    async def start(self, crash_at: str = "") -> Gofer:
        given = {
            "data_dir": self.data_dir, "host": "127.0.0.1", "port": self.port, "log_format": "json", "lease": 1,
            "poll_interval": 0.1, "request_timeout": 1, "public_url": "http://gofer.test", "keep_shells": "true",
        }  # fmt: skip
        environment = {f"GOFER_{name.upper()}": str(value) for name, value in given.items()}
        log = self.data_dir.parent / "log"
        made = Gofer(environment, "web", "worker", log=log, crash_at=crash_at)
        self.started.append(made)
        await asyncio.to_thread(made.wait_until_ready)
        return made

    async def settle(self) -> None:
        address = f"sqlite:///file:{self.data_dir / 'gofer.db'}?mode=ro&uri=true"
        store = create_engine(address, poolclass=NullPool)
        async with asyncio.timeout(90):
            while True:
                with store.connect() as connection:
                    if settled(connection):
                        return
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def doomed(data_dir: Path) -> AsyncIterator[Doomed]:
    made = Doomed(data_dir)
    try:
        yield made
    finally:
        for process in made.started:
            process.kill()


POINTS = [
    "intake.recorded",
    "run.admitted",
    "shell.ran:2",
    "outbox.placed_outside",
    "outbox.completed_outside",
]


@pytest.mark.parametrize("point", POINTS)
async def test_after_a_crash_there_is_exactly_one_of_everything(
    scene: Scene, tmp_path: Path, point: str
) -> None:
    data = tmp_path / "data"
    async with gofer(scene, data) as running:
        connection_id = running.connection_id
    async with doomed(data) as processes:
        scene.github.hook_timeout = 2
        first = await processes.start(crash_at=point)
        scene.app.hook_url = f"http://127.0.0.1:{processes.port}/hooks/{connection_id}"
        issue = await scene.github.open_issue("ada", scene.repository, "Broken", FIX)
        assert await asyncio.to_thread(first.wait) == EXIT_CODE
        second = await processes.start()
        # Whatever was acknowledged is done by now; whatever was not is fetched from the list of deliveries.
        await processes.settle()
        await asyncio.to_thread(second.stop)
    (reply,) = scene.ours(issue.number)
    assert "Working on it" not in reply.body
    assert "Opened the draft" in reply.body, reply.body
    (pull,) = [one for one in scene.repository.issues.values() if one.head]
    assert pull.draft
    assert git.run(scene.repository.path, "rev-list", "--count", f"main..{pull.head}") == "1"
    assert [one for one in issue.reactions if one[1] == "eyes"] in ([], [("gofer[bot]", "eyes")])
