"""From the page to intake: what a member did becomes a signed delivery, like one from any other service."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import Connection, select

from gofer.app import Platform
from gofer.errors import Malformed
from gofer.intake.arrival import Taken
from gofer.integration import Request, sign_body
from gofer.store.tables import blobs
from gofer.validation import first_error
from gofer.web.auth import Visitor
from gofer.web.chat.rooms import Room, choosable, choose, switched_on

SIGNATURE = "x-webchat-signature"
MESSAGE_ID = r"^[A-Za-z0-9-]{8,64}$"
MAX_TEXT = 100_000
MAX_FILES = 10


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class FileSaid(_Strict):
    """A file put into the room before."""

    hash: str = Field(pattern=r"^[0-9a-f]{64}$")
    name: str = Field(default="", max_length=200)


class Pressed(_Strict):
    """A button of a question."""

    question: str = Field(min_length=1, max_length=100)
    choice: int = Field(ge=0, lt=100)


class ChatPost(_Strict):
    """One thing a member does. The id is the page's own: the same thing sent again happens once."""

    id: Annotated[str, Field(pattern=MESSAGE_ID)]
    text: str = Field(default="", max_length=MAX_TEXT)
    agent: str = Field(default="", max_length=100)
    files: list[FileSaid] = Field(default_factory=list, max_length=MAX_FILES)
    press: Pressed | None = None
    stop: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it."""
        return not (self.text.strip() or self.files or self.press or self.stop)


def parse_post(value: Any) -> ChatPost:
    """What the page sent, checked; raises Malformed."""
    return check_post(ChatPost, value)


def check_post(kind: type[ChatPost], value: Any) -> ChatPost:
    """What somebody sent, checked as one kind of post; raises Malformed."""
    try:
        given = kind.model_validate(value)
    except ValidationError as error:
        raise Malformed(f"{first_error(error)}.") from None
    if given.is_empty:
        raise Malformed("There is nothing in it.")
    return given


async def take(platform: Platform, visitor: Visitor, room: Room, given: ChatPost) -> Taken:
    """Take it in. Durable when this returns. Raises Malformed when its id was used in another room, where it stays."""
    taken = await take_or_find(platform, visitor, room, given)
    if taken.conversation_id not in (room.id, None):
        raise Malformed("id: it was used in another session. Give each message an id of its own.")
    return taken


async def take_or_find(platform: Platform, visitor: Visitor, room: Room, given: ChatPost) -> Taken:
    """Take it in, or find the repeat in whichever room it was said first. Durable when this returns."""
    connection = await switched_on(platform, room.connection_id)
    body = {
        # Ids are the page's: without the member's own before it, one could use up another's.
        "id": f"{visitor.member_id}:{given.id}",
        "conversation": room.ref,
        "member": {"id": visitor.member_id, "name": visitor.name[:200], "role": visitor.role},
        "text": given.text,
        "agent": await _agent(platform, room, given.agent),
        "files": await _files_of(platform, room, given.files),
        "press": given.press.model_dump() if given.press is not None else None,
        "stop": given.stop,
    }
    raw = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    signature = sign_body(raw, connection.account.secret("signing_key"), time.time()).encode()
    request = Request(raw, (("content-type", b"application/json"), (SIGNATURE, signature)))
    return await platform.intake.receive(connection.account.id, request)


async def _agent(platform: Platform, room: Room, wanted: str) -> str:
    """The agent chosen with a message, kept for the room. Without one, the room's choice and the routes decide."""
    if room.agent or not wanted:
        return ""
    if wanted not in await choosable(platform):
        raise Malformed(f"There is no agent called {wanted[:40]!r} to choose.")
    await platform.agents_changed()  # its file may be a moment old
    await platform.database.write(choose, conversation_id=room.id, name=wanted)
    return wanted


async def _files_of(platform: Platform, room: Room, files: list[FileSaid]) -> list[dict[str, Any]]:
    if not files:
        return []
    return await platform.database.read(_files, room=room, files=files)


def _files(connection: Connection, room: Room, files: list[FileSaid]) -> list[dict[str, Any]]:
    """What is known of the files; raises Malformed for one that was never put here."""
    found = []
    for file in files:
        query = select(blobs.c.media_type, blobs.c.size).where(
            blobs.c.conversation_id == room.id, blobs.c.hash == file.hash
        )
        row = connection.execute(query).first()
        if row is None:
            raise Malformed(f"{file.name[:80] or 'A file'} did not arrive. Attach it again.")
        found.append({**file.model_dump(), "media_type": row.media_type, "size": row.size})
    return found
