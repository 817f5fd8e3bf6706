"""Git LFS through the reverse proxy: the batch API with the rule's credential, then each object where it is kept.

A server answers a batch with addresses on other hosts and headers that open them. Neither enters the sandbox: it gets
addresses of this proxy instead, each good for one object, in one direction, while the grant lasts.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from gofer_sandbox.network.errors import Refused
from gofer_sandbox.network.rules import GitAccess

MAX_REQUEST = 1024 * 1024
MAX_ANSWER = 8 * 1024 * 1024
MAX_TRANSFERS = 20_000
MEDIA_TYPE = "application/vnd.git-lfs+json"
PLACE = "/.lfs/"
"""Below a rule's name, where its objects are."""
BATCH = "info/lfs/objects/batch"
LOCKS = "info/lfs/locks/verify"
_METHODS = {"download": "GET", "upload": "PUT", "verify": "POST"}


@dataclass(frozen=True, slots=True)
class Transfer:
    """One object on its way."""

    method: str
    href: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(repr=False)


def check_batch(body: bytes, access: GitAccess) -> None:
    """Raise Refused for a batch that may not be asked for."""
    try:
        wanted = json.loads(body)
        operation = wanted["operation"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Refused("the LFS batch cannot be read", status=400) from None
    if operation not in ("download", "upload"):
        raise Refused(f"LFS operation {operation!r} is not known", status=400)
    if operation == "upload" and not access.push:
        raise Refused("this sandbox may not push here")
    if operation == "download" and not access.fetch:
        raise Refused("fetching is closed")


def rewrite_answer(answer: bytes, base: str, transfers: dict[str, Transfer]) -> bytes:
    """A batch's answer with addresses of this proxy; the real ones are kept in `transfers`."""
    try:
        found = json.loads(answer)
        for one in found["objects"]:
            actions = one.get("actions") or {}
            one["actions"] = {
                name: _ours(name, action, base, transfers)
                for name, action in actions.items()
                if name in _METHODS
            }
            if not one["actions"]:
                del one["actions"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Refused("the upstream's LFS answer cannot be read", status=502) from None
    found.pop("transfer", None)
    return json.dumps({**found, "transfer": "basic"}).encode()


def _ours(name: str, action: Mapping[str, Any], base: str, transfers: dict[str, Transfer]) -> dict[str, Any]:
    href = str(action["href"])
    if urlsplit(href).scheme not in ("http", "https") or not urlsplit(href).hostname:
        raise Refused("the upstream keeps an LFS object nowhere", status=502)
    if len(transfers) >= MAX_TRANSFERS:
        raise Refused("too many LFS objects for one grant", status=429)
    given = action.get("header") or {}
    token = secrets.token_urlsafe(24)
    transfers[token] = Transfer(
        _METHODS[name], href, tuple((str(key), str(value)) for key, value in given.items())
    )
    kept = {key: action[key] for key in ("expires_in", "expires_at") if key in action}
    return {"href": f"{base}{PLACE}{token}", **kept}
