"""Providers of the user's own: `models.toml` in the data directory, read when a run starts.

A provider is an address and the name of a key; a model of it has a window, a price and features where the server does
not tell them.
"""

from __future__ import annotations

import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from gofer.agent.prices import Price
from gofer.errors import ConfigError
from gofer.validation import first_error

FILE = "models.toml"
BUILT_IN = ("anthropic", "openai", "offline")
"""Providers that need no entry in the file."""
ALL = "*"
"""As the name of a model: every other model of the provider."""
FIRST_TOKEN = 300.0
STALL = 120.0
NAME = r"^[a-z0-9][a-z0-9_-]{0,39}$"


class ModelSettings(BaseModel):
    """What is known of a model. What is not given is asked of the server, or is as providers mostly have it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    window: int | None = Field(default=None, ge=1000)
    """Tokens it takes, prompt and answer together."""
    output_tokens: int | None = Field(default=None, ge=16)
    """The most it answers in one go."""
    max_tokens_name: Literal["max_tokens", "max_completion_tokens"] | None = None
    """What the server calls that; tried out when not given."""
    first_token_timeout: float | None = Field(default=None, gt=0)
    """Seconds to wait for the first word of an answer."""
    stall_timeout: float | None = Field(default=None, gt=0)
    """Seconds to wait for each further one."""
    images: bool | None = None
    pdfs: bool | None = None
    price: Price | None = None

    def over(self, other: ModelSettings) -> ModelSettings:
        """These settings, and the other's where these say nothing."""
        own = {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}
        return other.model_copy(update=own)


def _address(value: str) -> str:
    if value and not value.startswith(("http://", "https://")):
        raise ValueError("should be an address such as http://127.0.0.1:11434/v1")
    return value.rstrip("/")


class ProviderSettings(BaseModel):
    """One `[providers.NAME]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: Annotated[str, AfterValidator(_address)] = ""
    key: str = Field(default="", max_length=100)
    """The name of a secret (`gofer secrets put NAME`); none for a server that needs no key."""
    speaks: Literal["openai", "anthropic"] = "openai"
    first_token_timeout: float | None = Field(default=None, gt=0)
    """Of all its models that have none of their own."""
    models: dict[str, ModelSettings] = {}
    """By name; `*` for all others."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    providers: dict[Annotated[str, Field(pattern=NAME)], ProviderSettings] = {}


def load_providers(path: Path) -> dict[str, ProviderSettings]:
    """What the file says, nothing when there is none; raises ConfigError that says where it is wrong."""
    try:
        text = path.read_text("utf-8") if path.exists() else ""
        found = _File.model_validate(tomllib.loads(text, parse_float=Decimal)).providers
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_error(error)}") from error
    for name, provider in found.items():
        if name == "offline":
            raise ConfigError(f"{path}: providers.offline is built in; choose another name.")
        if not provider.base_url and name not in BUILT_IN:
            raise ConfigError(f"{path}: providers.{name}.base_url is required.")
    return found


def provider_names(path: Path) -> tuple[str, ...]:
    """Every provider that an agent may name."""
    return (*BUILT_IN, *(name for name in load_providers(path) if name not in BUILT_IN))
