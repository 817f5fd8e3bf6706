"""What can be set of a Telegram connection."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

API = "https://api.telegram.org"
_CHAT_ID = re.compile(r"-[1-9][0-9]{0,18}")


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
    reactions: bool = Field(default=True, description="Whether it shows with 👀 that a message reached it.")
    progress_after: float = Field(
        default=8,
        ge=0,
        description="Seconds of work after which a progress message with a Stop button appears.",
    )
    drafts: bool = Field(
        default=False,
        description="Whether work in private chats is shown as Telegram's own draft, not as a progress message.",
    )
    username: str = Field(default="", description="The bot's name; found out when the connection is set up.")

    @field_validator("api_url")
    @classmethod
    def _a_url(cls, value: str) -> str:
        if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", value):
            raise ValueError("must be a URL such as https://api.telegram.org")
        return value.rstrip("/")

    @field_validator("groups")
    @classmethod
    def _numeric(cls, value: dict[str, Group]) -> dict[str, Group]:
        for chat_id in value:
            if not _CHAT_ID.fullmatch(chat_id):
                raise ValueError(f"{chat_id!r} is not a group's numeric id such as -1001234567890")
        return value
