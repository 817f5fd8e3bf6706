"""Which providers can be reached: keys from the vault or the environment, looked at when a run starts.

A key put into the vault works from the next run on, without a restart.
"""

from __future__ import annotations

from functools import partial

import httpx2
import structlog

from gofer.agent.models.breaker import Breakers
from gofer.agent.models.catalogue import Catalogue, Provider
from gofer.settings import Settings
from gofer.store.database import Database
from gofer.vault.envelope import Vault
from gofer.vault.stored import secrets_of

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

    async def catalogue(self, workspace_id: str) -> Catalogue:
        """The models there are now."""
        kept = await self._database.read(
            partial(secrets_of, vault=self._vault, workspace_id=workspace_id, owner="")
        )
        keys = {name: secret.reveal() for name, secret in kept.items()}
        providers = self._providers(keys)
        if self._current is None or self._current.providers != providers:
            self._current = Catalogue(providers, self._breakers, self._http)
        return self._current

    def trial(self, keys: dict[str, str]) -> Catalogue:
        """The models there would be with these keys instead of the vault's."""
        return Catalogue(self._providers(keys), Breakers(), self._http)

    def _providers(self, keys: dict[str, str]) -> dict[str, Provider]:
        settings = self._settings
        found: dict[str, Provider] = {}
        anthropic = keys.get(ANTHROPIC_KEY) or settings.anthropic_key
        if anthropic:
            found["anthropic"] = Provider(anthropic, settings.anthropic_base_url or None, speaks="anthropic")
        openai = keys.get(OPENAI_KEY) or settings.openai_key
        if openai or settings.openai_base_url:
            # A local server needs a URL and no key.
            found["openai"] = Provider(openai or "none", settings.openai_base_url or None)
        return found


def key_of(model: str) -> str:
    """The name of the key by which a model is asked; there need not be such a key."""
    return f"{model.partition('/')[0]}_key"


def _alert(model: str, reason: str) -> None:
    """A breaker opened: nobody calls the model for a while, and somebody should know."""
    log.error("model.resting", model=model, reason=reason)
