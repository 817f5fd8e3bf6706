"""The user side: what people do on their phones, sent as updates to the bot."""

from __future__ import annotations

import time
from typing import Any

from gofer_standins.telegram.api import Methods
from gofer_standins.telegram.updates import Updates
from gofer_standins.telegram.world import Chat, Message, Person, TelegramWorld, marks

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)
"""The smallest picture."""


class Phones:
    """Everything people can do."""

    def __init__(self, world: TelegramWorld, updates: Updates, methods: Methods) -> None:
        self._world = world
        self._updates = updates
        self._methods = methods
        self._albums = 0
        self._presses = 0

    def say(
        self,
        person: Person,
        chat: Chat,
        text: str = "",
        *,
        reply_to: Message | None = None,
        thread: int | None = None,
        **content: Any,
    ) -> Message:
        """Send a message; `content` adds or overrides fields (a photo, a forward, a missing `from`)."""
        fields: dict[str, Any] = {"from": person.as_user()}
        if text:
            fields |= {"text": text, "entities": list(marks(text))}
        if reply_to is not None:
            fields["reply_to_message"] = {k: v for k, v in reply_to.items() if k != "reply_to_message"}
        if thread is not None:
            fields |= {"message_thread_id": thread, "is_topic_message": True}
        fields |= content
        kept = {name: value for name, value in fields.items() if value not in (None, [])}
        message = self._world.add_message(chat, **kept)
        if self._bot_sees(chat, message):
            self._updates.add("channel_post" if chat.type == "channel" else "message", dict(message), chat.id)
        return message

    def _bot_sees(self, chat: Chat, message: Message) -> bool:
        """A bot in privacy mode sees what is meant for it: commands, mentions, answers, service messages."""
        if chat.bot_is not in ("member", "administrator"):
            return False
        if chat.type in ("private", "channel") or not self._methods.privacy or chat.bot_is == "administrator":
            return True
        text = message.get("text") or message.get("caption") or ""
        name = f"@{self._world.bot.username}".lower()
        answered = message.get("reply_to_message", {}).get("from", {}).get("id") == self._world.bot.id
        service = not any(name in message for name in ("text", "caption", "photo", "document", "voice"))
        return answered or service or text.startswith("/") or name in text.lower()

    def edit(self, message: Message, text: str) -> None:
        """Change what one has said."""
        chat = self._world.chats[message["chat"]["id"]]
        message |= {"text": text, "entities": list(marks(text)), "edit_date": int(time.time())}
        if self._bot_sees(chat, message):
            self._updates.add("edited_message", dict(message), chat.id)

    def send_photo(self, person: Person, chat: Chat, caption: str = "", **content: Any) -> Message:
        """A photo in two sizes."""
        sizes = [
            {**self._world.add_file(PNG, "photo.jpg"), "width": side, "height": side} for side in (90, 1280)
        ]
        return self.say(person, chat, photo=sizes, caption=caption or None, **content)

    def send_document(
        self,
        person: Person,
        chat: Chat,
        name: str,
        data: bytes,
        media_type: str = "text/plain",
        **content: Any,
    ) -> Message:
        """A file."""
        document = {**self._world.add_file(data, name), "file_name": name, "mime_type": media_type}
        return self.say(person, chat, document=document, **content)

    def send_voice(self, person: Person, chat: Chat, data: bytes, **content: Any) -> Message:
        """A voice note."""
        voice = {**self._world.add_file(data, "voice.oga"), "duration": 3, "mime_type": "audio/ogg"}
        return self.say(person, chat, voice=voice, **content)

    def send_video_note(self, person: Person, chat: Chat, data: bytes, **content: Any) -> Message:
        """A round video."""
        note = {**self._world.add_file(data, "note.mp4"), "duration": 3, "length": 240}
        return self.say(person, chat, video_note=note, **content)

    def send_album(self, person: Person, chat: Chat, captions: list[str], **content: Any) -> list[Message]:
        """Several photos that belong together; each is an update of its own."""
        self._albums += 1
        mark = str(13_000_000_000_000_000 + self._albums)
        return [
            self.send_photo(person, chat, caption, media_group_id=mark, **content) for caption in captions
        ]

    def press(self, person: Person, message: Message, label: str) -> str:
        """Press a button; returns the id of the query, answered or not."""
        rows = message["reply_markup"]["inline_keyboard"]
        button = next(one for row in rows for one in row if one["text"] == label)
        return self.press_data(person, message, button["callback_data"])

    def press_data(self, person: Person, message: Message, data: str) -> str:
        """Press a button as a modified client may: with any data."""
        self._presses += 1
        query_id = str(4_000_000_000_000 + self._presses)
        self._methods.callbacks[query_id] = (time.time(), person.id)
        query = {
            "id": query_id,
            "from": person.as_user(),
            "message": dict(message),
            "chat_instance": "1",
            "data": data,
        }
        self._updates.add("callback_query", query, person.id)
        return query_id

    def react(self, person: Person, message: Message, emoji: str = "") -> None:
        """React to a message, or take it back. In a group only an administrator hears of it."""
        chat = self._world.chats[message["chat"]["id"]]
        if chat.type != "private" and chat.bot_is != "administrator":
            return
        reaction = [{"type": "emoji", "emoji": emoji}] if emoji else []
        changed = {
            "chat": chat.as_chat(),
            "message_id": message["message_id"],
            "user": person.as_user(),
            "date": int(time.time()),
            "old_reaction": [] if emoji else [{"type": "emoji", "emoji": "👍"}],
            "new_reaction": reaction,
        }
        self._updates.add("message_reaction", changed, chat.id)

    def stop_draft(self, chat: Chat) -> None:
        """Press Stop under the bot's draft."""
        assert chat.stoppable, "there is no such button"
        stopped = {"chat": chat.as_chat(), "draft_id": chat.stoppable}
        self._updates.add("stopped_message_generation", stopped, chat.id)

    def change_bot(self, person: Person, chat: Chat, status: str) -> None:
        """Add the bot, make it an administrator, kick it, or block it."""
        before, chat.bot_is = chat.bot_is, {"blocked": "blocked"}.get(status, status)
        bot = self._world.bot.as_user()
        content = {
            "chat": chat.as_chat(),
            "from": person.as_user(),
            "date": int(time.time()),
            "old_chat_member": _membership(before, bot),
            "new_chat_member": _membership(status, bot),
        }
        self._updates.add("my_chat_member", content, chat.id)

    def migrate(self, person: Person, group: Chat) -> Chat:
        """A group becomes a supergroup, with another id."""
        new = self._world.add_group(group.title)
        self.say(person, group, migrate_to_chat_id=new.id)
        group.migrated_to = new.id
        self.say(person, new, migrate_from_chat_id=group.id)
        return new

    def open_topic(self, person: Person, chat: Chat, name: str) -> int:
        """A new topic; returns its thread id."""
        thread = chat.next_id
        chat.topics[thread] = name
        created = {"name": name, "icon_color": 7322096}
        self.say(person, chat, thread=thread, forum_topic_created=created)
        return thread


def _membership(status: str, user: dict[str, Any]) -> dict[str, Any]:
    status = "kicked" if status == "blocked" else status
    if status == "kicked":
        return {"status": "kicked", "user": user, "until_date": 0}
    return {"status": status, "user": user}
