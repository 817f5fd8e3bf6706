"""What Telegram refuses: texts, entities, keyboards. Pure checks that raise `ApiError` with Telegram's own words."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

TEXT_LIMIT, CAPTION_LIMIT = 4096, 1024
# fmt: off
ENTITY_TYPES = frozenset({
    "mention", "hashtag", "cashtag", "bot_command", "url", "email", "phone_number", "bold", "italic", "underline",
    "strikethrough", "spoiler", "blockquote", "expandable_blockquote", "code", "pre", "text_link", "text_mention",
    "custom_emoji", "date_time",
})
_REACTIONS = (
    "❤ 👍 👎 🔥 🥰 👏 😁 🤔 🤯 😱 🤬 😢 🎉 🤩 🤮 💩 🙏 👌 🕊 🤡 🥱 🥴 😍 🐳 ❤\u200d🔥 🌚 🌭 💯 🤣 ⚡ 🍌 🏆 "
    "💔 🤨 😐 🍓 🍾 💋 🖕 😈 😴 😭 🤓 👻 👨\u200d💻 👀 🎃 🙈 😇 😨 🤝 ✍ 🤗 🫡 🎅 🎄 ☃ 💅 🤪 🗿 🆒 💘 🙉 🦄 😘 💊 "
    "🙊 😎 👾 🤷\u200d♂ 🤷 🤷\u200d♀ 😡"
)
REACTIONS = frozenset(_REACTIONS.split())
ACTIONS = frozenset({
    "typing", "upload_photo", "record_video", "upload_video", "record_voice", "upload_voice", "upload_document",
    "choose_sticker", "find_location", "record_video_note", "upload_video_note",
})
# fmt: on


class ApiError(Exception):
    """An answer with ok false."""

    def __init__(self, status: int, description: str, **parameters: Any) -> None:
        super().__init__(description)
        self.status = status
        self.description = description
        self.parameters = parameters

    def body(self) -> dict[str, Any]:
        """As Telegram writes it."""
        answer: dict[str, Any] = {"ok": False, "error_code": self.status, "description": self.description}
        return {**answer, "parameters": self.parameters} if self.parameters else answer


def bad(description: str, **parameters: Any) -> ApiError:
    """A 400."""
    return ApiError(400, f"Bad Request: {description}", **parameters)


def units(text: str) -> int:
    """Length as Telegram counts it: UTF-16 code units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def checked_text(
    text: Any, entities: Any, *, limit: int = TEXT_LIMIT, what: str = "message"
) -> tuple[str, list[Any]]:
    """A text as it is stored, with its entities."""
    if not isinstance(text, str):
        raise bad(f"{what} text must be a string")
    kept = text.rstrip()
    lead = len(kept) - len(kept.lstrip())
    kept = kept[lead:]
    if not kept:
        raise bad(f"{what} text is empty")
    if units(kept) > limit:
        raise bad("message is too long" if what == "message" else f"{what} is too long")
    if any(0xD800 <= ord(character) <= 0xDFFF for character in kept):
        raise bad("strings must be encoded in UTF-8")
    if any(ord(character) < 0x20 and character not in "\n\t" for character in kept):
        raise bad("strings must not contain control characters")
    return kept, checked_entities(kept, entities, units(text[:lead]), units(text))


def checked_entities(text: str, entities: Any, lead: int, whole: int) -> list[Any]:
    """Entities that lie within the text, at character boundaries, properly nested; trimmed like the text."""
    if entities is None:
        return []
    if not isinstance(entities, list) or len(entities) > 100:
        raise bad("can't parse entities: expected an array of at most 100")
    boundaries = _boundaries(text)
    kept = []
    for entity in entities:
        start, end = _span(entity)
        if end > whole:
            raise bad(f"ENTITY_BOUNDS_INVALID: {start}+{end - start} is beyond {whole}")
        start, end = max(0, start - lead), min(end - lead, boundaries[-1])
        if start not in boundaries or end not in boundaries:
            raise bad(f"can't parse entities: entity at {start} splits a character")
        if end > start:
            kept.append({**entity, "offset": start, "length": end - start})
    _check_nesting(kept)
    return sorted(kept, key=lambda entity: (entity["offset"], -entity["length"]))


def _boundaries(text: str) -> list[int]:
    places = [0]
    for character in text:
        places.append(places[-1] + (2 if ord(character) > 0xFFFF else 1))
    return places


def _span(entity: Any) -> tuple[int, int]:
    match entity:
        case {"type": str(kind), "offset": int(offset), "length": int(length)} if offset >= 0 and length > 0:
            if kind not in ENTITY_TYPES:
                raise bad(f"can't parse entities: unknown type {kind}")
            if kind == "text_link" and not isinstance(entity.get("url"), str):
                raise bad("can't parse entities: text_link without url")
            return offset, offset + length
    raise bad("can't parse entities: an entity needs type, offset and length")


def _check_nesting(entities: list[Any]) -> None:
    for one in entities:
        for other in entities:
            begins, ends = other["offset"], other["offset"] + other["length"]
            if one["offset"] < begins < one["offset"] + one["length"] < ends:
                raise bad("can't parse entities: entities overlap")
            inside = one is not other and one["offset"] <= begins and ends <= one["offset"] + one["length"]
            if inside and one["type"] in ("pre", "code"):
                raise bad("can't parse entities: code can't contain other entities")


def checked_markup(markup: Any) -> dict[str, Any] | None:
    """An inline keyboard, or None."""
    if markup is None:
        return None
    match markup:
        case {"inline_keyboard": list(rows)} if all(isinstance(row, list) for row in rows):
            buttons = [button for row in rows for button in row]
            if len(buttons) > 100:
                raise bad("reply markup is too long")
            for button in buttons:
                _check_button(button)
            return {"inline_keyboard": rows} if buttons else None
    raise bad("object expected as reply markup")


def _check_button(button: Any) -> None:
    if not isinstance(button, dict) or not isinstance(button.get("text"), str) or not button["text"].strip():
        raise bad('can\'t parse inline keyboard button: Field "text" must be of type String')
    kinds = [name for name in ("url", "callback_data", "switch_inline_query") if name in button]
    if len(kinds) != 1:
        raise bad("text buttons are unallowed in the inline keyboard")
    if kinds == ["callback_data"] and not 1 <= len(str(button["callback_data"]).encode()) <= 64:
        raise bad("BUTTON_DATA_INVALID")


def checked_commands(commands: Any) -> list[dict[str, str]]:
    """A bot's menu."""
    if not isinstance(commands, list) or len(commands) > 100:
        raise bad("expected an Array of BotCommand")
    for command in commands:
        name, text = str(command.get("command", "")), str(command.get("description", ""))
        known = all(character.islower() or character.isdigit() or character == "_" for character in name)
        if not (1 <= len(name) <= 32 and known):
            raise bad("BOT_COMMAND_INVALID")
        if not 1 <= len(text) <= 256:
            raise bad("BOT_COMMAND_DESCRIPTION_INVALID")
    return commands


@dataclass
class Bucket:
    """Tokens that come back with time."""

    size: float
    per_second: float
    left: float = field(init=False)
    at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.left = self.size

    def take(self) -> float:
        """Take one; the seconds to wait when there is none."""
        now = time.monotonic()
        self.left = min(self.size, self.left + (now - self.at) * self.per_second)
        self.at = now
        if self.left >= 1:
            self.left -= 1
            return 0
        return (1 - self.left) / self.per_second


class SendRates:
    """Counts what the bot sends. Short bursts pass, as they do in reality."""

    def __init__(
        self, *, chat_burst: float = 20, group_per_minute: float = 20, per_second: float = 30
    ) -> None:
        self._overall = Bucket(per_second, per_second)
        self._chats: dict[int, Bucket] = defaultdict(lambda: Bucket(chat_burst, 1))
        self._groups: dict[int, Bucket] = defaultdict(lambda: Bucket(group_per_minute, group_per_minute / 60))

    def count(self, chat_id: int) -> None:
        """Raises 429 with `retry_after` when it was too much."""
        of_chat = self._groups[chat_id] if chat_id < 0 else self._chats[chat_id]
        wait = of_chat.take() or self._overall.take()
        if wait:
            seconds = math.ceil(wait)
            raise ApiError(429, f"Too Many Requests: retry after {seconds}", retry_after=seconds)
