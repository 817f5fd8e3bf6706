"""Decoration: reactions, typing, the progress message, answers to button presses."""

from __future__ import annotations

from typing import Any

from gofer.integration import Incoming, Progress
from gofer_telegram.buttons import stop_keyboard
from gofer_telegram.client import Client, Rejected
from gofer_telegram.place import place_of

SEEN = "👀"


async def notice(message: Incoming, client: Client) -> None:
    """React to a message."""
    if client.settings.reactions and message.external_id.isdigit():
        await client.call(
            "setMessageReaction",
            chat_id=place_of(message.conversation).chat,
            message_id=int(message.external_id),
            reaction=[{"type": "emoji", "emoji": SEEN}],
        )


async def show_progress(conversation: str, progress: Progress, shown: str, client: Client) -> str:
    """Type; once it takes long, keep one silent message with a Stop button up to date."""
    place = place_of(conversation)
    await client.call("sendChatAction", **place.acting, action="typing")
    if not shown and progress.seconds < client.settings.progress_after:
        return shown
    if client.settings.drafts and not place.is_group:
        # It goes away by itself after half a minute, and has a Stop button of Telegram's own.
        draft = _draft_id(progress)
        await client.call(
            "sendMessageDraft", **place.sending, draft_id=draft, text=_line(progress), can_stop=True
        )
        return shown
    text, keyboard = _line(progress), stop_keyboard()
    if not shown:
        sent = await client.call(
            "sendMessage", **place.sending, text=text, reply_markup=keyboard, disable_notification=True
        )
        return f"{place.chat}:{sent['message_id']}"
    await _unless_gone("editMessageText", shown, client, text=text, reply_markup=keyboard)
    return shown


def _draft_id(progress: Progress) -> int:
    """The same for all of one run's drafts, so that each takes the place of the one before."""
    return int(progress.message) if progress.message.isdigit() else 1


def _line(progress: Progress) -> str:
    minutes, seconds = divmod(int(progress.seconds), 60)
    spent = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
    doing = f": {progress.doing}" if progress.doing else ""
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
    if message.answers and isinstance(pressed, int):
        await end_question(f"{place_of(message.conversation).chat}:{pressed}", client)
