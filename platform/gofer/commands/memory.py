"""`/remember`, `/forget` and `/memory`: what people in a conversation can see of memory, and change, where they are."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from functools import partial

from sqlalchemy import Connection, select

from gofer.errors import GoferError, NotFound
from gofer.jobs.queue import Claim
from gofer.memory.audience import audience, new_scope
from gofer.memory.notes import forget_memory, keep_note
from gofer.memory.recall import Recall
from gofer.memory.records import Memory, Source, opened
from gofer.memory.scopes import AGENT, CONVERSATION, PERSON, open_scope, split_scope
from gofer.store.database import Database
from gofer.store.messages import StoredMessage
from gofer.store.tables import Trust, agents, memories, participants
from gofer.vault.envelope import Vault

MEMORY_COMMANDS = ("remember", "forget", "memory")
EVERYBODY = "everybody:"
MAX_LISTED = 10
NOTHING = "I remember nothing here beyond what was said. `/remember` and a sentence makes a note."
NOTHING_FITS = "Nothing that may be recalled here fits these words."
WHAT = "Say what: /remember and a sentence."
NOBODY_YET = (
    "No agent has answered here yet, so I do not know whose memory you mean. Say something to one first."
)
WHICH = "Say which: /forget and an id, as /memory shows it."
HEARD_BY = {
    CONVERSATION: "for this conversation",
    PERSON: "for you, in your private conversations",
    AGENT: "for everybody I talk to",
}
_KINDS = ("note", "rule", "plan")


async def answer_memory(
    database: Database, vault: Vault, recall: Recall, claim: Claim, read: StoredMessage
) -> str:
    """What to say to a command about memory; also why it cannot be done."""
    words = read.message.arguments.strip()
    try:
        agent_id = await database.read(partial(_agent, claim=claim))
        if read.message.command == "remember":
            return await database.write(
                partial(_remember, vault=vault, claim=claim, read=read, agent_id=agent_id, words=words)
            )
        scopes = await database.read(
            partial(audience, conversation_id=str(claim.conversation_id), agent_id=agent_id)
        )
        if read.message.command == "forget":
            return await database.write(partial(_forget, vault=vault, words=words, scopes=scopes, read=read))
        if not words:
            return await database.read(partial(_listed, vault=vault, scopes=scopes))
        found = (await recall.search(scopes, words, MAX_LISTED)).found
        return "\n".join(_line(each.memory) for each in found) or NOTHING_FITS
    except GoferError as error:
        return str(error)


def _agent(connection: Connection, claim: Claim) -> str | None:
    """The agent of a conversation; a command is no agent's work, and where several listen the first counts. Where none
    has listened yet, it is the only one there is."""
    if claim.agent_id:
        return claim.agent_id
    query = select(participants.c.agent_id).where(participants.c.conversation_id == claim.conversation_id)
    if (found := connection.execute(query.order_by(participants.c.id).limit(1)).scalar()) is not None:
        return str(found)
    only = connection.execute(select(agents.c.id).limit(2)).scalars().all()
    return str(only[0]) if len(only) == 1 else None


def _remember(
    connection: Connection, vault: Vault, claim: Claim, read: StoredMessage, agent_id: str | None, words: str
) -> str:
    if not words:
        return WHAT
    wide = words.casefold().startswith(EVERYBODY)
    if wide and agent_id is None and read.trust is Trust.OWNER:
        return NOBODY_YET
    scope_id = new_scope(
        connection,
        str(claim.conversation_id),
        agent_id,
        wanted=AGENT if wide else "",
        by_owner=read.trust is Trust.OWNER,
    )
    kept = keep_note(
        connection,
        vault,
        scope_id=scope_id,
        text=words[len(EVERYBODY) :] if wide else words,
        trust=read.trust.value,
        author=read.message.author.name or read.message.author.id,
        source=Source(claim.conversation_id, read.seq, claim.id),
        memory_id=_id_of(vault, claim, read),
        reason="command",
    )
    return (
        f"Remembered {HEARD_BY[split_scope(scope_id)[0]]}, as {kept.id}. `/forget {kept.id}` takes it back."
    )


def _id_of(vault: Vault, claim: Claim, read: StoredMessage) -> str:
    """The same for the same message, so that a job that is done again remembers nothing twice."""
    digest = vault.mac_key("memory of a command").digest(str(claim.conversation_id), read.seq)
    return f"mem_{digest[:24]}"


def _forget(
    connection: Connection, vault: Vault, words: str, scopes: Collection[str], read: StoredMessage
) -> str:
    memory_id = words.strip("`. ")
    if not memory_id:
        return WHICH
    row = connection.execute(select(memories.c.scope_id).where(memories.c.id == memory_id).limit(1)).first()
    if row is not None and split_scope(row.scope_id)[0] == AGENT and read.trust is not Trust.OWNER:
        return "Only an owner can have that forgotten: everybody I talk to may know it."
    forget_memory(connection, vault, memory_id, scopes=scopes, reason="command")
    return f"Forgotten. `gofer memory restore {memory_id}`, or the Memory page, brings it back."


def _listed(connection: Connection, vault: Vault, scopes: Collection[str]) -> str:
    query = (
        select(memories)
        .where(memories.c.scope_id.in_(scopes), memories.c.kind.in_(_KINDS))
        .where(memories.c.valid_to.is_(None), memories.c.sealed.is_not(None))
        .order_by(memories.c.valid_from.desc())
        .limit(MAX_LISTED)
    )
    found: list[Memory] = []
    for row in connection.execute(query).all():
        try:
            found.append(opened(open_scope(connection, vault, row.scope_id), row))
        except (NotFound, GoferError):
            continue  # its key is lost; doctor says so
    return "\n".join(map(_line, found)) or NOTHING


def _line(memory: Memory) -> str:
    day = datetime.fromtimestamp(memory.valid_from, UTC).strftime("%Y-%m-%d")
    return f"`{memory.id}` {day}: {memory.gist}"
