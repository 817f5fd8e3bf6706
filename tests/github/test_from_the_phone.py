"""An owner on the phone, known on GitHub, too, has work done in a repository."""

from __future__ import annotations

import re
from pathlib import Path

from sqlalchemy import select

from gofer.store.tables import identities
from gofer_standins.telegram import Chat, Person, Telegram
from support.github_scene import Running, Scene, gofer, tool
from support.patience import eventually
from telegram.house import House, connect

ASK = tool("github_ask", repository="acme/widgets", title="Say hello", text="Greet people, please.")


async def paired(telegram: Telegram, running: Running) -> tuple[House, Person, Chat]:
    house = House(telegram, running.platform, await connect(running.platform, telegram))
    person, chat = await house.owner()
    return house, person, chat


async def test_a_linked_owner_has_work_done_in_a_repository(scene: Scene, tmp_path: Path) -> None:
    scene.app.slug = "acme-gofer"  # as almost every App is called otherwise: no two may have one name
    async with (
        Telegram() as telegram,
        gofer(scene, tmp_path / "data", public_url="", poll_every=0.1) as running,
    ):
        house, ann, chat = await paired(telegram, running)
        telegram.phones.say(ann, chat, ASK)
        assert "github_ask" in (await house.answers(chat, 1))[0]
        assert scene.repository.issues == {}, "nobody knows who she is on GitHub"
        known = await scene.github.open_issue("olga", scene.repository, "Hello")
        code = await link_code(house, ann, chat, "/link @Ada", 2)
        await scene.github.comment("mallory", scene.repository, known.number, "/gofer link AAAAAAAA")
        await scene.github.comment("ada", scene.repository, known.number, f"/gofer link {code}")
        await running.quiet()
        assert [("same person" in one.body) for one in scene.ours(known.number)] == [True]
        await scene.github.comment("mallory", scene.repository, known.number, f"/gofer link {code}")
        await running.quiet()
        assert len(scene.ours(known.number)) == 1, "a used code is worth nothing"
        telegram.phones.say(ann, chat, ASK)
        said = (await house.answers(chat, 3))[2]
        await eventually(lambda: scene.ours(2))
        await running.quiet()
    issue = scene.repository.issues[2]
    assert f"{scene.github.url}/acme/widgets/issues/2" in said
    assert (issue.title, issue.user.login) == ("Say hello", "acme-gofer[bot]")
    assert "Asked for by @ada" in issue.body
    (answer,) = scene.ours(2)
    assert "offline model" in answer.body


async def link_code(house: House, person: Person, chat: Chat, words: str, answer: int) -> str:
    house.telegram.phones.say(person, chat, words)
    said = (await house.answers(chat, answer))[answer - 1]
    (code,) = re.findall(r"link ([A-Z0-9]{8})\n", said)
    return str(code)


async def test_a_code_that_others_read_is_of_no_use_to_them(scene: Scene, tmp_path: Path) -> None:
    """Codes are said on public issues: whoever is quicker must not become somebody else."""
    async with (
        Telegram() as telegram,
        gofer(scene, tmp_path / "data", public_url="", poll_every=0.1) as running,
    ):
        house, ann, chat = await paired(telegram, running)
        known = await scene.github.open_issue("olga", scene.repository, "Hello")

        async def say(login: str, code: str) -> list[str]:
            await scene.github.comment(login, scene.repository, known.number, f"/gofer link {code}")
            await running.quiet()
            rows = await running.rows(
                select(identities.c.subject).where(identities.c.integration == "github")
            )
            return [row.subject for row in rows]

        named = await link_code(house, ann, chat, "/link @ada", 1)
        assert await say("mallory", named) == [], "made for ada"
        assert await say("ada", named) == [], "who else has read it may not use it, but it is spent"
        unnamed = await link_code(house, ann, chat, "/link", 2)
        assert await say("mallory", unnamed) == [], "made for nobody, so for private chats alone"
        assert await say("ada", unnamed) == []
        mistaken = await link_code(house, ann, chat, "/link @adda", 3)
        assert await say("ada", mistaken) == []
        scene.github.world.user("adda")
        assert await say("adda", mistaken) == [], "spent when somebody else said it"
        assert scene.ours(known.number) == [], "whoever tries codes in public is not answered there"
        right = await link_code(house, ann, chat, "/link @rita", 4)
        assert await say("rita", right) == [str(scene.github.world.user("rita").id)]
        telegram.phones.say(ann, chat, ASK)
        assert "rita may not write to acme/widgets" in (await house.answers(chat, 5))[4]
        assert list(scene.repository.issues) == [1], "who may not write there gets nothing there"


async def test_whoever_asked_is_told_on_the_phone_of_a_reply_that_github_never_takes(
    scene: Scene, tmp_path: Path
) -> None:
    async with (
        Telegram() as telegram,
        gofer(scene, tmp_path / "data", public_url="", poll_every=0.1) as running,
    ):
        house, ann, chat = await paired(telegram, running)
        known = await scene.github.open_issue("olga", scene.repository, "Hello")
        code = await link_code(house, ann, chat, "/link @ada", 1)
        await scene.github.comment("ada", scene.repository, known.number, f"/gofer link {code}")
        await running.quiet()
        scene.repository.archived = True
        await scene.github.comment("ada", scene.repository, known.number, "@gofer hello")
        told = (await house.answers(chat, 2))[1]
        await running.quiet()
        (dead,) = await running.jobs(lambda row: row.kind == "deliver" and row.state == "dead")
        assert "A reply of mine in “Hello” could not be sent" in told
        assert "archived" in told
        assert f"gofer jobs redrive {dead.id}" in told
        await house.settled()
        assert len(telegram.said(chat)) == 2, "once"
