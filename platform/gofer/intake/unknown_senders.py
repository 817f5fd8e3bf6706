"""Strangers: told once in a while that they are not known, while their wish to be let in is put to an owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, func, select

from gofer.identity import may_tell
from gofer.jobs.kinds import APPROVAL
from gofer.jobs.outcome import Draft
from gofer.jobs.queue import SERVICE, Claim, submit
from gofer.jobs.reply_planner import plan_replies
from gofer.sanitize import display_name
from gofer.store import events as log
from gofer.store.tables import LIVE, bindings, in_state, jobs
from gofer.vault.envelope import Vault

if TYPE_CHECKING:
    from gofer.intake.admit import Read

MOST_WISHES = 3
"""Wishes that may wait for an owner at once, per connection."""


def decline(connection: Connection, vault: Vault, claim: Claim, read: Read, words: str) -> None:
    """Say the one polite line, unless it was said today, and pass the wish on. The conversation is locked."""
    assert claim.conversation_id is not None
    assert read.connection_id is not None
    binding_id = binding_at(connection, claim.conversation_id, read.connection_id)
    author = read.message.author
    if binding_id is None or not may_tell(connection, read.connection_id, author.id):
        return
    plan_replies(connection, vault, claim, (Draft(binding_id, (words,), kind="note"),))
    log.record(
        connection, "stranger.turned_away", claim.workspace_id, conversation_id=claim.conversation_id,
        data={"connection": read.connection_id},
    )  # fmt: skip
    wish(
        connection,
        claim,
        connection_id=read.connection_id,
        what={
            "what": "person",
            "subject": author.id,
            "name": display_name(author.name),
            "binding": binding_id,
        },
    )


def wish(connection: Connection, claim: Claim, *, connection_id: str, what: dict[str, str]) -> bool:
    """Make the job that asks an owner, unless it is there or too many wait. The conversation is locked."""
    lane = f"{APPROVAL}:{connection_id}:{what['what']}:{what['subject']}"
    open_ones = select(func.count()).select_from(jobs).where(in_state(*LIVE), jobs.c.kind == APPROVAL)
    waiting = connection.execute(open_ones.where(jobs.c.connection_id == connection_id)).scalar_one()
    same = connection.execute(select(jobs.c.id).where(jobs.c.lane == lane, in_state(*LIVE)).limit(1)).first()
    if same is not None or int(waiting) >= MOST_WISHES:
        return False
    submit(
        connection,
        workspace_id=claim.workspace_id,
        kind=APPROVAL,
        lane=lane,
        pool=SERVICE,
        payload=what,
        conversation_id=claim.conversation_id,
        connection_id=connection_id,
    )
    return True


def binding_at(connection: Connection, conversation_id: str, connection_id: str) -> str | None:
    """Where a conversation meets a connection."""
    query = select(bindings.c.id).where(
        bindings.c.conversation_id == conversation_id, bindings.c.connection_id == connection_id
    )
    return connection.execute(query.order_by(bindings.c.id).limit(1)).scalar()
