"""How a release on probation proves that it works: a conversation of its own, and few errors.

The conversation takes the path of every other one: a signed request, the transaction, a job, the loop with the offline
model, a reply in the ledger that the outbox sends. When it is over, nothing of it is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import Connection, case, delete, func, insert, select

from gofer.agent.models.offline import Offline
from gofer.errors import GoferError
from gofer.integration import Request
from gofer.integration.messages import sign_body
from gofer.jobs.queue import AGENT
from gofer.memory.index import drop_index
from gofer.memory.scopes import conversation_scope
from gofer.secrets.rotation import new_conversation_key
from gofer.secrets.secret_store import put_secret
from gofer.store import row_macs
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.db_time import now
from gofer.store.ids import new_id
from gofer.store.tables import (
    CANARY,
    LIVE,
    ReplyState,
    agents,
    attempts,
    bindings,
    connections,
    conversations,
    deliveries,
    events,
    in_state,
    jobs,
    memories,
    replies,
    secrets,
    spends,
)
from gofer.vault.envelope import Vault
from gofer.vault.redaction import Secret

if TYPE_CHECKING:
    from gofer.app import Platform

log = structlog.get_logger()

INTEGRATION, SIGNATURE = "webchat", "x-webchat-signature"
"""The integration whose replies stay in the ledger, so that no other service is needed."""
ANSWER_TIMEOUT = 60.0
"""Seconds in which it has to be answered, not counting those in which every slot is taken by others."""
END_TIMEOUT = 10.0
LEFT_AFTER = 600.0
"""Seconds after which a canary conversation is one that a killed process has left."""
LOOK_EVERY = 0.1
LOOK_AT_ERRORS_EVERY = 5.0
MIN_FAILURES = 5
"""Failures that say nothing yet."""
NORMAL_TIMES, NORMAL_SHARE = 3.0, 0.2
"""How much larger the share of failed attempts may be than it was before, and what is normal anyway."""
MAX_ATTEMPTS = 5000
"""The last attempts, which are looked at; a store may have millions."""
BEFORE = 86400.0
"""Seconds before its start with which a release is compared."""


class CanaryFailed(GoferError):
    """A conversation with this release does not go as it should."""


async def prove(platform: Platform, notify: Callable[[str], None]) -> None:
    """Tell the supervisor whether this release works: once when it answers, and as soon as it fails too often."""
    started = await platform.database.read(lambda connection: connection.execute(select(now())).scalar_one())
    try:
        await play_canary(platform)
    except Exception as error:
        log.exception("canary.failed")
        notify(f"GOFER_UNFIT={one_line(error)}")
        return
    log.info("canary.answered")
    notify("GOFER_PROVED=1")
    while True:
        await asyncio.sleep(LOOK_AT_ERRORS_EVERY)
        with contextlib.suppress(GoferError):
            if why := await platform.database.read(partial(too_many_errors, since=started)):
                log.error("release.unfit", why=why)
                notify(f"GOFER_UNFIT={why}")
                return


def one_line(error: Exception) -> str:
    """What went wrong, as a line of a notice."""
    return " ".join(f"{error}".split())[:300] or type(error).__name__


async def play_canary(platform: Platform) -> None:
    """Write to this release and see it answer; raises CanaryFailed. Nothing of it is left afterwards."""
    await platform.database.write(partial(forget, which=connections.c.created_at < now() - LEFT_AFTER))
    place, key = new_id(CANARY), Secret(os.urandom(32).hex())
    await platform.database.write(partial(_prepare, vault=platform.vault, place=place, key=key))
    try:
        body = json.dumps(
            {
                "id": place,
                "conversation": place,
                "member": {"id": CANARY, "name": CANARY, "role": "operator"},
                "text": "Are you there?",
            }
        ).encode()
        signature = sign_body(body, key.reveal(), time.time()).encode()
        await platform.intake.receive(place, Request(body, ((SIGNATURE, signature),)))
        await _answered(platform, place)
    finally:
        await _until_quiet(platform, place)
        await platform.database.write(partial(forget, which=connections.c.id == place))
        platform.accounts.forget()


def _prepare(connection: Connection, vault: Vault, place: str, key: Secret) -> None:
    """The connection, and the conversation with the offline model. No event tells of either."""
    row = {"id": place, "workspace_id": FIRST_WORKSPACE, "integration": INTEGRATION, "name": CANARY}
    row_macs.insert(
        connection, connections, {**row, "enabled": True, "settings": {"reply_url": ""}, "created_at": now()}
    )
    put_secret(connection, vault, workspace_id=FIRST_WORKSPACE, owner=place, name="signing_key", value=key)
    agent = connection.execute(select(agents.c.id).order_by(agents.c.id).limit(1)).scalar()
    connection.execute(
        insert(conversations).values(
            id=place,
            workspace_id=FIRST_WORKSPACE,
            kind="web",
            title=CANARY,
            data_key=new_conversation_key(connection, vault, place),
            last_seq=0,
            agent_id=agent,
            model=Offline.name,
            created_at=now(),
        )
    )
    connection.execute(
        insert(bindings).values(id=new_id("bind"), conversation_id=place, connection_id=place, ref=place)
    )


async def _answered(platform: Platform, place: str) -> None:
    waited = 0.0
    while True:
        found = await platform.database.read(partial(_sent, place=place))
        if found == [(ReplyState.SENT, "final")]:
            return
        if len(found) > 1 or any(kind == "error" for _, kind in found):
            raise CanaryFailed(f"it gave {len(found)} replies where one answer was due")
        if waited > ANSWER_TIMEOUT:
            raise CanaryFailed(f"it did not answer within {ANSWER_TIMEOUT:g} seconds")
        worker = platform.worker
        if worker is None or worker.has_room(AGENT) or found:
            waited += LOOK_EVERY
        await asyncio.sleep(LOOK_EVERY)


def _sent(connection: Connection, place: str) -> list[tuple[str, str]]:
    query = select(replies.c.state, replies.c.kind).where(replies.c.conversation_id == place)
    return [(row.state, row.kind) for row in connection.execute(query)]


async def _until_quiet(platform: Platform, place: str) -> None:
    """Wait until no job of the conversation is under way, so that no worker writes to rows that are gone."""
    query = select(func.count()).select_from(jobs).where(jobs.c.conversation_id == place, in_state(*LIVE))
    for _ in range(int(END_TIMEOUT / LOOK_EVERY)):
        if not await platform.database.read(lambda connection: connection.execute(query).scalar_one()):
            return
        await asyncio.sleep(LOOK_EVERY)


def forget(connection: Connection, which: object) -> None:
    """Remove canary conversations with all that belongs to them."""
    named = connections.c.integration == INTEGRATION, connections.c.name == CANARY
    ids = select(connections.c.id).where(*named, connections.c.id.startswith(f"{CANARY}_"), which)  # type: ignore[arg-type]
    for place in list(connection.execute(ids).scalars()):
        drop_index(connection, conversation_scope(place))
        for table in (events, memories, spends):
            connection.execute(delete(table).where(table.c.conversation_id == place))
        connection.execute(delete(conversations).where(conversations.c.id == place))
        connection.execute(delete(deliveries).where(deliveries.c.connection_id == place))
        connection.execute(delete(secrets).where(secrets.c.owner == place))
        connection.execute(delete(connections).where(connections.c.id == place))


def too_many_errors(connection: Connection, since: float) -> str:
    """Why the attempts since a time say that the release does not work; empty while they are normal."""
    failed, ended = _failures(connection, since, None)
    before, all_before = _failures(connection, since - BEFORE, since)
    usual = before / all_before if all_before else 0.0
    if failed < MIN_FAILURES or failed <= ended * (usual * NORMAL_TIMES + NORMAL_SHARE):
        return ""
    return f"{failed} of {ended} attempts failed by a fault of its own"


def _failures(connection: Connection, since: float, until: float | None) -> tuple[int, int]:
    """How many of the last attempts failed by a fault of ours, and how many ended."""
    last = select(attempts).order_by(attempts.c.job_id.desc()).limit(MAX_ATTEMPTS).subquery()
    faulty = case((last.c.reason == "internal", 1), else_=0)
    query = select(func.coalesce(func.sum(faulty), 0), func.count()).where(last.c.ended_at >= since)
    if until is not None:
        query = query.where(last.c.ended_at < until)
    row = connection.execute(query).one()
    return int(row[0]), int(row[1])
