"""From a name such as anthropic/claude-sonnet-5-5 to a model, whose adapter is made once per process and name."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx2

from gofer.agent.model import Model
from gofer.agent.models import anthropic
from gofer.agent.models.anthropic import Anthropic
from gofer.agent.models.breaker import Breakers
from gofer.agent.models.offline import Offline
from gofer.agent.models.openai import OpenAI
from gofer.agent.models.providers import ALL, ModelSettings
from gofer.agent.models.resilient import Fallback, Steady
from gofer.agent.prices import Price
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
    key_name: str = ""
    """The secret that the key is kept as; empty for a server that needs none."""
    models: Mapping[str, ModelSettings] = field(default_factory=dict)

    def settings(self, model: str) -> ModelSettings:
        """What is set for a model, and for all of them."""
        return self.models.get(model, ModelSettings()).over(self.models.get(ALL, ModelSettings()))


@dataclass(slots=True)
class Catalogue:
    """The models there are. One per process, so that breakers and connections are shared."""

    providers: dict[str, Provider]
    breakers: Breakers = field(default_factory=Breakers)
    http: httpx2.AsyncClient | None = None
    problem: str = ""
    """What is wrong with the user's file of providers; its last good version is in force."""
    _made: dict[tuple[str, str], Model] = field(default_factory=dict)

    def model(self, name: str, *, fallback: str = "", effort: str = "", caller: str = "") -> Model:
        """The model, steady, with a second behind it if one is named; raises ConfigError.

        `caller` is who will call it: a conversation whose calls always fail does not keep others from theirs.
        """
        first = self._steady(self.resolve(name), effort, caller)
        return Fallback(first, self._steady(self.resolve(fallback), effort, caller)) if fallback else first

    async def ready(self, name: str, *, fallback: str = "", effort: str = "", caller: str = "") -> Model:
        """The same, when its server was asked what it takes."""
        model = self.model(name, fallback=fallback, effort=effort, caller=caller)
        for each in (name, fallback):
            adapter = self._adapter(self.resolve(each), effort) if each else None
            if isinstance(adapter, OpenAI):
                await adapter.prepare()
        return model

    def resolve(self, name: str) -> str:
        """What `auto` stands for now."""
        if name != "auto":
            return name
        known = self.providers.get("anthropic")
        return AUTO if known is not None and known.key else Offline.name

    def key_name(self, name: str) -> str:
        """The secret by which a model is asked; empty when it needs none."""
        known = self.providers.get(self.resolve(name).partition("/")[0])
        return known.key_name if known is not None else ""

    def prices(self) -> dict[str, Price]:
        """What the user's own models cost, where their settings say so."""
        return {
            f"{name}/{model}": settings.price
            for name, provider in self.providers.items()
            for model, settings in provider.models.items()
            if settings.price is not None
        }

    def _steady(self, name: str, effort: str, caller: str) -> Model:
        adapter = self._adapter(name, effort)
        return adapter if isinstance(adapter, Offline) else Steady(adapter, self.breakers, caller=caller)

    def _adapter(self, name: str, effort: str) -> Model:
        if (name, effort) not in self._made:
            self._made[name, effort] = self._make(name, effort)
        return self._made[name, effort]

    def _make(self, name: str, effort: str) -> Model:
        provider, _, model = name.partition("/")
        if provider == "offline":
            return Offline()
        known = self.providers.get(provider)
        if known is None:
            there = ", ".join(sorted(self.providers)) or "none"
            why = f" {self.problem}" if self.problem else ""
            raise ConfigError(f"No provider called {provider!r} is configured (there are: {there}).{why}")
        if known.key_name and not known.key:
            raise ConfigError(f"{name} needs a key. Run: gofer secrets put {known.key_name}")
        settings = known.settings(model)
        if provider == "anthropic" or known.speaks == "anthropic":
            if not known.key:
                raise ConfigError(f"{name} needs a key. Run: gofer secrets put anthropic_key")
            window = 1_000_000 if _MILLION.match(model) else 200_000
            return Anthropic(
                model,
                known.key,
                base_url=known.base_url,
                http=self.http,
                provider=provider,
                settings=settings.over(ModelSettings(window=window)),
                effort=effort,
            )
        return OpenAI(
            model,
            known.key,
            base_url=known.base_url,
            http=self.http,
            provider=provider,
            settings=settings,
            effort=effort,
        )


async def load_sdks(providers: Mapping[str, Provider]) -> list[str]:
    """Import what these providers need, beside everything else; returns what was imported."""
    if not any(provider.speaks == "anthropic" for provider in providers.values()):
        return []
    await asyncio.to_thread(anthropic.load)
    return ["anthropic"]
