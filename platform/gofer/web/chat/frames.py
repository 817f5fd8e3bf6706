"""What goes over the wire: items as HTML, made on the server from templates that escape everything."""

from __future__ import annotations

import asyncio
from typing import Any

from gofer.web.chat.timeline import Timeline
from gofer.web.pages.rendering import Renderer


async def news_frame(renderer: Renderer, timeline: Timeline, conversation_id: str) -> dict[str, Any]:
    """Items that are new or have changed, the place after them, and what the agent is at."""
    # Colouring code takes its time; others should not wait for it.
    items = await asyncio.to_thread(_rendered, renderer, timeline.items, conversation_id)
    return {"type": "news", "items": items, "cursor": str(timeline.cursor), "state": timeline.state}


def _rendered(renderer: Renderer, items: list[dict[str, Any]], conversation_id: str) -> list[dict[str, Any]]:
    return [
        {
            "id": item["id"],
            "place": item["place"],
            "html": renderer.html("chat/item.html", item=item, room=conversation_id),
        }
        for item in items
    ]
