"""The stand-in is strict: it refuses what Telegram refuses, in Telegram's words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from gofer_standins.telegram import Chat, SendRates, Telegram


class Caller:
    def __init__(self, telegram: Telegram, http: httpx2.AsyncClient) -> None:
        self.telegram = telegram
        self.http = http
        self.chat: Chat = telegram.world.private(telegram.world.add_person("Ann"))

    async def __call__(self, method: str, token: str = "", **parameters: Any) -> tuple[int, Any]:
        url = f"{self.telegram.url}/bot{token or self.telegram.token}/{method}"
        answer = await self.http.post(url, json={"chat_id": self.chat.id, **parameters} if parameters else {})
        body = answer.json()
        return answer.status_code, body["result"] if body["ok"] else body["description"]


@pytest.fixture
async def call(telegram: Telegram) -> AsyncIterator[Caller]:
    async with httpx2.AsyncClient() as http:
        yield Caller(telegram, http)


@pytest.mark.parametrize(
    ("method", "parameters", "words"),
    [
        ("sendMessage", {"text": ""}, "message text is empty"),
        ("sendMessage", {"text": " \n "}, "message text is empty"),
        ("sendMessage", {"text": "🎉" * 2049}, "message is too long"),
        ("sendMessage", {"text": "x", "chat_id": 99}, "chat not found"),
        ("sendMessage", {"text": "x", "chat_id": "@ann"}, "chat not found"),
        ("sendMessage", {"text": "x", "message_thread_id": 7}, "message thread not found"),
        (
            "sendMessage",
            {"text": "x", "reply_parameters": {"message_id": 7}},
            "message to be replied not found",
        ),
        ("sendMessage", {"text": "x", "entities": [{"type": "bold", "offset": 0, "length": 2}]}, "BOUNDS"),
        (
            "sendMessage",
            {"text": "🎉x", "entities": [{"type": "bold", "offset": 1, "length": 1}]},
            "can't parse",
        ),
        (
            "sendMessage",
            {"text": "x", "entities": [{"type": "loud", "offset": 0, "length": 1}]},
            "can't parse",
        ),
        ("sendMessage", {"text": "x", "txt": "y"}, "unexpected"),
        (
            "sendMessage",
            {"text": "x", "reply_markup": {"inline_keyboard": [[{"text": "a", "callback_data": "x" * 65}]]}},
            "BUTTON_DATA_INVALID",
        ),
        ("editMessageText", {"text": "x", "message_id": 7}, "message to edit not found"),
        ("deleteMessage", {"message_id": 7}, "message to delete not found"),
        ("setMessageReaction", {"message_id": 7, "reaction": []}, "message to react not found"),
        ("sendChatAction", {"action": "dancing"}, "wrong parameter action"),
        ("getFile", {"file_id": "x", "chat_id": None}, "wrong file_id"),
        ("setWebhook", {"url": "http://example.org/", "chat_id": None}, "HTTPS"),
        ("answerCallbackQuery", {"callback_query_id": "1", "chat_id": None}, "query is too old"),
    ],
)
async def test_what_is_refused(call: Caller, method: str, parameters: dict[str, Any], words: str) -> None:
    status, description = await call(method, **parameters)
    assert status == 400
    assert words in description


async def test_an_unchanged_edit_is_refused(call: Caller) -> None:
    _, sent = await call("sendMessage", text="x")
    status, description = await call("editMessageText", text="x ", message_id=sent["message_id"])
    assert (status, "message is not modified" in description) == (400, True)


async def test_tokens_and_methods(call: Caller) -> None:
    assert await call("getMe", token="7000000001:wrong") == (401, "Unauthorized")
    assert (await call("getMe", token="nonsense"))[0] == 404
    assert (await call("noSuchMethod"))[0] == 404
    assert (await call("GETME"))[0] == 200


async def test_polling_and_a_webhook_exclude_each_other(call: Caller) -> None:
    waiting = asyncio.create_task(call("getUpdates", chat_id=None, timeout=5))
    await call.telegram.until(lambda: call.telegram.updates._poller)
    assert (await call("getUpdates", chat_id=None))[0] == 200
    assert (await waiting)[0] == 409
    await call("setWebhook", chat_id=None, url="http://127.0.0.1:1/")
    status, description = await call("getUpdates", chat_id=None)
    assert (status, "webhook is active" in description) == (409, True)


async def test_an_offset_confirms_what_came_before_it(call: Caller) -> None:
    telegram, chat = call.telegram, call.chat
    assert chat.person is not None
    for text in ("one", "two"):
        telegram.phones.say(chat.person, chat, text)
    _, updates = await call("getUpdates", chat_id=None)
    assert [update["message"]["text"] for update in updates] == ["one", "two"]
    _, updates = await call("getUpdates", chat_id=None, offset=updates[1]["update_id"])
    assert [update["message"]["text"] for update in updates] == ["two"]
    assert len(telegram.updates.pending) == 1


async def test_too_much_is_too_much() -> None:
    async with Telegram(limits=SendRates(chat_burst=2)) as telegram, httpx2.AsyncClient() as http:
        call = Caller(telegram, http)
        statuses = [(await call("sendMessage", text=f"{number}"))[0] for number in range(4)]
        assert statuses == [200, 200, 429, 429]
        assert telegram.world.calls[-1].answer["parameters"]["retry_after"] >= 1


async def test_a_group_in_privacy_mode_is_mostly_silent(telegram: Telegram) -> None:
    ann = telegram.world.add_person("Ann")
    group = telegram.world.add_group("Team")
    telegram.phones.say(ann, group, "nobody's business")
    telegram.phones.say(ann, group, f"@{telegram.bot.username} you")
    telegram.phones.say(ann, group, "/status")
    assert len(telegram.updates.pending) == 2
