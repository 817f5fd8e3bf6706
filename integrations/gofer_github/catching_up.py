"""What GitHub tried to deliver: it never repeats by itself, but an App may list its deliveries and read them.

Without a public address this same list, asked for again and again, is the way in.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from gofer.errors import Permanent
from gofer.integration import Account, Request
from gofer_github.access import Access, moment
from gofer_github.client import PER_PAGE, Client, is_missing
from gofer_github.settings import Settings

MOST = 1_000
"""Deliveries looked at in one go."""
LOOK_BACK = 3 * 86_400.0
"""Seconds for which GitHub keeps deliveries."""
OVERLAP = 600.0
"""Seconds before the last one we know that are looked at again: deliveries may be listed late."""


async def missed(access: Access, account: Account, since: float) -> AsyncIterator[Request]:
    """Every delivery since then, oldest first. Those we have are deduped by their id."""
    if Settings.model_validate(account.settings).app_id is None:
        return  # only an App has a list of deliveries
    app = access.as_app(account)
    for summary in reversed(await _listed(app, since - OVERLAP)):
        request = await _fetched(app, summary)
        if request is not None:
            yield request


async def _listed(app: Client, since: float) -> list[dict[str, Any]]:
    """Summaries, newest first, one for each delivery however often it was tried."""
    found: dict[str, dict[str, Any]] = {}
    cursor: dict[str, Any] = {}
    while len(found) < MOST:
        page = await app.get("/app/hook/deliveries", per_page=PER_PAGE, **cursor)
        for summary in page:
            if moment(summary["delivered_at"]) < since:
                return list(found.values())
            found.setdefault(summary["guid"], summary)
        if len(page) < PER_PAGE:
            break
        cursor = {"cursor": page[-1]["id"]}
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


async def poll(access: Access, account: Account, last: str | None) -> list[Request]:
    """Wait a little, then return the deliveries that came after the last one we have."""
    settings = Settings.model_validate(account.settings)
    await asyncio.sleep(settings.poll_every)
    if settings.app_id is None:
        return []  # only an App has a list of deliveries
    app = access.as_app(account)
    fresh: list[dict[str, Any]] = []
    for summary in await _listed(app, time.time() - LOOK_BACK):
        if summary["guid"] == last:
            break
        fresh.append(summary)
    found = [await _fetched(app, summary) for summary in reversed(fresh)]
    return [request for request in found if request is not None]
