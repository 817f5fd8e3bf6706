"""Joins messages that a service sends in several pieces, such as an album, while nobody has read them.

A piece that comes later than that has a place of its own, but belongs to what was answered, or is being answered: a
run that is still at work reads it at its next turn, and it wakes no other.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from sqlalchemy import Connection, bindparam, select

from gofer.integration import Attachment, Incoming
from gofer.store.messages import open_message
from gofer.store.tables import messages
from gofer.vault.envelope import DataKey
from gofer.vault.errors import Tampered

WHOLE_AFTER = 0.7
"""Seconds to wait for further pieces before an agent is woken."""
_NEAR = 20
"""How many messages back a piece may lie."""
LATE = "(This belongs to the message before.)"
LATE_EDIT = "(An edit of #{seq}, which was read as it stood: for your information, not a new request.)"
_PIECES = "pieces"


def join_album(
    connection: Connection, key: DataKey, conversation_id: str, piece: Incoming
) -> tuple[int | None, Incoming]:
    """The unread message that a piece belongs to, with the piece joined to it; else the piece by itself."""
    here = {"conversation": conversation_id}
    stored = []
    for row in connection.execute(_STORED, here).all():
        with contextlib.suppress(Tampered):  # one that is damaged keeps no other from coming in
            stored.append((row, open_message(key, conversation_id, row.seq, row.sealed)))
    others = [(row, message) for row, message in stored if _belongs(piece, message)]
    read = [(row, message) for row, message in others if row.admitted_at is not None]
    if any(message.addressed for _, message in read):
        # It wanted an answer with the others, and does not want a second one.
        piece = dataclasses.replace(piece, addressed=False)
    for row, message in others:
        if row.admitted_at is None:
            return int(row.seq), join(message, piece)
    if read and piece.replaces_id:
        return None, late_edit(piece, read[-1][0].seq)
    if read:
        piece = dataclasses.replace(piece, text=f"{LATE}\n{piece.text}".strip())
    return None, piece


def late_edit(message: Incoming, seq: int) -> Incoming:
    """An edit of a message that was read already. It wakes nobody, and says that it is an edit to whoever reads it
    later."""
    text = f"{LATE_EDIT.format(seq=seq)}\n{message.text}".strip()
    return dataclasses.replace(message, text=text, addressed=False)


def _belongs(piece: Incoming, stored: Incoming) -> bool:
    return stored.group_id == piece.group_id and stored.author.id == piece.author.id


_STORED = (
    select(messages.c.seq, messages.c.sealed, messages.c.admitted_at)
    .where(messages.c.conversation_id == bindparam("conversation"), messages.c.sealed.is_not(None))
    .where(messages.c.event == "message")
    .order_by(messages.c.seq.desc())
    .limit(_NEAR)
)


def join(whole: Incoming, piece: Incoming) -> Incoming:
    """A message with one more piece, or with a new version of one it has."""
    pieces: dict[str, Any] = dict(whole.facts.get(_PIECES) or {whole.external_id: _as_piece(whole)})
    pieces[piece.external_id] = _as_piece(piece)
    texts = [one["text"] for one in pieces.values() if one["text"]]
    files = [Attachment(**file) for one in pieces.values() for file in one["attachments"]]
    return dataclasses.replace(
        whole,
        text="\n".join(texts),
        attachments=tuple(files),
        addressed=whole.addressed or piece.addressed,
        trigger=whole.trigger if whole.addressed else piece.trigger,
        facts={**whole.facts, _PIECES: pieces},
    )


def _as_piece(message: Incoming) -> dict[str, Any]:
    return {"text": message.text, "attachments": [dataclasses.asdict(file) for file in message.attachments]}
