"""The callback adapter: a signed HTTP request to a runtime's own address.

The worker makes it once per hop. The request carries the order's id, so that the other side can tell a repeat, and a
signature over its body with a time. No redirect is followed. What the agent answers comes in as from every other one:
through `acknowledge` and `post_message`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx2
import structlog
from sqlalchemy import Connection, select

from gofer.errors import GoferError, NotFound
from gofer.integration.messages import sign_body
from gofer.jobs.queue import Claim
from gofer.runtimes import hops as hop_rows
from gofer.runtimes.words import read_order
from gofer.store import row_macs
from gofer.store.database import Database
from gofer.store.tables import hops, runtimes
from gofer.vault.envelope import Vault
from gofer.vault.redaction import Redactor

log = structlog.get_logger()

SIGNATURE = "gofer-signature"
ORDER = "gofer-order"


@dataclass(eq=False, repr=False, kw_only=True)
class CallbackSender:
    """Calls runtimes that listen for requests."""

    database: Database
    vault: Vault
    redactor: Redactor
    secret: Callable[[str], Awaitable[str]]
    timeout: float

    async def call(self, claim: Claim, number: int, ack_within: float) -> None:
        """Make the request of a hop, and keep what came of it. It counts as delivered when it was answered 2xx."""
        hop, runtime, text = await self.database.read(partial(self._read, job_id=claim.id, number=number))
        status, reason = "failed", "runtime.gone"
        if runtime is not None:
            status, reason = await self._send(hop, runtime, text)
        await self.database.write(
            partial(
                _keep,
                claim=claim,
                number=number,
                status=status,
                reason=reason,
                ack_within=ack_within,
            )
        )

    def _read(self, connection: Connection, job_id: int, number: int) -> tuple[Any, Any, str]:
        hop = connection.execute(select(hops).where(hops.c.job_id == job_id, hops.c.number == number)).one()
        runtime = connection.execute(select(runtimes).where(runtimes.c.id == hop.runtime_id)).one_or_none()
        if runtime is None or not row_macs.fits(connection, runtimes, runtime):
            return hop, None, ""
        text, _ = read_order(connection, self.vault, hop)
        return hop, runtime, self.redactor.redact(text)

    async def _send(self, hop: Any, runtime: Any, text: str) -> tuple[str, str]:
        order = hop_rows.order_id(hop.job_id, hop.number)
        said = {
            "order": order,
            "trigger": hop.job_id,
            "hop": hop.number,
            "runtime": runtime.name,
            "conversation": hop.conversation_id,
            "text": text,
        }
        body = json.dumps(said, ensure_ascii=False).encode("utf-8", "replace")
        try:
            key = await self.secret(runtime.callback_secret)
        except (NotFound, GoferError):
            return "failed", "callback.no_secret"
        headers = {
            "content-type": "application/json",
            SIGNATURE: sign_body(body, key, time.time()),
            ORDER: order,
        }
        from gofer.mcp.transport import OnlyThere  # a server without such a runtime needs none of it

        try:
            async with (
                asyncio.timeout(self.timeout),
                httpx2.AsyncClient(
                    transport=OnlyThere(runtime.callback_url), timeout=self.timeout, follow_redirects=False
                ) as client,
                client.stream("POST", runtime.callback_url, content=body, headers=headers) as answer,
            ):
                status = answer.status_code  # what it says besides is not read
        except httpx2.ConnectError:
            return "failed", "callback.unreachable"
        except (httpx2.HTTPError, httpx2.StreamError, OSError, ValueError, TimeoutError) as error:
            log.info("callback.unknown", order=order, error=type(error).__name__)
            return "unknown", "outcome.unknown"
        if 200 <= status < 300:
            return "delivered", ""
        log.info("callback.refused", order=order, status=status)
        return "failed", "runtime.busy" if status in (429, 503) else "callback.refused"


def _keep(
    connection: Connection, claim: Claim, number: int, status: str, reason: str, ack_within: float
) -> None:
    hop_rows.locked(connection, claim)
    row = connection.execute(select(hops).where(hops.c.job_id == claim.id, hops.c.number == number)).one()
    if status == "failed":
        hop_rows.change(connection, row, hop_rows.FAILED, reason=reason, was=(hop_rows.TAKEN,))
    else:
        hop_rows.delivered(connection, row, reason, ack_within)
