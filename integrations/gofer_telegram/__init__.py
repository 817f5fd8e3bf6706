"""Telegram: a bot that people talk to in private, in groups and in topics."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gofer.errors import Permanent, Refused
from gofer.integration import (
    Admission,
    ConnectionContext,
    Health,
    Incoming,
    Integration,
    Outgoing,
    Parsed,
    Progress,
    Request,
    SecretField,
    Unread,
)
from gofer.tool import Tool
from gofer_telegram import admission, delivery, setup
from gofer_telegram.admission import send_file_tool
from gofer_telegram.client import CONFLICT, Client, Group, Settings, place_of
from gofer_telegram.text import split
from gofer_telegram.updates import Bot, read_update

if TYPE_CHECKING:
    from gofer.vault.redaction import Secret

SECRET_HEADER = "x-telegram-bot-api-secret-token"  # noqa: S105 - a name, not a value


class Telegram(Integration):
    """A bot people talk to in private, in groups and in topics."""

    name = "telegram"
    tool_names = frozenset({"send_file"})
    summary = "A Telegram bot: private chats, groups, topics, files and buttons."
    secrets = (
        SecretField("token", "The bot's token, from @BotFather."),
        SecretField(
            "webhook_secret", "Comes with every webhook, so that nobody else can send one.", generated=True
        ),
        SecretField("transcribe_key", "The key of the transcription server, if it wants one.", optional=True),
        SecretField("proxy_login", "user:password for the proxy, if it asks for them.", optional=True),
    )
    settings = Settings
    secret_headers = frozenset({SECRET_HEADER})
    can_poll = True
    progress_every = 5.0
    has_buttons = True
    reasons = MappingProxyType({"conflict": CONFLICT})

    def verify(self, request: Request, account: ConnectionContext) -> None:
        expected = account.secret("webhook_secret").encode()
        if not hmac.compare_digest(request.header(SECRET_HEADER) or b"", expected):
            raise Refused("The secret token does not match.")

    def parse(self, request: Request, account: ConnectionContext) -> Parsed:
        return read_update(request.json(), _bot(account))

    def split(self, text: str) -> Sequence[str]:
        return split(text)

    def private_place(self, author_id: str) -> str | None:
        # A person's private chat has the person's id.
        return author_id if author_id.isdigit() else None

    def words_every(self, conversation: str, account: ConnectionContext) -> float:
        return delivery.words_every(place_of(conversation), Settings.model_validate(account.settings))

    def proxy(self, settings: Mapping[str, Any], secrets: Mapping[str, Secret]) -> str:
        url = str(settings.get("proxy") or "")
        login = secrets["proxy_login"].reveal() if url and "proxy_login" in secrets else ""
        scheme, _, host = url.partition("://")
        return f"{scheme}://{quote(login, safe=':')}@{host}" if login else url

    def instructions(self, account: ConnectionContext, message: Incoming) -> str:
        settings = Settings.model_validate(account.settings)
        group = settings.groups.get(str(place_of(message.conversation).chat))
        return group.prompt.strip() if group is not None else ""

    def invitation(self, code: str, account: ConnectionContext) -> str:
        name = Settings.model_validate(account.settings).username
        if not name:
            return f"Open the bot in Telegram and send it /start {code} . "
        return f"Open https://t.me/{name}?start={code} and press Start, or send /start {code} to @{name}. "

    def allow_conversation(self, settings: Mapping[str, Any], place: str) -> dict[str, Any]:
        current = Settings.model_validate(dict(settings))
        groups = {**current.groups, place: current.groups.get(place, Group())}
        return current.model_copy(update={"groups": groups}).model_dump(mode="json")

    def rename_conversation(self, settings: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
        current = Settings.model_validate(dict(settings))
        groups = {new if place == old else place: group for place, group in current.groups.items()}
        return current.model_copy(update={"groups": groups}).model_dump(mode="json")

    async def admit(self, unread: Unread, account: ConnectionContext) -> Admission:
        return await admission.admit(unread, account)

    async def place(self, outgoing: Outgoing, account: ConnectionContext) -> str:
        return await delivery.place(outgoing, Client(account))

    async def complete(self, outgoing: Outgoing, external_id: str, account: ConnectionContext) -> None:
        await delivery.complete(outgoing, external_id, Client(account))

    async def acknowledge(self, message: Incoming, account: ConnectionContext) -> None:
        await delivery.acknowledge(message, Client(account))

    async def finish(self, message: Incoming, well: bool, account: ConnectionContext) -> None:
        await delivery.finish(message, well, Client(account))

    async def show_progress(
        self, conversation: str, progress: Progress, shown: str, account: ConnectionContext
    ) -> str:
        return await delivery.show_progress(conversation, progress, shown, Client(account))

    async def clear_progress(self, conversation: str, shown: str, account: ConnectionContext) -> None:
        await delivery.clear_progress(shown, Client(account))

    async def end_question(self, conversation: str, external_id: str, account: ConnectionContext) -> None:
        await delivery.end_question(external_id, Client(account))

    async def answer_callback(self, message: Incoming, outcome: str, account: ConnectionContext) -> None:
        await delivery.answer_callback(message, outcome, Client(account))

    async def set_up(self, account: ConnectionContext) -> Health:
        return await setup.set_up(account)

    async def tear_down(self, account: ConnectionContext) -> None:
        await setup.tear_down(account)

    async def health(self, account: ConnectionContext) -> Health:
        return await setup.health(account)

    def tools(self, account: ConnectionContext, message: Incoming) -> Sequence[Tool[Any]]:
        return (send_file_tool(account, message.conversation),)

    async def poll(self, account: ConnectionContext, last: str | None) -> Sequence[Request]:
        return await setup.poll(account, last)


def _bot(account: ConnectionContext) -> Bot:
    number = account.secret("token").partition(":")[0]
    if not number.isdigit():
        raise Permanent("The token does not look like one: it should be 123456:ABC…", reason="token_refused")
    return Bot(int(number), Settings.model_validate(account.settings))


integration = Telegram()
