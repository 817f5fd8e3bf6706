"""The place of a message: a chat or one of its topics, as one short reference."""

from __future__ import annotations

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
