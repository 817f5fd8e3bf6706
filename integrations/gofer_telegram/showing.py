"""Decoration: reactions, typing, the progress message, answers to button presses."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from gofer.errors import Temporary
from gofer.integration import Incoming, Progress
from gofer_telegram.buttons import stop_keyboard
from gofer_telegram.client import Client, Rejected
from gofer_telegram.markdown import clean
from gofer_telegram.place import Place, place_of
from gofer_telegram.rendering import units
from gofer_telegram.settings import Settings
from gofer_telegram.text import LIMIT, MAX_ENTITIES, render, split

SEEN, DONE, FAILED = "👀", "👍", "👎"
"""Of the few that Telegram lets bots use: ✅ and ❌ are not among them."""
CHOSEN = "→"
BETWEEN_DRAFTS, BETWEEN_EDITS = 1.5, 4.0
MAX_SHOWN = 6000
"""Characters of Markdown, the last of what was said so far, that are looked at to be shown."""


async def notice(message: Incoming, client: Client) -> None:
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
    """Seconds between two showings of an answer's words. Telegram counts edits: a group may have twenty a minute."""
    if not settings.stream:
        return 0
    return BETWEEN_EDITS if place.is_group else BETWEEN_DRAFTS


async def show_progress(conversation: str, progress: Progress, shown: str, client: Client) -> str:
    """Type; show the words of the answer as they come; once it takes long, keep one silent message with a Stop button
    up to date. In private a draft does for the words: it goes away by itself."""
    place = place_of(conversation)
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


async def _draft(place: Place, progress: Progress, words: str, client: Client) -> bool:
    """Show a draft, with a Stop button of Telegram's own; False where there are none: not every server knows them, and
    not every bot or chat may have them."""
    given = {"draft_id": _draft_id(progress), **await _content(progress, words)}
    try:
        await client.call("sendMessageDraft", **place.sending, **given, can_stop=True)
    except Rejected:
        return False
    return True


async def _content(progress: Progress, words: str) -> dict[str, Any]:
    """Text and entities: the last words of the answer, or how the work is going."""
    if not words:
        return {"text": _line(progress)}
    last = await asyncio.to_thread(lambda: render(split(words[-MAX_SHOWN:])[-1]))
    # It ends like an opening: what a crash may leave behind for a while must not look like the answer.
    return {"text": f"{last.text} …", "entities": last.entities[:MAX_ENTITIES] or None}


def _draft_id(progress: Progress) -> int:
    """The same for all of one run's drafts, so that each takes the place of the one before."""
    return int(progress.message) if progress.message.isdigit() else 1


def _line(progress: Progress) -> str:
    minutes, seconds = divmod(int(progress.seconds), 60)
    spent = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
    what = progress.doing or (progress.waits_for and f"waiting for {progress.waits_for}")
    doing = f": {what}" if what else ""
    step = f", step {progress.steps}" if progress.steps else ""
    return f"Working ({spent}{step}){doing} …"


async def clear_progress(shown: str, client: Client) -> None:
    """Delete the progress message; one that is gone already is as good."""
    await _unless_gone("deleteMessage", shown, client)


async def _unless_gone(method: str, shown: str, client: Client, **parameters: Any) -> None:
    chat, _, message = shown.rpartition(":")
    try:
        await client.call(method, chat_id=int(chat), message_id=int(message), **parameters)
    except Rejected as error:
        if not error.says("not found", "not modified", "can't be deleted", "can't be edited"):
            raise


async def end_question(shown: str, client: Client) -> None:
    """Take the buttons away from a question that nobody is to answer any more."""
    await _unless_gone("editMessageReplyMarkup", shown, client)


async def settle(message: Incoming, outcome: str, client: Client) -> None:
    """Stop the button from spinning, and take the buttons away once one of them has counted."""
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
    """The question with its answer below it, as whoever comes by later wants to read it."""
    answer = f"\n\n{CHOSEN} {clean(message.text)[:200]}"
    if units(asked + answer) > LIMIT:
        return {"text": asked}
    begin = units(asked) + 2 + units(CHOSEN) + 1
    chosen = {"type": "bold", "offset": begin, "length": units(answer) - (begin - units(asked))}
    given = message.facts.get("entities")
    return {"text": asked + answer, "entities": [*(given if isinstance(given, list) else []), chosen]}
