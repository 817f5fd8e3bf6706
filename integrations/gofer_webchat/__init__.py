"""Web chat: a page posts a member's message, signed; replies wait in the ledger, where the page reads them.

Gofer's own page shares the store, so placing a reply needs no request: every sent reply of the ledger is on the page,
once, by its key. A page of your own has a URL, to which each reply is PUT by its key.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gofer.errors import Malformed, Permanent, Temporary
from gofer.integration import (
    COMMANDS,
    Admission,
    Attachment,
    Author,
    ConnectionContext,
    Health,
    Incoming,
    Integration,
    Outgoing,
    Parsed,
    Request,
    SecretField,
    TrustLevel,
    Unread,
)
from gofer.tool import Arguments, Tier, Tool, ToolContext, ToolResult

SIGNATURE = "x-webchat-signature"


class Settings(BaseModel):
    """Where replies go beside Gofer's own page."""

    model_config = ConfigDict(extra="forbid")
    reply_url: str = Field(default="", max_length=500)
    """The address of a page of your own; empty for Gofer's."""

    @field_validator("reply_url")
    @classmethod
    def _an_address(cls, value: str) -> str:
        if value and not value.startswith(("http://", "https://")):
            raise ValueError("must begin with https:// or http://")
        return value.rstrip("/")


class WebChat(Integration):
    """Members who are signed in, and an agent."""

    name = "webchat"
    tool_names = frozenset({"send_file"})
    has_buttons = True
    summary = "The chat on Gofer's own page, for members who are signed in."
    secrets = (
        SecretField(
            "signing_key",
            "Signs what the page posts (HMAC-SHA256 over time and body): it vouches for members.",
            generated=True,
        ),
        SecretField("next_signing_key", "Signs as well, while it replaces signing_key.", optional=True),
    )
    settings = Settings
    secret_headers = frozenset({SIGNATURE})

    def verify(self, request: Request, account: ConnectionContext) -> str | None:
        return request.check_signature(SIGNATURE, *account.secrets_of("signing_key", "next_signing_key"))

    def parse(self, request: Request, account: ConnectionContext) -> Parsed:
        return read(request.json())

    async def admit(self, unread: Unread, account: ConnectionContext) -> Admission:
        role = str(unread.message.facts.get("role", ""))
        return Admission(trust=TRUST.get(role, "stranger"), note=f"signed in as {role}")

    async def find(self, outgoing: Outgoing, account: ConnectionContext) -> str | None:
        if not account.settings.get("reply_url"):
            return None
        found = await self._call(account, "GET", outgoing.id)
        return outgoing.id if found else None

    async def place(self, outgoing: Outgoing, account: ConnectionContext) -> str:
        if account.settings.get("reply_url"):
            reply = {
                "conversation": outgoing.conversation,
                "text": outgoing.text,
                "kind": outgoing.kind,
                "reply_to": outgoing.reply_to,
                "question": outgoing.question,
                "choices": list(outgoing.choices),
            }
            await self._call(account, "PUT", outgoing.id, json=reply)
        return outgoing.id

    async def health(self, account: ConnectionContext) -> Health:
        where = account.settings.get("reply_url")
        return Health(True, f"Replies go to {where}." if where else "On the page /chat.")

    def tools(self, account: ConnectionContext, message: Incoming) -> Sequence[Tool[Any]]:
        return (SEND_FILE,)

    async def _call(self, account: ConnectionContext, method: str, key: str, **request: Any) -> bool:
        """Whether the page has it. Putting the same again changes nothing, so a lost answer may be repeated."""
        assert account.http is not None
        url = f"{account.settings['reply_url']}/{quote(key, safe='')}"
        response = await account.http.request(method, url, **request)
        if response.status_code == 429 or response.status_code >= 500:
            raise Temporary(f"The page answered {response.status_code}.")
        if response.status_code == 404 and method == "GET":
            return False
        if response.is_error:
            raise Permanent(f"The page answered {response.status_code}.")
        return True


integration = WebChat()


MAX_FILE_SIZE = 20 * 1024 * 1024
DESCRIPTION = (
    "Show a file from the workspace in this chat, at most 20 MB: a picture is shown, anything else can be downloaded. "
    "Use it when a person asked for a file, or when a result is better looked at as one."
)


class SendFile(Arguments):
    """What to send."""

    path: str = Field(description="The file, by its path in the workspace.")


async def _run(given: SendFile, context: ToolContext) -> ToolResult:
    if context.shell is None or context.blobs is None:
        return ToolResult("There is no workspace to send a file from.", is_error=True)
    content = await context.shell.read(given.path, limit=MAX_FILE_SIZE + 1)
    if len(content) > MAX_FILE_SIZE:
        return ToolResult(f"{given.path} is larger than 20 MB, which the chat does not take.", is_error=True)
    name = PurePosixPath(given.path).name[:200]
    media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
    digest = await context.blobs.put(content, media_type)
    file = {"hash": digest, "name": name, "media_type": media_type, "size": len(content)}
    return ToolResult(f"Sent {name} ({len(content)} bytes).", details={"file": file}, progress=True)


SEND_FILE = Tool("send_file", DESCRIPTION, SendFile, _run, Tier.WRITE, timeout=120)


MAX_TEXT = 100_000
MAX_FILES = 10

TRUST: dict[str, TrustLevel] = {"owner": "owner", "operator": "member"}
"""How far a member's role is trusted; one who may only look is a stranger to agents."""

_COMMAND = re.compile(r"/([A-Za-z]{1,20})(?:\s+(.*))?", re.S)
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
    text: str = Field(default="", max_length=MAX_TEXT)
    agent: str = Field(default="", max_length=100)
    files: list[FileSent] = Field(default_factory=list, max_length=MAX_FILES)
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
    if found is None or found[1].lower() not in _NAMES:
        return "", ""
    return found[1].lower(), (found[2] or "").strip()
