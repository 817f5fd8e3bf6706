"""Kill -9 in the middle of a job on GitHub: afterwards there is exactly one of everything."""

from __future__ import annotations

import asyncio
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
from gofer.rehearsal.github.world import Issue


@dataclass
class Doomed:
    """Processes of one installation."""

    data_dir: Path
    sandbox: str = "bubblewrap"
    port: int = field(default_factory=free_port)
    started: list[Gofer] = field(default_factory=list)

    async def __aenter__(self) -> Doomed:
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self.started:
            process.kill()

    async def start(self, crash_at: str = "") -> Gofer:
        given = {
            "data_dir": self.data_dir, "host": "127.0.0.1", "port": self.port, "log_format": "json", "lease": 1,
            "poll_interval": 0.1, "request_timeout": 0.5, "public_url": "http://gofer.test",
            "keep_shells": str(bool(crash_at)).lower(), "sandbox": self.sandbox,
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


WORKING = ["run.admitted", "shell.ran:2", "run.answered", "outbox.placed_outside"]
TALKING = ["intake.recorded", "intake.committed", "outbox.completed_outside"]
"""Where it makes no difference what the work was."""


@pytest.mark.parametrize("point", WORKING)
async def test_after_a_crash_there_is_exactly_one_of_everything(
    scene: Scene, tmp_path: Path, point: str
) -> None:
    issue = await crash_and_recover(scene, Doomed(tmp_path / "data"), point, FIX)
    (reply,) = scene.ours(issue.number)
    assert "Working on it" not in reply.body
    assert "Opened the draft" in reply.body, reply.body
    (pull,) = [one for one in scene.repository.issues.values() if one.head]
    assert pull.draft
    assert git.run(scene.repository.path, "rev-list", "--count", f"main..{pull.head}") == "1"
    (check,) = scene.repository.check_runs.values()
    assert check.status == "completed"
    assert [one for one in issue.reactions if one[1] == "eyes"] in ([], [("gofer[bot]", "eyes")])


@pytest.mark.parametrize("point", TALKING)
async def test_after_a_crash_there_is_exactly_one_answer(scene: Scene, tmp_path: Path, point: str) -> None:
    issue = await crash_and_recover(
        scene, Doomed(tmp_path / "data", sandbox="off"), point, "@gofer what is this?"
    )
    (reply,) = scene.ours(issue.number)
    assert "offline model" in reply.body


async def crash_and_recover(scene: Scene, doomed: Doomed, point: str, body: str) -> Issue:
    """A request during which the process dies, and another that is left to finish it."""
    async with gofer(scene, doomed.data_dir) as running:
        connection_id = running.connection_id
    async with doomed:
        first = await doomed.start(crash_at=point)
        scene.app.hook_url = f"http://127.0.0.1:{doomed.port}/hooks/{connection_id}"
        issue = await scene.github.open_issue("ada", scene.repository, "Broken", body)
        assert await asyncio.to_thread(first.wait) == EXIT_CODE
        second = await doomed.start()
        # Whatever was acknowledged is done by now; whatever was not is fetched from the list of deliveries.
        await doomed.settle()
        await asyncio.to_thread(second.stop)
    return issue
