"""Reading updates: one table, from captured shapes to what they mean."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gofer.errors import Malformed, Refused, Unset
from gofer.integration import ConnectionContext, Incoming, Parsed, Request
from gofer.vault.redaction import Secret
from gofer_telegram import integration
from gofer_telegram.admission import clean_name
from gofer_telegram.client import Settings
from telegram.captured import ANN, FORUM, GROUP, NAME, UPDATES, update

SECRETS = {"token": Secret("7000000001:AAH"), "webhook_secret": Secret("s3cret")}
SETTINGS = Settings(
    username=NAME,
    groups={str(GROUP): {}, str(FORUM): {"when": "always"}},  # type: ignore[dict-item]
).model_dump(mode="json")
ACCOUNT = ConnectionContext("telegram_x", "bot", SETTINGS, SECRETS)


def parse(body: Any) -> Parsed:
    return integration.parse(Request(json.dumps(body).encode()), ACCOUNT)


def said(name: str) -> Incoming:
    message = parse(update(name)).message
    assert message is not None
    return message


# name: (conversation, addressed, trigger, text, quoted)
SAID: dict[str, tuple[str, bool, str, str, str]] = {
    "text": ("5000000001", True, "private", "hello", ""),
    "emoji_before_mention": (str(GROUP), True, "mention", f"🎉 @{NAME}", ""),
    "mention": (str(GROUP), True, "mention", f"@{NAME} look", ""),
    "text_mention": (str(GROUP), True, "mention", "Gofer look", ""),
    "reply_to_bot": (str(GROUP), True, "reply", "why?", "I said so"),
    "reply_to_own": ("5000000001", True, "private", "and?", "$ ls"),
    "reply_to_own_forward": ("5000000001", True, "private", "and?", "$ ls"),
    "reply_to_other": (str(GROUP), True, "mention", f"@{NAME} look", "Ben's words"),
    "quote": ("5000000001", True, "private", "this?", "words"),
    "unaddressed": (str(GROUP), False, "any", "lunch?", ""),
    "command_for_another": (str(GROUP), False, "any", "/stop@other_bot", ""),
    "caption": ("5000000001", True, "private", "look", ""),
    "photo_only": ("5000000001", True, "private", "", ""),
    "sticker": ("5000000001", True, "private", "[sticker: 👍]", ""),
    "location": ("5000000001", True, "private", "[location: 52.520000, 13.405000]", ""),
    "contact": ("5000000001", True, "private", "[contact: Ben, +49123]", ""),
    "poll": ("5000000001", True, "private", "[poll: Tea? Options: Yes]", ""),
    "dice": ("5000000001", True, "private", "[dice 🎲: 4]", ""),
    "forward": ("5000000001", True, "private", "(forwarded)", "pay now"),
    "old_forward_of_a_command": ("5000000001", True, "private", "(forwarded)", "/new"),
    "via_bot": ("5000000001", True, "private", "(sent through the bot gif_bot)", "a gif"),
    "topic": (f"{FORUM}/12", True, "any", "hi", ""),
    "general_topic": (f"{FORUM}/1", True, "any", "hi", ""),
    "private_topic": ("5000000001/5", True, "private", "hi", ""),
    "reply_chain": (str(GROUP), True, "mention", f"@{NAME} look", ""),
    "anonymous_admin": (str(GROUP), True, "mention", f"@{NAME} look", ""),
}


@pytest.mark.parametrize("name", SAID)
def test_messages(name: str) -> None:
    message = said(name)
    found = (message.conversation, message.addressed, message.trigger, message.text, message.quoted)
    assert found == SAID[name]
    assert message.quote_is_ours == (name in ("reply_to_bot", "reply_to_own")), "costs no reach"
    assert (message.command, message.control) == ("", "")


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("linked_channel", "bot"),
        ("no_from", "author"),
        ("from_bot", "bot"),
        ("from_ourselves", "bot"),
        ("edited_command", "edited"),
        ("channel_post", "channel"),
        ("joined", "service"),
        ("pinned", "service"),
        ("topic_created", "service"),
        ("press_inline", "button"),
        ("blocked", "kicked"),
        ("other_group_unaddressed", "not allowed"),
        ("unknown_kind", "not handled"),
        ("poll_answer", "not handled"),
    ],
)
def test_what_is_ignored_says_why(name: str, note: str) -> None:
    parsed = parse(update(name))
    assert parsed.message is None
    assert note in parsed.note


@pytest.mark.parametrize(
    ("name", "command", "arguments", "control"),
    [
        ("command", "status", "", ""),
        ("command_with_arguments", "start", "K7MQ2XAB", ""),
        ("command_for_us", "stop", "", "stop"),
        ("press_stop", "stop", "", "stop"),
        ("press_inaccessible", "stop", "", "stop"),
        ("press_unknown", "button", "", ""),
        ("added_to_group", "allow", "-777", ""),
        ("other_group", "allow", "-777", ""),
    ],
)
def test_commands(name: str, command: str, arguments: str, control: str) -> None:
    message = said(name)
    assert (message.command, message.arguments, message.control) == (command, arguments, control)
    assert not message.addressed


def test_a_wish_to_be_heard_holds_no_words() -> None:
    assert said("other_group").text == ""


def test_a_press_carries_its_question() -> None:
    message = said("press_choice")
    assert (message.answers, message.choice, message.author.id) == ("q_abcdefghjkmnpqrs", 1, "5000000001")


def test_an_edit_names_what_it_replaces() -> None:
    message = said("edit")
    assert (message.replaces_id, message.external_id, message.text) == ("77", "77", "hello!")


@pytest.mark.parametrize(
    ("name", "moved"), [("migrate_to", ("-55", str(GROUP))), ("migrate_from", ("-55", str(GROUP)))]
)
def test_a_group_that_moves(name: str, moved: tuple[str, str]) -> None:
    assert parse(update(name)).moved == moved


def test_nobody_can_be_paired_with_a_chat() -> None:
    assert said("anonymous_admin").author.id == f"chat:{GROUP}"


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("caption", ["image/jpeg"]),
        ("album", ["image/jpeg"]),
        ("document", ["text/plain"]),
        ("voice", ["audio/ogg"]),
        ("audio", ["audio/mpeg"]),
        ("video", ["video/mp4"]),
        ("video_note", ["video/mp4"]),
    ],
)
def test_files(name: str, kinds: list[str]) -> None:
    assert [file.media_type for file in said(name).attachments] == kinds


def test_a_gif_is_one_file_although_it_comes_twice() -> None:
    assert len({file.ref for file in said("animation").attachments}) == len(said("animation").attachments)


@pytest.mark.parametrize(
    ("given_name", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("a\\b\\c.txt", "c.txt"),
        ("..", "file"),
        ("", "file"),
        (".bashrc", "bashrc"),
        ("x" * 300 + ".txt", "x" * 100 + ".txt"),
        ("r\u202etxt.exe", "rtxt.exe"),
        ("a\nb.txt", "ab.txt"),
    ],
)
def test_names_of_files_are_cleaned(given_name: str, kept: str) -> None:
    assert clean_name(given_name) == kept


# Whatever a field becomes, reading ends in a value or in Malformed, and only for want of a number.

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.just("x" * 100_000),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return (
        [path, *(place for key, item in inside for place in places(item, (*path, key)))]
        if path
        else [place for key, item in inside for place in places(item, (key,))]
    )


def changed(document: Any, path: tuple[Any, ...], value: Any, *, remove: bool) -> Any:
    *way, last = path
    holder = document
    for key in way:
        holder = holder[key]
    if remove:
        del holder[last]
    else:
        holder[last] = value
    return document


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_mutation_of_an_update_is_too_much(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(UPDATES)))
    document = update(name)
    for _ in range(data.draw(st.integers(1, 3))):
        found = places(document)
        if not found:
            break
        path = data.draw(st.sampled_from(found))
        document = changed(document, path, data.draw(JUNK), remove=data.draw(st.booleans()))
    try:
        parsed = parse(document)
    except Malformed:
        number = document.get("update_id")
        assert (
            not isinstance(number, int)
            or isinstance(number, bool)
            or abs(number) >= 2**62
            or has_surrogates(document)
        )
        return
    assert parsed.delivery_id
    if parsed.message is not None:
        assert parsed.message.conversation
        assert parsed.message.author.id


def has_surrogates(document: Any) -> bool:
    return "\\ud" in json.dumps(document) or "\\u0000" in json.dumps(document)


def test_every_single_removal_and_null_is_read() -> None:
    for name in UPDATES:
        for path in places(update(name)):
            for remove in (True, False):
                if path != ("update_id",):
                    assert parse(changed(update(name), path, None, remove=remove)).delivery_id == "900"


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("x-telegram-bot-api-secret-token", b"wrong"),),
        (("x-telegram-bot-api-secret-token", b"\xff\xfe"),),
        (("x-telegram-bot-api-secret-token", b"s3cret" * 2000),),
        (("x-telegram-bot-api-secret-token", b"s3cret"), ("x-telegram-bot-api-secret-token", b"s3cret")),
    ],
    ids=["none", "wrong", "not-ascii", "long", "doubled"],
)
def test_a_wrong_secret_is_refused(headers: tuple[tuple[str, bytes], ...]) -> None:
    with pytest.raises(Refused):
        integration.verify(Request(b"{}", headers), ACCOUNT)


def test_the_right_secret_is_not() -> None:
    integration.verify(Request(b"{}", (("x-telegram-bot-api-secret-token", b"s3cret"),)), ACCOUNT)


def test_without_a_secret_the_door_is_closed() -> None:
    blank = ConnectionContext(
        "telegram_x", "bot", SETTINGS, {"token": SECRETS["token"], "webhook_secret": Secret(" ")}
    )
    with pytest.raises(Unset):
        integration.verify(Request(b"{}", (("x-telegram-bot-api-secret-token", b" "),)), blank)


@pytest.mark.parametrize("groups", [{"@team": {}}, {"5": {}}, {"-1": {"when": "never"}}])
def test_groups_are_named_by_number(groups: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="group"):
        Settings.model_validate({"groups": groups})


@pytest.mark.parametrize(("status", "closed"), [("left", True), ("kicked", True), ("member", False)])
def test_a_group_that_the_bot_leaves_is_closed_until_it_is_back(status: str, closed: bool) -> None:
    known = {"id": GROUP, "type": "supergroup", "title": "Team"}
    change = {"chat": known, "from": ANN, "date": 1, "new_chat_member": {"status": status, "user": {}}}
    assert parse({"update_id": 1, "my_chat_member": change}).closed == (str(GROUP), closed)
