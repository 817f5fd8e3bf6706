"""The settings of a GitHub connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Trigger = Literal[
    "mention",
    "command",
    "label",
    "assignment",
    "review_request",
    "changes_requested",
    "check",
    "rerun",
    "errand",
    "rule",
]
TRIGGERS: tuple[Trigger, ...] = get_args(Trigger)
PUBLIC = "https://github.com"
PUBLIC_API = "https://api.github.com"


class Settings(BaseModel):
    """One App or token, and what it reacts to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    web_url: str = PUBLIC
    """The URL of the GitHub server, for people and git."""
    api_url: str = ""
    """The URL of the API; by default derived from `web_url`."""
    app_id: int | None = None
    """The App's id; None when a plain token is used."""
    handle: str = Field(default="gofer", pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9-]{0,38})$")
    """The name to mention: the App's slug, or the login a token belongs to."""
    login: str = ""
    """The login that we write as, learned at set-up."""
    label: str = Field(default="gofer", max_length=50)
    plan_label: str = Field(default="gofer-plan", max_length=50)
    """The label that asks for a plan first."""
    narrowed_labels: tuple[str, ...] = (
        "bug", "documentation", "duplicate", "enhancement", "good first issue", "help wanted", "invalid", "question",
        "wontfix",
    )  # fmt: skip
    """Labels that a run may set after it has read strangers' text. Other labels may trigger a workflow or a bot."""
    branch_prefix: str = Field(default="gofer/", pattern=r"^[a-z0-9][a-z0-9._-]{0,30}/$")
    triggers: tuple[Trigger, ...] = TRIGGERS
    repositories: tuple[str, ...] = ()
    """owner/name or owner/*; empty for every repository the App is installed on."""
    allowed_bots: tuple[str, ...] = ()
    """Logins of bots that may make requests."""
    fix_tries: int = Field(default=2, ge=0, le=10)
    """How often a failing check on one of our pull requests is worked on."""
    submodules: bool = False
    poll_every: float = Field(default=15, ge=0.05, le=3600)
    """Seconds between two polls of the deliveries, when webhooks cannot reach us."""
    workflows: str = ""
    """A folder with your own workflows."""
    permissions: dict[str, str] = Field(default_factory=dict)
    """Permissions that the App had at set-up."""

    @model_validator(mode="before")
    @classmethod
    def _both_addresses(cls, given: Any) -> Any:
        """Derive one URL from the other when only one is set, so that both are of the same server."""
        if not isinstance(given, Mapping):
            return given
        web, api = (str(given.get(name) or "").rstrip("/") for name in ("web_url", "api_url"))
        return {**given, "web_url": web or _beside(api), "api_url": api or _below(web)}

    @field_validator("api_url", "web_url")
    @classmethod
    def _an_address(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("must be an http or https address")
        return value.rstrip("/")

    @field_validator("web_url")
    @classmethod
    def _of_a_host(cls, value: str) -> str:
        if urlsplit(value).path:
            raise ValueError("must be scheme and host only, such as https://github.example.com")
        return value

    def covers(self, repository: str) -> bool:
        """Whether events of a repository are handled."""
        owner = repository.partition("/")[0]
        names = {name.lower() for name in self.repositories}
        return not names or bool(names & {repository.lower(), f"{owner.lower()}/*"})

    def is_us(self, login: str) -> bool:
        """Whether a login is the one that people mention."""
        return login.lower().removesuffix("[bot]") == self.handle.lower()

    def wrote(self, login: str) -> bool:
        """Whether we may have written what a login wrote. With a plain token a person has the same login."""
        return login.lower() == self.login.lower() if self.login else self.is_us(login)


def _below(web_url: str) -> str:
    """The API's URL of a GitHub server: a host of its own, or below /api on an Enterprise Server."""
    if not web_url or web_url == PUBLIC:
        return PUBLIC_API
    scheme, _, host = web_url.partition("://")
    return f"{scheme}://api.{host}" if host.endswith(".ghe.com") else f"{web_url}/api/v3"


def _beside(api_url: str) -> str:
    """The URL of the GitHub server with this API."""
    if not api_url or api_url == PUBLIC_API:
        return PUBLIC
    return api_url.removesuffix("/api/v3").replace("://api.", "://", 1)
