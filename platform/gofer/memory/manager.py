"""The memory manager: tidies the notes of a scope in a job of its own, never in the path of an answer.

Notes that say the same, word for word, become one: the newest stays, and the others are forgotten, which can be undone.
Each merge is a transaction, so a job that dies goes on where it was. It calls no model and costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from sqlalchemy import Connection, select

from gofer.errors import Conflict, GoferError, NotFound
from gofer.jobs.outcome import Done, Outcome
from gofer.jobs.queue import SERVICE, submit
from gofer.jobs.worker import Run
from gofer.memory.notes import forget_memory, tell
from gofer.memory.records import LIVE, Memory, opened
from gofer.memory.scopes import open_scope
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.database import Database
from gofer.store.tables import JobState, in_state, jobs, memories
from gofer.vault.envelope import Vault

MEMORY = "memory"
"""The kind of job that tidies the notes of a scope."""
MAX_NOTES = 1000
"""Notes of a scope that are looked at in one job, the newest."""
MAX_MERGES = 50
"""Of one job; the next note makes another."""
_PENDING = in_state(JobState.READY, JobState.BLOCKED, JobState.RUNNING, JobState.SCHEDULED, JobState.WAITING)
_WORDS = re.compile(r"\w+")


def ensure_tidying(connection: Connection, scope_id: str) -> bool:
    """Make the job that tidies a scope, unless there is one; whether it was made."""
    lane = f"memory:{scope_id}"
    if (
        connection.execute(select(jobs.c.id).where(jobs.c.lane == lane, _PENDING).limit(1)).first()
        is not None
    ):
        return False
    payload = {"scope": scope_id}
    submit(connection, workspace_id=FIRST_WORKSPACE, kind=MEMORY, lane=lane, pool=SERVICE, payload=payload)
    return True


class MemoryManager:
    """Handles those jobs."""

    def __init__(self, database: Database, vault: Vault) -> None:
        self._database = database
        self._vault = vault

    async def handle(self, run: Run) -> Outcome:
        """Merge what says the same, a pair at a time."""
        await self.tidy(str(run.claim.payload["scope"]))
        return Done()

    async def tidy(self, scope_id: str) -> int:
        """Merge some; returns how many."""
        try:
            found = await self._database.read(partial(_repeated, vault=self._vault, scope_id=scope_id))
            for kept, gone in found[:MAX_MERGES]:
                await self._database.write(partial(_merge, vault=self._vault, kept=kept, gone=gone))
        except (NotFound, GoferError):
            return 0  # purged, or its key is lost, which doctor says
        return len(found[:MAX_MERGES])


def _repeated(connection: Connection, vault: Vault, scope_id: str) -> list[tuple[Memory, Memory]]:
    """Each note that a newer one says word for word, behind that newer one."""
    query = (
        select(memories)
        .where(memories.c.scope_id == scope_id, memories.c.kind == "note", memories.c.state == LIVE)
        .where(memories.c.valid_to.is_(None), memories.c.sealed.is_not(None))
        .order_by(memories.c.valid_from.desc(), memories.c.id)
        .limit(MAX_NOTES)
    )
    keys = open_scope(connection, vault, scope_id)
    return _pairs([opened(keys, row) for row in connection.execute(query).all()])


def _pairs(newest_first: Sequence[Memory]) -> list[tuple[Memory, Memory]]:
    first: dict[tuple[str, bool], Memory] = {}
    pairs = []
    for note in newest_first:
        # What strangers may speak through never takes the place of what they do not.
        said = (" ".join(_WORDS.findall(note.text.casefold())), note.untrusted)
        kept = first.setdefault(said, note)
        if kept is not note and said[0]:
            pairs.append((kept, note))
    return pairs


def _merge(connection: Connection, vault: Vault, kept: Memory, gone: Memory) -> None:
    try:
        forget_memory(connection, vault, gone.id, scopes=(gone.scope_id,), reason="merge")
    except Conflict:
        return  # somebody changed it meanwhile
    size = len(kept.text)
    tell(
        connection, "merge", kept.id, f"says the same as {gone.id}", before=size + len(gone.text), after=size
    )
