"""Updates as Telegram sends them, one of each shape we know of."""

from __future__ import annotations

import copy
from typing import Any

BOT = 7000000001
NAME = "gofer_rehearsal_bot"
GROUP, FORUM = -1001234567890, -1009876543210
ANN = {
    "id": 5000000001,
    "is_bot": False,
    "first_name": "Ann",
    "last_name": "Lee",
    "username": "annlee",
    "language_code": "en",
}
BEN = {"id": 5000000002, "is_bot": False, "first_name": "Ben"}
SELF = {"id": BOT, "is_bot": True, "first_name": "Gofer", "username": NAME}
PRIVATE = {"id": 5000000001, "type": "private", "first_name": "Ann", "last_name": "Lee", "username": "annlee"}
TEAM = {"id": GROUP, "type": "supergroup", "title": "Team"}
TOPICS = {"id": FORUM, "type": "supergroup", "title": "Forum", "is_forum": True}
FILE = {"file_id": "BQACAgIAAxkBAAIB", "file_unique_id": "AgADBQAC", "file_size": 1234}


def message(**fields: Any) -> dict[str, Any]:
    base: dict[str, Any] = {"message_id": 77, "from": ANN, "chat": PRIVATE, "date": 1794800000}
    made = {**base, **fields}
    return {"update_id": 900, "message": {name: value for name, value in made.items() if value is not None}}


def edited(**fields: Any) -> dict[str, Any]:
    return {"update_id": 900, "edited_message": {**message(**fields)["message"], "edit_date": 1794800100}}


def command(text: str, length: int, **fields: Any) -> dict[str, Any]:
    return message(text=text, entities=[{"type": "bot_command", "offset": 0, "length": length}], **fields)


def press(data: str, **fields: Any) -> dict[str, Any]:
    shown = {"message_id": 80, "from": SELF, "chat": PRIVATE, "date": 1794800000, "text": "Which?"}
    query = {"id": "4382", "from": ANN, "message": shown, "chat_instance": "-1", "data": data, **fields}
    return {"update_id": 900, "callback_query": query}


MENTION = f"@{NAME} look"
MENTIONED = [{"type": "mention", "offset": 0, "length": len(NAME) + 1}]
REPLIED = {"message_id": 70, "from": SELF, "chat": TEAM, "date": 1794799000, "text": "I said so"}
BY_BEN = {"message_id": 71, "from": BEN, "chat": TEAM, "date": 1794799000, "text": "Ben's words"}
FORWARD = {"type": "user", "sender_user": BEN, "date": 1794000000}
MEMBER = {"status": "member", "user": SELF}

UPDATES: dict[str, dict[str, Any]] = {
    "text": message(text="hello"),
    "emoji_before_mention": message(
        text=f"🎉 @{NAME}", entities=[{"type": "mention", "offset": 3, "length": len(NAME) + 1}], chat=TEAM
    ),
    "mention": message(text=MENTION, entities=MENTIONED, chat=TEAM),
    "text_mention": message(
        text="Gofer look", entities=[{"type": "text_mention", "offset": 0, "length": 5, "user": SELF}], chat=TEAM
    ),
    "reply_to_bot": message(text="why?", chat=TEAM, reply_to_message=REPLIED),
    "reply_to_own": message(text="and?", reply_to_message={**REPLIED, "from": ANN, "text": "$ ls"}),
    "reply_to_own_forward": message(
        text="and?", reply_to_message={**REPLIED, "from": ANN, "text": "$ ls", "forward_date": 1794000000}
    ),
    "reply_to_other": message(text=MENTION, entities=MENTIONED, chat=TEAM, reply_to_message=BY_BEN),
    "quote": message(text="this?", reply_to_message=BY_BEN, quote={"text": "words", "position": 6}),
    "unaddressed": message(text="lunch?", chat=TEAM),
    "command": command("/status", 7),
    "command_with_arguments": command("/start K7MQ2XAB", 6),
    "command_for_us": command(f"/stop@{NAME}", 6 + len(NAME), chat=TEAM),
    "command_for_another": command("/stop@other_bot", 15, chat=TEAM),
    "caption": message(
        photo=[{**FILE, "width": 90, "height": 60}, {**FILE, "width": 1280, "height": 960}], caption="look"
    ),
    "photo_only": message(photo=[{**FILE, "width": 2560, "height": 1920}]),
    "album": message(photo=[{**FILE, "width": 90, "height": 60}], media_group_id="1365"),
    "document": message(document={**FILE, "file_name": "../../etc/pass wd", "mime_type": "text/plain"}),
    "voice": message(voice={**FILE, "duration": 3, "mime_type": "audio/ogg"}),
    "audio": message(audio={**FILE, "duration": 3, "file_name": "song.mp3", "mime_type": "audio/mpeg"}),
    "video": message(video={**FILE, "duration": 3, "width": 1, "height": 1}),
    "video_note": message(video_note={**FILE, "duration": 3, "length": 240}),
    "animation": message(animation={**FILE, "duration": 1, "width": 1, "height": 1}, document=FILE),
    "sticker": message(
        sticker={
            **FILE, "type": "regular", "width": 1, "height": 1, "is_animated": False, "is_video": False, "emoji": "👍",
        }
    ),
    "location": message(location={"latitude": 52.52, "longitude": 13.405}),
    "venue": message(
        venue={"location": {"latitude": 1.0, "longitude": 2.0}, "title": "Café", "address": "Main St 1"},
        location={"latitude": 1.0, "longitude": 2.0},
    ),
    "contact": message(contact={"phone_number": "+49123", "first_name": "Ben"}),
    "poll": message(
        poll={
            "id": "5", "question": "Tea?", "options": [{"persistent_id": "1", "text": "Yes", "voter_count": 0}],
            "total_voter_count": 0, "is_closed": False, "is_anonymous": True, "type": "regular",
            "allows_multiple_answers": False, "allows_revoting": False, "members_only": False,
        }
    ),
    "dice": message(dice={"emoji": "🎲", "value": 4}),
    "forward": message(text="pay now", forward_origin=FORWARD),
    "old_forward_of_a_command": command("/new", 4, forward_date=1794000000),
    "via_bot": message(text="a gif", via_bot={"id": 9, "is_bot": True, "first_name": "Gif", "username": "gif_bot"}),
    "topic": message(text="hi", chat=TOPICS, message_thread_id=12, is_topic_message=True),
    "general_topic": message(text="hi", chat=TOPICS),
    "private_topic": message(text="hi", message_thread_id=5, is_topic_message=True),
    "reply_chain": message(text=MENTION, entities=MENTIONED, chat=TEAM, message_thread_id=70),
    "anonymous_admin": message(
        text=MENTION, entities=MENTIONED, chat=TEAM, sender_chat=TEAM,
        **{"from": {"id": 1087968824, "is_bot": True, "first_name": "Group", "username": "GroupAnonymousBot"}},
    ),
    "linked_channel": message(
        text="news", chat=TEAM, is_automatic_forward=True,
        sender_chat={"id": -1005, "type": "channel", "title": "News"},
        **{"from": {"id": 777000, "is_bot": False, "first_name": "Telegram"}},
    ),
    "no_from": message(text="hello", **{"from": None}),
    "from_bot": message(text="beep", chat=TEAM, **{"from": {"id": 6, "is_bot": True, "first_name": "Other"}}),
    "from_ourselves": message(text="beep", **{"from": SELF}),
    "edit": edited(text="hello!"),
    "edited_command": {
        "update_id": 900, "edited_message": {**command("/stop", 5)["message"], "edit_date": 1794800100},
    },
    "channel_post": {"update_id": 900, "channel_post": {
        "message_id": 3, "date": 1794800000, "chat": {"id": -1005, "type": "channel", "title": "News"}, "text": "x",
    }},
    "migrate_to": message(chat={"id": -55, "type": "group", "title": "Team"}, migrate_to_chat_id=GROUP),
    "migrate_from": message(chat=TEAM, migrate_from_chat_id=-55),
    "joined": message(chat=TEAM, new_chat_members=[BEN]),
    "pinned": message(chat=TEAM, pinned_message=REPLIED),
    "topic_created": message(
        chat=TOPICS, message_thread_id=12, is_topic_message=True,
        forum_topic_created={"name": "A", "icon_color": 7322096},
    ),
    "press_choice": press("q:q_abcdefghjkmnpqrs:1"),
    "press_stop": press("stop"),
    "press_unknown": press("???"),
    "press_inaccessible": press("stop", message={"chat": PRIVATE, "message_id": 80, "date": 0}),
    "press_inline": {"update_id": 900, "callback_query": {
        "id": "4382", "from": ANN, "inline_message_id": "x", "chat_instance": "-1", "data": "stop",
    }},
    "added_to_group": {"update_id": 900, "my_chat_member": {
        "chat": {"id": -777, "type": "supergroup", "title": "New"}, "from": ANN, "date": 1794800000,
        "old_chat_member": {"status": "left", "user": SELF}, "new_chat_member": MEMBER,
    }},
    "blocked": {"update_id": 900, "my_chat_member": {
        "chat": PRIVATE, "from": ANN, "date": 1794800000, "old_chat_member": MEMBER,
        "new_chat_member": {"status": "kicked", "user": SELF, "until_date": 0},
    }},
    "other_group": message(text=MENTION, entities=MENTIONED, chat={"id": -777, "type": "supergroup", "title": "New"}),
    "other_group_unaddressed": message(text="secret talk", chat={"id": -777, "type": "supergroup", "title": "New"}),
    "stopped_draft": {"update_id": 900, "stopped_message_generation": {"chat": PRIVATE, "draft_id": 81}},
    "unknown_kind": {"update_id": 900, "something_new": {"a": 1}},
    "poll_answer": {"update_id": 900, "poll_answer": {
        "poll_id": "5", "user": ANN, "option_ids": [0], "option_persistent_ids": ["1"],
    }},
}  # fmt: skip


def update(name: str) -> dict[str, Any]:
    """A fresh copy."""
    return copy.deepcopy(UPDATES[name])
