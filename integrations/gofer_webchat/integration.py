"""The integration: a page posts what a member said, signed; replies wait in the ledger, where the page reads them.

Gofer's own page shares the store, so placing a reply needs no request: what the ledger calls sent is on the page,
once, by its key. A page of your own has an address, at which each reply is put by its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, field_validator

from gofer.errors import Permanent, Temporary
from gofer.integration import (
    Account,
    Admission,
    Health,
    Incoming,
    Integration,
    Outgoing,
    Parsed,
    Request,
    SecretField,
    Unread,
)
from gofer.tool import Tool
from gofer_webchat.reading import TRUST, read
from gofer_webchat.sending_file import SEND_FILE

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

    def verify(self, request: Request, account: Account) -> str | None:
        return request.check_signature(SIGNATURE, *account.secrets_of("signing_key", "next_signing_key"))

    def parse(self, request: Request, account: Account) -> Parsed:
        return read(request.json())

    async def admit(self, unread: Unread, account: Account) -> Admission:
        role = str(unread.message.facts.get("role", ""))
        return Admission(trust=TRUST.get(role, "stranger"), note=f"signed in as {role}")

    async def find(self, outgoing: Outgoing, account: Account) -> str | None:
        if not account.settings.get("reply_url"):
            return None
        found = await self._call(account, "GET", outgoing.id)
        return outgoing.id if found else None

    async def place(self, outgoing: Outgoing, account: Account) -> str:
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

    async def health(self, account: Account) -> Health:
        where = account.settings.get("reply_url")
        return Health(True, f"Replies go to {where}." if where else "On the page /chat.")

    def tools(self, account: Account, message: Incoming) -> Sequence[Tool[Any]]:
        return (SEND_FILE,)

    async def _call(self, account: Account, method: str, key: str, **request: Any) -> bool:
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
