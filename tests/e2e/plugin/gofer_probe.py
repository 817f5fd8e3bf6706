"""A stranger's plugin for tests: a service that can only be sent to and edited, and a tool that leaves a mark.

It takes messages as `gofer_hello` does. Its replies go out the way they must where a service has neither an
idempotency key nor a search: an opening first, its id stored, then an edit that may be repeated.
"""

from __future__ import annotations

import os
from typing import Any

from gofer.errors import Permanent, Temporary
from gofer.integration import ConnectionContext, Integration, Outgoing
from gofer.tool import Arguments, Tier, Tool, ToolContext, ToolResult
from gofer_hello import Hello

OPENING = 12
"""Characters of a reply that are sent before its id is known."""


class Probe(Hello):
    name = "probe"
    summary = "For tests: send, store the id, edit."
    same_body_window = 3600

    find = Integration.find

    async def place(self, outgoing: Outgoing, account: ConnectionContext) -> str:
        opening = {"room": outgoing.conversation, "text": outgoing.text[:OPENING], "to": outgoing.reply_to}
        return str((await self._send(account, "POST", "", opening))["id"])

    async def complete(self, outgoing: Outgoing, external_id: str, account: ConnectionContext) -> None:
        await self._send(account, "PUT", f"/{external_id}", {"text": outgoing.text, "key": outgoing.id})

    async def _send(self, account: ConnectionContext, method: str, path: str, body: Any) -> Any:
        assert account.http is not None
        url = str(account.settings["reply_url"]) + path
        response = await account.http.request(method, url, json=body)
        if response.status_code == 429 or response.status_code >= 500:
            after = response.headers.get("retry-after", "")
            raise Temporary(retry_after=float(after) if after else None)
        if response.is_error:
            raise Permanent(response.text)
        return response.json()


class Mark(Arguments):
    line: str
    times: int = 1
    """How often the result says it."""


async def mark(arguments: Mark, context: ToolContext) -> ToolResult:
    """Append a line to the file that GOFER_TEST_MARKS names: what a command does to the world."""
    with open(os.environ["GOFER_TEST_MARKS"], "a") as file:
        file.write(arguments.line + "\n")
    return ToolResult("\n".join([f"marked {arguments.line}"] * arguments.times))


def tools() -> list[Tool[Any]]:
    return [Tool("mark", "Leave a mark.", Mark, mark, Tier.EXEC)]


integration = Probe()
