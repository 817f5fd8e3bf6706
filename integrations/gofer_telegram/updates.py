"""Read updates. Pure: JSON in, its meaning out. Missing or mistyped fields never raise, except `Malformed` for an
update without an id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gofer.errors import Malformed
from gofer.integration import Attachment, Author, Incoming, Parsed, Payload
from gofer_telegram.admission import CONTENT, PASSED_ON, attachments, in_words
from gofer_telegram.client import STOP, Group, Place, Settings, offered, pressed, where

CONTROLS = {"stop": "stop", "new": "new"}
QUOTE_LIMIT = 4000
REMINDER_LIMIT = 500
"""Characters quoted of text that the agent has in its history anyway."""


@dataclass(frozen=True, slots=True)
class Bot:
    """What reading an update needs to know of the bot."""

    id: int
    settings: Settings

    def group(self, place: Place) -> Group | None:
        """The settings of a group; None when it is not allowed."""
        return self.settings.groups.get(str(place.chat))


def read_update(update: Any, bot: Bot) -> Parsed:
    """What an update means."""
    payload = Payload.of(update)
    number = payload.number("update_id")
    if number is None:
        raise Malformed("An update has no update_id.")
    kind = payload.first_of(tuple(_READERS))
    if not kind:
        other = next((name for name in payload.value if name != "update_id"), "empty")
        return Parsed(str(number), str(other)[:100], note="this kind of update is not handled")
    read = _READERS[kind](payload.child(kind), bot)
    if isinstance(read, Incoming):
        return Parsed(str(number), kind, message=read)
    if isinstance(read, tuple):
        return Parsed(str(number), kind, note="the group has a new id", moved=read)
    return Parsed(str(number), kind, note=read, closed=_left(payload.child("my_chat_member")))


def _left(change: Payload) -> tuple[str, bool] | None:
    """A group that the bot has left, or is in again."""
    place = where(change)
    status = change.child("new_chat_member").text("status")
    if place is None or not place.is_group or not status:
        return None
    return place.ref, status in ("left", "kicked")


def _message(message: Payload, bot: Bot) -> Incoming | tuple[str, str] | str:
    place = where(message)
    if place is None:
        return "a message without a chat"
    if (moved := _moved(message, place)) is not None:
        return moved
    author = author_of(message, place)
    if author is None:
        return "a message without an author"
    if author.is_bot:
        return "written by a bot"
    if not any(name in message for name in CONTENT):
        return "a service message"
    if place.is_group and bot.group(place) is None:
        return _uninvited(message, place, author, bot)
    return _said(message, place, author, bot)


def _moved(message: Payload, place: Place) -> tuple[str, str] | None:
    to, since = message.number("migrate_to_chat_id"), message.number("migrate_from_chat_id")
    if to is not None:
        return str(place.chat), str(to)
    return (str(since), str(place.chat)) if since is not None else None


def author_of(message: Payload, place: Place) -> Author | None:
    """The author. Somebody who writes as a chat has that chat's id, which cannot be paired."""
    if (sender := message.child("sender_chat")).number("id") is not None:
        number = sender.number("id")
        anonymous = number == place.chat
        name = "an anonymous admin" if anonymous else sender.text("title")
        return Author(f"chat:{number}", name[:200], is_bot=message.flag("is_automatic_forward"))
    user = message.child("from")
    number = user.number("id")
    if number is None:
        return None
    return Author(str(number), _name_of(user), is_bot=user.flag("is_bot"))


def _name_of(user: Payload) -> str:
    return (f"{user.text('first_name')} {user.text('last_name')}".strip() or user.text("username"))[:200]


def _uninvited(message: Payload, place: Place, author: Author, bot: Bot) -> Incoming | str:
    """Nothing of a group that is not allowed is stored. Addressing the bot there only asks an owner to allow it."""
    if not _trigger(message, place, bot):
        return "the group is not allowed"
    return _request_to_listen(message.child("chat"), place, author)


def _request_to_listen(chat: Payload, place: Place, author: Author) -> Incoming:
    return Incoming(
        conversation=str(place.chat),
        author=author,
        text="",
        addressed=False,
        kind="group",
        title=chat.text("title")[:200],
        event="place",
        command="allow",
        arguments=str(place.chat),
    )


def _said(message: Payload, place: Place, author: Author, bot: Bot) -> Incoming | str:
    trigger = _trigger(message, place, bot)
    command, arguments = _command(message, bot)
    edited = "edit_date" in message
    if command and edited:
        return "an edited command"
    own, quoted, here = words(message, author, bot)
    number = str(message.number("message_id") or "")
    album = message.text("media_group_id")[:100]
    return Incoming(
        conversation=place.ref,
        author=author,
        text=own,
        addressed=bool(trigger) and not command,
        kind=_kind(place),
        title=_title(message.child("chat")),
        private=not place.is_group,
        event="command" if command else "message",
        trigger=trigger or "any",
        external_id=number,
        reply_to=str(message.child("reply_to_message").number("message_id") or ""),
        replaces_id=number if edited else "",
        control=CONTROLS.get(command, ""),  # type: ignore[arg-type]
        command=command,
        arguments=arguments,
        quoted=quoted[: REMINDER_LIMIT if here else QUOTE_LIMIT],
        quote_is_ours=here,
        group_id=f"album:{album}" if album else "",
        attachments=_all_attachments(message),
        usual_agent=group.agent if (group := bot.group(place)) is not None else "",
    )


def _all_attachments(message: Payload) -> tuple[Attachment, ...]:
    """The files of a message, and those of the message that it answers."""
    foreign = _forwarded(message) or "via_bot" in message
    found = [_passed_on(file) if foreign else file for file in attachments(message)]
    return (*found, *(_passed_on(file) for one in _replied(message) for file in attachments(one)))


def _passed_on(file: Attachment) -> Attachment:
    return replace(file, ref=PASSED_ON + file.ref)


def _replied(message: Payload) -> list[Payload]:
    """The messages that a message answers, here or in another chat. In a topic every message answers its start."""
    found = [message.child(name) for name in ("reply_to_message", "external_reply")]
    return [one for one in found if one and "forum_topic_created" not in one]


def _kind(place: Place) -> str:
    if place.thread is not None:
        return "topic"
    return "group" if place.is_group else "chat"


def _title(chat: Payload) -> str:
    return chat.text("title")[:200] or _name_of(chat)


def words(message: Payload, author: Author, bot: Bot) -> tuple[str, str, bool]:
    """What the author says now; what is only quoted: a forward, another bot's, the message answered; and whether
    that was said here before, by us or the author. Our answers hold what we read, so they are no words of theirs."""
    own = message.text("text") or message.text("caption")
    own = "\n".join(part for part in (own, in_words(message)) if part)
    if _forwarded(message):
        return "(forwarded)", own, False
    if via := message.child("via_bot"):
        return f"(sent through the bot {via.text('username')})", own, False
    answered, whose = _answered(message)
    return own, answered, bool(answered) and whose in (str(bot.id), author.id)


def _forwarded(message: Payload) -> bool:
    """Whether a message is a forward, by the current or the older fields."""
    return "forward_origin" in message or "forward_date" in message


def _answered(message: Payload) -> tuple[str, str]:
    """The text a message answers, or the part of it that was marked, with the names of its files; and whose it is."""
    said, whose = "", ""
    for replied in _replied(message):
        files = "".join(f"[{file.name}] " for file in attachments(replied))
        said = f"{files}{replied.text('text') or replied.text('caption')}".strip()
        foreign = _forwarded(replied) or "via_bot" in replied or "origin" in replied
        whose = "" if foreign else str(replied.child("from").number("id") or "")
    return message.child("quote").text("text") or said, whose


def _trigger(message: Payload, place: Place, bot: Bot) -> str:
    """What in a message addresses the bot, or empty."""
    if not place.is_group:
        return "private"
    if _command(message, bot)[0]:
        return "command"
    if _mentions(message, bot):
        return "mention"
    if message.child("reply_to_message").child("from").number("id") == bot.id:
        return "reply"
    group = bot.group(place)
    return "any" if group is not None and group.when == "always" else ""


def _mentions(message: Payload, bot: Bot) -> bool:
    name = f"@{bot.settings.username}".lower() if bot.settings.username else ""
    for kind, covered, entity in _entities(message):
        if kind == "mention" and name and covered.lower() == name:
            return True
        if kind == "text_mention" and entity.child("user").number("id") == bot.id:
            return True
    return False


def _command(message: Payload, bot: Bot) -> tuple[str, str]:
    """The command at the start of a message, unless for another bot, and its arguments."""
    if _forwarded(message) or "via_bot" in message:
        return "", ""
    for kind, covered, entity in _entities(message):
        if kind == "bot_command" and entity.number("offset") == 0:
            name, _, whose = covered[1:].partition("@")
            if whose and whose.lower() != bot.settings.username.lower():
                return "", ""
            text = message.text("text") or message.text("caption")
            return name.lower(), text[len(covered) :].strip()
    return "", ""


def _entities(message: Payload) -> list[tuple[str, str, Payload]]:
    """Each entity's type and the text it covers; offsets count UTF-16 units."""
    source = "text" if message.text("text") else "caption"
    raw = message.text(source).encode("utf-16-le", "replace")
    found = []
    for entity in message.children("entities" if source == "text" else "caption_entities"):
        offset, length = entity.number("offset"), entity.number("length")
        if offset is not None and length is not None and offset >= 0 and length > 0:
            covered = raw[2 * offset : 2 * (offset + length)].decode("utf-16-le", "replace")
            found.append((entity.text("type"), covered, entity))
    return found


def _button(query: Payload, bot: Bot) -> Incoming | str:
    """A pressed button. One we do not know still has to be answered, or it spins for ever."""
    place = where(query.child("message"))
    user = query.child("from")
    if place is None or user.number("id") is None or not query.text("id"):
        return "a button without a chat"
    question, choice = pressed(query.text("data")) or ("", -1)
    stops = query.text("data") == STOP
    command, arguments = offered(query.text("data"))
    return Incoming(
        conversation=place.ref,
        author=Author(str(user.number("id")), _name_of(user), is_bot=user.flag("is_bot")),
        text="",
        addressed=False,
        kind=_kind(place),
        title=_title(query.child("message").child("chat")),
        private=not place.is_group,
        event="button",
        control="stop" if stops else "",
        command="stop" if stops else command or "button",
        arguments=arguments,
        answers=question,
        choice=choice,
        facts={
            "callback": query.text("id")[:100],
            "text": query.child("message").text("text")[:4096],
            "entities": query.child("message").array("entities"),
            "message": query.child("message").number("message_id"),
            "inaccessible": query.child("message").number("date") == 0,
        },
    )


def _reaction(change: Payload, bot: Bot) -> Incoming | str:
    """Somebody reacted to a message: kept as an event of its conversation, and no wish for an answer."""
    place = where(change)
    user = change.child("user")
    if place is None or user.number("id") is None or user.flag("is_bot"):
        return "a reaction of nobody we could know"
    if place.is_group and bot.group(place) is None:
        return "the group is not allowed"
    new, old = (_emoji(change.children(name)) for name in ("new_reaction", "old_reaction"))
    said = f"[reacted with {new}]" if new else f"[took back {old}]"
    return Incoming(
        conversation=place.ref,
        author=Author(str(user.number("id")), _name_of(user)),
        text=said,
        addressed=False,
        kind=_kind(place),
        title=_title(change.child("chat")),
        private=not place.is_group,
        event="reaction",
        reply_to=str(change.number("message_id") or ""),
    )


def _emoji(reactions: list[Payload]) -> str:
    return " ".join(one.text("emoji")[:10] or "an emoji of their own" for one in reactions[:10])


def _stopped(stop: Payload, bot: Bot) -> Incoming | str:
    """Telegram's own Stop button, under a draft. Drafts are for private chats, and those have their person's id."""
    chat, thread = stop.child("chat").number("id"), stop.number("message_thread_id")
    if chat is None or chat <= 0:
        return "a draft that is not in a private chat"
    place = Place(chat, thread)
    return Incoming(
        conversation=place.ref,
        author=Author(str(chat), _name_of(stop.child("chat"))),
        text="",
        addressed=False,
        kind=_kind(place),
        title=_title(stop.child("chat")),
        private=True,
        event="command",
        control="stop",
        command="stop",
    )


def _membership(change: Payload, bot: Bot) -> Incoming | str:
    """The bot was added, removed or blocked. Added to a group, it asks whoever added it whether to listen."""
    place = where(change)
    status = change.child("new_chat_member").text("status")
    if place is None or not place.is_group or status not in ("member", "administrator"):
        return f"the bot is now: {status[:50] or 'unknown'}"
    author = author_of(change, place)
    if author is None or author.is_bot or bot.group(place) is not None:
        return "the bot is in a group"
    if change.child("chat").text("type") == "channel":
        return "channels are not listened to"
    return _request_to_listen(change.child("chat"), place, author)


def _ignored(reason: str) -> Callable[[Payload, Bot], str]:
    return lambda payload, bot: reason


_READERS: dict[str, Callable[[Payload, Bot], Incoming | tuple[str, str] | str]] = {
    "message": _message,
    "edited_message": _message,
    "callback_query": _button,
    "my_chat_member": _membership,
    "stopped_message_generation": _stopped,
    "message_reaction": _reaction,
    "channel_post": _ignored("channels are not listened to"),
    "edited_channel_post": _ignored("channels are not listened to"),
}

WANTED = (
    "message", "edited_message", "callback_query", "my_chat_member", "stopped_message_generation", "message_reaction",
)  # fmt: skip
"""What to ask Telegram for."""
