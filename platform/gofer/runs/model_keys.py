"""Finds the providers that can be used: keys come from the vault or the environment and are read when a run starts.

A key that is put into the vault works from the next run on, without a restart.
"""

from __future__ import annotations

import asyncio

import httpx2
import structlog

from gofer.agent.models.catalogue import Breakers, Catalogue, Provider
from gofer.agent.models.providers import ALL, FILE, ModelSettings, ProviderSettings, load_providers
from gofer.errors import ConfigError
from gofer.secrets.secret_store import secrets_of
from gofer.settings import Settings
from gofer.store.database import Database
from gofer.vault.envelope import Vault

log = structlog.get_logger()

ANTHROPIC_KEY, OPENAI_KEY = "anthropic_key", "openai_key"
"""The names of the workspace's secrets."""


class ModelKeys:
    """Makes the catalogue of models, and keeps it while the keys stay the same."""

    def __init__(
        self, *, settings: Settings, database: Database, vault: Vault, http: httpx2.AsyncClient
    ) -> None:
        self._settings = settings
        self._database = database
        self._vault = vault
        self._http = http
        self._breakers = Breakers(on_open=_alert)
        self._current: Catalogue | None = None
        self._own: dict[str, ProviderSettings] = {}

    async def catalogue(self, workspace_id: str) -> Catalogue:
        """The models that can be used now."""
        kept = await self._database.read(secrets_of, vault=self._vault, workspace_id=workspace_id, owner="")
        keys = {name: secret.reveal() for name, secret in kept.items()}
        problem = await asyncio.to_thread(self._read_own)
        providers = self._providers(keys)
        if self._current is None or self._current.providers != providers:
            self._current = Catalogue(providers, self._breakers, self._http)
        self._current.problem = problem
        return self._current

    def _read_own(self) -> str:
        """Read the user's providers. A file that makes no sense is reported; the last good version stays in force."""
        try:
            self._own = load_providers(self._settings.data_dir / FILE)
        except ConfigError as error:
            return str(error)
        return ""

    def trial(self, keys: dict[str, str]) -> Catalogue:
        """The models that could be used with these keys instead of the vault's."""
        return Catalogue(self._providers(keys), Breakers(), self._http)

    def _providers(self, keys: dict[str, str]) -> dict[str, Provider]:
        settings = self._settings
        found: dict[str, Provider] = {}
        own = self._own
        for name, given in own.items():
            if given.base_url:
                key = keys.get(given.key, "") if given.key else ""
                found[name] = Provider(key, given.base_url, given.speaks, given.key, _models(given))
        anthropic = keys.get(ANTHROPIC_KEY) or settings.anthropic_key
        if anthropic and "anthropic" not in found:
            base_url, models = settings.anthropic_base_url or None, _models(own.get("anthropic"))
            found["anthropic"] = Provider(anthropic, base_url, "anthropic", ANTHROPIC_KEY, models)
        openai = keys.get(OPENAI_KEY) or settings.openai_key
        # A local server needs a URL and no key.
        if (openai or settings.openai_base_url) and "openai" not in found:
            base_url, models = settings.openai_base_url or None, _models(own.get("openai"))
            found["openai"] = Provider(openai, base_url, "openai", OPENAI_KEY if openai else "", models)
        return found


def _models(given: ProviderSettings | None) -> dict[str, ModelSettings]:
    """The settings of a provider's models, with the time-out that all of them share."""
    if given is None:
        return {}
    wait = ModelSettings(first_token_timeout=given.first_token_timeout)
    return {**given.models, ALL: given.models.get(ALL, ModelSettings()).over(wait)}


def _alert(model: str, reason: str) -> None:
    """Log that a breaker opened: nobody calls the model for a while."""
    log.error("model.resting", model=model, reason=reason)
