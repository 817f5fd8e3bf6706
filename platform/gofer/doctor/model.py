"""The model: whether there is a key, and, only when somebody says so, whether it works."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import httpx2

from gofer.agent.model import ModelError, ModelRequest, Turn
from gofer.agent.models.offline import Offline
from gofer.agent.models.openai import OPENAI_URL
from gofer.agent.models.providers import BUILT_IN, FILE
from gofer.app import Platform
from gofer.doctor.findings import Finding
from gofer.runs.model_keys import ModelKeys
from gofer.store.bootstrap import FIRST_WORKSPACE

MODEL_TIMEOUT = 30.0
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
    "retryable": "Check that this machine reaches the provider, then try again.",
}
COMPATIBLE_FIXES = {
    "auth": "gofer secrets put openai_key < key.txt",
    "unavailable": "Correct GOFER_OPENAI_BASE_URL, or start the server there.",
    "invalid": "Correct GOFER_OPENAI_BASE_URL: it mostly ends in /v1.",
}
KEY_FIXES = (FIXES["auth"], COMPATIBLE_FIXES["auth"])
OWN_FIXES = {
    "auth": f"Put another key under the name that {FILE} gives: gofer secrets put NAME < key.txt",
    "unavailable": f"Start the server, or correct base_url in {FILE}.",
    "invalid": f"Correct base_url in {FILE}: it mostly ends in /v1.",
}
QUESTION = ModelRequest(
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
        async with asyncio.timeout(MODEL_TIMEOUT):
            turn = [event async for event in catalogue.model(name).stream(QUESTION)][-1]
    except ModelError as error:
        return Finding("model", "error", f"{name}: {error}", FIXES.get(error.kind, "gofer doctor --call"))
    except TimeoutError:
        return Finding(
            "model", "error", f"{name} did not answer within {MODEL_TIMEOUT:.0f} s.", "Try again in a minute."
        )
    assert isinstance(turn, Turn)
    took = time.perf_counter() - begun
    return Finding("model", "ok", f"{turn.model} answered in {took:.1f} s, with {turn.usage.total} tokens.")


async def look_at_providers(platform: Platform) -> list[Finding]:
    """The user's own providers, without asking them."""
    catalogue = await keys_of(platform).catalogue(FIRST_WORKSPACE)
    path = platform.settings.data_dir / FILE
    if catalogue.problem:
        line = f"{catalogue.problem} The last good version is in force, if there was one."
        return [Finding("providers", "error", line, f"Correct {path}", "models.md#providers")]
    own = [name for name in catalogue.providers if name not in BUILT_IN]
    keyless = [
        Finding(
            f"provider {name}",
            "error",
            f"{name} needs a key.",
            f"gofer secrets put {catalogue.providers[name].key_name} < key.txt",
            "models.md#providers",
        )
        for name in own
        if catalogue.providers[name].key_name and not catalogue.providers[name].key
    ]
    if keyless or not own:
        return keyless
    return [Finding("providers", "ok", f"Of your own: {', '.join(sorted(own))}.")]


async def ask_providers(platform: Platform) -> list[Finding]:
    """Ask each of the user's own servers which models it has, which costs nothing."""
    catalogue = await keys_of(platform).catalogue(FIRST_WORKSPACE)
    return [
        await _ask_provider(platform, f"provider {name}", str(provider.base_url), provider.key, OWN_FIXES)
        for name, provider in sorted(catalogue.providers.items())
        if name not in BUILT_IN and provider.speaks == "openai"
    ]


async def ask_compatible(platform: Platform, key: str | None = None) -> Finding:
    """Ask an OpenAI-compatible server which models it has, with this key or the vault's: that costs nothing."""
    base = (platform.settings.openai_base_url or OPENAI_URL).rstrip("/")
    if key is None:
        provider = (await keys_of(platform).catalogue(FIRST_WORKSPACE)).providers.get("openai")
        key = provider.key if provider is not None else ""
    return await _ask_provider(platform, "model", base, key, COMPATIBLE_FIXES)


async def _ask_provider(
    platform: Platform, what: str, base: str, key: str, fixes: Mapping[str, str]
) -> Finding:
    try:
        names = await _models(platform, base, key)
        to_anybody = bool(await _models(platform, base, ""))
    except ModelError as error:
        return Finding(what, "error", str(error), fixes[error.kind])
    shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
    line = f"{base} has {len(names)} models: {shown}." if names else f"{base} answered, and has no model."
    unsure = " It tells them to anybody, so whether the key is right shows at the first message."
    return Finding(what, "ok", line + (unsure if key and to_anybody else ""))


async def _models(platform: Platform, base: str, key: str) -> list[str]:
    """Their names; none without a key where one is needed. Raises ModelError."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        async with asyncio.timeout(MODEL_TIMEOUT):
            answer = await platform.http.get(f"{base}/models", headers=headers)
    except (TimeoutError, httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise ModelError("unavailable", f"{base} cannot be reached ({type(error).__name__}).") from error
    if answer.status_code in (401, 403):
        if not key:
            return []
        raise ModelError("auth", f"{base} refuses the key.")
    try:
        return [str(each["id"]) for each in answer.raise_for_status().json()["data"]]
    except (httpx2.HTTPError, ValueError, LookupError, TypeError) as error:
        raise ModelError("invalid", f"{base}/models answered {answer.status_code}, but no list.") from error


def keys_of(platform: Platform) -> ModelKeys:
    """What makes the catalogue of models."""
    return ModelKeys(
        settings=platform.settings, database=platform.database, vault=platform.vault, http=platform.http
    )
