"""Working: long runs, questions, files, and everything that can go wrong on the way out."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from gofer.errors import Permanent
from gofer.integration import Outgoing
from gofer.rehearsal.anthropic import Anthropic, fault, say
from gofer.rehearsal.loopback import serve as loopback
from gofer.rehearsal.telegram import Telegram
from gofer.rehearsal.telegram.people import PNG
from gofer.store.clock import now
from gofer.store.tables import ReplyState, jobs, questions, replies, showings
from gofer_telegram import integration
from telegram.contract import serve
from telegram.house import House, open_house


async def test_a_long_run_shows_progress_and_its_stop_button_stops_it(either: House) -> None:
    telegram = either.telegram
    ann, chat = await either.owner()
    telegram.phones.say(ann, chat, "$ sleep 60")
    shown = (await telegram.until(lambda: [m for m in chat.by_bot(telegram.bot.id) if "reply_markup" in m]))[
        0
    ]
    assert "Working" in shown["text"]
    assert shown["message_id"] in chat.silent
    telegram.phones.say(ann, chat, "/status")
    await telegram.until(lambda: any("working" in text for text in telegram.said(chat)))
    pressed = telegram.phones.press(ann, shown, "Stop")
    await telegram.until(lambda: pressed in telegram.methods.answered)
    await telegram.until(lambda: any("Stopped" in text for text in telegram.said(chat)))
    await telegram.until(lambda: shown["message_id"] not in chat.messages)
    await either.settled()
    assert not any("Working" in text for text in telegram.said(chat))


async def test_work_is_shown_as_a_draft_where_that_is_wanted_and_its_stop_button_stops_it(
    telegram: Telegram, tmp_path: Path
) -> None:
    async with open_house(
        telegram, tmp_path / "data", sandbox="unconfined", progress_after=0, drafts=True
    ) as house:
        ann, chat = await house.owner()
        telegram.phones.say(ann, chat, "$ sleep 60")
        await telegram.until(lambda: chat.drafts)
        telegram.phones.stop_draft(chat)
        await telegram.until(lambda: any("Stopped" in text for text in telegram.said(chat)))
        await house.settled()
        assert "Working" in chat.drafts[0]
        assert not any("Working" in text for text in telegram.said(chat))


async def test_a_question_is_asked_with_buttons_and_a_press_answers_it(house: House) -> None:
    telegram = house.telegram
    ann, chat = await house.owner()
    telegram.phones.say(
        ann, chat, '$tool ask_user {"question": "Tea or coffee?", "choices": ["Tea", "Coffee"]}'
    )
    asked = (await telegram.until(lambda: [m for m in chat.by_bot(telegram.bot.id) if "reply_markup" in m]))[
        0
    ]
    assert "Tea or coffee?" in asked["text"]
    query = telegram.phones.press(ann, asked, "Coffee")
    await telegram.until(lambda: telegram.methods.answered.get(query) == "Coffee")
    assert "Coffee" in (await house.answers(chat, 2))[-1]


async def test_a_question_answered_in_words_or_stopped_loses_its_buttons_and_is_open_nowhere(
    house: House,
) -> None:
    telegram = house.telegram
    ann, chat = await house.owner()

    def buttons() -> int:
        return sum("reply_markup" in message for message in chat.by_bot(telegram.bot.id))

    for said, (words, answer) in enumerate((("Coffee", "Coffee"), ("/stop", "Stopped"))):
        telegram.phones.say(ann, chat, '$tool ask_user {"question": "Which?", "choices": ["Tea", "Coffee"]}')
        await telegram.until(lambda: buttons() == 1)
        await house.sent()
        telegram.phones.say(ann, chat, words)
        assert answer in (await house.answers(chat, 2 * said + 2))[-1]
        await telegram.until(lambda: buttons() == 0)
        assert await house.count(questions, questions.c.answered_at.is_(None)) == 0


async def test_who_has_to_wait_for_the_model_is_told_so_once_and_answered_after_a_restart(
    telegram: Telegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    hour = fault("rate_limit", retry_after=3600)
    model = Anthropic([hour, hour, say("**Here** it is.")])
    async with loopback(model.app) as url:
        monkeypatch.setenv("GOFER_ANTHROPIC_KEY", model.key)
        monkeypatch.setenv("GOFER_ANTHROPIC_BASE_URL", url)
        async with open_house(telegram, tmp_path / "data") as house:
            ann, chat = await house.owner()
            telegram.phones.say(ann, chat, "Are you there?")
            (told,) = await house.answers(chat, 1)
            assert "The model's provider makes us wait until" in told
            assert chat.by_bot(telegram.bot.id)[0]["message_id"] not in chat.silent
            (first, *_, last) = await house.rows(select(jobs.c.id).order_by(jobs.c.id))
            left = {"ref": str(chat.id), "external_id": f"{chat.id}:99999"}
            of_a_bot_that_is_gone = {"job_id": first.id, "connection_id": "telegram_gone", **left}
            of_ours = {"job_id": last.id, "connection_id": house.connection_id, **left}
            await house.platform.database.write(
                lambda c: c.execute(insert(showings).values([of_a_bot_that_is_gone, of_ours]))
            )
        async with open_house(telegram, tmp_path / "data") as house:
            await eventually(lambda: _wiped(house, last.id))  # although the other cannot be
            for turns in (2, 3):
                await house.platform.database.write(
                    lambda c: c.execute(update(jobs).where(jobs.c.kind == "answer").values(run_at=now()))
                )
                await telegram.until(partial(_received, model, turns))
                await house.jobs_in("scheduled" if turns == 2 else "done")
            assert await house.answers(chat, 2) == [told, "Here it is."]
            await house.settled()
            assert len(telegram.said(chat)) == 2
    assert model.refused == []


async def _wiped(house: House, job_id: int) -> bool:
    return not await house.count(showings, showings.c.job_id == job_id)


def _received(model: Anthropic, turns: int) -> bool:
    return len(model.received) == turns


async def test_files_go_in_and_come_back_by_a_tool(telegram: Telegram, tmp_path: Path) -> None:
    async with open_house(telegram, tmp_path / "data", sandbox="unconfined") as house:
        ann, chat = await house.owner()
        large = PNG + bytes(1_000_000)
        for name, content, kind in (
            ("../notes.txt", b"three little words", "text/plain"),
            ("small.png", PNG, "image/png"),
            ("large.png", large, "image/png"),
        ):
            telegram.phones.send_document(ann, chat, name, content, kind, media_group_id="77")
        await house.answers(chat, 1)
        telegram.phones.say(ann, chat, "$ ls inbox; wc -c < inbox/*large.png")
        listed = (await house.answers(chat, 2))[-1]
        assert "small.png" not in listed, "the model sees it as it is"
        assert str(len(large)) in listed
        telegram.phones.say(ann, chat, "$ cp inbox/*notes.txt back.txt && cat back.txt")
        assert "three little words" in (await house.answers(chat, 3))[-1]
        telegram.phones.say(ann, chat, '$tool send_file {"path": "back.txt", "caption": "here"}')
        await house.answers(chat, 5)
        (sent,) = [message for message in chat.by_bot(telegram.bot.id) if "document" in message]
        assert sent["document"]["file_name"] == "back.txt"
        assert telegram.world.files[sent["document"]["file_id"]][1] == b"three little words"


async def test_a_long_answer_comes_in_parts_of_which_only_the_first_rings(
    telegram: Telegram, tmp_path: Path
) -> None:
    async with open_house(telegram, tmp_path / "data", sandbox="unconfined") as house:
        ann, chat = await house.owner()
        telegram.phones.say(ann, chat, "$ seq 1 1500")
        await house.answers(chat, 2)
        await house.settled()
        parts = chat.by_bot(telegram.bot.id)
        assert len(parts) > 1
        assert parts[0]["message_id"] not in chat.silent
        assert all(part["message_id"] in chat.silent for part in parts[1:])


async def test_a_very_long_answer_becomes_one_file_however_often_it_is_completed(house: House) -> None:
    telegram = house.telegram
    _, chat = await house.owner()
    account = (await house.platform.accounts.get(house.connection_id)).account
    text = "many **words** " * 3000
    (part,) = integration.split(text)
    outgoing = Outgoing("gofer-1-final-1", str(chat.id), part)
    external_id = await integration.place(outgoing, account)
    for _ in range(2):
        await integration.complete(outgoing, external_id, account)
    (message,) = chat.by_bot(telegram.bot.id)
    assert telegram.world.files[message["document"]["file_id"]][1] == text.encode()
    assert "in the file" in message["caption"]


FAULTS: tuple[tuple[str, dict[str, object]], ...] = (
    ("sendMessage", {"status": 429, "retry_after": 1}),
    ("editMessageText", {"status": 429, "retry_after": 1}),
    ("editMessageText", {"status": 502}),
    ("editMessageText", {"drop": True}),
    ("editMessageText", {"status": 400, "description": "Bad Request: can't parse entities: no"}),
    ("setMessageReaction", {"status": 400, "description": "Bad Request: REACTION_INVALID", "times": 9}),
    ("sendChatAction", {"status": 500, "times": 9}),
)


async def test_a_fault_on_the_way_out_neither_loses_nor_doubles_an_answer(house: House) -> None:
    telegram = house.telegram
    for method, how in FAULTS:
        telegram.faults.clear()
        ann, chat = await house.owner()
        telegram.fail(method, **how)
        telegram.phones.say(ann, chat, "hello")
        await house.answers(chat, 1)
        await house.settled()
        assert len(telegram.said(chat)) == 1, (method, how)
        assert sum(one.times for one in telegram.faults) < int(str(how.get("times", 1))), "it has happened"


async def test_an_answer_that_was_sent_unheard_leaves_an_opening_at_worst(house: House) -> None:
    telegram = house.telegram
    ann, chat = await house.owner()
    telegram.fail("sendMessage", drop=True)
    telegram.phones.say(ann, chat, "hello")
    await telegram.until(lambda: len(telegram.said(chat)) == 2 and not telegram.said(chat)[1].endswith(" …"))
    orphan, answer = telegram.said(chat)
    assert orphan.endswith(" …")
    assert orphan != answer


async def test_a_chat_that_is_gone_ends_the_reply_with_a_reason(house: House) -> None:
    telegram = house.telegram
    ann, hers = await house.owner()
    bob, his = await house.owner("Bob")
    telegram.phones.say(ann, hers, "hello")
    telegram.phones.say(bob, his, "hello")
    hers.bot_is = "blocked"
    bob.deleted = True
    await telegram.until(lambda: len(telegram.calls("sendMessage")) == 2)
    await house.settled()
    rows = await house.rows(replies.select())
    assert {row.state for row in rows} == {ReplyState.FAILED}
    assert sorted(row.reason.partition(":")[0] for row in rows) == ["account_deleted", "blocked"]


async def test_every_lasting_refusal_ends_a_reply_with_its_reason() -> None:
    refusals = {
        "Forbidden: bot was blocked by the user": "blocked",
        "Forbidden: user is deactivated": "account_deleted",
        "Forbidden: bot was kicked from the supergroup chat": "kicked",
        "Forbidden: bot is not a member of the channel chat": "kicked",
        "Bad Request: chat not found": "chat_not_found",
        "Bad Request: not enough rights to send text messages to the chat": "no_right_to_write",
        "Bad Request: TOPIC_CLOSED": "topic_closed",
        "Bad Request: message thread not found": "topic_deleted",
        "Bad Request: something new": "rejected",
    }
    async with serve() as served:
        outgoing = Outgoing("gofer-1-final-1", served.conversation, "words")
        for description, reason in refusals.items():
            status = 403 if description.startswith("Forbidden") else 400
            served.telegram.fail("sendMessage", status=status, description=description)
            with pytest.raises(Permanent) as caught:
                await integration.place(outgoing, served.account)
            assert caught.value.reason == reason
        assert served.texts() == []


async def test_switching_between_webhook_and_polling_loses_nothing(
    telegram: Telegram, tmp_path: Path
) -> None:
    ann = telegram.world.add_person("Ann")
    chat = telegram.world.private(ann)
    for number, webhook in enumerate([False, True, False], 1):
        telegram.phones.say(ann, chat, f"while it was away {number}")
        async with open_house(telegram, tmp_path / "data", webhook=webhook) as house:
            await house.let_in(ann)
            telegram.phones.say(ann, chat, f"while it was there {number}")
            await house.took_in(2 * number)
            await house.settled()
            connected = await house.platform.accounts.get(house.connection_id)
            health = await connected.integration.health(connected.account)
            assert health.ok, health
            assert ("webhook" in health.line) == webhook


async def test_ids_that_begin_anew_confirm_nothing_away(house: House) -> None:
    telegram = house.telegram
    ann, chat = await house.owner()
    telegram.phones.say(ann, chat, "hello")
    await house.answers(chat, 1)
    telegram.updates.restart_ids(17)
    telegram.phones.say(ann, chat, "/help")
    assert len(await house.answers(chat, 2)) == 2


async def test_the_token_is_in_no_log_and_no_error(
    house: House, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    telegram = house.telegram
    caplog.set_level("DEBUG")
    ann, chat = await house.owner()
    telegram.fail("editMessageText", status=500)
    telegram.phones.say(ann, chat, "hello")
    await house.answers(chat, 1)
    secret = telegram.token.partition(":")[2]
    assert secret not in caplog.text
    assert secret not in "".join(capfd.readouterr())
