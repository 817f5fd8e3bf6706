"""`/remember`, `/forget` and `/memory`: what people in a conversation can see of memory, and change, where they are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection, select

from gofer.errors import GoferError, NotFound
from gofer.intake.routing import hearing_agents
from gofer.jobs.queue import Claim
from gofer.memory.audience import audience, new_scope
from gofer.memory.notes import forget_memory, keep_note
from gofer.memory.recall import Recall
from gofer.memory.records import Memory, Source, opened
from gofer.memory.scopes import AGENT, CONVERSATION, PERSON, open_scope, split_scope
from gofer.store import tables
from gofer.store.database import Database
from gofer.store.messages import StoredMessage
from gofer.store.tables import Trust, memories
from gofer.vault.envelope import Vault

MEMORY_COMMANDS = ("remember", "forget", "memory")
EVERYBODY = "everybody:"
MAX_LISTED = 10
NOTHING = "I remember nothing here beyond what was said. `/remember` and a sentence makes a note."
NOTHING_FITS = "Nothing that may be recalled here fits these words."
WHAT = "Say what: /remember and a sentence."
NOBODY_HEARS = (
    "No agent answers messages here, so none can remember it. An owner can choose one with /agent NAME."
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
        agents = await database.read(_agents, claim=claim, read=read)
        if read.message.command == "remember":
            return await database.write(
                _remember, vault=vault, claim=claim, read=read, agents=agents, words=words
            )
        scopes = await database.read(audience, conversation_id=str(claim.conversation_id), agents=agents)
        if read.message.command == "forget":
            return await database.write(_forget, vault=vault, words=words, scopes=scopes, read=read)
        if not words:
            return await database.read(_listed, vault=vault, scopes=scopes)
        found = (await recall.search(scopes, words, MAX_LISTED)).found
        return "\n".join(_line(each.memory) for each in found) or NOTHING_FITS
    except GoferError as error:
        return str(error)


def _agents(connection: Connection, claim: Claim, read: StoredMessage) -> list[str]:
    """The agents of a conversation, whoever would answer there first: a command is no agent's work."""
    return hearing_agents(
        connection,
        read.message,
        workspace_id=claim.workspace_id,
        connection_id=str(read.connection_id),
        conversation_id=str(claim.conversation_id),
    )


def _remember(
    connection: Connection,
    vault: Vault,
    claim: Claim,
    read: StoredMessage,
    agents: Sequence[str],
    words: str,
) -> str:
    if not words:
        return WHAT
    wide = words.casefold().startswith(EVERYBODY)
    if wide and not agents and read.trust is Trust.OWNER:
        return NOBODY_HEARS
    scope_id = new_scope(
        connection,
        str(claim.conversation_id),
        agents[0] if agents else None,
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
    whom = HEARD_BY[split_scope(scope_id)[0]]
    if wide and len(agents) > 1:
        whom = f"for everybody {_name(connection, agents[0])} talks to"
    return f"Remembered {whom}, as {kept.id}. `/forget {kept.id}` takes it back."


def _name(connection: Connection, agent_id: str) -> str:
    return str(
        connection.execute(select(tables.agents.c.name).where(tables.agents.c.id == agent_id)).scalar()
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
    who = read.message.author.name or read.message.author.id
    forget_memory(connection, vault, memory_id, scopes=scopes, by=who, reason="command")
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
