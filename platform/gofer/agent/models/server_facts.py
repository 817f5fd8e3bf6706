"""Asks a server about its model: how many tokens it takes, and whether it takes images.

Each kind of server tells it in another place. For a server that tells nothing the settings decide.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

ASK_TIMEOUT = 5.0
OLLAMA_DEFAULT = 4096
"""The window that Ollama uses by default."""
_WINDOWS = (
    "loaded_context_length",
    "max_model_len",
    "context_length",
    "context_window",
    "max_context_length",
)
"""LM Studio, vLLM, OpenRouter and Together, Groq, Mistral."""
_NUM_CTX = re.compile(r"^\s*num_ctx\s+(\d+)", re.M)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts about a model; None where the server does not say."""

    window: int | None = None
    images: bool | None = None
    pdfs: bool | None = None


class ModelServer:
    """One server and one of its models. Asking is free and never raises: no answer means no facts."""

    def __init__(
        self, http: httpx2.AsyncClient, base_url: str, headers: Mapping[str, str], model: str
    ) -> None:
        self._http = http
        self._base = base_url.rstrip("/")
        self._root = self._base.removesuffix("/v1").removesuffix("/api")
        self._headers = dict(headers)
        self._model = model

    async def facts(self, load_timeout: float) -> ServerFacts | None:
        """What it tells; None when nobody answers there. Ollama and LM Studio may have to load the model first."""
        listed = await self._get(f"{self._base}/models")
        if listed is None:
            return None
        entry = self._entry(listed)
        if entry.get("owned_by") == "llamacpp":  # its /props knows the share of one slot
            return await self._llama_cpp() or _listed(entry)
        found = _listed(entry)
        if found.window is None:  # vLLM tells it of a model, not of the LoRA adapters to that model
            found = _listed(_find(listed, entry.get("parent")))
        if found.window is not None:
            return found
        local = await self._llama_cpp() or await self._ollama(load_timeout)
        return local or await self._lm_studio(load_timeout) or found

    def _entry(self, listed: Mapping[str, Any]) -> dict[str, Any]:
        models = _list(listed.get("data"))
        # A server with one model answers whatever name it is asked by.
        return _find(listed, self._model) or (_dict(models[0]) if len(models) == 1 else {})

    async def _llama_cpp(self) -> ServerFacts | None:
        props = await self._get(f"{self._root}/props")
        window = _number((_dict(props).get("default_generation_settings") or {}).get("n_ctx"))
        if window is None:
            return None
        vision = (_dict(props).get("modalities") or {}).get("vision")
        return ServerFacts(window, images=vision if isinstance(vision, bool) else None)

    async def _ollama(self, load_timeout: float) -> ServerFacts | None:
        shown = await self._post("/api/show", {"model": self._model})
        if not _dict(shown).get("model_info"):
            return None
        told = _dict(shown)
        can = _list(told.get("capabilities"))
        images = "vision" in can if can else None
        running = await self._ollama_running()
        if running is None:
            # The window is settled when the model is loaded, which the first message would have to wait for anyway.
            await self._post("/api/generate", {"model": self._model}, timeout=load_timeout)
            running = await self._ollama_running()
        if running is not None:
            return ServerFacts(running, images)
        set_ = _NUM_CTX.search(str(told.get("parameters") or ""))
        trained = [value for key, value in told["model_info"].items() if key.endswith(".context_length")]
        most = _number(trained[0]) if trained else None
        window = int(set_.group(1)) if set_ else OLLAMA_DEFAULT
        return ServerFacts(min(window, most or window), images)

    async def _ollama_running(self) -> int | None:
        listed = _list(_dict(await self._get(f"{self._root}/api/ps")).get("models"))
        names = (self._model, f"{self._model}:latest")
        loaded = [
            one for one in listed if _dict(one).get("name") in names or _dict(one).get("model") in names
        ]
        return _number(loaded[0].get("context_length")) if loaded else None

    async def _lm_studio(self, load_timeout: float) -> ServerFacts | None:
        path = "/api/v0/models"
        told = _find(_dict(await self._get(f"{self._root}{path}")), self._model)
        if told.get("state") == "not-loaded":
            # As with Ollama: until it is loaded the server tells only what the model could take at most.
            hello = {"model": self._model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
            await self._post("/api/v0/chat/completions", hello, timeout=load_timeout)
            told = _find(_dict(await self._get(f"{self._root}{path}")), self._model) or told
        window = _listed(told).window
        if window is None:
            return None
        return ServerFacts(window, images=told.get("type") == "vlm" if told.get("type") else None)

    async def _get(self, url: str) -> dict[str, Any] | None:
        return await self._ask("GET", url, None, ASK_TIMEOUT)

    async def _post(
        self, path: str, body: dict[str, Any], timeout: float = ASK_TIMEOUT
    ) -> dict[str, Any] | None:
        return await self._ask("POST", f"{self._root}{path}", body, timeout)

    async def _ask(
        self, method: str, url: str, body: dict[str, Any] | None, timeout: float
    ) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(timeout):
                answer = await self._http.request(
                    method, url, json=body, headers=self._headers, timeout=timeout
                )
                told = answer.json() if answer.is_success else {}
        except (TimeoutError, httpx2.HTTPError, httpx2.InvalidURL, ValueError):
            return None
        return told if isinstance(told, dict) else {"data": told}


def _find(listed: Mapping[str, Any], name: object) -> dict[str, Any]:
    """The entry of a list of models that has this name."""
    entries = [_dict(one) for one in _list(listed.get("data"))]
    return next((one for one in entries if name and name in (one.get("id"), *_list(one.get("aliases")))), {})


def _listed(entry: Mapping[str, Any]) -> ServerFacts:
    """What an entry of the list of models says, whoever's list it is."""
    sources = [entry, _dict(entry.get("top_provider")), _dict(_dict(entry.get("capabilities")).get("limits"))]
    windows = [
        _number(source.get(key)) for source in sources for key in (*_WINDOWS, "max_context_window_tokens")
    ]
    windows.append(_number(_dict(entry.get("meta")).get("n_ctx")))
    modalities = _list(_dict(entry.get("architecture")).get("input_modalities"))
    return ServerFacts(
        next((window for window in windows if window), None),
        images="image" in modalities if modalities else None,
        pdfs="file" in modalities or "pdf" in modalities if modalities else None,
    )


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
