"""A chat: the reference of a chat or one of its topics, and the inline buttons below its messages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from gofer.errors import Permanent
from gofer.integration import Payload

GENERAL = 1


@dataclass(frozen=True, slots=True)
class Place:
    """A chat and, in a forum or a private chat with topics, the topic."""

    chat: int
    thread: int | None = None

    @property
    def ref(self) -> str:
        """The reference of the conversation."""
        return str(self.chat) if self.thread is None else f"{self.chat}/{self.thread}"

    @property
    def is_group(self) -> bool:
        """Telegram gives groups negative ids."""
        return self.chat < 0

    @property
    def sending(self) -> dict[str, Any]:
        """Parameters to send there. Without a topic, Telegram sends to General."""
        topic = {} if self.thread in (None, GENERAL) else {"message_thread_id": self.thread or 0}
        return {"chat_id": self.chat, **topic}

    @property
    def acting(self) -> dict[str, Any]:
        """Parameters to show typing there. General must be named."""
        topic = {} if self.thread is None else {"message_thread_id": self.thread}
        return {"chat_id": self.chat, **topic}


def place_of(ref: str) -> Place:
    """Parse a conversation's reference."""
    chat, _, thread = ref.partition("/")
    try:
        return Place(int(chat), int(thread) if thread else None)
    except ValueError:
        raise Permanent(f"{ref!r} is not a Telegram chat.") from None


def where(message: Payload) -> Place | None:
    """The place of a message. In a group that is not a forum, a thread is only a chain of replies."""
    chat = message.child("chat")
    chat_id = chat.number("id")
    if chat_id is None:
        return None
    thread = message.number("message_thread_id")
    if message.flag("is_topic_message") and thread is not None:
        return Place(chat_id, thread)
    return Place(chat_id, GENERAL if chat.flag("is_forum") and chat_id < 0 else None)


STOP = "stop"
_ANSWER = re.compile(r"q:([A-Za-z0-9_-]{1,50}):([0-9]{1,2})")
_OFFER = re.compile(r"c:(agent|model|goal) (\S{1,60}|[a-z]{1,10} goal_[a-z0-9]{1,20})")
LABEL_LIMIT = 60
DATA_LIMIT = 64
"""Bytes of callback data."""
MAX_CHOICES = 20


def stop_keyboard() -> dict[str, Any]:
    """One button that stops the run."""
    return {"inline_keyboard": [[{"text": "Stop", "callback_data": STOP}]]}


def choices_keyboard(question: str, choices: tuple[str, ...]) -> dict[str, Any] | None:
    """A button for each choice, one to a row unless all are short."""
    if not question or not choices:
        return None
    buttons = [
        {"text": (choice.strip() or "…")[:LABEL_LIMIT], "callback_data": f"q:{question}:{number}"}
        for number, choice in enumerate(choices[:MAX_CHOICES])
    ]
    in_one_row = len(buttons) <= 3 and sum(len(button["text"]) for button in buttons) <= 30
    return {"inline_keyboard": [buttons] if in_one_row else [[button] for button in buttons]}


def offers_keyboard(offers: Any, words: int = 0) -> dict[str, Any] | None:
    """A button for each offered command that fits the callback data, two to a row; with so many of its arguments on
    it, or all."""
    found = [str(offer) for offer in offers] if isinstance(offers, list) else []
    buttons = [
        {"text": _label(offer, words), "callback_data": f"c:{offer}"}
        for offer in found
        if offer.partition(" ")[2].strip() and len(f"c:{offer}".encode()) <= DATA_LIMIT
    ]
    return (
        {"inline_keyboard": [buttons[at : at + 2] for at in range(0, len(buttons), 2)]} if buttons else None
    )


def _label(offer: str, words: int) -> str:
    arguments = offer.partition(" ")[2]
    return (" ".join(arguments.split()[:words]).capitalize() if words else arguments)[:LABEL_LIMIT]


def offered(data: str) -> tuple[str, str]:
    """The command and arguments of a press, if any."""
    found = _OFFER.fullmatch(data)
    return (found[1], found[2]) if found else ("", "")


def pressed(data: str) -> tuple[str, int] | None:
    """The question and choice of a press, if any."""
    found = _ANSWER.fullmatch(data)
    return (found[1], int(found[2])) if found else None
