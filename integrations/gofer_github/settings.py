"""What can be set about a connection to GitHub."""

from __future__ import annotations

from typing import Literal, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

Trigger = Literal["mention", "command", "label", "assignment", "review_request", "check", "errand"]
TRIGGERS: tuple[Trigger, ...] = get_args(Trigger)
PUBLIC = "https://github.com"


class Settings(BaseModel):
    """One App or token, and when it listens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    api_url: str = "https://api.github.com"
    """Where the API is; GitHub Enterprise Server has it at https://HOST/api/v3."""
    web_url: str = PUBLIC
    """Where people and git go."""
    app_id: int | None = None
    """The App's id; None when a plain token is used."""
    handle: str = Field(default="gofer", pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9-]{0,38})$")
    """The name to mention: the App's slug, or the login a token belongs to."""
    login: str = ""
    """The login that what we write has, as learned at set-up."""
    label: str = Field(default="gofer", max_length=50)
    branch_prefix: str = Field(default="gofer/", pattern=r"^[a-z0-9][a-z0-9._-]{0,30}/$")
    triggers: tuple[Trigger, ...] = TRIGGERS
    repositories: tuple[str, ...] = ()
    """owner/name or owner/*; empty for every repository the App is installed on."""
    allowed_bots: tuple[str, ...] = ()
    """Logins of bots that are heard although they are bots."""
    fix_tries: int = Field(default=2, ge=0, le=10)
    """How often a failing check on one of our pull requests is worked on."""
    submodules: bool = False
    poll_every: float = Field(default=15, ge=0.05, le=3600)
    """Seconds between two looks at the list of deliveries, where webhooks cannot reach us."""
    workflows: str = ""
    """A folder with workflows of your own."""
    permissions: dict[str, str] = Field(default_factory=dict)
    """What the App was granted when it was set up, as learned then."""

    @field_validator("api_url", "web_url")
    @classmethod
    def _an_address(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("must be an http or https address")
        return value.rstrip("/")

    def hears(self, repository: str) -> bool:
        """Whether a repository is among those listened to."""
        owner = repository.partition("/")[0]
        names = {name.lower() for name in self.repositories}
        return not names or bool(names & {repository.lower(), f"{owner.lower()}/*"})

    def is_us(self, login: str) -> bool:
        """Whether a login is the one people call us by."""
        return login.lower().removesuffix("[bot]") == self.handle.lower()

    def wrote(self, login: str) -> bool:
        """Whether what a login wrote may be ours; with a plain token a person has the same login."""
        return login.lower() == self.login.lower() if self.login else self.is_us(login)
