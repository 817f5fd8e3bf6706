"""Sending: place an opening, then edit it until it is whole. Each step may be repeated without harm."""

from __future__ import annotations

import asyncio
from typing import Any

from gofer.errors import Gone
from gofer.integration import Outgoing
from gofer_telegram.buttons import choices_keyboard, offers_keyboard
from gofer_telegram.client import Client, Rejected
from gofer_telegram.place import Place, place_of
from gofer_telegram.text import MAX_ENTITIES, Rendered, caption, opening, render

FILE_NAME = "answer.md"
_FORMAT = ("entit", "can't parse")
_VANISHED = ("message to edit not found", "message_id_invalid", "message can't be edited")
_NO_PREVIEW = {"is_disabled": True}


async def place(outgoing: Outgoing, client: Client) -> str:
    """Send the opening lines; only the first part of an answer makes a sound."""
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
    return _external_id(sent, where)


def _instead_of(where: Place, error: Rejected) -> Place | None:
    """Where to send what cannot be sent there: a group that moved, or the chat whose topic was deleted."""
    if error.moved_to is not None:
        return Place(error.moved_to)
    return Place(where.chat) if where.thread is not None and error.reason == "topic_deleted" else None


async def _rendered(outgoing: Outgoing) -> Rendered:
    """Beside everything else: a long text takes its time."""
    return await asyncio.to_thread(render, outgoing.text)


def _answering(outgoing: Outgoing, where: Place) -> dict[str, Any] | None:
    """In a group it must be clear whom an answer answers; in private that would only be noise."""
    if not where.is_group or outgoing.part > 1 or not outgoing.reply_to.isdigit():
        return None
    return {"message_id": int(outgoing.reply_to), "allow_sending_without_reply": True}


def _external_id(sent: Any, where: Place) -> str:
    """Chat and message: a group may have another id by the time the message is edited."""
    return f"{sent.get('chat', {}).get('id', where.chat)}:{sent['message_id']}"


async def complete(outgoing: Outgoing, external_id: str, client: Client) -> None:
    """Edit the placed message to its whole text; raises Gone when it is not there any more."""
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
    """Turn the placed message into one with a file: what is replaced cannot be there twice."""
    media = {"type": "document", "media": "attach://answer", "caption": words}
    await client.call(
        "editMessageMedia",
        **target,
        media=media,
        files={"answer": (FILE_NAME, outgoing.text.encode("utf-8", "replace"))},
        within=60,
    )
