"""Questions that are settled without a press: answered in words, elsewhere or too late, or stopped with their run.

Taking their buttons off is decoration: whoever presses one that stayed is told that it is too late.
"""

from __future__ import annotations

from functools import partial

import structlog

from gofer.connections.context import LoadedConnections
from gofer.outbox.ledger import ended_questions
from gofer.store.database import Database
from gofer.vault.envelope import Vault

log = structlog.get_logger()


async def end_questions(database: Database, vault: Vault, accounts: LoadedConnections, job_id: int) -> None:
    """Take the buttons off those of a job's questions that nobody is to answer any more. Never raises."""
    try:
        for connection_id, ref, external_id in await database.read(
            partial(ended_questions, vault=vault, job_id=job_id)
        ):
            connected = await accounts.get(connection_id)
            await connected.integration.end_question(ref, external_id, connected.account)
    except Exception as error:  # noqa: BLE001 - decoration must never cost a reply
        log.info("question.not_ended", error=f"{type(error).__name__}: {error}")
