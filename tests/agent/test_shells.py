"""Lending a conversation's shell to one run after the other, over the store and in a real sandbox."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete

from gofer.agent import loop
from gofer.errors import Fenced
from gofer.jobs import worker
from gofer.jobs.outcome import Done
from gofer.runs.shells import Shells
from gofer.settings import load_settings
from gofer.store.tables import Trust
from gofer.store.tables import shells as shells_table
from gofer_sandbox import Level
from support.both_databases import slow_on_postgres
from support.patience import patience, patiently
from support.world import World

database_url = slow_on_postgres


@pytest.fixture
async def shells(world: World, tmp_path: Path) -> AsyncIterator[Shells]:
    settings = load_settings(data_dir=tmp_path, keep_shells=False)
    shells = Shells(settings=settings, database=world.database)
    await shells.start()
    report = await shells.report()
    if report is None or report.level < Level.ISOLATED:
        pytest.skip("no isolation on this machine")
    yield shells
    await shells.stop()


async def test_a_shell_that_was_lent_and_not_used_is_there_for_the_next_run(
    world: World, shells: Shells
) -> None:
    await world.say("hello")
    first = await world.claim_one()
    async with shells.lend(first, Trust.OWNER):
        pass
    await world.end(first, Done(included_to=1))
    await world.say("$ echo hi")
    async with shells.lend(await world.claim_one(), Trust.OWNER) as shell:
        assert shell is not None
        assert (await shell.run("echo hi", timeout=patience(20))).output == b"hi\n"


async def test_a_shell_that_somebody_closed_is_made_anew(world: World, shells: Shells) -> None:
    await world.say("$ x=1")
    first = await world.claim_one()
    async with shells.lend(first, Trust.OWNER) as shell:
        assert shell is not None
        await shell.run("x=1; echo kept > file", timeout=patience(20))
    await world.end(first, Done(included_to=1))
    await world.run(lambda c: c.execute(delete(shells_table)))
    await world.say("$ echo")
    async with shells.lend(await world.claim_one(), Trust.OWNER) as shell:
        assert shell is not None
        assert (
            await shell.run("echo ${x:-unset}; cat file", timeout=patience(20))
        ).output == b"unset\nkept\n"


async def test_a_run_that_lost_its_job_does_not_keep_the_shell_from_the_next(
    world: World, shells: Shells
) -> None:
    await world.say("$ echo hi")
    lost = await world.claim_one(owner="worker-1")
    async with shells.lend(lost, Trust.OWNER) as shell:
        assert shell is not None
        await world.pass_time(60)
        await world.sweep()
        holder = await world.claim_one(owner="worker-2")
        with pytest.raises(Fenced):
            await shell.run("echo hi", timeout=patience(20))
    async with shells.lend(holder, Trust.OWNER) as shell:
        assert shell is not None
        assert (await shell.run("echo hi", timeout=patience(20))).output == b"hi\n"


async def test_a_shell_let_go_of_amid_a_command_that_nobody_waits_for_leaves_no_complaint(
    world: World, shells: Shells
) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    await world.say("$ sleep")
    begun = asyncio.Event()
    async with shells.lend(await world.claim_one(), Trust.OWNER) as shell:
        assert shell is not None
        command = shell.run("echo begun; sleep 60", timeout=patience(90), on_output=lambda _: begun.set())
        running = asyncio.create_task(command)
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        del command, running
    await shells.stop()
    await asyncio.sleep(0)
    shell = None
    gc.collect()
    assert not complaints


async def test_a_command_stopped_before_its_shell_is_there_never_begins(world: World, shells: Shells) -> None:
    await world.say("$ sleep")
    async with shells.lend(await world.claim_one(), Trust.OWNER) as shell:
        assert shell is not None
        for _ in range(2):  # while the sandbox is made, and just after the command was given to it
            running = asyncio.create_task(shell.run("sleep 60; touch ran", timeout=patience(90)))
            await asyncio.sleep(0)
            await shell.cancel()
            assert (await asyncio.wait_for(running, patience(20))).cancelled
        after = await shell.run("ls; echo over", timeout=patience(20))
        assert (after.output, after.cancelled) == (b"over\n", False)


async def test_a_run_stopped_while_another_has_its_shell_goes_on_without_one(
    world: World, shells: Shells
) -> None:
    """It then ends by itself, as a stopped run does."""
    await world.say("$ sleep")
    claim, stopped = await world.claim_one(), asyncio.Event()

    async def wait_for_shell() -> bool:
        async with shells.lend(claim, Trust.OWNER, stopped=stopped) as shell:
            return shell is None

    async with shells.lend(claim, Trust.OWNER):
        waiting = asyncio.create_task(wait_for_shell())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        stopped.set()
        assert await asyncio.wait_for(waiting, patience(20))
    async with shells.lend(claim, Trust.OWNER) as shell:
        assert shell is not None


def test_a_tool_has_less_time_to_end_than_its_run() -> None:
    assert loop.GRACE < worker.CANCEL_GRACE


async def test_a_new_conversation_gets_a_shell_that_was_made_ahead(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gofer.runs.shells.quiet", lambda: True)  # however busy this machine is
    monkeypatch.setattr("gofer.runs.shells.SPARE_AFTER", 0.0)
    settings = load_settings(data_dir=tmp_path, keep_shells=True)
    shells = Shells(settings=settings, database=world.database)
    await shells.start()
    report = await shells.report()
    if report is None or report.level < Level.ISOLATED:
        pytest.skip("no isolation on this machine")
    async with patiently(30):
        while not (shells._spares and shells._spares.ready):
            await asyncio.sleep(0.02)
    (spare,) = (tmp_path / "shells").glob("spare-*/output")
    number = spare.stat().st_ino
    await world.say("$ echo hi")
    claim = await world.claim_one()
    async with shells.lend(claim, Trust.OWNER) as shell:
        assert shell is not None
        assert (await shell.run("echo hi; pwd", timeout=patience(20))).output == b"hi\n/workspace\n"
    kept = tmp_path / "shells" / f"{claim.conversation_id}-{claim.agent_id}"
    assert (kept / "output").stat().st_ino == number
    await shells.stop()
    assert [path.name for path in (tmp_path / "shells").iterdir()] == [kept.name]
    await world.run(lambda c: c.execute(delete(shells_table)))
    assert len(await shells.reap()) == 1
