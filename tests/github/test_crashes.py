"""Kill -9 in the middle of a job on GitHub: afterwards there is exactly one of everything."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from e2e.invariants import settled
from e2e.process import Gofer, free_port
from gofer.crash import EXIT_CODE
from gofer_sandbox import Bubblewrap
from gofer_sandbox.reaper import reap
from gofer_standins.github import git
from gofer_standins.github.world import Comment, Issue
from support.github_scene import FIX, Scene, gofer, tool
from support.patience import patiently


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
        # A shell that the last of them had no use for lives on.
        if self.sandbox == "bubblewrap":
            await reap(Bubblewrap(), (), within=self.data_dir / "shells")

    async def start(self, crash_at: str = "") -> Gofer:
        given = {
            "data_dir": self.data_dir, "host": "127.0.0.1", "port": self.port, "log_format": "json", "lease": 1,
            "poll_interval": 0.1, "request_timeout": 0.5, "public_url": "http://gofer.test",
            "keep_shells": str(bool(crash_at)).lower(), "sandbox": self.sandbox,
        }  # fmt: skip
        environment = {f"GOFER_{name.upper()}": str(value) for name, value in given.items()}
        log = self.data_dir.parent / "log"
        at = "" if crash_at == "pull" else crash_at
        made = Gofer(environment, "web", "worker", log=log, crash_at=at)
        self.started.append(made)
        await asyncio.to_thread(made.wait_until_ready)
        return made

    async def settle(self) -> None:
        address = f"sqlite:///file:{self.data_dir / 'gofer.db'}?mode=ro&uri=true"
        store = create_engine(address, poolclass=NullPool)
        async with patiently(90):
            while True:
                with store.connect() as connection:
                    if settled(connection):
                        return
                await asyncio.sleep(0.05)


WORKING = ("run.admitted", "shell.ran:2", "pull", "run.answered", "outbox.placed_outside")
"""Where the process dies, one after the other, while an issue becomes a pull request; `pull` is when it is there."""
TALKING = ("intake.recorded", "intake.committed", "outbox.completed_outside")
"""Where it makes no difference what the work was."""


@pytest.mark.slow
async def test_after_a_crash_at_each_step_there_is_exactly_one_of_everything(
    scene: Scene, tmp_path: Path
) -> None:
    begin = partial(scene.github.open_issue, "ada", scene.repository, "Broken", FIX)
    issue = await crash_and_recover(scene, Doomed(tmp_path / "data"), WORKING, begin)
    (reply,) = scene.ours(issue.number)
    assert "Working on it" not in reply.body
    (pull,) = [one for one in scene.repository.issues.values() if one.head]
    # What became of a call whose worker died is said to be unknown, and the call is not repeated.
    assert "Opened the draft" in reply.body or "Outcome unknown" in reply.body, reply.body
    assert pull.draft
    assert git.run(scene.repository.path, "rev-list", "--count", f"main..{pull.head}") == "1"
    (check,) = scene.repository.check_runs.values()
    assert check.status == "completed"
    assert [one for one in issue.reactions if one[1] == "eyes"] in ([], [("gofer[bot]", "eyes")])


@pytest.mark.slow
async def test_after_a_crash_there_is_exactly_one_answer(scene: Scene, tmp_path: Path) -> None:
    begin = partial(scene.github.open_issue, "ada", scene.repository, "Broken", "@gofer what is this?")
    issue = await crash_and_recover(scene, Doomed(tmp_path / "data", sandbox="off"), TALKING, begin)
    (reply,) = scene.ours(issue.number)
    assert "offline model" in reply.body


@pytest.mark.slow
async def test_after_a_crash_each_thread_of_a_review_has_one_answer_and_the_review_is_there_once(
    scene: Scene, tmp_path: Path
) -> None:
    made: list[Comment] = []

    async def begin() -> Issue:
        git.commit(scene.repository.path, {"a.txt": "a\nb\nc\n"}, "change", "A change")
        pull = await scene.github.open_pull("olga", scene.repository, "change")
        remarks = [("a.txt", line, "Why?") for line in (1, 2, 3)]
        made.extend(await scene.github.review("ada", scene.repository, pull.number, "", comments=remarks))
        answers = [tool("github_reply", comment=one.id, body=f"To {one.id}.") for one in made]
        review = tool("github_review", body="Nearly.", comments=[{"path": "a.txt", "line": 2, "body": "Hm."}])
        wish = "\n".join(["@gofer answer them", *answers, review])
        await scene.github.comment("ada", scene.repository, pull.number, wish)
        return pull

    points = ("journal.appended:4", "journal.appended:3", "run.answered")
    pull = await crash_and_recover(scene, Doomed(tmp_path / "data", sandbox="off"), points, begin)
    ours = [one for one in scene.repository.review_comments.values() if one.user.login == "gofer[bot]"]
    answers = [one for one in ours if one.body.startswith("To ")]
    assert all(one.body.startswith(f"To {one.thread}.") for one in answers), "each in its own thread"
    assert len({one.thread for one in answers}) == len(answers), "and none twice"
    reviews = [one for one in scene.repository.reviews.values() if one.body.startswith("Nearly.")]
    (reply,) = scene.ours(pull.number)
    # What became of a call whose worker died is said to be unknown, and the call is not repeated.
    unknown = reply.body.count("Outcome unknown")
    assert len(answers) + len(reviews) + unknown >= 4, reply.body
    assert len(reviews) <= 1


@pytest.mark.slow
async def test_a_refused_reply_waits_through_crashes_and_comes_once(scene: Scene, tmp_path: Path) -> None:
    async def begin() -> Issue:
        issue = await scene.github.open_issue("ada", scene.repository, "Broken")
        issue.locked = True
        await scene.github.comment("ada", scene.repository, issue.number, "@gofer hello")
        return issue

    async def unlock(doomed: Doomed) -> None:
        """Once it is refused; then time passes."""
        waits = "kind = 'deliver' AND state = 'scheduled'"
        with contextlib.closing(sqlite3.connect(doomed.data_dir / "gofer.db")) as store:
            async with asyncio.timeout(60):
                while not store.execute(f"SELECT id FROM job WHERE {waits}").fetchall():
                    await asyncio.sleep(0.05)
            scene.repository.issues[1].locked = False
            doomed.started[-1].kill()
            with store:
                store.execute(f"UPDATE job SET run_at = 0 WHERE {waits}")
        await doomed.start()

    points = ("outbox.begun", "job.concluding")
    doomed = Doomed(tmp_path / "data", sandbox="off")
    issue = await crash_and_recover(scene, doomed, points, begin, unlock)
    (reply,) = scene.ours(issue.number)
    assert "offline model" in reply.body
    refused = [
        one for one in scene.github.calls if one == ("POST", "/repos/acme/widgets/issues/1/comments", 403)
    ]
    assert refused


async def nothing(_: Doomed) -> None:
    """What happens before the last process is left to finish."""


async def crash_and_recover(
    scene: Scene,
    doomed: Doomed,
    points: tuple[str, ...],
    begin: Callable[[], Awaitable[Issue]],
    then: Callable[[Doomed], Awaitable[None]] = nothing,
) -> Issue:
    """A request during which one process after the other dies, and a last that is left to finish it."""
    async with gofer(scene, doomed.data_dir) as running:
        connection_id = running.connection_id
    async with doomed:
        first = await doomed.start(crash_at=points[0])
        scene.app.hook_url = f"http://127.0.0.1:{doomed.port}/hooks/{connection_id}"
        issue = await begin()
        await died(scene, first, points[0])
        for point in points[1:]:
            # Whatever was not acknowledged is fetched from the list of deliveries.
            await died(scene, await doomed.start(crash_at=point), point)
        await doomed.start()
        await then(doomed)
        await doomed.settle()
        await asyncio.to_thread(doomed.started[-1].stop)
    return issue


async def died(scene: Scene, process: Gofer, point: str) -> None:
    """Wait until it is dead, and of what it should die of."""
    if point == "pull":
        async with patiently(90):
            while not any(one.head for one in scene.repository.issues.values()):
                await asyncio.sleep(0.001)
        process.kill()
    else:
        assert await asyncio.to_thread(process.wait) == EXIT_CODE, point
