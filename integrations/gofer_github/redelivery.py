"""Fetch deliveries from GitHub. GitHub never repeats one by itself, but an App can list and read them.

Without a public URL, polling this list replaces the webhook.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from gofer.errors import Permanent
from gofer.integration import ConnectionContext, Request
from gofer_github.access import Access, moment
from gofer_github.client import PER_PAGE, Client, is_missing
from gofer_github.settings import Settings

MAX_DELIVERIES = 1_000
"""Deliveries read at once."""
LOOK_BACK = 3 * 86_400.0
"""Seconds for which GitHub keeps deliveries."""
OVERLAP = 600.0
"""Seconds before the last known delivery that are read again, because GitHub may list deliveries late."""
MAX_REMEMBERED = 5_000


class Missed:
    """Deliveries that did not reach us. It remembers which ones were fetched, only to save requests: a delivery that is
    fetched twice is deduped by its id."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._fetched: dict[tuple[str, str], None] = {}

    async def since(self, account: ConnectionContext, since: float) -> AsyncIterator[Request]:
        """Every delivery since then, and earlier ones that failed and can be read; oldest first."""
        if Settings.model_validate(account.settings).app_id is None:
            return  # only an App has a list of deliveries
        app = self._access.as_app(account)
        for summary in reversed(await _listed(app)):
            late = moment(summary["delivered_at"]) < since - OVERLAP
            mark = (account.id, str(summary["guid"]))
            # Where no delivery can arrive, they are polled for, and those before were.
            if late and (_arrived(summary) or mark in self._fetched or account.hook_url is None):
                continue
            request = await _fetched(app, summary)
            if request is not None:
                yield request
            self._remember(mark)

    def _remember(self, mark: tuple[str, str]) -> None:
        """Remember a delivery once the caller asks for the next: by then it is stored."""
        self._fetched[mark] = None
        while len(self._fetched) > MAX_REMEMBERED:
            del self._fetched[next(iter(self._fetched))]


def _arrived(summary: dict[str, Any]) -> bool:
    return 200 <= int(summary.get("status_code") or 0) < 300


async def _summaries(app: Client) -> AsyncIterator[dict[str, Any]]:
    """Every delivery attempt that GitHub still lists, newest first."""
    cursor: dict[str, Any] = {}
    for _ in range(MAX_DELIVERIES // PER_PAGE):
        page = await app.get("/app/hook/deliveries", per_page=PER_PAGE, **cursor)
        for summary in page:
            if moment(summary["delivered_at"]) < time.time() - LOOK_BACK:
                return
            yield summary
        if len(page) < PER_PAGE:
            return
        cursor = {"cursor": page[-1]["id"]}


async def _listed(app: Client) -> list[dict[str, Any]]:
    """One attempt per delivery, newest first: the one that arrived, if any."""
    found: dict[str, dict[str, Any]] = {}
    async for summary in _summaries(app):
        if summary["guid"] not in found or _arrived(summary):
            found[summary["guid"]] = summary
    return list(found.values())


async def _fetched(app: Client, summary: dict[str, Any]) -> Request | None:
    try:
        detail = await app.get(f"/app/hook/deliveries/{summary['id']}")
    except Permanent as error:
        if is_missing(error):
            return None  # too old to be read any more
        raise
    body = json.dumps(detail["request"]["payload"], separators=(",", ":")).encode()
    headers = (("x-github-delivery", detail["guid"].encode()), ("x-github-event", detail["event"].encode()))
    return Request(body, headers)


async def poll(access: Access, account: ConnectionContext, last: str | None) -> list[Request]:
    """Wait a little, then return the deliveries that came after the last one we have."""
    settings = Settings.model_validate(account.settings)
    await asyncio.sleep(settings.poll_every)
    if settings.app_id is None:
        return []  # only an App has a list of deliveries
    app = access.as_app(account)
    fresh: dict[str, dict[str, Any]] = {}
    async for summary in _summaries(app):
        if summary["guid"] == last:
            break
        fresh.setdefault(summary["guid"], summary)
    found = [await _fetched(app, summary) for summary in reversed(fresh.values())]
    return [request for request in found if request is not None]
