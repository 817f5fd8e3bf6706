"""Deliver replies: place an opening, then edit it to the full text. Each step can be repeated safely."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from gofer.errors import Gone, Temporary
from gofer.integration import Incoming, Outgoing, Progress
from gofer_telegram.client import (
    Client,
    Place,
    Rejected,
    Settings,
    choices_keyboard,
    offers_keyboard,
    place_of,
    stop_keyboard,
)
from gofer_telegram.markdown import clean, units
from gofer_telegram.text import LIMIT, MAX_ENTITIES, Rendered, caption, opening, render, split

FILE_NAME = "answer.md"
_FORMAT = ("entit", "can't parse")
_VANISHED = ("message to edit not found", "message_id_invalid", "message can't be edited")
_NO_PREVIEW = {"is_disabled": True}


async def place(outgoing: Outgoing, client: Client) -> str:
    """Send the opening lines. Only the first part of an answer notifies."""
    where = place_of(outgoing.conversation)
    parameters: dict[str, Any] = {
        "text": opening((await _rendered(outgoing)).text),
        "disable_notification": outgoing.part > 1 or None,
        "reply_parameters": _answering(outgoing, where),
        "link_preview_options": _NO_PREVIEW,
    }
    try:
        sent = await client.call("sendMessage", **where.sending, **parameters)
    except Rejected as error:
        elsewhere = _instead_of(where, error)
        if elsewhere is None:
            raise
        sent = await client.call("sendMessage", **elsewhere.sending, **parameters)
    # The group may have got another id meanwhile.
    return f"{sent.get('chat', {}).get('id', where.chat)}:{sent['message_id']}"


def _instead_of(where: Place, error: Rejected) -> Place | None:
    """Where to send when the place is gone: the group's new id, or the chat of a deleted topic."""
    if error.moved_to is not None:
        return Place(error.moved_to)
    return Place(where.chat) if where.thread is not None and error.reason == "topic_deleted" else None


async def _rendered(outgoing: Outgoing) -> Rendered:
    """Render in a thread: a long text takes time."""
    return await asyncio.to_thread(render, outgoing.text)


def _answering(outgoing: Outgoing, where: Place) -> dict[str, Any] | None:
    """Reply to the message in a group; in private that would only be noise."""
    if not where.is_group or outgoing.part > 1 or not outgoing.reply_to.isdigit():
        return None
    return {"message_id": int(outgoing.reply_to), "allow_sending_without_reply": True}


async def complete(outgoing: Outgoing, external_id: str, client: Client) -> None:
    """Edit the placed message to its full text; raises Gone when it was deleted."""
    try:
        await _complete(outgoing, external_id, client)
    except Rejected as error:
        if error.moved_to is not None or error.says(*_VANISHED):
            raise Gone(str(error), reason="message_deleted") from error
        raise


async def _complete(outgoing: Outgoing, external_id: str, client: Client) -> None:
    chat, _, message = external_id.rpartition(":")
    target = {"chat_id": int(chat), "message_id": int(message)}
    rendered = await _rendered(outgoing)
    if not rendered.fits:
        await _attach(outgoing, caption(rendered.text), target, client)
        return
    keyboard = choices_keyboard(outgoing.question, outgoing.choices)
    if outgoing.part == outgoing.parts and keyboard is None:
        keyboard = offers_keyboard(outgoing.facts.get("offers"))
    try:
        await _edit(target, rendered, keyboard, client)
    except Rejected as error:
        if not error.says(*_FORMAT):
            raise
        await _edit(target, Rendered(rendered.text, []), keyboard, client)


async def _edit(
    target: dict[str, Any], rendered: Rendered, keyboard: dict[str, Any] | None, client: Client
) -> None:
    try:
        await client.call(
            "editMessageText",
            **target,
            text=rendered.text,
            entities=rendered.entities[:MAX_ENTITIES] or None,
            reply_markup=keyboard,
            link_preview_options=_NO_PREVIEW,
        )
    except Rejected as error:
        if not error.says("message is not modified"):
            raise


async def _attach(outgoing: Outgoing, words: str, target: dict[str, Any], client: Client) -> None:
    """Replace the placed message by one with a file, so that it cannot appear twice."""
    media = {"type": "document", "media": "attach://answer", "caption": words}
    await client.call(
        "editMessageMedia",
        **target,
        media=media,
        files={"answer": (FILE_NAME, outgoing.text.encode("utf-8", "replace"))},
        within=60,
    )


SEEN, DONE, FAILED = "👀", "👍", "👎"
"""Bots may use few reactions; ✅ and ❌ are not among them."""
CHOSEN = "→"
BETWEEN_DRAFTS, BETWEEN_EDITS = 1.5, 4.0
MAX_SHOWN = 6000
"""The last characters of the model's Markdown that are rendered to show its words."""


async def acknowledge(message: Incoming, client: Client) -> None:
    """React to a message that reached an agent."""
    await _react(message, SEEN, client)


async def finish(message: Incoming, well: bool, client: Client) -> None:
    """Change the reaction when the run has ended."""
    await _react(message, DONE if well else FAILED, client)


async def _react(message: Incoming, emoji: str, client: Client) -> None:
    if client.settings.reactions and message.external_id.isdigit():
        await client.call(
            "setMessageReaction",
            chat_id=place_of(message.conversation).chat,
            message_id=int(message.external_id),
            reaction=[{"type": "emoji", "emoji": emoji}],
        )


def words_every(place: Place, settings: Settings) -> float:
    """Seconds between two updates of the shown words. Telegram counts edits: a group may have twenty a minute."""
    if not settings.stream:
        return 0
    return BETWEEN_EDITS if place.is_group else BETWEEN_DRAFTS


async def show_progress(conversation: str, progress: Progress, shown: str, client: Client) -> str:
    """Show typing, then the words of the answer as they come. Once it takes long, keep one silent message with a Stop
    button up to date. In private a draft shows the words: it disappears by itself."""
    place = place_of(conversation)
    if progress.goal:
        return await _show_goal(place, progress, shown, client)
    with contextlib.suppress(Rejected, Temporary):
        await client.call("sendChatAction", **place.acting, action="typing")
    late = bool(shown) or progress.seconds >= client.settings.progress_after
    words = progress.words.strip() if client.settings.stream else ""
    drafting = not place.is_group and not shown and (bool(words) or (client.settings.drafts and late))
    if drafting and await _draft(place, progress, words, client):
        return shown
    if not late:
        return shown
    content = {**await _content(progress, words), "reply_markup": stop_keyboard()}
    if not shown:
        sent = await client.call("sendMessage", **place.sending, **content, disable_notification=True)
        return f"{place.chat}:{sent['message_id']}"
    await _unless_gone("editMessageText", shown, client, **content)
    return shown


async def _show_goal(place: Place, progress: Progress, shown: str, client: Client) -> str:
    """Keep one message with a goal's plan up to date, with buttons to steer it. The first one notifies nobody."""
    buttons = offers_keyboard(list(progress.offers), words=1)
    content: dict[str, Any] = {"text": _goal_text(progress), "reply_markup": buttons}
    if not shown:
        sent = await client.call("sendMessage", **place.sending, **content, disable_notification=True)
        return f"{place.chat}:{sent['message_id']}"
    await _unless_gone("editMessageText", shown, client, **content)
    return shown


GOAL_MARKS = {"done": "✅", "doing": "▶️", "open": "▫️", "dropped": "✖️"}


def _goal_text(progress: Progress) -> str:
    state = "working" if progress.plan else "planning"
    if progress.waits_for:
        state = f"waiting for {progress.waits_for}"
    lines = [f"{GOAL_MARKS[item.state]} {item.text[:120]}" for item in progress.plan]
    more = [progress.url] if progress.url else []
    return "\n".join([f"🎯 {progress.goal}", f"({state})", *lines, *more])[:LIMIT]


async def _draft(place: Place, progress: Progress, words: str, client: Client) -> bool:
    """Show a draft, which has Telegram's own Stop button. Return False when the server, bot or chat does not support
    drafts."""
    given = {"draft_id": _draft_id(progress), **await _content(progress, words)}
    try:
        await client.call("sendMessageDraft", **place.sending, **given, can_stop=True)
    except Rejected:
        return False
    return True


async def _content(progress: Progress, words: str) -> dict[str, Any]:
    """The last words of the answer, or the progress, as text and entities."""
    if not words:
        return {"text": _line(progress)}
    last = await asyncio.to_thread(lambda: render(split(words[-MAX_SHOWN:])[-1]))
    # It ends like an opening: what a crash may leave behind for a while must not look like the answer.
    return {"text": f"{last.text} …", "entities": last.entities[:MAX_ENTITIES] or None}


def _draft_id(progress: Progress) -> int:
    """The id of a run's draft: the same for the whole run, so that each draft replaces the one before."""
    return int(progress.message) if progress.message.isdigit() else 1


def _line(progress: Progress) -> str:
    minutes, seconds = divmod(int(progress.seconds), 60)
    spent = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
    what = progress.doing or (progress.waits_for and f"waiting for {progress.waits_for}")
    doing = f": {what}" if what else ""
    step = f", step {progress.steps}" if progress.steps else ""
    return f"Working ({spent}{step}){doing} …"


async def clear_progress(shown: str, client: Client) -> None:
    """Delete the progress message, if it still exists."""
    await _unless_gone("deleteMessage", shown, client)


async def _unless_gone(method: str, shown: str, client: Client, **parameters: Any) -> None:
    chat, _, message = shown.rpartition(":")
    try:
        await client.call(method, chat_id=int(chat), message_id=int(message), **parameters)
    except Rejected as error:
        if not error.says("not found", "not modified", "can't be deleted", "can't be edited"):
            raise


async def end_question(shown: str, client: Client) -> None:
    """Remove the buttons of a question that no longer needs an answer."""
    await _unless_gone("editMessageReplyMarkup", shown, client)


async def answer_callback(message: Incoming, outcome: str, client: Client) -> None:
    """Stop the button's spinner, and remove the buttons once a press has counted."""
    if callback := message.facts.get("callback"):
        try:
            await client.call("answerCallbackQuery", callback_query_id=callback, text=outcome[:200])
        except Rejected as error:
            if not error.says("query is too old"):
                raise
    pressed = message.facts.get("message")
    if not (message.answers or message.text) or not isinstance(pressed, int):
        return
    question = f"{place_of(message.conversation).chat}:{pressed}"
    asked = str(message.facts.get("text") or "")
    if message.text and asked:
        await _unless_gone("editMessageText", question, client, **_with_answer(message, asked))
    else:
        await end_question(question, client)


def _with_answer(message: Incoming, asked: str) -> dict[str, Any]:
    """The question with its answer below."""
    answer = f"\n\n{CHOSEN} {clean(message.text)[:200]}"
    if units(asked + answer) > LIMIT:
        return {"text": asked}
    begin = units(asked) + 2 + units(CHOSEN) + 1
    chosen = {"type": "bold", "offset": begin, "length": units(answer) - (begin - units(asked))}
    given = message.facts.get("entities")
    return {"text": asked + answer, "entities": [*(given if isinstance(given, list) else []), chosen]}
