"""A thin client of the Bot API: one call, its answer, and every refusal as the error it is. With it the settings of a
connection, and what a call names: a chat or one of its topics, and the buttons below a message.

The token is part of every path, so it is put into the request's target only: no URL that a log, an error or a
trace may show contains it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import httpx2
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from gofer.errors import Permanent, Temporary
from gofer.integration import ConnectionContext, Payload
from gofer_telegram.markdown import clean

REFUSED = (
    "Telegram refuses the bot token. Ask @BotFather for the current one (/mybots, API Token) and store it: "
    "gofer secrets put token --owner {connection}"
)
NOT_THERE = (
    "{url} knows no bot by this token (404). If the token is the current one, look whether api_url is the address "
    "of a Bot API server: gofer connections set {connection} api_url=https://api.telegram.org"
)
UNKNOWN_METHOD = "the server at {url} does not know this method (404)"
CONFLICT = (
    "Another program reads this bot's updates (409 Conflict). One token has one reader: stop the other program, or "
    "ask @BotFather for a new token (/revoke)."
)
# What Telegram's words for a lasting refusal mean; the first that is found counts.
_REASONS = (
    ("bot was blocked by the user", "blocked"),
    ("user is deactivated", "account_deleted"),
    ("can't initiate conversation", "never_started"),
    ("bot was kicked", "kicked"),
    ("not a member", "kicked"),
    ("chat not found", "chat_not_found"),
    ("chat_write_forbidden", "no_right_to_write"),
    ("not enough rights", "no_right_to_write"),
    ("have no rights", "no_right_to_write"),
    ("topic_closed", "topic_closed"),
    ("topic_deleted", "topic_deleted"),
    ("message thread not found", "topic_deleted"),
    ("message to edit not found", "message_deleted"),
)


class Rejected(Permanent):
    """Telegram refused a call, in its own words."""

    def __init__(
        self, description: str, *, reason: str = "rejected", method: str = "", moved_to: int | None = None
    ) -> None:
        super().__init__(f"Telegram: {method}: {description}" if method else description, reason=reason)
        self.description = description
        self.moved_to = moved_to

    def says(self, *phrases: str) -> bool:
        """Whether its words contain one of these."""
        return any(phrase in self.description.lower() for phrase in phrases)


class Client:
    """Calls the Bot API for one account."""

    def __init__(self, account: ConnectionContext) -> None:
        assert account.http is not None
        self.settings = Settings.model_validate(account.settings)
        self._http = account.proxied or account.http
        self._account = account
        self._token = account.secret("token")

    async def call(
        self,
        method: str,
        *,
        within: float | None = None,
        files: dict[str, tuple[str, bytes]] | None = None,
        **parameters: Any,
    ) -> Any:
        """A method's result, `within` seconds if given; raises Temporary or Rejected."""
        given = {name: _cleaned(value) for name, value in parameters.items() if value is not None}
        body: dict[str, Any] = {"json": given}
        if files:
            body = {"data": {name: _form(value) for name, value in given.items()}, "files": files}
        response = await self._request("POST", f"bot{self._token}/{method}", method, within, **body)
        return self._result(method, response)

    async def download(self, file_id: str, *, at_most: int) -> bytes:
        """A file's bytes."""
        file = await self.call("getFile", file_id=file_id)
        path = str(file.get("file_path", "")) if isinstance(file, dict) else ""
        response = await self._request("GET", f"file/bot{self._token}/{quote(path)}", "file", 60)
        if response.status_code >= 500:
            raise Temporary(f"Telegram's file server answered {response.status_code}.")
        if response.is_error or not path:
            gone = f"the file cannot be had ({response.status_code})"
            raise Rejected(gone, reason="file_gone", method="file")
        if len(response.content) > at_most:
            raise Rejected("the file is too big", reason="file_too_big", method="file")
        return response.content

    async def _request(
        self, verb: str, target: str, shown: str, within: float | None, **body: Any
    ) -> httpx2.Response:
        base = urlsplit(self.settings.api_url)
        wanted = f"{base.path}/{target}".encode("ascii", "replace")
        extra: dict[str, Any] = {} if within is None else {"timeout": within}
        try:
            return await self._http.request(
                verb, f"{self.settings.api_url}/{shown}", extensions={"target": wanted}, **extra, **body
            )
        except httpx2.HTTPError as error:
            # Without the cause: it holds the request, and the request holds the token.
            way = f" through the proxy {self.settings.proxy}" if self.settings.proxy else ""
            words = f"Telegram: {shown}: could not be reached{way} ({type(error).__name__})."
            raise Temporary(words) from None
        except ValueError:
            raise Rejected("The bot token has characters no token has.", reason="token_refused") from None

    def _result(self, method: str, response: httpx2.Response) -> Any:
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            if response.status_code == 404:
                raise self._not_found(method)
            raise Temporary(f"Telegram: {method}: answered {response.status_code} without JSON.")
        if answer.get("ok") is True:
            return answer.get("result")
        raise self._error(method, response.status_code, answer)

    def _error(self, method: str, status: int, answer: dict[str, Any]) -> Exception:
        description = str(answer.get("description", ""))[:500].replace(self._token, "…")
        parameters = answer.get("parameters") if isinstance(answer.get("parameters"), dict) else {}
        assert isinstance(parameters, dict)
        if status == 429:
            after = parameters.get("retry_after")
            wait = float(after) if isinstance(after, int | float) else 5.0
            return Temporary(f"Telegram: {method}: {description}", reason="rate_limited", retry_after=wait)
        if status == 409:
            text = description if "webhook" in description.lower() else CONFLICT
            return Temporary(text, reason="conflict", retry_after=15)
        if status >= 500:
            return Temporary(f"Telegram: {method}: {status} {description}")
        if status == 401:
            return Rejected(REFUSED.format(connection=self._account.id), reason="token_refused")
        if status == 404:
            return self._not_found(method)
        moved = parameters.get("migrate_to_chat_id")
        reason = next((name for words, name in _REASONS if words in description.lower()), "rejected")
        return Rejected(
            description, reason=reason, method=method, moved_to=moved if isinstance(moved, int) else None
        )

    def _not_found(self, method: str) -> Rejected:
        """The error for a 404. Every bot has `getMe`, so a 404 there means that there is no bot. Another
        method may be unknown to this server."""
        url = self.settings.api_url
        if method == "getMe":
            told = NOT_THERE.format(url=url, connection=self._account.id)
            return Rejected(told, reason="token_refused")
        return Rejected(UNKNOWN_METHOD.format(url=url), reason="unknown_method", method=method)


def _cleaned(value: Any) -> Any:
    """Without control characters, which no server takes, wherever there is text."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {name: _cleaned(item) for name, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, list | tuple) else value


def _form(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


API = "https://api.telegram.org"
_CHAT_ID = re.compile(r"-[1-9][0-9]{0,18}")


def _has_a_host(url: str) -> bool:
    """Whether a URL has a host and, if any, a port that can be."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


class Group(BaseModel):
    """A group in which the bot listens."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    when: Literal["mention", "always"] = Field(
        default="mention",
        description="mention: answers a mention, a reply to it, or a command. always: answers everything.",
    )
    everyone: bool = Field(
        default=False,
        description="Whether everybody in the group counts as a member; else only people you let in.",
    )
    people: tuple[int, ...] = Field(
        default=(), description="Numeric ids of people who count as members in this group alone."
    )
    prompt: str = Field(
        default="",
        max_length=10_000,
        description="What agents are told about this group, as their instructions.",
    )
    agent: str = Field(
        default="",
        max_length=64,
        description="The agent that answers in this group, unless an owner chose one there with /agent.",
    )


class Settings(BaseModel):
    """Documented in docs/integrations/telegram.md."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    api_url: str = Field(default=API, description="The Bot API server: Telegram's own, or one you run.")
    members: tuple[int, ...] = Field(
        default=(),
        description="Numeric ids of people who may talk to the bot, beside those paired or let in.",
    )
    groups: dict[str, Group] = Field(
        default_factory=dict, description="The groups it listens in, by numeric id, such as -1001234567890."
    )
    reactions: bool = Field(
        default=True,
        description="Whether it shows with 👀 that a message reached it, and with 👍 or 👎 how its run ended.",
    )
    progress_after: float = Field(
        default=8,
        ge=0,
        description="Seconds of work after which a progress message with a Stop button appears.",
    )
    stream: bool = Field(
        default=True,
        description="Whether the answer's words are shown as they come: as a draft in private, in the progress "
        "message elsewhere.",
    )
    drafts: bool = Field(
        default=False,
        description="Whether work in private chats is shown as Telegram's own draft, not as a progress message.",
    )
    transcribe_url: str = Field(
        default="",
        description="A server that transcribes voice and video notes as OpenAI's does, such as "
        "https://api.openai.com/v1 or http://127.0.0.1:8000/v1.",
    )
    transcribe_model: str = Field(
        default="whisper-1", min_length=1, max_length=200, description="The model to ask that server for."
    )
    transcribe_price: float = Field(
        default=0,
        ge=0,
        le=100,
        description="What that server costs, in dollars a minute; counted in the budgets.",
    )
    proxy: str = Field(
        default="",
        description="A proxy to reach Telegram through: http://, https://, socks5:// or socks5h://, host and port.",
    )
    username: str = Field(default="", description="The bot's name; found out when the connection is set up.")

    @field_validator("api_url", "transcribe_url")
    @classmethod
    def _a_url(cls, value: str, info: ValidationInfo) -> str:
        if not value and info.field_name == "transcribe_url":
            return value
        if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", value) or not _has_a_host(value):
            raise ValueError("must be a URL such as https://api.telegram.org")
        return value.rstrip("/").removesuffix("/audio/transcriptions")

    @field_validator("proxy")
    @classmethod
    def _a_proxy(cls, value: str) -> str:
        if "@" in value:
            raise ValueError("must have no password in it: store user:password as the secret proxy_login")
        well_formed = re.fullmatch(r"(https?|socks5h?)://[^\s/?#@]+/?", value) and _has_a_host(value)
        if value and not well_formed:
            raise ValueError("must be a URL such as http://127.0.0.1:3128 or socks5://127.0.0.1:1080")
        return value.rstrip("/")

    @field_validator("groups")
    @classmethod
    def _numeric(cls, value: dict[str, Group]) -> dict[str, Group]:
        for chat_id in value:
            if not _CHAT_ID.fullmatch(chat_id):
                raise ValueError(f"{chat_id!r} is not a group's numeric id such as -1001234567890")
        return value


GENERAL = 1


@dataclass(frozen=True, slots=True)
class Place:
    """A chat and, in a forum or a private chat with topics, the topic."""

    chat: int
    thread: int | None = None

    @property
    def ref(self) -> str:
        """The reference of the conversation."""
        return str(self.chat) if self.thread is None else f"{self.chat}/{self.thread}"

    @property
    def is_group(self) -> bool:
        """Telegram gives groups negative ids."""
        return self.chat < 0

    @property
    def sending(self) -> dict[str, Any]:
        """Parameters to send there. Without a topic, Telegram sends to General."""
        topic = {} if self.thread in (None, GENERAL) else {"message_thread_id": self.thread or 0}
        return {"chat_id": self.chat, **topic}

    @property
    def acting(self) -> dict[str, Any]:
        """Parameters to show typing there. General must be named."""
        topic = {} if self.thread is None else {"message_thread_id": self.thread}
        return {"chat_id": self.chat, **topic}


def place_of(ref: str) -> Place:
    """Parse a conversation's reference."""
    chat, _, thread = ref.partition("/")
    try:
        return Place(int(chat), int(thread) if thread else None)
    except ValueError:
        raise Permanent(f"{ref!r} is not a Telegram chat.") from None


def where(message: Payload) -> Place | None:
    """The place of a message. In a group that is not a forum, a thread is only a chain of replies."""
    chat = message.child("chat")
    chat_id = chat.number("id")
    if chat_id is None:
        return None
    thread = message.number("message_thread_id")
    if message.flag("is_topic_message") and thread is not None:
        return Place(chat_id, thread)
    return Place(chat_id, GENERAL if chat.flag("is_forum") and chat_id < 0 else None)


STOP = "stop"
_ANSWER = re.compile(r"q:([A-Za-z0-9_-]{1,50}):([0-9]{1,2})")
_OFFER = re.compile(r"c:(agent|model|goal) (\S{1,60}|[a-z]{1,10} goal_[a-z0-9]{1,20})")
LABEL_LIMIT = 60
DATA_LIMIT = 64
"""Bytes of callback data."""
MAX_CHOICES = 20


def stop_keyboard() -> dict[str, Any]:
    """One button that stops the run."""
    return {"inline_keyboard": [[{"text": "Stop", "callback_data": STOP}]]}


def choices_keyboard(question: str, choices: tuple[str, ...]) -> dict[str, Any] | None:
    """A button for each choice, one to a row unless all are short."""
    if not question or not choices:
        return None
    buttons = [
        {"text": (choice.strip() or "…")[:LABEL_LIMIT], "callback_data": f"q:{question}:{number}"}
        for number, choice in enumerate(choices[:MAX_CHOICES])
    ]
    in_one_row = len(buttons) <= 3 and sum(len(button["text"]) for button in buttons) <= 30
    return {"inline_keyboard": [buttons] if in_one_row else [[button] for button in buttons]}


def offers_keyboard(offers: Any, words: int = 0) -> dict[str, Any] | None:
    """A button for each offered command that fits the callback data, two to a row; with so many of its arguments on
    it, or all."""
    found = [str(offer) for offer in offers] if isinstance(offers, list) else []
    buttons = [
        {"text": _label(offer, words), "callback_data": f"c:{offer}"}
        for offer in found
        if offer.partition(" ")[2].strip() and len(f"c:{offer}".encode()) <= DATA_LIMIT
    ]
    return (
        {"inline_keyboard": [buttons[at : at + 2] for at in range(0, len(buttons), 2)]} if buttons else None
    )


def _label(offer: str, words: int) -> str:
    arguments = offer.partition(" ")[2]
    return (" ".join(arguments.split()[:words]).capitalize() if words else arguments)[:LABEL_LIMIT]


def offered(data: str) -> tuple[str, str]:
    """The command and arguments of a press, if any."""
    found = _OFFER.fullmatch(data)
    return (found[1], found[2]) if found else ("", "")


def pressed(data: str) -> tuple[str, int] | None:
    """The question and choice of a press, if any."""
    found = _ANSWER.fullmatch(data)
    return (found[1], int(found[2])) if found else None
