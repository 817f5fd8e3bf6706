"""A Bot API server that somebody else wrote: npm telegram-test-api.

It knows nine methods and answers 500 to the others, answers `getUpdates` at once, and answers an edit with null.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from benchmarks.node_peers import NODE, NotInstalled, install

from e2e.process import free_port
from gofer.connections.changes import invite
from gofer.connections.health import health_of
from gofer_standins.anthropic import Anthropic, say
from gofer_standins.loopback import serve as loopback
from gofer_standins.telegram import Telegram
from telegram.house import House, open_house

pytestmark = pytest.mark.peer
SCRIPT = Path(__file__).parent / "telegram_test_api.mjs"
ANN = 5_000_000_001
ANSWER = "Use List<String> and run **pip install <package>**; a || b"
BOLD = [{"type": "bold", "offset": 25, "length": 21}]


@dataclass
class Server:
    """Somebody's phone at that server."""

    http: httpx2.AsyncClient
    token: str
    methods: Path

    async def write(self, text: str) -> None:
        person = {"id": ANN, "first_name": "Ann", "username": "ann", "is_bot": False}
        message: dict[str, Any] = {"from": person, "chat": {**person, "type": "private"}, "text": text}
        kind = "sendMessage"
        if text.startswith("/"):
            kind = "sendCommand"
            message["entities"] = [{"type": "bot_command", "offset": 0, "length": len(text.split()[0])}]
        sent = {**message, "botToken": self.token, "date": int(time.time())}
        (await self.http.post(f"/{kind}", json=sent)).raise_for_status()

    async def shown(self, count: int) -> list[dict[str, Any]]:
        """What the bot has sent, as it is after its edits, once there is so much and it is whole."""
        async with asyncio.timeout(30):
            while True:
                answer = await self.http.post("/getUpdatesHistory", json={"token": self.token})
                said = [one["message"] for one in answer.json()["result"] if "chat_id" in one["message"]]
                if len(said) >= count and not any(one["text"].endswith(" …") for one in said):
                    return said
                await asyncio.sleep(0.05)

    def called(self, method: str) -> int:
        return self.methods.read_text().split("\n").count(method)


@contextlib.asynccontextmanager
async def third_party(folder: Path) -> AsyncIterator[tuple[Server, House]]:
    try:
        place = await asyncio.to_thread(install)
    except NotInstalled as error:
        pytest.skip(str(error))
    port, methods = free_port(), folder / "methods"
    process = await asyncio.create_subprocess_exec(
        str(NODE), str(SCRIPT), str(place), str(port), str(methods),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        bot = Telegram()
        bot.url = f"http://127.0.0.1:{port}"
        async with (
            httpx2.AsyncClient(base_url=bot.url, timeout=20) as http,
            open_house(bot, folder / "data") as house,
        ):
            yield Server(http, bot.token, methods), house
    finally:
        process.stdin.close()
        await process.wait()


async def test_a_person_pairs_asks_and_is_answered_although_most_methods_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Anthropic([say(ANSWER), say("Yes.")])
    async with loopback(model.app) as url:
        monkeypatch.setenv("GOFER_ANTHROPIC_KEY", model.key)
        monkeypatch.setenv("GOFER_ANTHROPIC_BASE_URL", url)
        async with third_party(tmp_path) as (server, house):
            told = await invite(house.platform.database, house.platform.accounts, house.connection_id)
            assert "https://t.me/TestNameBot?start=" in told, (
                "the name is learnt although setMyCommands failed"
            )
            await server.write(f"/start {told.partition('?start=')[2][:8]}")
            assert "owner" in (await server.shown(1))[0]["text"]
            await server.write("How do I install it?")
            answer = (await server.shown(2))[1]
            assert (answer["text"], answer["entities"]) == (ANSWER.replace("**", ""), BOLD)
            health = await health_of(house.platform, house.connection_id)
            assert "getWebhookInfo" in health.line, "what failed is named"
            await house.settled()
            before = server.called("getUpdates")
            await asyncio.sleep(3)
            assert server.called("getUpdates") - before < 12, "no hot loop"
            await server.write("Is that all?")
            assert [one["text"] for one in await server.shown(3)][2:] == ["Yes."], "once, and still heard"
            for optional in ("setMyCommands", "sendChatAction", "setMessageReaction"):
                assert server.called(optional), "which it refuses"
