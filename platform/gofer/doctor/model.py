"""The model: whether there is a key, and, only when somebody says so, whether it works."""

from __future__ import annotations

import asyncio
import time

from gofer.agent.model import ModelError, Request, Turn
from gofer.agent.models.keys import ModelKeys
from gofer.agent.models.offline import Offline
from gofer.doctor.finding import Finding
from gofer.platform import Platform
from gofer.store.open import FIRST_WORKSPACE

WITHIN = 30.0
ADD_A_KEY = "gofer secrets put anthropic_key < key.txt"
NO_KEY = "No model key: the offline model answers, which only runs commands."
NAMED_ONLY = (
    "Agents that name a model, such as `openai/gpt-5`, have it; the others have no key, so the offline model answers, "
    "which only runs commands."
)
FIXES = {
    "auth": ADD_A_KEY,
    "invalid": "Choose another model: gofer agents show NAME",
    "unavailable": "Try again in a minute.",
    "retryable": "Try again in a minute.",
}
QUESTION = Request(
    system="Answer with the word ok.",
    tools=(),
    messages=({"role": "user", "content": [{"type": "text", "text": "ok?"}]},),
    max_tokens=16,
    use_tools=False,
)


async def look_at_model(platform: Platform) -> list[Finding]:
    """What would answer, without asking it."""
    catalogue = await keys_of(platform).catalogue(FIRST_WORKSPACE)
    name = catalogue.resolve("auto")
    if name == Offline.name:
        return [Finding("model", "note", NAMED_ONLY if catalogue.providers else NO_KEY, ADD_A_KEY)]
    line = (
        f"{name}: there is a key; it was not asked. `gofer doctor --call` asks it, for a fraction of a cent."
    )
    return [Finding("model", "ok", line)]


async def ask_model(platform: Platform, keys: dict[str, str] | None = None) -> Finding:
    """Ask the model one word: a call that costs a fraction of a cent, so never without consent.

    With `keys`, the model that would answer if these were in the vault.
    """
    known = keys_of(platform)
    catalogue = await known.catalogue(FIRST_WORKSPACE) if keys is None else known.trial(keys)
    name = catalogue.resolve("auto")
    if name == Offline.name:
        return (await look_at_model(platform))[0]
    begun = time.perf_counter()
    try:
        async with asyncio.timeout(WITHIN):
            turn = [event async for event in catalogue.model(name).stream(QUESTION)][-1]
    except ModelError as error:
        return Finding("model", "error", f"{name}: {error}", FIXES.get(error.kind, "gofer doctor --call"))
    except TimeoutError:
        return Finding(
            "model", "error", f"{name} did not answer within {WITHIN:.0f} s.", "Try again in a minute."
        )
    assert isinstance(turn, Turn)
    took = time.perf_counter() - begun
    return Finding("model", "ok", f"{turn.model} answered in {took:.1f} s, with {turn.usage.total} tokens.")


def keys_of(platform: Platform) -> ModelKeys:
    """What makes the catalogue of models."""
    return ModelKeys(
        settings=platform.settings, database=platform.database, vault=platform.vault, http=platform.http
    )
