"""Screenshots that people put into issues and comments, fetched for the model.

In a private repository their addresses open for nobody without a signature, which GitHub puts into the HTML of a text
that is asked for through the API. It is asked for only where a text shows a picture; no token goes along.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlsplit

import httpx2

from gofer.errors import Permanent
from gofer.integration import Account, File, Incoming
from gofer_github.access import moment
from gofer_github.client import Client, is_missing
from gofer_github.place import Place
from gofer_github.settings import PUBLIC, Settings

MAX_PICTURES = 5
MAX_BYTES = 5 * 1024 * 1024
"""Of one picture: what models take."""
HTML = "application/vnd.github.full+json"
_UPLOADS = "/user-attachments/assets/"
_PUBLIC_HOSTS = frozenset({"private-user-images.githubusercontent.com", "user-images.githubusercontent.com"})
_TYPES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}


@dataclass(frozen=True, slots=True)
class Pictures:
    """What came along, and in words for the model whose it is."""

    files: tuple[File, ...] = ()
    note: str = ""


class _Images(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.found += [value for name, value in attrs if name == "src" and value]


async def fetch(message: Incoming, client: Client, account: Account, place: Place) -> Pictures:
    """The pictures of a request and of the issue or pull request that it is about."""
    if account.http is None:
        return Pictures()
    settings = Settings.model_validate(account.settings)
    files: list[File] = []
    told: list[str] = []
    missed = 0
    for whose, path in _sources(message, place):
        for address in await _addresses(client, path, message, settings):
            if len(files) == MAX_PICTURES:
                missed += 1
                continue
            data = await _download(account.http, address)
            kind = _media_type(data)
            if not kind:
                missed += 1
                continue
            name = f"picture-{len(files) + 1}.{kind.partition('/')[2]}"
            files.append(File(name, kind, data))
            told.append(f"{name} is of {whose}")
    told += [f"{missed} more could not be had"] if missed else []
    return Pictures(tuple(files), f"(Pictures: {'; '.join(told)}.)" if told else "")


def _sources(message: Incoming, place: Place) -> Iterator[tuple[str, str]]:
    """What to ask GitHub for, where a text shows a picture."""
    base, facts = f"/repos/{place.repository}", message.facts
    if _shows_one(message.text):
        if facts.get("review_comment"):
            yield "the request", f"{base}/pulls/comments/{facts['review_comment']}"
        elif message.external_id.startswith("comment-"):
            yield "the request", f"{base}/issues/comments/{facts['comment']}"
        elif message.external_id == str(place.number):
            yield "the request", f"{base}/issues/{place.number}"
    if _shows_one(message.quoted):
        yield "what the request is about", f"{base}/issues/{place.number}"


def _shows_one(text: str) -> bool:
    return "[image: " in text or "<img src" in text


async def _addresses(client: Client, path: str, message: Incoming, settings: Settings) -> list[str]:
    """Where the pictures of a text are, if it is still the one that the request was made with."""
    try:
        found = await client.get(path, accept=HTML)
    except Permanent as error:
        if is_missing(error):
            return []
        raise
    if _changed(found, message):
        return []
    images = _Images()
    images.feed(str(found.get("body_html") or ""))
    return [address for address in dict.fromkeys(images.found) if _is_upload(address, settings)]


def _changed(found: dict[str, Any], message: Incoming) -> bool:
    if "number" in found:
        digest = hashlib.sha256(str(found.get("body") or "").encode("utf-8", "replace")).hexdigest()
        return bool(message.facts.get("body", digest) != digest)
    created, updated = (moment(str(found.get(name) or "")) for name in ("created_at", "updated_at"))
    return updated > created


def _is_upload(address: str, settings: Settings) -> bool:
    """Whether an address is of GitHub's own uploads: nothing else is asked for anything."""
    parts, web = urlsplit(address), urlsplit(settings.web_url)
    if parts.scheme != web.scheme:
        return False
    if parts.netloc.lower() == web.netloc.lower():
        return parts.path.startswith(_UPLOADS)
    if settings.web_url == PUBLIC:
        return parts.netloc.lower() in _PUBLIC_HOSTS
    return parts.netloc.lower() == f"media.{web.netloc.lower()}"


async def _download(http: httpx2.AsyncClient, address: str) -> bytes:
    """A picture's bytes; none when it is not there, or too big."""
    held = bytearray()
    try:
        async with http.stream("GET", address, follow_redirects=False) as response:
            if response.status_code != 200:
                return b""
            async for some in response.aiter_bytes():
                held += some
                if len(held) > MAX_BYTES:
                    return b""
    except httpx2.HTTPError:
        return b""
    return bytes(held)


def _media_type(data: bytes) -> str:
    """What it is by its first bytes; empty for what no model takes."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _TYPES.items() if data.startswith(magic)), "")
