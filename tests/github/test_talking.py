"""From a comment on GitHub to one reply in its place, through whatever happens in between."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from sqlalchemy import select

from gofer.integration import Unread
from gofer.store.tables import messages
from gofer_github import integration
from gofer_standins.github import Fault
from gofer_standins.github.world import User, stamp
from support.github_scene import Scene, gofer
from support.patience import patiently


async def test_a_mention_gets_one_comment(scene: Scene, tmp_path: Path) -> None:
    async with gofer(scene, tmp_path / "data") as running:
        issue = await scene.github.open_issue("ada", scene.repository, "It is broken")
        await scene.github.comment("ada", scene.repository, issue.number, "@gofer who are you?")
        await running.quiet()
    (reply,) = scene.ours(issue.number)
    assert "I am Gofer without a language model" in reply.body
    assert [one.status_code for one in scene.github.world.deliveries] == [200, 200]


async def test_strangers_start_nothing(scene: Scene, tmp_path: Path) -> None:
    async with gofer(scene, tmp_path / "data") as running:
        for login in ("rita", "mallory"):
            issue = await scene.github.open_issue(login, scene.repository, "@gofer do what I say")
            await scene.github.comment(login, scene.repository, issue.number, "@gofer do what I say")
        await running.quiet()
        kept = await running.rows(select(messages.c.trust))
        assert {row.trust for row in kept} == {"stranger"}
        assert [scene.ours(number) for number in (1, 2)] == [[], []]
        await scene.github.comment("olga", scene.repository, 2, "@gofer look at this please")
        await running.quiet()
    assert len(scene.ours(2)) == 1, "a maintainer on a stranger's issue is answered"


async def test_an_allowed_bot_may_ask_though_github_knows_no_permission_of_it(scene: Scene) -> None:
    bot = scene.github.world.users["renovate[bot]"] = User(77, "renovate[bot]", "Bot")
    await scene.github.open_issue(bot.login, scene.repository, "@gofer update this")
    (delivered,) = [one async for one in integration.catch_up(scene.account(), 0)]
    allowed = scene.account(allowed_bots=[bot.login])
    message = integration.parse(delivered, allowed).message
    assert message is not None
    assert (message.quoted != "", message.quote_is_ours) == (True, False), "strangers may speak through it"
    assert (await integration.admit(Unread(message, None), allowed)).trust == "member"
    assert (await integration.admit(Unread(message, None), scene.account())).trust == "stranger"


async def test_a_reply_survives_github_and_is_never_doubled(scene: Scene, tmp_path: Path) -> None:
    kinds = {1: "broken", 2: "dropped", 3: "limited"}
    for number, kind in kinds.items():
        scene.github.faults.append(Fault(kind, f"POST /issues/{number}/comments"))  # type: ignore[arg-type]
    async with gofer(scene, tmp_path / "data") as running:
        for _ in kinds:
            await scene.github.open_issue("ada", scene.repository, "@gofer hello")
        await running.quiet()
    assert {number: len(scene.ours(number)) for number in kinds} == dict.fromkeys(kinds, 1)
    assert not scene.github.faults


async def test_what_came_while_we_were_away_is_fetched_at_start(scene: Scene, tmp_path: Path) -> None:
    async with gofer(scene, tmp_path / "data") as running:
        connection_id = running.connection_id
    issue = await scene.github.open_issue("ada", scene.repository, "@gofer are you there?")
    async with gofer(scene, tmp_path / "data", connection_id) as running:
        await running.quiet()
        assert len(scene.ours(issue.number)) == 1
        (delivery,) = scene.github.world.deliveries
        await scene.github._redeliver(scene.app, delivery)
        await running.quiet()
    assert len(scene.ours(issue.number)) == 1


async def test_what_could_not_be_delivered_while_we_were_there_is_fetched_soon(
    scene: Scene, tmp_path: Path
) -> None:
    def asked(what: str) -> int:
        return [path for _, path, _ in scene.github.calls].count(f"/app/hook/deliveries{what}")

    async with gofer(scene, tmp_path / "data", catch_up_every=0.2):
        here, scene.app.hook_url = scene.app.hook_url, "http://127.0.0.1:9/"
        missed = await scene.github.open_issue("ada", scene.repository, "@gofer are you there?")
        scene.app.hook_url = here
        failed = scene.github.world.deliveries[-1]
        failed.delivered_at = stamp(time.time() - 7200)
        heard = await scene.github.open_issue("ada", scene.repository, "@gofer and now?")
        async with patiently(40):
            while not (scene.ours(missed.number) and scene.ours(heard.number) and asked("") > 3):
                await asyncio.sleep(0.05)
    assert [len(scene.ours(one.number)) for one in (missed, heard)] == [1, 1]
    assert 0 < asked(f"/{failed.id}") <= 2, "one that was fetched is not fetched again and again"


async def test_githubs_own_limits_delay_a_reply_and_lose_nothing(scene: Scene, tmp_path: Path) -> None:
    limits = scene.github.limits
    limits.creations, limits.minute = 1, 1.0
    async with gofer(scene, tmp_path / "data") as running:
        for number in (1, 2):
            await scene.github.open_issue("ada", scene.repository, f"Number {number}", "@gofer hello")
        await running.quiet()
    assert [len(scene.ours(number)) for number in (1, 2)] == [1, 1]
    assert any(status == 403 for *_, status in scene.github.calls)
