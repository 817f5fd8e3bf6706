"""Anthropic's SDK, which takes seconds to import: loaded before the first message needs it, where there is a key."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gofer.agent.models import anthropic
from gofer.agent.models.catalogue import Provider


async def load_sdks(providers: Mapping[str, Provider]) -> list[str]:
    """Import what these providers need, beside everything else; returns what was imported."""
    if not any(provider.speaks == "anthropic" for provider in providers.values()):
        return []
    await asyncio.to_thread(anthropic.load)
    return ["anthropic"]
