"""From a name such as anthropic/claude-sonnet-5-5 to a model, made once per process and name."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import httpx2

from gofer.agent.model import Model
from gofer.agent.models.anthropic import Anthropic
from gofer.agent.models.breaker import Breakers
from gofer.agent.models.offline import Offline
from gofer.agent.models.openai import OpenAI
from gofer.agent.models.steady import Fallback, Steady
from gofer.errors import ConfigError

AUTO = "anthropic/claude-sonnet-5-5"
_MILLION = re.compile(r"claude-\w+-5")


@dataclass(frozen=True, slots=True)
class Provider:
    """How to reach a provider: `anthropic`, `openai`, or a name of the user's for a compatible server."""

    key: str = field(default="", repr=False)
    base_url: str | None = None
    speaks: str = "openai"
    """anthropic or openai."""
    context_window: int | None = None


@dataclass(slots=True)
class Catalogue:
    """The models there are. One per process, so that breakers and connections are shared."""

    providers: dict[str, Provider]
    breakers: Breakers = field(default_factory=Breakers)
    http: httpx2.AsyncClient | None = None
    _made: dict[tuple[str, bool], Model] = field(default_factory=dict)

    def model(self, name: str, *, fallback: str = "", thinking: bool = False) -> Model:
        """The model, steady, with a second behind it if one is named; raises ConfigError."""
        first = self._steady(self.resolve(name), thinking)
        return Fallback(first, self._steady(self.resolve(fallback), thinking)) if fallback else first

    def resolve(self, name: str) -> str:
        """What `auto` stands for now."""
        if name != "auto":
            return name
        known = self.providers.get("anthropic")
        return AUTO if known is not None and known.key else Offline.name

    def _steady(self, name: str, thinking: bool) -> Model:
        if (name, thinking) not in self._made:
            made = self._make(name, thinking)
            self._made[name, thinking] = made if isinstance(made, Offline) else Steady(made, self.breakers)
        return self._made[name, thinking]

    def _make(self, name: str, thinking: bool) -> Model:
        provider, _, model = name.partition("/")
        if provider == "offline":
            return Offline()
        known = self.providers.get(provider)
        if known is None:
            there = ", ".join(sorted(self.providers)) or "none"
            raise ConfigError(f"No provider called {provider!r} is configured (there are: {there}).")
        if provider == "anthropic" or known.speaks == "anthropic":
            if not known.key:
                raise ConfigError(f"{name} needs a key. Run: gofer secrets put anthropic_key")
            window = known.context_window or (1_000_000 if _MILLION.match(model) else 200_000)
            return Anthropic(
                model,
                known.key,
                base_url=known.base_url,
                http=self.http,
                context_window=window,
                thinking=thinking,
            )
        return OpenAI(
            model,
            known.key,
            base_url=known.base_url,
            http=self.http,
            context_window=known.context_window or 128_000,
            provider=provider,
        )
