"""Memories in and out: JSON lines of ours, notes of other agents in Markdown, and archive indexes as NDJSON.

An import is checked whole before anything is kept, and then kept in pieces, so that nobody's message waits for it. What
is here already stays as it is. What had an id elsewhere gets an id of ours that follows from it: the same file again
keeps nothing twice, and what a crash left out. Other words under a known id are kept beside the first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from gofer.errors import Malformed
from gofer.memory.notes import MAX_NOTE, clean_note, keep_note
from gofer.memory.records import FORGOTTEN, UNREADABLE, Kind, Memory, described
from gofer.memory.scopes import AGENT, CONVERSATION, split_scope
from gofer.sanitize import clean
from gofer.store.tables import agents, bindings, connections, identities, memories, principals
from gofer.vault.envelope import Vault

MAX_ENTRIES = 5000
MAX_AUTHOR = 200
"""Characters of an author's name."""
MAX_KNOWN_AS = 20
"""Accounts of a person, or places of a conversation, that a line may name."""
_TEXTS = ("text", "content", "memory", "summary", "gist", "title")
"""Fields in which others keep the words, in the order they are looked for."""
_IDS = ("id", "memory_id", "uuid", "key", "path")
_BULLET = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+(?:\[[ xX]\]\s+)?")
_HEADING = re.compile(r"^#{1,6}\s+(.*)")
_LATEST = 4_102_444_800.0  # the year 2100


class UnfitFile(Malformed):
    """A file says something that cannot be imported."""

    status = 422


@dataclass(frozen=True, slots=True)
class ImportedNote:
    """One thing to be imported."""

    text: str
    foreign_id: str = ""
    at: float | None = None
    scope_id: str = ""
    """Who may hear of it, where the file says so."""
    scope_name: str = ""
    scope_known_as: tuple[str, ...] = ()
    """How the same person or conversation may be known elsewhere."""
    author: str = ""
    trust: str = ""
    untrusted: bool = False
    kind: Kind = "note"
    line: int = 0

    @property
    def private(self) -> bool:
        """Whether it is kept for some people and not for everybody."""
        return bool(self.scope_id) and split_scope(self.scope_id)[0] != AGENT


def export_notes(connection: Connection, vault: Vault, scopes: Collection[str]) -> list[dict[str, Any]]:
    """Everything that was noted for some scopes, oldest first. What cannot be read is there without its words."""
    query = (
        select(memories)
        .where(memories.c.scope_id.in_(scopes), memories.c.valid_to.is_(None), memories.c.sealed.is_not(None))
        .order_by(memories.c.valid_from, memories.c.id)
    )
    found = [described(connection, vault, row) for row in connection.execute(query).all()]
    named = {scope: _names(connection, scope) for scope in {each.scope_id for each in found}}
    return [_exported(each, *named[each.scope_id]) for each in found]


def _exported(memory: Memory, name: str, known_as: list[str]) -> dict[str, Any]:
    """A memory as one line of an export."""
    return {
        "id": memory.id,
        "version": memory.version,
        "kind": memory.kind,
        "state": memory.state,
        "scope": memory.scope_id,
        "scope_name": name,
        "scope_known_as": known_as,
        "text": memory.text,
        "author": memory.author,
        "trust": memory.trust,
        "untrusted": memory.untrusted,
        "conversation_id": memory.source.conversation_id,
        "message_seq": memory.source.message_seq,
        "at": memory.valid_from,
    }


def _names(connection: Connection, scope_id: str) -> tuple[str, list[str]]:
    """What a scope is called, and by what another instance knows the same one: an agent by its name, a person by their
    accounts, a conversation by its place."""
    kind, whose = split_scope(scope_id)
    if kind == CONVERSATION:
        query = _PLACES.where(bindings.c.conversation_id == whose)
        return "", [_place(row) for row in connection.execute(query)]
    table = agents if kind == AGENT else principals
    name = str(connection.execute(select(table.c.name).where(table.c.id == whose)).scalar() or "")
    if kind == AGENT:
        return name, []
    query = select(identities.c.integration, identities.c.subject).where(identities.c.principal_id == whose)
    return name, [f"{row.integration}:{row.subject}" for row in connection.execute(query)]


_PLACES = select(
    bindings.c.conversation_id, bindings.c.ref, connections.c.integration, connections.c.name
).join(connections, connections.c.id == bindings.c.connection_id)


def _place(row: Any) -> str:
    return f"{row.integration}:{row.name}:{row.ref}"


def scope_here(connection: Connection, entry: ImportedNote) -> str:
    """The scope here that an entry of another instance means; empty for none, and for one that is not certain. A
    person's name is no proof: only an account is."""
    kind, _ = split_scope(entry.scope_id)
    if kind == AGENT:
        query = select(agents.c.id).where(agents.c.name == entry.scope_name)
        found = set(connection.execute(query).scalars())
    elif kind == CONVERSATION:
        refs = {each.split(":", 2)[-1] for each in entry.scope_known_as}
        rows = connection.execute(_PLACES.where(bindings.c.ref.in_(refs)))
        found = {row.conversation_id for row in rows if _place(row) in entry.scope_known_as}
    else:
        accounts = [tuple(each.partition(":")[::2]) for each in entry.scope_known_as]
        query = select(identities.c.principal_id, identities.c.integration, identities.c.subject)
        rows = connection.execute(query.where(identities.c.subject.in_([account[1] for account in accounts])))
        found = {row.principal_id for row in rows if (row.integration, row.subject) in accounts}
    return f"{kind}:{found.pop()}" if len(found) == 1 else ""


def parse_import(text: str, form: str) -> list[ImportedNote]:
    """What a file says; raises Malformed with the line that is wrong. Without a form, what begins with a brace is
    JSON lines. What could not be read when it was exported has no text."""
    text = text.removeprefix("\ufeff")  # which editors on Windows write
    form = form or ("jsonl" if text.lstrip().startswith("{") else "markdown")
    entries = list(_markdown(text) if form == "markdown" else _lines(text))
    if not entries:
        raise UnfitFile("There is nothing to import in this file.")
    if len(entries) > MAX_ENTRIES:
        raise UnfitFile(
            f"An import has at most {MAX_ENTRIES} memories; this has {len(entries)}. Split the file."
        )
    _check(entries)
    return entries


def _check(entries: list[ImportedNote]) -> None:
    seen: dict[str, ImportedNote] = {}
    for entry in entries:
        where = f"Line {entry.line}" if entry.line else f"What begins with {entry.text[:40]!r}"
        if len(entry.text) > MAX_NOTE:
            raise UnfitFile(
                f"{where} has {len(entry.text)} characters; a memory has at most {MAX_NOTE}. Split it."
            )
        first = seen.setdefault(entry.foreign_id, entry) if entry.foreign_id else entry
        if first.text != entry.text:
            raise UnfitFile(
                f"{where} has the id {entry.foreign_id[:60]!r} of line {first.line}, and different words."
            )


def _lines(text: str) -> Iterator[ImportedNote]:
    """JSON lines. Superseded ones are left out; raises Malformed for a cycle of them, which would leave out all."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            found.append((number, _object(line, number)))
    gone = _superseded(found)
    for number, value in found:
        if _name(value, number) in gone or value.get("state") == FORGOTTEN:
            continue
        if value.get("state") == UNREADABLE:
            yield ImportedNote("", line=number)
            continue
        texts = (value[name] for name in _TEXTS if isinstance(value.get(name), str))
        words = next(filter(clean_note, texts), "")
        if not words:
            raise UnfitFile(f"Line {number} has no text: say it as `text`.")
        yield ImportedNote(words, _id(value), _time(value.get("at"), number), line=number, **_origin(value))


def _origin(value: dict[str, Any]) -> dict[str, Any]:
    """For whom a line is and whose word, where it says so in our own way; others mean something else by `scope`."""
    scope_id, trust, author = (_text(value.get(name)) for name in ("scope", "trust", "author"))
    try:
        kind, _ = split_scope(scope_id)
    except Malformed:
        return {}
    untrusted = value.get("untrusted") is True or trust not in ("owner", "member")
    pinned = value.get("kind") == "rule" and kind == CONVERSATION
    return {
        "scope_id": scope_id,
        "scope_name": _text(value.get("scope_name")),
        "scope_known_as": tuple(map(_text, _list(value.get("scope_known_as"))))[:MAX_KNOWN_AS],
        "author": clean_note(author)[:MAX_AUTHOR],
        "trust": trust if trust in ("owner", "member") else "stranger",
        "untrusted": untrusted,
        "kind": "rule" if pinned else "note",
    }


def _id(value: dict[str, Any]) -> str:
    """What a line is called, in whichever field; empty for one without a name."""
    return next((clean(str(value[name])) for name in _IDS if value.get(name)), "")


def _text(value: Any) -> str:
    return clean(value) if isinstance(value, str) else ""


def _name(value: dict[str, Any], number: int) -> str:
    """The id of a line, or what no other line can be called."""
    return _id(value) or f"\0{number}"


def _superseded(lines: list[tuple[int, dict[str, Any]]]) -> set[str]:
    """Ids whose place another line takes: the line that is newer says so, or the older one."""
    takes: dict[str, set[str]] = {}
    for number, value in lines:
        own = _name(value, number)
        takes.setdefault(own, set()).update(_ids(value.get("supersedes")))
        for newer in _ids(value.get("superseded_by")):
            takes.setdefault(newer, set()).add(own)
    gone = set().union(*takes.values())
    left = {new: olds for new, olds in takes.items() if olds}
    while free := [new for new, olds in left.items() if not olds & left.keys()]:
        for new in free:
            del left[new]
    if left:
        raise UnfitFile(
            f"The memory {min(left)[:60]!r} supersedes itself, by way of others: it is in a cycle."
        )
    return gone


def _object(line: str, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise UnfitFile(f"Line {number} is no JSON. Each line holds one object.") from None
    if not isinstance(value, dict):
        raise UnfitFile(f"Line {number} is no object.")
    return value


def _ids(value: Any) -> list[str]:
    given = value if isinstance(value, list) else [value]
    return [clean(str(each)) for each in given if each not in (None, "")]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []


def _time(value: Any, number: int) -> float | None:
    if value is None or isinstance(value, str):
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _LATEST:
        raise UnfitFile(f"Line {number}: `at` must be seconds since 1970, before the year 2100.")
    return float(value)


def _markdown(text: str) -> Iterator[ImportedNote]:
    """A note for each list item or paragraph, with the heading above it in front."""
    heading, paragraph = "", ""
    for line in [*text.splitlines(), ""]:
        title, bullet = _HEADING.match(line), _BULLET.match(line)
        if (title or bullet or not line.strip()) and paragraph:
            if clean_note(paragraph):
                yield ImportedNote(_under(heading, paragraph))
            paragraph = ""
        if title:
            heading = title[1].strip()
        elif bullet:
            paragraph = line[bullet.end() :].strip()
        elif line.strip() and not line.strip().startswith(("---", "<!--")):
            paragraph = f"{paragraph} {line.strip()}".strip()


def _under(heading: str, words: str) -> str:
    return (
        f"{heading}: {words}"
        if heading and heading.casefold() not in ("memory", "memories", "notes")
        else words
    )


def keep_import(
    connection: Connection,
    vault: Vault,
    *,
    entries: Sequence[ImportedNote],
    trust: str,
    author: str,
) -> dict[str, str | None]:
    """Keep some of what was parsed, each for its scope. An owner's import keeps who said
    what, and how far they are trusted; everybody else's is their own word. Returns the state in which each memory was
    here before: None for a new one. What was forgotten here stays so."""
    key = vault.mac_key("memory of an import")
    before: dict[str, str | None] = {}
    for entry in entries:
        memory_id = _here(connection, entry)
        if not memory_id:
            memory_id = f"mem_{key.digest(entry.scope_id, entry.foreign_id or entry.text)[:24]}"
        if _says_otherwise(connection, vault, memory_id, entry):
            memory_id = f"mem_{key.digest(entry.scope_id, entry.foreign_id, entry.text)[:24]}"
        if memory_id in before:
            continue
        before[memory_id] = _state_here(connection, memory_id)
        if before[memory_id] == FORGOTTEN:
            continue
        by_owner = trust == "owner" and bool(entry.trust)
        keep_note(
            connection,
            vault,
            scope_id=entry.scope_id,
            text=entry.text,
            trust=entry.trust if by_owner else trust,
            author=(by_owner and entry.author) or author,
            untrusted=entry.untrusted,
            kind=entry.kind if split_scope(entry.scope_id)[0] == CONVERSATION else "note",
            memory_id=memory_id,
            reason="import",
            at=entry.at,
        )
    return before


def _here(connection: Connection, entry: ImportedNote) -> str:
    """The id of an entry that was exported here, from the audience that it comes back to; empty for every other."""
    here = (memories.c.id == entry.foreign_id) & (memories.c.scope_id == entry.scope_id)
    return str(connection.execute(select(memories.c.id).where(here).limit(1)).scalar() or "")


def _says_otherwise(connection: Connection, vault: Vault, memory_id: str, entry: ImportedNote) -> bool:
    """Whether no version of a memory that is here has these words: two files may call different things by one name."""
    rows = connection.execute(select(memories).where(memories.c.id == memory_id)).all()
    known = [described(connection, vault, row) for row in rows]
    if any(each.state == UNREADABLE for each in known):
        return False
    texts = {each.text for each in known if each.text}
    return bool(texts) and clean_note(entry.text) not in texts


def _state_here(connection: Connection, memory_id: str) -> str | None:
    query = select(memories.c.state).where(memories.c.id == memory_id).order_by(memories.c.version.desc())
    return connection.execute(query.limit(1)).scalar()
