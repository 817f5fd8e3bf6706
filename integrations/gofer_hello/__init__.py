"""The example to copy: a service that posts signed JSON and takes replies by HTTP.

docs/integrations/hello.md walks through this file line by line.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

from pydantic import BaseModel, ConfigDict, HttpUrl

from gofer.errors import Malformed, Permanent, Refused, Temporary
from gofer.integration import (
    Account,
    Admission,
    Author,
    Incoming,
    Integration,
    Outgoing,
    Parsed,
    Request,
    SecretField,
    Unread,
)

SIGNATURE = "x-hello-signature"


class Settings(BaseModel):
    """Where replies go."""

    model_config = ConfigDict(extra="forbid")
    reply_url: HttpUrl


class Hello(Integration):
    """Signed JSON in, JSON out."""

    name = "hello"
    summary = "The example: signed JSON in, JSON out."
    secrets = (SecretField("signing_key", "Signs each request (HMAC-SHA256, hex).", generated=True),)
    settings = Settings
    secret_headers = frozenset({SIGNATURE})

    def verify(self, request: Request, account: Account) -> None:
        key = account.secret("signing_key").encode()
        expected = hmac.new(key, request.body, hashlib.sha256).hexdigest().encode()
        if not hmac.compare_digest(request.header(SIGNATURE) or b"", expected):
            raise Refused("The signature does not match the body.")

    def parse(self, request: Request, account: Account) -> Parsed:
        match request.json():
            case {"id": str(id_), "room": str(room), "from": str(sender), "text": str(text), **rest}:
                author = Author(id=sender, is_bot=bool(rest.get("bot")))
                addressed = not author.is_bot and bool(rest.get("addressed", True))
                message = Incoming(
                    conversation=room,
                    author=author,
                    text=text,
                    addressed=addressed,
                    title=room,
                    external_id=id_,
                )
                return Parsed(delivery_id=id_, event="message", message=message)
            case {"id": str(id_), "ping": _}:
                return Parsed(delivery_id=id_, event="ping", note="a ping needs no answer")
            case _:
                raise Malformed("Expected a JSON object with id, room, from and text.")

    async def admit(self, unread: Unread, account: Account) -> Admission:
        # Whoever holds the signing key vouches for the people it speaks of.
        return Admission(trust=unread.known_as or "member")

    async def find(self, outgoing: Outgoing, account: Account) -> str | None:
        found = await self._call(account, "GET", params={"key": outgoing.id})
        return str(found["id"]) if found else None

    async def place(self, outgoing: Outgoing, account: Account) -> str:
        reply = {
            "key": outgoing.id,
            "room": outgoing.conversation,
            "text": outgoing.text,
            "to": outgoing.reply_to,
        }
        placed = await self._call(account, "POST", json=reply)
        return str(placed["id"])

    async def _call(self, account: Account, method: str, **kwargs: Any) -> Any:
        assert account.http is not None
        response = await account.http.request(method, str(account.settings["reply_url"]), **kwargs)
        if response.status_code == 429 or response.status_code >= 500:
            after = response.headers.get("retry-after", "")
            raise Temporary(
                f"The service answered {response.status_code}.", retry_after=float(after) if after else None
            )
        if response.status_code == 404 and method == "GET":
            return None
        if response.is_error:
            raise Permanent(f"The service answered {response.status_code}.")
        return response.json()


integration = Hello()
