"""Providers' SDKs, which take seconds to import: loaded before the first message needs one, where one has a key."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gofer.agent.models import anthropic, openai
from gofer.agent.models.catalogue import Provider
from gofer.errors import ConfigError


async def load_sdks(providers: Mapping[str, Provider]) -> list[str]:
    """Import what these providers need, beside everything else; returns what was imported."""
    loaded = []
    for name in sorted({provider.speaks for provider in providers.values()}):
        try:
            await asyncio.to_thread(anthropic.load if name == "anthropic" else openai.load)
        except ConfigError:
            continue  # it is not installed; a run that asks for it says so
        loaded.append(name)
    return loaded
