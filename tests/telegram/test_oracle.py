"""Somebody else's types judge ours: aiogram reads our captured updates, the stand-in's answers and our requests."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from gofer_telegram.client import Client
from support.patience import eventually
from telegram.captured import UPDATES
from telegram.house import House

HERE = Path(__file__).parent
WANTED = HERE / "oracle-requirements.txt"
ATTACHED = re.compile(r"answer|file\d")
NOT_REAL = {"unknown_kind"}


def environment() -> Path:
    """Where aiogram's types are, installed once per machine for what is wanted and whom it is wanted by."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    wanted = hashlib.sha256(f"{sys.version} {sys.platform} {WANTED.read_text()}".encode()).hexdigest()[:16]
    return caches / "gofer-tests" / f"aiogram-{wanted}"


def make_environment() -> None:
    """Install it, in a step that others who need it at the same time see whole or not at all."""
    place = environment()
    if place.exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        made, uv = Path(folder) / "made", shutil.which("uv")
        pip = [uv, "pip"] if uv else [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        quick = [] if uv else ["--no-compile"]
        install = [*pip, "install", "--no-deps", *quick, "--target", str(made), "-r", str(WANTED)]
        subprocess.run(install, check=True, capture_output=True, timeout=120)
        with contextlib.suppress(OSError):
            made.rename(place)


def judged(asked: list[dict[str, Any]]) -> list[str]:
    # Without the packages that are installed for us: it wants older ones.
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(HERE / "oracle.py"), str(environment())],
        input="\n".join(json.dumps(one) for one in asked),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.slow(long=True)
async def test_aiogram_agrees_with_our_updates_requests_and_answers(house: House) -> None:
    made = asyncio.create_task(asyncio.to_thread(make_environment))
    await use_everything(house)
    asked = [
        {"what": "type", "name": "update", "value": update}
        for name, update in UPDATES.items()
        if name not in NOT_REAL
    ]
    asked += [
        {"what": "type", "name": "update", "value": one.update} for one in house.telegram.updates.pending
    ]
    for call in house.telegram.world.calls:
        # A file attached under a name of its own is no parameter of the method.
        own = {name: value for name, value in call.parameters.items() if not ATTACHED.fullmatch(name)}
        request = {name: "x" if str(value).startswith("<") else value for name, value in own.items()}
        asked.append({"what": "request", "name": call.method, "value": request})
        if call.status == 200:
            asked.append({"what": "answer", "name": call.method, "value": call.answer})
    assert {call.method for call in house.telegram.world.calls} >= {
        "getMe", "getUpdates", "getWebhookInfo", "setWebhook", "deleteWebhook", "setMyCommands", "sendMessage",
        "editMessageText", "editMessageMedia", "setMessageReaction", "sendChatAction", "getFile", "deleteMessage",
        "answerCallbackQuery", "sendDocument", "sendPhoto", "sendVoice", "sendAnimation", "sendVideo", "sendAudio",
        "sendMediaGroup",        "sendMessageDraft",
    }  # fmt: skip
    try:
        await made
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"aiogram cannot be installed here: {error}")
    wrong = {"what": "request", "name": "sendMessage", "value": {"chat_id": 1, "text": "hi", "txt": "hi"}}
    findings = await asyncio.to_thread(judged, [*asked, wrong])
    assert findings == ['["request", "sendMessage", "SendMessage.txt"]'], "only what is wrong on purpose"


async def use_everything(house: House) -> None:
    """Have every method called that the integration calls."""
    from gofer.integration import Outgoing, Progress
    from gofer_standins.telegram.people import PNG
    from gofer_telegram.admission import send_files

    telegram = house.telegram
    ann, chat = await house.owner()
    telegram.phones.say(ann, chat, "hello **there**")
    await house.answers(chat, 1)
    telegram.phones.send_document(ann, chat, "notes.txt", b"words")
    await house.answers(chat, 2)
    bob = telegram.world.add_person("Bob")
    telegram.phones.say(bob, telegram.world.private(bob), "hi")
    question = (await eventually(lambda: [m for m in chat.by_bot(telegram.bot.id) if "reply_markup" in m]))[0]
    telegram.phones.press(ann, question, "Yes")
    await eventually(lambda: "→" in str(question.get("text")))
    connected = await house.platform.accounts.get(house.connection_id)
    integration, account = connected.integration, connected.account
    shown = await integration.show_progress(str(chat.id), Progress(99, 2, "bash"), "", account)
    await integration.show_progress(str(chat.id), Progress(104, 3, "bash"), shown, account)
    await integration.clear_progress(str(chat.id), shown, account)
    long = Outgoing("x", str(chat.id), "word " * 9000)
    await integration.complete(long, await integration.place(long, account), account)
    voice, gif, video = b"OggS" + bytes(24) + b"OpusHead", b"GIF89a..", bytes(4) + b"ftypisom"
    for content in (b"content", PNG, voice, gif, video, b"ID3....."):
        await send_files(Client(account), str(chat.id), [("a.bin", content)], "a caption")
    await send_files(Client(account), str(chat.id), [("a.png", PNG), ("b.mp4", video)], "two")
    words = Progress(3, 1, words="The **first** words")
    await integration.show_progress(str(chat.id), words, "", account)
    await integration.health(account)
    await Client(account).call(
        "setWebhook", url="http://127.0.0.1:1/hooks/x", secret_token="abc", allowed_updates=["message"]
    )
    await integration.tear_down(account)
