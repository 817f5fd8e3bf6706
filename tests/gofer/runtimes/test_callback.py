"""The callback adapter against a real HTTP server: one signed request for each hop, and no redirect."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import update

from gofer.integration import Request
from gofer.runtimes.callback import CallbackSender
from gofer.store.tables import runtimes
from support.web_server import House

from .conftest import Scene, furnish

KEY = "the key of the bot"


class Bot:
    """An agent behind an address; a test says how it answers."""

    def __init__(self) -> None:
        self.status = 200
        self.drips = False
        self.heard: list[tuple[dict[str, str], bytes]] = []
        bot = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                bot.heard.append(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(bot.status)
                self.send_header("location", f"{bot.url}/elsewhere")
                if not bot.drips:
                    self.send_header("content-length", "0")
                self.end_headers()
                while bot.drips:
                    self.wfile.write(b"x")
                    time.sleep(0.05)

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.drips = False
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def bot() -> Iterator[Bot]:
    bot = Bot()
    yield bot
    bot.close()


@pytest.fixture
def scene(house: House, bot: Bot) -> Iterator[Scene]:
    file = house.settings.data_dir / "agents" / "bot.toml"
    file.write_text('runtime = "callback"\n[external]\nfallback = "gofer"\n')
    owner = house.api(house.token(house.owner()))
    assert owner.put("/secrets", json={"name": "bot_key", "value": KEY}).status_code == 200
    scene = furnish(house, "bot", kind="callback", url=f"{bot.url}/gofer", secret="bot_key")
    yield scene
    scene.owner.delete(f"/runtimes/{scene.runtime}")


def test_one_signed_request_and_one_answer(scene: Scene, bot: Bot) -> None:
    conversation, trigger = scene.say("ring the bell")
    scene.until(lambda: scene.hops(trigger) == [("live", "delivered", "")])
    ((headers, body),) = bot.heard
    signed = Request(body, (("gofer-signature", headers["gofer-signature"].encode()),))
    assert signed.check_signature("gofer-signature", KEY) is None
    order = json.loads(body)
    assert headers["gofer-order"] == order["order"] == f"{trigger}-1"
    assert "ring the bell" in order["text"]
    assert KEY not in body.decode()
    assert scene.post(order, "Ding.")["result"] == "accepted"
    scene.ended(trigger)
    scene.until(lambda: scene.replies(conversation))
    assert len(bot.heard) == 1
    assert [text for text in scene.replies(conversation) if "Ding." in text] == scene.replies(conversation)


def test_an_address_that_somebody_else_wrote_is_not_called(scene: Scene, bot: Bot) -> None:
    _, trigger = scene.say("who is there?")
    scene.until(lambda: scene.hops(trigger) == [("live", "delivered", "")])
    here = update(runtimes).where(runtimes.c.name == scene.runtime)
    scene.house.write(lambda c: c.execute(here.values(callback_url=f"{bot.url}/elsewhere")))
    platform = scene.house.platform
    sender = CallbackSender(
        database=platform.database, vault=platform.vault, redactor=platform.redactor, secret=never, timeout=1
    )
    # It was changed between the choice of the runtime and the request.
    _, runtime, text = scene.house.read(lambda c: sender._read(c, trigger, 1))
    assert (runtime, text) == (None, "")
    scene.house.write(lambda c: c.execute(here.values(callback_url=f"{bot.url}/gofer")))
    scene.post(json.loads(bot.heard[0][1]), "Me.")
    scene.ended(trigger)


async def never(name: str) -> str:
    raise AssertionError(name)


@pytest.mark.parametrize(("status", "reason"), [(500, "callback.refused"), (302, "callback.refused")])
def test_a_refusal_or_a_redirect_goes_to_the_fallback(
    scene: Scene, bot: Bot, status: int, reason: str
) -> None:
    bot.status = status
    _, trigger = scene.say(f"status {status}")
    scene.ended(trigger)
    assert [(action, why) for action, _, why in scene.hops(trigger)] == [
        ("live", reason),
        ("fallback", reason),
    ]
    assert len(bot.heard) == 1, "no redirect is followed and nothing is sent twice"


def test_what_is_answered_besides_the_status_is_not_waited_for(scene: Scene, bot: Bot) -> None:
    bot.drips = True
    _, trigger = scene.say("do you ever end?")
    scene.until(lambda: scene.hops(trigger) == [("live", "delivered", "")])


def test_nobody_there_goes_to_the_fallback(scene: Scene, bot: Bot) -> None:
    bot.close()
    _, trigger = scene.say("anybody?")
    scene.ended(trigger)
    assert scene.hops(trigger)[0] == ("live", "failed", "callback.unreachable")


def test_a_callback_with_a_secret_that_is_not_kept_is_refused(scene: Scene) -> None:
    made = {"name": "half", "agent": "bot", "kind": "callback", "callback_url": "https://a.b/c"}
    answer = scene.owner.post("/runtimes", json={**made, "callback_secret": "nothing_kept"})
    assert answer.status_code == 404
    assert "gofer secrets put nothing_kept" in answer.json()["detail"]


@pytest.mark.parametrize(
    "given",
    [
        {"callback_url": "ftp://a.b/c", "callback_secret": "k"},
        {"callback_url": "https://user:pass@a.b/c", "callback_secret": "k"},
        {"callback_url": "https://a.b/c"},
        {"callback_secret": "k"},
        {},
    ],
)
def test_a_callback_without_an_address_and_a_secret_is_refused(scene: Scene, given: dict[str, str]) -> None:
    made = {"name": "half", "agent": "bot", "kind": "callback", **given}
    answer = scene.owner.post("/runtimes", json=made)
    assert answer.status_code == 400
    assert "callback_url" in answer.json()["detail"]
