"""The Bot API's methods over the world: each checks what Telegram checks, and answers what Telegram answers."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

from gofer_standins.telegram.rules import (
    ACTIONS,
    CAPTION_LIMIT,
    REACTIONS,
    ApiError,
    SendRates,
    bad,
    checked_commands,
    checked_markup,
    checked_text,
)
from gofer_standins.telegram.updates import Updates
from gofer_standins.telegram.world import Chat, Message, TelegramWorld

CALLBACK_LIFE = 900.0
MAGIC: dict[str, tuple[tuple[int, bytes], ...]] = {
    "photo": ((0, b"\xff\xd8\xff"), (0, b"\x89PNG"), (8, b"WEBP")),
    "animation": ((0, b"GIF8"), (4, b"ftyp")),
    "video": ((4, b"ftyp"),),
    "audio": ((0, b"ID3"), (0, b"\xff\xfb"), (4, b"ftypM4A")),
    "voice": ((0, b"OggS"),),
}
"""With which bytes, and where, a file begins that Telegram takes as such."""
DOWNLOAD_LIMIT = 20 * 1024 * 1024
NOT_MODIFIED = (
    "message is not modified: specified new message content and reply markup are exactly the same as a current "
    "content and reply markup of the message"
)


class Upload:
    """A file in a multipart request."""

    def __init__(self, name: str, content: bytes) -> None:
        self.name = name
        self.content = content


class Methods:
    """What a bot may call, by Telegram's names."""

    def __init__(self, world: TelegramWorld, updates: Updates, limits: SendRates | None) -> None:
        self._world = world
        self._updates = updates
        self._limits = limits
        self.privacy = True
        self.callbacks: dict[str, tuple[float, int]] = {}
        """Unanswered button presses: when, and by whom."""
        self.answered: dict[str, str] = {}
        self.commands: dict[str, list[dict[str, str]]] = {}

    async def call(self, method: str, given: dict[str, Any]) -> Any:
        """Run a method with the parameters given; an unknown parameter is an error of the caller."""
        run: Callable[..., Any] | None = _METHODS.get(method.lower())
        if run is None:
            raise ApiError(404, "Not Found")
        try:
            inspect.signature(run).bind(self, **given)
        except TypeError as error:
            raise bad(f"{method}: {error}") from None
        answer = run(self, **given)
        return await answer if inspect.isawaitable(answer) else answer

    # The bot itself.

    def get_me(self) -> dict[str, Any]:
        return {
            **self._world.bot.as_user(),
            "can_join_groups": True,
            "can_read_all_group_messages": not self.privacy,
            "supports_inline_queries": False,
            "can_connect_to_business": False,
            "has_main_web_app": False,
        }

    def set_my_commands(self, commands: Any, scope: Any = None, language_code: str = "") -> bool:
        self.commands[(scope or {}).get("type", "default")] = checked_commands(commands)
        return True

    def delete_my_commands(self, scope: Any = None, language_code: str = "") -> bool:
        self.commands.pop((scope or {}).get("type", "default"), None)
        return True

    def get_my_commands(self, scope: Any = None, language_code: str = "") -> list[dict[str, str]]:
        return self.commands.get((scope or {}).get("type", "default"), [])

    # Updates.

    async def get_updates(
        self, offset: int = 0, limit: int = 100, timeout: float = 0, allowed_updates: Any = None
    ) -> list[dict[str, Any]]:
        self._updates.allow(allowed_updates)
        return await self._updates.get(offset=int(offset), limit=int(limit), timeout=float(timeout))

    def set_webhook(
        self,
        url: str,
        max_connections: int = 40,
        allowed_updates: Any = None,
        drop_pending_updates: bool = False,
        secret_token: str = "",
        ip_address: str = "",
    ) -> bool:
        self._updates.allow(allowed_updates)
        if drop_pending_updates:
            self._updates.pending.clear()
        self._updates.set_webhook(url, secret=secret_token, max_connections=max_connections)
        return True

    def delete_webhook(self, drop_pending_updates: bool = False) -> bool:
        if drop_pending_updates:
            self._updates.pending.clear()
        self._updates.set_webhook("")
        return True

    def get_webhook_info(self) -> dict[str, Any]:
        return self._updates.info()

    # Messages.

    def send_message(
        self,
        chat_id: Any,
        text: Any,
        entities: Any = None,
        message_thread_id: Any = None,
        reply_parameters: Any = None,
        reply_markup: Any = None,
        disable_notification: bool = False,
        link_preview_options: Any = None,
        parse_mode: str = "",
    ) -> Message:
        _plain_only(parse_mode)
        chat = self._world.writable(chat_id, message_thread_id)
        kept, marked = checked_text(text, entities)
        content = {"text": kept, **_some(entities=marked, reply_markup=checked_markup(reply_markup))}
        return self._say(chat, message_thread_id, reply_parameters, disable_notification, content)

    def _say(
        self, chat: Chat, thread: Any, reply_parameters: Any, silent: bool, content: dict[str, Any]
    ) -> Message:
        replied = _replied(chat, reply_parameters)
        self._count(chat)
        if thread is not None:
            content |= {"message_thread_id": thread, "is_topic_message": True}
        if replied is not None:
            content["reply_to_message"] = {k: v for k, v in replied.items() if k != "reply_to_message"}
        message = self._world.add_message(chat, **{"from": self._world.bot.as_user()}, **content)
        if silent:
            chat.silent.add(message["message_id"])
        return message

    def edit_message_text(
        self,
        chat_id: Any,
        message_id: Any,
        text: Any,
        entities: Any = None,
        reply_markup: Any = None,
        link_preview_options: Any = None,
        parse_mode: str = "",
    ) -> Message:
        _plain_only(parse_mode)
        chat = self._world.writable(chat_id)
        message = self._world.own(chat, message_id, "edit")
        kept, marked = checked_text(text, entities)
        if "text" not in message:
            raise bad("there is no text in the message to edit")
        return self._change(
            chat, message, {"text": kept, "entities": marked, "reply_markup": checked_markup(reply_markup)}
        )

    def _change(self, chat: Chat, message: Message, values: dict[str, Any]) -> Message:
        if all((message.get(name) or None) == (value or None) for name, value in values.items()):
            raise bad(NOT_MODIFIED)
        self._count(chat)
        for name, value in values.items():
            message.pop(name, None)
            if value:
                message[name] = value
        message["edit_date"] = int(time.time())
        chat.edits[message["message_id"]] = chat.edits.get(message["message_id"], 0) + 1
        return message

    def edit_message_reply_markup(self, chat_id: Any, message_id: Any, reply_markup: Any = None) -> Message:
        chat = self._world.writable(chat_id)
        message = self._world.own(chat, message_id, "edit")
        return self._change(chat, message, {"reply_markup": checked_markup(reply_markup)})

    def edit_message_media(
        self, chat_id: Any, message_id: Any, media: Any, reply_markup: Any = None, **attached: Any
    ) -> Message:
        chat = self._world.writable(chat_id)
        message = self._world.own(chat, message_id, "edit")
        match media:
            case {"type": "document", "media": str(source), **rest} if source.startswith("attach://"):
                upload = attached.get(source.removeprefix("attach://"))
            case _:
                raise bad("can't parse InputMedia: the stand-in takes attached documents")
        if not isinstance(upload, Upload) or not upload.content:
            raise bad("wrong file: file must be non-empty")
        caption, marked = _caption(rest.get("caption"), rest.get("caption_entities"))
        values = {"text": None, "entities": None, "document": self._document(upload), "caption": caption}
        return self._change(chat, message, {**values, "caption_entities": marked})

    def delete_message(self, chat_id: Any, message_id: Any) -> bool:
        chat = self._world.writable(chat_id)
        self._world.own(chat, message_id, "delete")
        del chat.messages[message_id]
        return True

    def send_document(
        self,
        chat_id: Any,
        document: Any,
        caption: Any = None,
        caption_entities: Any = None,
        message_thread_id: Any = None,
        reply_parameters: Any = None,
        disable_notification: bool = False,
    ) -> Message:
        about = (caption, caption_entities, reply_parameters, disable_notification)
        return self._send_medium(chat_id, message_thread_id, "document", document, *about)

    def send_photo(
        self,
        chat_id: Any,
        photo: Any,
        caption: Any = None,
        caption_entities: Any = None,
        message_thread_id: Any = None,
        reply_parameters: Any = None,
        disable_notification: bool = False,
    ) -> Message:
        about = (caption, caption_entities, reply_parameters, disable_notification)
        return self._send_medium(chat_id, message_thread_id, "photo", photo, *about)

    def send_animation(
        self, chat_id: Any, animation: Any, caption: Any = None, message_thread_id: Any = None
    ) -> Message:
        return self._send_medium(chat_id, message_thread_id, "animation", animation, caption)

    def send_video(
        self, chat_id: Any, video: Any, caption: Any = None, message_thread_id: Any = None
    ) -> Message:
        return self._send_medium(chat_id, message_thread_id, "video", video, caption)

    def send_audio(
        self, chat_id: Any, audio: Any, caption: Any = None, message_thread_id: Any = None
    ) -> Message:
        return self._send_medium(chat_id, message_thread_id, "audio", audio, caption)

    def send_voice(
        self, chat_id: Any, voice: Any, caption: Any = None, message_thread_id: Any = None
    ) -> Message:
        return self._send_medium(chat_id, message_thread_id, "voice", voice, caption)

    def _send_medium(
        self, chat_id: Any, thread: Any, kind: str, upload: Any, caption: Any, *about: Any
    ) -> Message:
        entities, reply, silent = about or (None, None, False)
        chat = self._world.writable(chat_id, thread)
        words, marked = _caption(caption, entities)
        content = {kind: self._medium(kind, upload), **_some(caption=words, caption_entities=marked)}
        return self._say(chat, thread, reply, silent, content)

    def _medium(self, kind: str, upload: Any) -> Any:
        """A file as what it is sent as, if it is that."""
        if not isinstance(upload, Upload) or not upload.content:
            raise bad("file must be non-empty")
        if kind == "document":
            return self._document(upload)
        if not any(upload.content[at : at + len(magic)] == magic for at, magic in MAGIC[kind]):
            raise bad("IMAGE_PROCESS_FAILED" if kind == "photo" else f"wrong type of the {kind}")
        file = self._world.add_file(upload.content, upload.name)
        if kind == "photo":
            return [{**file, "width": 640, "height": 480}]
        played = {**file, "duration": 1}
        return {**played, "width": 320, "height": 240} if kind in ("video", "animation") else played

    def send_media_group(
        self, chat_id: Any, media: Any, message_thread_id: Any = None, **attached: Any
    ) -> list[Message]:
        chat = self._world.writable(chat_id, message_thread_id)
        if not isinstance(media, list) or not 2 <= len(media) <= 10:
            raise bad("wrong number of media: 2 to 10 are needed")
        kinds = {one.get("type") for one in media}
        if not (kinds <= {"photo", "video"} or kinds == {"audio"} or kinds == {"document"}):
            raise bad("documents and audio files can be in an album only with their like")
        contents = []
        for one in media:
            upload = attached.get(str(one.get("media", "")).removeprefix("attach://"))
            words, marked = _caption(one.get("caption"), one.get("caption_entities"))
            medium = {one["type"]: self._medium(one["type"], upload)}
            contents.append({**medium, **_some(caption=words, caption_entities=marked)})
        mark = str(14_000_000_000_000_000 + chat.next_id)
        return [
            self._say(chat, message_thread_id, None, False, {**content, "media_group_id": mark})
            for content in contents
        ]

    def _document(self, upload: Upload) -> dict[str, Any]:
        return {**self._world.add_file(upload.content, upload.name), "file_name": upload.name}

    # Decoration and buttons.

    def send_chat_action(self, chat_id: Any, action: str, message_thread_id: Any = None) -> bool:
        chat = self._world.writable(chat_id, message_thread_id, acting=True)
        if action not in ACTIONS:
            raise bad("wrong parameter action in request")
        chat.actions.append((time.time(), action, message_thread_id))
        return True

    def set_message_reaction(
        self, chat_id: Any, message_id: Any, reaction: Any = None, is_big: bool = False
    ) -> bool:
        chat = self._world.writable(chat_id)
        if message_id not in chat.messages:
            raise bad("message to react not found")
        emoji = [one.get("emoji") for one in reaction or []]
        if len(emoji) > 1 or any(one not in REACTIONS for one in emoji):
            raise bad("REACTION_INVALID")
        chat.reactions[message_id] = emoji
        return True

    def send_message_draft(
        self,
        chat_id: Any,
        draft_id: int,
        text: str = "",
        entities: Any = None,
        message_thread_id: Any = None,
        can_stop: bool = False,
        keep_on_stop: bool = False,
    ) -> bool:
        chat = self._world.writable(chat_id, message_thread_id)
        if chat.type != "private":
            raise bad("drafts are for private chats")
        if not isinstance(draft_id, int) or not draft_id:
            raise bad("DRAFT_ID_INVALID")
        kept, _ = checked_text(text, entities) if text else ("", [])
        self._count(chat)
        chat.drafts.append(kept)
        chat.stoppable = draft_id if can_stop else 0
        return True

    def answer_callback_query(
        self, callback_query_id: str, text: str = "", show_alert: bool = False, cache_time: int = 0
    ) -> bool:
        born, _ = self.callbacks.get(callback_query_id, (0.0, 0))
        if time.time() - born > CALLBACK_LIFE:
            raise bad("query is too old and response timeout expired or query ID is invalid")
        if len(text) > 200:
            raise bad("MESSAGE_TOO_LONG")
        self.answered[callback_query_id] = text
        return True

    # Looking.

    def get_file(self, file_id: Any) -> dict[str, Any]:
        if file_id not in self._world.files:
            raise bad("wrong file_id or the file is temporarily unavailable")
        path, content = self._world.files[file_id]
        if len(content) > DOWNLOAD_LIMIT:
            raise bad("file is too big")
        size = len(content)
        return {"file_id": file_id, "file_unique_id": f"u{size}", "file_size": size, "file_path": path}

    def get_chat(self, chat_id: Any) -> dict[str, Any]:
        chat = self._world.writable(chat_id)
        return {
            **chat.as_chat(),
            "accent_color_id": 0,
            "max_reaction_count": 11,
            "accepted_gift_types": _NO_GIFTS,
        }

    def _count(self, chat: Chat) -> None:
        if self._limits is not None:
            self._limits.count(chat.id)


_NO_GIFTS = {
    "unlimited_gifts": False,
    "limited_gifts": False,
    "unique_gifts": False,
    "premium_subscription": False,
    "gifts_from_channels": False,
}


def _some(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def _plain_only(parse_mode: str) -> None:
    if parse_mode:
        raise bad("unsupported parse_mode (the stand-in takes entities)")


def _caption(text: Any, entities: Any) -> tuple[str | None, list[Any]]:
    if text is None or text == "":
        return None, []
    return checked_text(text, entities, limit=CAPTION_LIMIT, what="message caption")


def _replied(chat: Chat, parameters: Any) -> Message | None:
    if parameters is None:
        return None
    if not isinstance(parameters, dict) or not isinstance(parameters.get("message_id"), int):
        raise bad("can't parse reply parameters")
    replied = chat.messages.get(parameters["message_id"])
    if replied is None and not parameters.get("allow_sending_without_reply"):
        raise bad("message to be replied not found")
    return replied


def _methods() -> dict[str, Callable[..., Any]]:
    hidden = {"call"}
    return {
        name.replace("_", ""): function
        for name, function in vars(Methods).items()
        if inspect.isfunction(function) and not name.startswith("_") and name not in hidden
    }


_METHODS = _methods()
"""Telegram's method names are not case-sensitive."""
