"""The example to copy: signed JSON in, JSON out. docs/integrations/hello.md walks through it."""

from pydantic import BaseModel, HttpUrl

from gofer.errors import Malformed
from gofer.integration import (
    Admission,
    Author,
    ConnectionContext,
    Incoming,
    Integration,
    Outgoing,
    Parsed,
    Request,
    SecretField,
    Unread,
)

SIGNATURE = "x-hello-signature"


class Settings(BaseModel, extra="forbid"):
    """Where replies go."""

    reply_url: HttpUrl


class Hello(Integration):
    """A service that posts signed JSON and takes replies by HTTP."""

    name = "hello"
    summary = "The example: signed JSON in, JSON out."
    secrets = (
        SecretField("signing_key", "Signs each request (HMAC-SHA256 over time and body).", generated=True),
        SecretField("next_signing_key", "Signs as well, while it replaces signing_key.", optional=True),
    )
    settings = Settings
    secret_headers = frozenset({SIGNATURE})

    def verify(self, request: Request, account: ConnectionContext) -> str | None:
        return request.check_signature(SIGNATURE, *account.secrets_of("signing_key", "next_signing_key"))

    def parse(self, request: Request, account: ConnectionContext) -> Parsed:
        match request.json():
            case {"id": str(id_), "room": str(room), "from": str(sender), "text": str(text), **rest}:
                author = Author(sender, is_bot=bool(rest.get("bot")))
                addressed = not author.is_bot and bool(rest.get("addressed", True))
                return Parsed(
                    id_, "message", Incoming(room, author, text, addressed, title=room, external_id=id_)
                )
            case {"id": str(id_), "ping": _}:
                return Parsed(id_, "ping", note="a ping needs no answer")
            case _:
                raise Malformed("Expected a JSON object with id, room, from and text.")

    async def admit(self, unread: Unread, account: ConnectionContext) -> Admission:
        # Whoever holds the signing key vouches for the people it speaks of.
        return Admission(trust=unread.known_as or "member")

    async def find(self, outgoing: Outgoing, account: ConnectionContext) -> str | None:
        found = await account.call("GET", account.settings["reply_url"], params={"key": outgoing.id})
        return str(found["id"]) if found else None

    async def place(self, outgoing: Outgoing, account: ConnectionContext) -> str:
        reply = {
            "key": outgoing.id,
            "room": outgoing.conversation,
            "text": outgoing.text,
            "to": outgoing.reply_to,
        }
        placed = await account.call("POST", account.settings["reply_url"], json=reply)
        return str(placed["id"])


integration = Hello()
