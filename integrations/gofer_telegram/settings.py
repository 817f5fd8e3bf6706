"""The settings of a Telegram connection."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

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
