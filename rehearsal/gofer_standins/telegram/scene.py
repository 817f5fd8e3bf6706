"""The demo's scene on Telegram: a person pairs with a code, asks from the phone, and is answered there."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from gofer_standins.instance import Instance
from gofer_standins.telegram import Chat, Telegram


async def from_the_phone(instance: Instance) -> AsyncIterator[tuple[str, bool, str]]:
    """What happened, whether it was right, and a detail."""
    async with Telegram() as telegram:
        made = await instance.ask(
            "POST",
            "/connections",
            json={
                "integration": "telegram",
                "name": "demo",
                "settings": {"api_url": telegram.url},
                "secrets": {"token": telegram.token},
            },
        )
        found = re.search(r"start=([A-Z0-9]{8})", str(made.get("invitation", "")))
        yield "bot connected by its token, pairing code made", found is not None, ""
        ann = telegram.world.add_person("Ann")
        chat = telegram.world.private(ann)
        telegram.phones.say(ann, chat, f"/start {found.group(1) if found else ''}")
        said = await _answers(telegram, chat, 1)
        yield "paired from the phone", "owner" in said, said
        telegram.phones.say(ann, chat, "$ echo hello from the sandbox")
        said = await _answers(telegram, chat, 2)
        yield "asked and answered in the chat", "hello from the sandbox" in said, said
        # It goes away with this scene; whoever polls it should know.
        await instance.ask("PATCH", f"/connections/{made['connection']['id']}", json={"enabled": False})


async def _answers(telegram: Telegram, chat: Chat, count: int) -> str:
    """The last of so many answers, once it is whole."""

    def whole() -> bool:
        said = telegram.said(chat)
        return len(said) >= count and not any(text.endswith(" …") for text in said)

    try:
        await telegram.until(whole, within=60)
    except (AssertionError, TimeoutError):
        return "no answer came"
    return telegram.said(chat)[-1]
