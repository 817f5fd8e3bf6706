"""What a page posts, and what it means."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gofer.errors import Malformed
from gofer.integration import COMMANDS, Attachment, Author, Incoming, Parsed, TrustLevel

LONGEST_TEXT = 100_000
MOST_FILES = 10

TRUST: dict[str, TrustLevel] = {"owner": "owner", "operator": "member"}
"""How far a member's role is trusted; one who may only look is a stranger to agents."""

_COMMAND = re.compile(r"/([a-z]{1,20})(?:\s+(.*))?", re.S)
_NAMES = {command.name for command in COMMANDS if not command.private}
_CONTROLS: dict[str, Literal["", "stop", "new"]] = {"stop": "stop", "new": "new"}

Id = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Member(_Strict):
    """Who wrote it, as the page that vouches for them knows."""

    id: Id
    name: str = Field(default="", max_length=200)
    role: Literal["owner", "operator", "viewer"]


class FileSent(_Strict):
    """A file that the page has put into the conversation already."""

    hash: str = Field(pattern=r"^[0-9a-f]{64}$")
    name: str = Field(default="", max_length=200)
    media_type: str = Field(default="application/octet-stream", max_length=100)
    size: int = Field(default=0, ge=0)


class Press(_Strict):
    """A pressed button."""

    question: Id
    choice: int = Field(ge=0, lt=100)


class Posted(_Strict):
    """One thing a member did."""

    id: Id
    """Made by the page: the same thing sent again has the same id, and happens once."""
    conversation: Id
    member: Member
    text: str = Field(default="", max_length=LONGEST_TEXT)
    agent: str = Field(default="", max_length=100)
    files: list[FileSent] = Field(default_factory=list, max_length=MOST_FILES)
    press: Press | None = None
    stop: bool = False


def read(value: Any) -> Parsed:
    """The meaning of a verified body; raises Malformed."""
    try:
        posted = Posted.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise Malformed(f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}.") from None
    if posted.stop or posted.press is not None:
        return Parsed(posted.id, "button", _button(posted))
    if not posted.text.strip() and not posted.files:
        return Parsed(posted.id, "message", note="there is nothing in it")
    message = _said(posted)
    return Parsed(posted.id, message.event, message)


def _said(posted: Posted) -> Incoming:
    name, arguments = _command(posted.text)
    return Incoming(
        **_place(posted),
        text=posted.text,
        addressed=True,
        event="command" if name else "message",
        trigger="command" if name else "any",
        control=_CONTROLS.get(name, ""),
        command=name,
        arguments=arguments,
        attachments=tuple(
            Attachment(f"blob:{file.hash}", file.name, file.media_type, file.size) for file in posted.files
        ),
    )


def _button(posted: Posted) -> Incoming:
    press = posted.press
    return Incoming(
        **_place(posted),
        text="",
        addressed=False,
        event="button",
        control="stop" if posted.stop else "",
        command="stop" if posted.stop else "button",
        answers=press.question if press is not None else "",
        choice=press.choice if press is not None else -1,
    )


def _place(posted: Posted) -> dict[str, Any]:
    member = posted.member
    return {
        "conversation": posted.conversation,
        "author": Author(member.id, member.name),
        "kind": "web",
        "private": True,
        "external_id": posted.id,
        "agent": posted.agent,
        "facts": {"role": member.role},
    }


def _command(text: str) -> tuple[str, str]:
    """A command the platform answers, with its arguments; anything else after a slash is said to the agent."""
    found = _COMMAND.fullmatch(text.strip())
    if found is None or found[1] not in _NAMES:
        return "", ""
    return found[1], (found[2] or "").strip()
