"""Die at every named point in turn, start again, and find everything answered once and in order."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import select

from e2e.process import Gofer
from e2e.scenario import Scenario, prepared
from gofer.crash import EXIT_CODE, POINTS
from gofer.store.tables import events, jobs, messages
from gofer_sandbox import Bubblewrap
from gofer_sandbox.reaper import reap
from gofer_standins.hello import HelloService
from support.patience import eventually, patiently

SOURCE = Path(__file__).parents[2]

SHELL = {"shell.ran"}
ROTATION = {point for point in POINTS if point.startswith("key.")}
SCHEDULE = {"schedule.said"}
OUTBOX = {point for point in POINTS if point.startswith("outbox.")}

NOT_ON_THE_WAY = (
    *("proposal.", "memory.", "goal.", "task.", "heartbeat.", "nudge.", "release."),
    *("trigger.", "host.", "post."),
)
ELSEWHERE = {point for point in POINTS if point.startswith(NOT_ON_THE_WAY)} | {"run.delegated"}
"""`telegram/test_proposals.py`, `e2e/test_memory_crashes.py`, `e2e/test_goals.py`, `e2e/test_delegate_crashes.py`,
`telegram/test_heartbeat.py`, `telegram/test_self_update.py`, `e2e/test_trigger_crashes.py` and `gofer/runtimes` die at
these."""

ONCE_EACH = [("hello", point) for point in sorted(POINTS - ELSEWHERE)]
MORE = (
    [("hello", f"{point}:2") for point in sorted(POINTS - ROTATION - SHELL - SCHEDULE - ELSEWHERE)]
    + [("hello", f"journal.appended:{number}") for number in (3, 4, 5, 6)]
    + [("probe", point) for point in sorted(OUTBOX)]
)
QUICK = {
    ("sqlite", "intake.committed"),
    ("postgresql", "journal.appended"),
    ("sqlite", "outbox.completed_outside"),
    ("postgresql", "job.concluding"),
}
"""One of each part of a message's way, in every run of the tests; the others are slow."""
CRASHES = [
    pytest.param(
        *crash,
        database,
        id="-".join((database, *crash)),
        marks=() if (database, crash[1]) in QUICK else pytest.mark.slow,
    )
    for crash in ONCE_EACH
    for database in ("sqlite", "postgresql")
] + [
    # Too many even for CI; `make chaos` has them.
    pytest.param(*crash, database, id="-".join((database, *crash)), marks=pytest.mark.chaos)
    for crash in MORE
    for database in ("sqlite", "postgresql")
]


def test_every_point_in_the_code_is_listed_and_every_listed_one_is_in_the_code() -> None:
    folders = ("platform", "integrations", "sandbox")
    files = [file for folder in folders for file in (SOURCE / folder).rglob("*.py")]
    called = {name for file in files for name in re.findall(r'crash_point\(\s*"([^"]+)"', file.read_text())}
    assert called == POINTS


@pytest.mark.parametrize(("integration", "crash_at", "database_url"), CRASHES, indirect=["database_url"])
async def test_nothing_is_lost_or_doubled_by_dying_at(
    integration: str, crash_at: str, database_url: str, data_dir: Path
) -> None:
    if database_url.startswith("sqlite"):
        database_url = ""
    point = crash_at.partition(":")[0]
    sandbox = "bubblewrap" if point in SHELL else "off"
    async with prepared(
        data_dir, database_url, integration=integration, sandbox=sandbox, keep_shells=False
    ) as scenario:
        talking = _talk(scenario, in_shell=point in SHELL)
        dying = scenario.start(crash_at=crash_at).wait_until_ready()
        if point in ROTATION:
            talking.append(asyncio.create_task(_rotate(scenario)))
        if point in SCHEDULE:
            await _schedule(scenario, talking)
        await _death(dying, crash_at)
        living = scenario.start().wait_until_ready()
        try:
            async with patiently(30):
                await asyncio.gather(*talking)
            assert await scenario.settle(), await scenario.findings()
        finally:
            code = living.stop()
            # A shell of the one that died, which nobody asked for again, would wait until it is idle for too long.
            await reap(Bubblewrap(), (), within=data_dir / "shells")
        assert code == 0
        assert not await scenario.findings()
        assert not scenario.service.refused
        assert scenario.orphans() <= 2, "at most one opening per conversation and crash"
        _each_mark_once(scenario)
        if point in SCHEDULE:
            await _said_and_done_once(scenario)


def _talk(scenario: Scenario, *, in_shell: bool) -> list[asyncio.Task[None]]:
    """Two conversations, each with a message that wants something done and one that wants an answer."""
    do = "$ echo {0} >> done; cat done" if in_shell else '$tool mark {{"line": "{0}"}}'
    return [
        asyncio.create_task(scenario.say_in_turn(room, [do.format(f"{room}-first"), "and you?"]))
        for room in ("kitchen", "garden")
    ]


async def _rotate(scenario: Scenario) -> None:
    """Ask for a new master key while messages come in; the server dies of it."""
    with pytest.raises(Exception, match=r".*"):
        (await scenario.control("POST", "/key/rotate")).raise_for_status()


async def _schedule(scenario: Scenario, talking: list[asyncio.Task[None]]) -> None:
    """Have a schedule speak where people spoke; the server dies just after it has."""
    await asyncio.gather(*talking)
    (place, *_) = (await scenario.control("GET", "/conversations")).json()["conversations"]
    wish = {"name": "tidy", "cron": "0 0 1 1 *", "agent": "gofer", "say": '$tool mark {"line": "tidied"}'}
    made = await scenario.control("POST", f"/conversations/{place['id']}/schedules", wish)
    assert made.status_code == 201, made.text
    with contextlib.suppress(httpx2.TransportError):  # it may die before it has answered
        (await scenario.control("POST", "/schedules/tidy/run")).raise_for_status()


async def _said_and_done_once(scenario: Scenario) -> None:
    said = select(messages.c.conversation_id, messages.c.seq).where(messages.c.event == "schedule")
    (message,) = await scenario.read(lambda connection: connection.execute(said).all())
    done = select(jobs.c.id).where(jobs.c.conversation_id == message.conversation_id, jobs.c.kind == "answer")
    done = done.where(jobs.c.covers_from < message.seq, jobs.c.covers_to >= message.seq)
    (job_id,) = await scenario.read(lambda connection: connection.execute(done).scalars().all())
    begun = select(events.c.data).where(events.c.job_id == job_id, events.c.kind == "run.started")
    (facts,) = await scenario.read(lambda connection: connection.execute(begun).scalars().all())
    assert facts["background"], "on the smaller budget"
    marks = Path(scenario.environment["GOFER_TEST_MARKS"])
    assert marks.read_text().split().count("tidied") == 1, "the owner's words are obeyed, once"
    assert isinstance(scenario.service, HelloService)
    assert [reply.key.split("-")[1] for reply in scenario.service.ledger].count(str(job_id)) == 1


async def _death(gofer: Gofer, crash_at: str) -> None:
    try:
        await eventually(lambda: gofer.ended, within=15)
    except TimeoutError:
        gofer.kill()
        pytest.fail(f"{crash_at} is never reached")
    assert gofer.exit_code == EXIT_CODE, gofer.log.read_text()[-2000:]


def _each_mark_once(scenario: Scenario) -> None:
    """What a command did to the world happened at most once; a crash in between may leave its outcome unknown."""
    marks = Path(scenario.environment["GOFER_TEST_MARKS"])
    lines = marks.read_text().split() if marks.exists() else []
    assert len(set(lines)) == len(lines), lines
