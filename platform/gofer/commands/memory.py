"""`/remember`, `/forget` and `/memory`: what people in a conversation can see of memory, and change, where they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sqlalchemy import Connection, select

from gofer.errors import Conflict, Forbidden, GoferError
from gofer.intake.routing import hearing_agents
from gofer.jobs.queue import Claim
from gofer.memory import notes, records
from gofer.memory.audience import audience, new_scope
from gofer.memory.recall import Recall, lost_keys, reindex
from gofer.memory.records import FORGOTTEN, UNREADABLE, Memory, Source, described
from gofer.memory.scopes import AGENT, CONVERSATION, PERSON, ScopeKeyLost, split_scope
from gofer.memory.transfer import export_notes, keep_import, parse_import
from gofer.store import tables
from gofer.store.database import Database
from gofer.store.messages import StoredMessage
from gofer.store.tables import Trust, memories
from gofer.vault.envelope import Vault

MEMORY_COMMANDS = ("remember", "forget", "memory")
EVERYBODY = "everybody:"
MAX_LISTED = 10
MAX_EXPORTED = 50
"""Memories that fit a chat."""
MAX_SHOWN = 3000
"""Characters of a memory that are shown in a chat."""
NOTHING = "I remember nothing here beyond what was said. `/remember` and a sentence makes a note."
NOTHING_FITS = "Nothing that may be recalled here fits these words."
WHAT = "Say what: /remember and a sentence."
NO_AGENT = (
    "No agent answers messages here, so none can remember it. An owner can choose one with /agent NAME."
)
WHICH = "Say which: /forget and an id, as /memory shows it."
OWNERS_ALONE = "Only an owner can change that: everybody I talk to may know it."
OWNER_MOVES = "Only an owner may change who hears of something."
TO_WHOM = "Say who may hear of it: /memory audience {id} conversation, me or everybody."
NEW_WORDS = "Say the new words: /memory edit {id} and a sentence."
WHICH_MEMORY = "Say which: /memory {verb} and an id, as /memory shows it."
WHAT_TO_IMPORT = "Put the notes below /memory import in the same message: JSON lines, or a Markdown list."
FOR_OTHERS = "Some of these notes are for other people. `gofer memory import` and the Memory page ask whom each is for."
OWNER_REINDEXES = "Only an owner can have memory indexed anew."
REINDEXED = "What may be recalled here is being indexed anew."
PARTLY = "Some memories cannot be read now; `gofer doctor` says why."
HEARD_BY = {
    CONVERSATION: "for this conversation",
    PERSON: "for you, in your private conversations",
    AGENT: "for everybody I talk to",
}
AUDIENCES = {"conversation": CONVERSATION, "me": PERSON, "person": PERSON, "everybody": AGENT, "agent": AGENT}
_KINDS = ("note", "rule", "plan")


async def answer_memory(
    database: Database, vault: Vault, recall: Recall, claim: Claim, read: StoredMessage, *, on: bool
) -> str:
    """What to say to a command about memory; also why it cannot be done. Where memory is off, what was kept before can
    still be seen and taken away."""
    try:
        told = await _answer(database, vault, recall, claim, read, on)
    except GoferError as error:
        return str(error)
    return told if on else f"{told}\n\n{notes.OFF}"


async def _answer(
    database: Database, vault: Vault, recall: Recall, claim: Claim, read: StoredMessage, on: bool
) -> str:
    words, command = read.message.arguments.strip(), read.message.command
    agents = await database.read(_agents, claim=claim, read=read)
    if command == "remember":
        if not on:
            raise notes.MemoryOff
        return await database.write(
            _remember, vault=vault, claim=claim, read=read, agents=agents, words=words
        )
    scopes = await database.read(audience, conversation_id=str(claim.conversation_id), agents=agents)
    verb, memory_id, rest = ("forget", words.strip("`. "), "") if command == "forget" else _parsed(words)
    if verb in _VERBS:
        order = _Order(vault, claim, read, agents, scopes, memory_id, rest)
        return await database.write(_obey, order=order, verb=verb)
    first, _, rest = words.partition("\n")
    if first.strip() == "import":
        if not on:
            raise notes.MemoryOff
        return await database.write(_imported, vault=vault, claim=claim, read=read, agents=agents, text=rest)
    if words == "reindex":
        return await _reindexed(database, vault, recall, read, scopes)
    if words == "export":
        return await database.read(_exported, vault=vault, scopes=scopes)
    if words in _VERBS:
        return WHICH_MEMORY.format(verb=words)
    if not words:
        return await database.read(_listed, vault=vault, scopes=scopes)
    results = await recall.search(scopes, words, MAX_LISTED)
    lines = [_line(each.memory) for each in results.found] or [NOTHING_FITS]
    return "\n".join([*lines, PARTLY] if results.degraded else lines)


def _parsed(words: str) -> tuple[str, str, str]:
    """A verb, an id and the rest, where words are such an order; else they are words to search for."""
    verb, _, rest = words.partition(" ")
    if verb.strip("`").startswith("mem_") and not rest:
        return "show", verb.strip("`. "), ""
    memory_id, _, rest = rest.strip().partition(" ")
    memory_id = memory_id.strip("`")
    return (
        (verb.casefold(), memory_id.rstrip("."), rest.strip())
        if memory_id.startswith("mem_")
        else ("", "", "")
    )


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
        return NO_AGENT
    scope_id = new_scope(
        connection,
        str(claim.conversation_id),
        agents[0] if agents else None,
        wanted=AGENT if wide else "",
        by_owner=read.trust is Trust.OWNER,
    )
    kept = notes.keep_note(
        connection,
        vault,
        scope_id=scope_id,
        text=words[len(EVERYBODY) :] if wide else words,
        trust=read.trust.value,
        author=_who(read),
        source=Source(claim.conversation_id, read.seq, claim.id),
        memory_id=_id_of(vault, claim, read),
        reason="command",
    )
    whom = HEARD_BY[split_scope(scope_id)[0]]
    if wide and len(agents) > 1:
        whom = f"for everybody {_name(connection, agents[0])} talks to"
    return f"Remembered {whom}, as {kept.id}. `/forget {kept.id}` takes it back."


def _who(read: StoredMessage) -> str:
    return read.message.author.name or read.message.author.id


def _name(connection: Connection, agent_id: str) -> str:
    return str(
        connection.execute(select(tables.agents.c.name).where(tables.agents.c.id == agent_id)).scalar()
    )


def _id_of(vault: Vault, claim: Claim, read: StoredMessage) -> str:
    """The same for the same message, so that a job that is done again remembers nothing twice."""
    digest = vault.mac_key("memory of a command").digest(str(claim.conversation_id), read.seq)
    return f"mem_{digest[:24]}"


@dataclass(frozen=True, slots=True)
class _Order:
    """What somebody wants done with one memory."""

    vault: Vault
    claim: Claim
    read: StoredMessage
    agents: Sequence[str]
    scopes: Collection[str]
    memory_id: str
    rest: str

    def change(self, connection: Connection, *, text: str | None = None, pinned: bool | None = None) -> None:
        notes.change_memory(
            connection,
            self.vault,
            self.memory_id,
            scopes=self.scopes,
            trust=self.read.trust.value,
            author=_who(self.read),
            text=text,
            pinned=pinned,
        )


def _obey(connection: Connection, order: _Order, verb: str) -> str:
    """Do it, with the rights that the same person has elsewhere."""
    if not order.memory_id:
        return WHICH
    here = select(memories.c.scope_id).where(memories.c.id == order.memory_id).limit(1)
    scope_id = str(connection.execute(here).scalar() or "")
    for_everybody = scope_id in order.scopes and split_scope(scope_id)[0] == AGENT
    if verb != "show" and for_everybody and order.read.trust is not Trust.OWNER:
        raise Forbidden(OWNERS_ALONE)
    return _VERBS[verb](connection, order)


def _forget(connection: Connection, order: _Order) -> str:
    notes.forget_memory(
        connection, order.vault, order.memory_id, scopes=order.scopes, by=_who(order.read), reason="command"
    )
    return f"Forgotten. `/memory restore {order.memory_id}` brings it back."


def _restore(connection: Connection, order: _Order) -> str:
    try:
        notes.restore_memory(connection, order.vault, order.memory_id, scopes=order.scopes)
    except Conflict:
        return f"`{order.memory_id}` is remembered."  # also when a job that was cut off is done again
    return f"Restored. `/forget {order.memory_id}` takes it back."


def _edit(connection: Connection, order: _Order) -> str:
    if not order.rest:
        return NEW_WORDS.format(id=order.memory_id)
    order.change(connection, text=order.rest)
    return f"Changed. `/memory {order.memory_id}` shows the old words as well."


def _pin(connection: Connection, order: _Order) -> str:
    order.change(connection, pinned=True)
    return f"Pinned: every run here reads it. `/memory unpin {order.memory_id}` makes it a note again."


def _unpin(connection: Connection, order: _Order) -> str:
    order.change(connection, pinned=False)
    return f"`{order.memory_id}` is a note, and no standing rule."


def _move(connection: Connection, order: _Order) -> str:
    """Another audience, of those that this conversation can name."""
    if order.read.trust is not Trust.OWNER:
        raise Forbidden(OWNER_MOVES)
    wanted = AUDIENCES.get(order.rest.casefold().strip(":. "))
    if wanted is None:
        return TO_WHOM.format(id=order.memory_id)
    if wanted == AGENT and not order.agents:
        return NO_AGENT
    conversation_id, agent_id = str(order.claim.conversation_id), order.agents[0] if order.agents else None
    target = new_scope(connection, conversation_id, agent_id, wanted=wanted, by_owner=True)
    new_id = _id_of(order.vault, order.claim, order.read)
    try:
        before = records.resolve(connection, order.vault, order.memory_id, scopes=order.scopes)
        trust, by = order.read.trust.value, _who(order.read)
        moved = notes.move_memory(connection, order.vault, before, target, trust=trust, by=by, new_id=new_id)
    except records.ForgottenMemory:
        # A job that was cut off is done again: the words are there already.
        try:
            moved = records.resolve(connection, order.vault, new_id, scopes=(target,))
        except records.UnknownMemory:
            raise records.ForgottenMemory from None
    return f"Kept {HEARD_BY[wanted]}, as {moved.id}."


def _show(connection: Connection, order: _Order) -> str:
    """One memory: its words, where they come from, and what changed when."""
    found = records.versions(connection, order.vault, order.memory_id, scopes=order.scopes)
    last = found[-1]
    lines = [_line(last), last.text[:MAX_SHOWN], f"A {last.kind} {HEARD_BY[split_scope(last.scope_id)[0]]}."]
    lines.append(_origin(last, str(order.claim.conversation_id)))
    before = ""
    for each in found:
        what = _changed(before, each.text) if each.text else each.gist or each.state
        lines.append(
            f"Version {each.version}, {_day(each)}, {each.author or each.trust}:\n{what[:MAX_SHOWN]}"
        )
        before = each.text or before
    return "\n\n".join(filter(None, lines))


def _changed(before: str, after: str) -> str:
    """What a version says otherwise than the one before."""
    if not before:
        return after
    lines = [line for line in notes.difference(before, after).splitlines() if not line.startswith("@@")]
    return "\n".join(lines) or "the same words"


def _origin(memory: Memory, conversation_id: str) -> str:
    source = memory.source
    if source.conversation_id is None:
        return ""
    if memory.source_gone:
        return "The conversation it came from is purged."
    where = "this conversation" if source.conversation_id == conversation_id else "another conversation"
    message = f"message {source.message_seq} of " if source.message_seq else ""
    return f"It came from {message}{where}."


_VERBS: dict[str, Callable[[Connection, _Order], str]] = {
    "show": _show,
    "forget": _forget,
    "restore": _restore,
    "edit": _edit,
    "pin": _pin,
    "unpin": _unpin,
    "audience": _move,
}


def _exported(connection: Connection, vault: Vault, scopes: Collection[str]) -> str:
    found = export_notes(connection, vault, scopes)
    if not found:
        return NOTHING
    lines = "\n".join(json.dumps(each, ensure_ascii=False) for each in found[-MAX_EXPORTED:])
    more = len(found) - MAX_EXPORTED
    told = f"\n{more} older ones are left out here; the Memory page exports all." if more > 0 else ""
    return f"```\n{lines}\n```{told}"


def _imported(
    connection: Connection, vault: Vault, claim: Claim, read: StoredMessage, agents: Sequence[str], text: str
) -> str:
    """Keep the notes that a message lists, for who may know what is said here."""
    if not text.strip():
        return WHAT_TO_IMPORT
    owner = read.trust is Trust.OWNER
    target = new_scope(connection, str(claim.conversation_id), agents[0] if agents else None, by_owner=owner)
    entries = [each for each in parse_import(text, "") if each.text]
    if any(each.private and each.scope_id != target for each in entries):
        raise Forbidden(FOR_OTHERS)
    entries = [replace(each, scope_id=target, kind="note") for each in entries]
    before = keep_import(connection, vault, entries=entries, trust=read.trust.value, author=_who(read))
    forgotten = [*before.values()].count(FORGOTTEN)
    told = f"Imported {len(before) - forgotten} notes, {HEARD_BY[split_scope(target)[0]]}."
    return f"{told} {forgotten} that were forgotten here stay so." if forgotten else told


async def _reindexed(
    database: Database, vault: Vault, recall: Recall, read: StoredMessage, scopes: Collection[str]
) -> str:
    """Index anew what may be recalled here."""
    if read.trust is not Trust.OWNER:
        raise Forbidden(OWNER_REINDEXES)
    lost = await database.read(lost_keys, vault=vault, scopes=scopes)
    for each in sorted(set(scopes) - lost):
        await database.write(reindex, scope_id=each)
        recall.degraded.pop(each, None)
    return REINDEXED if not lost else str(ScopeKeyLost())


def _listed(connection: Connection, vault: Vault, scopes: Collection[str]) -> str:
    query = (
        select(memories)
        .where(memories.c.scope_id.in_(scopes), memories.c.kind.in_(_KINDS))
        .where(memories.c.valid_to.is_(None), memories.c.sealed.is_not(None))
        .order_by(memories.c.valid_from.desc())
        .limit(MAX_LISTED)
    )
    found = [described(connection, vault, row) for row in connection.execute(query).all()]
    return "\n".join(map(_line, found)) or NOTHING


def _day(memory: Memory) -> str:
    return datetime.fromtimestamp(memory.valid_from, UTC).strftime("%Y-%m-%d")


def _line(memory: Memory) -> str:
    gist = f"(unreadable) {memory.gist}" if memory.state == UNREADABLE else memory.gist or f"({memory.state})"
    return f"`{memory.id}` {_day(memory)}: {gist}"
