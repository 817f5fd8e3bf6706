"""Talking: what a person on a phone sees, over HTTP on the stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gofer.store.tables import agents, conversations, deliveries, messages, participants
from gofer_standins.anthropic import Anthropic, call, calls, say
from gofer_standins.loopback import serve as loopback
from gofer_standins.telegram import Telegram
from support.patience import eventually
from telegram.house import House, open_house


@pytest.mark.parametrize("webhook", [False, True], ids=["polling", "webhook"])
async def test_a_message_is_seen_typed_at_and_answered_once(
    telegram: Telegram, tmp_path: Path, webhook: bool
) -> None:
    async with open_house(telegram, tmp_path / "data", webhook=webhook) as house:
        ann, chat = await house.owner()
        telegram.phones.say(ann, chat, "hello")
        (answer,) = await house.answers(chat, 1)
        assert "offline" in answer
        await house.settled()
        assert telegram.said(chat) == [answer]
        seen = [call.parameters["reaction"] for call in telegram.calls("setMessageReaction")]
        assert seen[0] == [{"type": "emoji", "emoji": "👀"}]
        assert chat.actions
        assert chat.actions[0][1] == "typing"
        (sent,) = telegram.calls("sendMessage")
        assert sent.parameters["text"].endswith(" …")
        assert sent.parameters["text"] != answer
        assert answer.startswith(sent.parameters["text"][:20])
        assert "disable_notification" not in sent.parameters


async def test_a_pairing_code_makes_the_owner_and_works_once(either: House) -> None:
    telegram = either.telegram
    ann, eve = telegram.world.add_person("Ann"), telegram.world.add_person("Eve")
    code = await either.code()
    chat, other = telegram.world.private(ann), telegram.world.private(eve)
    telegram.phones.say(ann, chat, f"/start {code.lower()}")
    assert "owner" in (await either.answers(chat, 1))[0]
    telegram.phones.say(eve, other, f"/start {code}")
    assert "not valid" in (await either.answers(other, 1))[0]
    telegram.phones.say(ann, chat, "hello")
    assert len(await either.answers(chat, 2)) == 2


async def test_guessing_codes_ends_after_five(either: House) -> None:
    telegram = either.telegram
    code = await either.code()
    eve = telegram.world.add_person("Eve")
    chat = telegram.world.private(eve)
    for guess in range(5):
        telegram.phones.say(eve, chat, f"/start WRONG{guess}")
        await either.answers(chat, guess + 1)
    telegram.phones.say(eve, chat, f"/start {code}")
    await either.settled()
    assert len(telegram.said(chat)) == 5


async def test_a_stranger_hears_one_line_and_the_owner_lets_them_in_with_a_button(either: House) -> None:
    telegram = either.telegram
    ann, chat = await either.owner()
    telegram.phones.say(ann, chat, "hello")
    await either.answers(chat, 1)
    bob = telegram.world.add_person("Bob")
    his = telegram.world.private(bob)
    for text in ("hi", "are you there?", "/status"):
        telegram.phones.say(bob, his, text)
    (line,) = await either.answers(his, 1)
    assert "do not know you" in line
    question = (await eventually(lambda: [m for m in chat.by_bot(telegram.bot.id) if "reply_markup" in m]))[0]
    assert "Bob" in question["text"]
    await either.settled()
    assert telegram.said(his) == [line]
    refused = telegram.phones.press(bob, question, "Yes")
    await eventually(lambda: refused in telegram.methods.answered)
    assert "not for you" in telegram.methods.answered[refused]
    pressed = telegram.phones.press(ann, question, "Yes")
    await eventually(lambda: pressed in telegram.methods.answered)
    assert "may talk" in (await either.answers(his, 2))[1]
    no = _keyboard(telegram)["inline_keyboard"][0][1]["callback_data"]
    again = telegram.phones.press_data(ann, question, no)
    await eventually(lambda: again in telegram.methods.answered)
    assert telegram.methods.answered[again] != "No"
    await eventually(lambda: "reply_markup" not in chat.messages[question["message_id"]])
    telegram.phones.say(bob, his, "now?")
    assert len(await either.answers(his, 3)) == 3


def _keyboard(telegram: Telegram) -> dict[str, list[list[dict[str, str]]]]:
    """The keyboard as it was sent."""
    call = next(call for call in telegram.calls("editMessageText") if "reply_markup" in call.parameters)
    return dict(call.parameters["reply_markup"])


async def test_a_group_is_heard_only_once_its_owner_allows_it(house: House) -> None:
    telegram = house.telegram
    ann, _ = await house.owner()
    eve = telegram.world.add_person("Eve")
    group = telegram.world.add_group("Team")
    name = f"@{telegram.bot.username}"
    telegram.phones.say(eve, group, f"{name} hello")
    await house.settled()
    assert telegram.said(group) == []
    telegram.phones.change_bot(ann, group, "member")
    question = (await eventually(lambda: [m for m in group.by_bot(telegram.bot.id) if "reply_markup" in m]))[
        0
    ]
    telegram.phones.press(ann, question, "Yes")
    assert "listening" in (await house.answers(group, 2))[1]
    asked = telegram.phones.say(ann, group, f"{name} what is this?")
    await house.answers(group, 3)
    last = group.by_bot(telegram.bot.id)[-1]
    assert last["reply_to_message"]["message_id"] == asked["message_id"]
    telegram.phones.say(eve, group, f"{name} and me?")
    telegram.phones.say(ann, group, "just talking among ourselves")
    await house.settled()
    assert len(telegram.said(group)) == 3


async def test_topics_are_conversations_of_their_own(telegram: Telegram, tmp_path: Path) -> None:
    forum = telegram.world.add_group("Forum", forum=True)
    groups = {str(forum.id): {"when": "always", "everyone": True}}
    telegram.methods.privacy = False
    async with open_house(telegram, tmp_path / "data", groups=groups) as house:
        ann = telegram.world.add_person("Ann")
        one = telegram.phones.open_topic(ann, forum, "One")
        telegram.phones.say(ann, forum, "in one", thread=one)
        await house.answers(forum, 1)
        telegram.phones.say(ann, forum, "in general")
        await house.answers(forum, 2)
        await house.settled()
        first, second = forum.by_bot(telegram.bot.id)
        assert first["message_thread_id"] == one
        assert "message_thread_id" not in second
        assert await house.count(conversations) == 2
        assert {thread for _, _, thread in forum.actions} == {one, 1}


async def test_an_album_is_one_message_with_all_its_photos(house: House) -> None:
    telegram = house.telegram
    ann, chat = await house.owner()
    telegram.phones.send_album(ann, chat, ["our garden", "", "in spring"])
    await house.answers(chat, 1)
    await house.settled()
    assert len(telegram.said(chat)) == 1
    assert await house.count(messages, messages.c.event == "message") == 1
    assert await house.count(deliveries) == 3
    assert len(telegram.calls("getFile")) == 3


async def test_a_photo_that_comes_after_its_album_was_read_belongs_to_it(
    telegram: Telegram, tmp_path: Path
) -> None:
    async with open_house(telegram, tmp_path / "data", sandbox="unconfined") as house:
        ann, chat = await house.owner()
        waiting = tmp_path / "waiting"
        photos = telegram.phones.send_album(ann, chat, [f"$ until [ -e {waiting} ]; do sleep 0.05; done", ""])
        album = photos[0]["media_group_id"]
        await eventually(lambda: chat.reactions)
        telegram.phones.send_photo(ann, chat, media_group_id=album)
        await house.took_in(3)
        waiting.touch()
        await house.answers(chat, 1)
        await house.settled()
        assert len({call.parameters["file_id"] for call in telegram.calls("getFile")}) == 3, (
            "the run at work has read it"
        )
        for caption in ("later still", ""):
            telegram.phones.send_photo(ann, chat, caption, media_group_id=album)
        ran = tmp_path / "ran"
        telegram.phones.edit(photos[0], f"$ touch {ran}")
        await house.took_in(6)
        await house.settled()
        assert len(telegram.said(chat)) == 1, "it was answered with the others"
        telegram.phones.say(ann, chat, "and the last one?")
        await house.answers(chat, 2)
        await house.settled()
        assert len(telegram.said(chat)) == 2
        assert len({call.parameters["file_id"] for call in telegram.calls("getFile")}) == 5, (
            "what is asked next knows of them"
        )
        assert not ran.exists(), "an edit of what was answered is no new order"


async def test_a_group_that_becomes_a_supergroup_keeps_its_conversation(
    telegram: Telegram, tmp_path: Path
) -> None:
    group = telegram.world.add_group("Team", kind="group")
    groups = {str(group.id): {"everyone": True}}
    async with open_house(telegram, tmp_path / "data", groups=groups) as house:
        ann = telegram.world.add_person("Ann")
        telegram.phones.say(ann, group, f"@{telegram.bot.username} hello")
        await house.answers(group, 1)
        new = telegram.phones.migrate(ann, group)
        telegram.phones.say(
            ann, new, f"@{telegram.bot.username} still there?"
        )  # in the same batch of updates
        await house.answers(new, 1)
        assert await house.count(conversations) == 1


async def test_commands_are_answered_also_unknown_ones(house: House) -> None:
    telegram = house.telegram
    ann, chat = await house.owner()
    for number, (command, words) in enumerate(
        [
            ("/help", "/status"),
            ("/status", "doing nothing"),
            ("/cost", "$0.0000"),
            ("/agent", "gofer"),
            ("/model", "answers with offline/offline (auto"),
            ("/settings", house.connection_id),
            ("/new", "fresh start"),
            ("/stop", "doing nothing"),
            ("/frobnicate", "do not know /frobnicate"),
        ],
        1,
    ):
        telegram.phones.say(ann, chat, command)
        said = await house.answers(chat, number)
        assert words in said[-1], command


async def test_an_owner_chooses_agent_and_model_for_a_conversation_and_it_lasts(
    telegram: Telegram, tmp_path: Path
) -> None:
    folder = tmp_path / "data" / "agents"
    folder.mkdir(parents=True)
    (folder / "gofer.toml").write_text("")
    (folder / "coder.toml").write_text('routes = [{connection = "github"}]')
    async with open_house(telegram, tmp_path / "data") as house:
        ann, chat = await house.owner()
        bob = telegram.world.add_person("Bob")
        his = await house.let_in(bob, "member")
        for count, wish in enumerate(
            ("/agent coder", "/model offline/again", "/agent nobody", "/model x/y"), 1
        ):
            telegram.phones.say(ann, chat, wish)
            await house.answers(chat, count)
        telegram.phones.say(bob, his, "/model offline/again")
        assert await house.answers(his, 1) == ["Only an owner can change that."]
    async with open_house(telegram, tmp_path / "data") as house:
        telegram.phones.say(ann, chat, "hello")
        telegram.phones.say(bob, his, "hello")
        said = await house.answers(chat, 5)
        await house.answers(his, 2)
        await house.settled()
        heard = select(agents.c.name, participants.c.conversation_id).join_from(participants, agents)
        by_agent = await house.rows(heard.order_by(agents.c.name))
        telegram.phones.say(ann, chat, "/model")
        shown = (await house.answers(chat, 6))[-1]
        telegram.phones.say(ann, chat, "/agent default")
        await house.answers(chat, 7)
        telegram.phones.say(ann, chat, "hello again")
        await house.answers(chat, 8)
        assert len(await house.rows(heard)) == 3, "and now gofer hears it, too"
        (folder / "coder.toml").unlink()
        for count, wish in enumerate(("/agent coder", "/agent"), 9):
            telegram.phones.say(ann, chat, wish)
            await house.answers(chat, count)
        gone, left = (await house.answers(chat, 10))[-2:]
    assert gone == "There is no agent 'coder'. There are: gofer.", "its row is still there, for its history"
    assert left == "gofer hears this conversation.\nAn owner can choose: /agent gofer | default"
    assert said[:2] == [
        "From now on coder hears this conversation.",
        "From now on offline/again answers here.",
    ]
    assert "There are: coder, gofer" in said[2]
    assert "cannot be had" in said[3]
    assert [name for name, _ in by_agent] == ["coder", "gofer"]
    assert "coder answers with offline/again" in shown


async def test_a_reaction_is_kept_as_an_event_and_wants_no_answer(
    telegram: Telegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    model = Anthropic([say("Here it is."), say("Glad you like it.")])
    async with loopback(model.app) as url:
        monkeypatch.setenv("GOFER_ANTHROPIC_KEY", model.key)
        monkeypatch.setenv("GOFER_ANTHROPIC_BASE_URL", url)
        async with open_house(telegram, tmp_path / "data", database_url=database_url) as house:
            ann, chat = await house.owner()
            telegram.phones.say(ann, chat, "hello")
            await house.answers(chat, 1)
            (answer,) = chat.by_bot(telegram.bot.id)
            telegram.phones.react(ann, answer, "🔥")
            telegram.phones.react(ann, answer)
            await house.took_in(3)
            await house.settled()
            assert len(telegram.said(chat)) == 1
            telegram.phones.say(ann, chat, "and?")
            await house.answers(chat, 2)
            heard = str(model.received[1]["messages"])
            assert "[reacted with 🔥]" in heard
            assert "[took back 👍]" in heard
    assert model.refused == []


async def test_an_owner_chooses_agent_and_model_by_a_button_and_nobody_else_does(
    telegram: Telegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    agents_dir = tmp_path / "data" / "agents"
    agents_dir.mkdir(parents=True)
    for name in ("gofer", "sailor"):
        (agents_dir / f"{name}.toml").write_text(f'name = "{name}"\n')
    group = telegram.world.add_group("Team")
    async with open_house(
        telegram, tmp_path / "data", database_url=database_url, groups={str(group.id): {"everyone": True}}
    ) as house:
        ann, _ = await house.owner()
        bob = telegram.world.add_person("Bob")
        telegram.phones.say(ann, group, f"/agent@{telegram.bot.username}")
        await house.answers(group, 1)
        await house.settled()
        (asked,) = group.by_bot(telegram.bot.id)
        query = telegram.phones.press(bob, asked, "sailor")
        await eventually(lambda: "Only an owner" in telegram.methods.answered.get(query, ""))
        assert "reply_markup" in asked, "it is still there for an owner"
        query = telegram.phones.press(ann, asked, "sailor")
        await eventually(lambda: "sailor hears" in telegram.methods.answered.get(query, ""))
        await eventually(lambda: asked["text"].endswith("→ From now on sailor hears this conversation."))
        telegram.phones.say(ann, group, f"@{telegram.bot.username} hello")
        assert "sailor" in (await house.answers(group, 2))[-1]
        telegram.phones.say(ann, group, f"/model@{telegram.bot.username}")
        await house.answers(group, 3)
        await house.settled()
        asked = group.by_bot(telegram.bot.id)[-1]
        query = telegram.phones.press(ann, asked, "default")
        await eventually(lambda: "own model answers here" in telegram.methods.answered.get(query, ""))
        monkeypatch.setenv("GOFER_ANTHROPIC_KEY", "a-key-that-is-never-used")
    async with open_house(telegram, tmp_path / "data", database_url=database_url) as house:
        telegram.phones.say(ann, group, f"/model@{telegram.bot.username}")
        await house.answers(group, 4)
        await house.settled()
        rows = group.by_bot(telegram.bot.id)[-1]["reply_markup"]["inline_keyboard"]
        offered = [button["text"] for row in rows for button in row]
        assert any(name.startswith("anthropic/") for name in offered), "what there is a key for"
        assert not any(name.startswith("openai/") for name in offered)


async def test_the_model_is_told_names_and_no_ids(
    telegram: Telegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    question: dict[str, Any] = {"question": "Tea or coffee?", "choices": ["Tea", "Coffee"]}
    model = Anthropic([calls(call("ask_user", **question)), say("Tea for Ann.")])
    async with loopback(model.app) as url:
        monkeypatch.setenv("GOFER_ANTHROPIC_KEY", model.key)
        monkeypatch.setenv("GOFER_ANTHROPIC_BASE_URL", url)
        async with open_house(telegram, tmp_path / "data") as house:
            ann, chat = await house.owner("Ann")
            telegram.phones.say(ann, chat, "Something to drink?")
            (asked,) = await telegram.until(
                lambda: [
                    one for one in chat.by_bot(telegram.bot.id) if "Coffee" in str(one.get("reply_markup"))
                ]
            )
            telegram.phones.press(ann, asked, "Tea")
            await telegram.until(lambda: "Tea for Ann." in telegram.said(chat))
            await house.settled()
    seen = str(model.received[-1]["messages"])
    assert "Ann, owner, answered" in seen
    assert str(ann.id) not in seen
