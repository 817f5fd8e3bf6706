"""The world behind the stand-in: people, chats, messages and files. Its histories are the ground truth."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gofer_standins.telegram.rules import ApiError, bad, units

Message = dict[str, Any]
GENERAL = 1
"""The thread id of a forum's General topic."""
_MARKED = re.compile(r"(?P<bot_command>(?<![\w/])/[a-zA-Z0-9_]{1,32}(?:@\w+)?)|(?P<mention>(?<!\w)@\w{5,32})")


@dataclass(eq=False)
class Person:
    """Somebody with an account."""

    id: int
    first_name: str
    username: str = ""
    is_bot: bool = False
    deleted: bool = False

    def as_user(self) -> dict[str, Any]:
        """The type User."""
        user: dict[str, Any] = {"id": self.id, "is_bot": self.is_bot, "first_name": self.first_name}
        return {**user, "username": self.username} if self.username else user


@dataclass(eq=False)
class Chat:
    """A private chat, group, supergroup or channel, with everything visible in it."""

    id: int
    type: str
    title: str = ""
    person: Person | None = None
    """The other side of a private chat."""
    is_forum: bool = False
    topics: dict[int, str] = field(default_factory=dict)
    messages: dict[int, Message] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    """The messages of the bot that made no sound."""
    edits: dict[int, int] = field(default_factory=dict)
    reactions: dict[int, list[str]] = field(default_factory=dict)
    actions: list[tuple[float, str, int | None]] = field(default_factory=list)
    drafts: list[str] = field(default_factory=list)
    stoppable: int = 0
    """The draft under which a Stop button is shown."""
    bot_is: str = "member"
    """member, administrator, kicked, left; in a private chat also blocked or unknown."""
    migrated_to: int | None = None
    next_id: int = 1

    def as_chat(self) -> dict[str, Any]:
        """The type Chat."""
        if self.person is not None:
            user = self.person.as_user()
            user = {name: value for name, value in user.items() if name in ("first_name", "username")}
            return {**user, "id": self.id, "type": "private"}
        chat: dict[str, Any] = {"id": self.id, "type": self.type, "title": self.title}
        return {**chat, "is_forum": True} if self.is_forum else chat

    def by_bot(self, bot_id: int) -> list[Message]:
        """What the bot has said here and nobody has deleted, in order."""
        return [said for said in self.messages.values() if said.get("from", {}).get("id") == bot_id]


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One request the bot made, and what it was answered."""

    method: str
    parameters: Mapping[str, Any]
    status: int
    answer: Any
    at: float


class TelegramWorld:
    """Chats and people, and the bot among them."""

    def __init__(self, bot: Person) -> None:
        self.bot = bot
        self.people: dict[int, Person] = {bot.id: bot}
        self.chats: dict[int, Chat] = {}
        self.files: dict[str, tuple[str, bytes]] = {}
        self.calls: list[ApiCall] = []
        self._next_person = 5_000_000_001
        self._next_chat = 1001

    def add_person(self, name: str, username: str = "", *, is_bot: bool = False) -> Person:
        """A new account."""
        person = Person(self._next_person, name, username, is_bot)
        self._next_person += 1
        self.people[person.id] = person
        return person

    def add_group(self, title: str, *, kind: str = "supergroup", forum: bool = False) -> Chat:
        """A new group or channel with the bot in it."""
        number = self._next_chat
        self._next_chat += 1
        chat = Chat(-number if kind == "group" else -1_000_000_000_000 - number, kind, title, is_forum=forum)
        if forum:
            chat.next_id = GENERAL + 1
        self.chats[chat.id] = chat
        return chat

    def private(self, person: Person) -> Chat:
        """The chat of a person with the bot."""
        if person.id not in self.chats:
            self.chats[person.id] = Chat(person.id, "private", person=person)
        return self.chats[person.id]

    def writable(self, chat_id: Any, thread: Any = None, *, acting: bool = False) -> Chat:
        """The chat the bot wants to write to, if it may."""
        if isinstance(chat_id, str) and chat_id.lstrip("-").isdigit():
            chat_id = int(chat_id)
        chat = self.chats.get(chat_id) if isinstance(chat_id, int) else None
        if chat is None:
            raise bad("chat not found")
        if chat.migrated_to is not None:
            raise bad("group chat was upgraded to a supergroup chat", migrate_to_chat_id=chat.migrated_to)
        _refuse_absent(chat)
        # A message to General carries no thread; saying 1 is refused, although typing there may say it.
        general = acting and chat.is_forum and thread == GENERAL
        if thread is not None and not general and thread not in chat.topics:
            raise bad("message thread not found")
        return chat

    def add_message(self, chat: Chat, **content: Any) -> Message:
        """Append to a chat's history."""
        message = {"message_id": chat.next_id, "date": int(time.time()), "chat": chat.as_chat(), **content}
        chat.next_id += 1
        chat.messages[message["message_id"]] = message
        return message

    def own(self, chat: Chat, message_id: Any, what: str) -> Message:
        """A message of the bot's own, to edit or delete."""
        message = chat.messages.get(message_id) if isinstance(message_id, int) else None
        if message is None:
            raise bad(f"message to {what} not found")
        if message.get("from", {}).get("id") != self.bot.id:
            raise bad(f"message can't be {what}{'ed' if what == 'edit' else 'd'}")
        return message

    def add_file(self, content: bytes, name: str) -> dict[str, Any]:
        """Keep bytes; returns the fields every file type has."""
        number = len(self.files) + 1
        file_id = f"file-{number:06d}-{'x' * 40}"
        self.files[file_id] = (f"documents/file_{number}{_suffix(name)}", content)
        return {"file_id": file_id, "file_unique_id": f"u{number:06d}", "file_size": len(content)}


def _suffix(name: str) -> str:
    _, dot, suffix = name.rpartition(".")
    return f".{suffix}" if dot and suffix.isalnum() else ""


def _refuse_absent(chat: Chat) -> None:
    if chat.person is not None and chat.person.deleted:
        raise ApiError(403, "Forbidden: user is deactivated")
    if chat.bot_is == "blocked":
        raise ApiError(403, "Forbidden: bot was blocked by the user")
    if chat.bot_is == "unknown":
        raise ApiError(403, "Forbidden: bot can't initiate conversation with a user")
    if chat.bot_is in ("kicked", "left"):
        how = "was kicked from" if chat.bot_is == "kicked" else "is not a member of"
        raise ApiError(403, f"Forbidden: bot {how} the {chat.type} chat")


def marks(text: str) -> Iterator[dict[str, Any]]:
    """The entities Telegram finds in what a person types: commands and mentions."""
    for found in _MARKED.finditer(text):
        kind = found.lastgroup
        yield {"type": kind, "offset": units(text[: found.start()]), "length": units(found.group())}
