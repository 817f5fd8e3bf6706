"""What tokens cost: a table that ships with Gofer and one of the user's own that extends it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_UP, Decimal
from functools import cache
from importlib import resources
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gofer.agent.model import Usage
from gofer.errors import ConfigError
from gofer.validation import first_error

MICROS = 1_000_000
"""Money is counted in millionths of a dollar, as whole numbers."""


class Price(BaseModel):
    """Dollars per million tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: Decimal = Field(ge=0)
    output: Decimal = Field(ge=0)
    cache_read: Decimal | None = Field(default=None, ge=0)
    """A tenth of the input when not given."""
    cache_write: Decimal | None = Field(default=None, ge=0)
    """1.25 times the input when not given."""
    cache_write_1h: Decimal | None = Field(default=None, ge=0)
    """Twice the input when not given."""
    above: int | None = Field(default=None, gt=0)
    """Requests with more input tokens than this …"""
    factor_above: Decimal = Field(default=Decimal(1), ge=1)
    """… cost this many times as much."""

    def cost(self, usage: Usage) -> int:
        """What these tokens cost, in millionths of a dollar, rounded up."""
        read = self.input / 10 if self.cache_read is None else self.cache_read
        write = self.input * 5 / 4 if self.cache_write is None else self.cache_write
        write_1h = self.input * 2 if self.cache_write_1h is None else self.cache_write_1h
        dollars = (
            usage.input * self.input
            + usage.cache_read * read
            + usage.cache_write * write
            + usage.cache_write_1h * write_1h
            + usage.output * self.output
        )
        return int((dollars * self._factor(usage.total_input)).to_integral_value(ROUND_UP))

    def worst(self, input_tokens: int, output_tokens: int) -> int:
        """The most that a call of this size can cost: nothing read from the cache, all of it written."""
        return self.cost(Usage(cache_write=input_tokens, output=output_tokens))

    def _factor(self, input_tokens: int) -> Decimal:
        return self.factor_above if self.above is not None and input_tokens > self.above else Decimal(1)


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices by provider and model. `*` as the model stands for all models of a provider."""

    table: dict[str, Price]

    def of(self, model: str) -> Price | None:
        """The price of `provider/model`; None when nobody said."""
        provider = model.partition("/")[0]
        return self.table.get(model) or self.table.get(f"{provider}/*")


def load_prices(extra: Path | None = None, of_models: Mapping[str, Price] | None = None) -> Prices:
    """The shipped table, with what the user's models say of themselves and the user's file (if it is there) on top."""
    table = _shipped() | dict(of_models or {})
    if extra is not None and extra.is_file():
        table = table | _parse(extra.read_text("utf-8"), str(extra))
    return Prices(table)


@cache
def _shipped() -> dict[str, Price]:
    text = resources.files("gofer.agent").joinpath("prices.toml").read_text("utf-8")
    return _parse(text, "prices.toml")


def _parse(text: str, name: str) -> dict[str, Price]:
    try:
        data = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: {error}") from error
    table: dict[str, Price] = {}
    for model, values in data.items():
        try:
            table[model] = Price.model_validate(values)
        except ValidationError as error:
            raise ConfigError(f"{name}: [{model}] {first_error(error)}") from error
    return table
