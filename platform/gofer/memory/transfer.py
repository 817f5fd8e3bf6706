"""Memories in and out: JSON lines of ours, notes of other agents in Markdown, and archive indexes as NDJSON.

An import is checked whole before anything is kept. What had an id elsewhere gets an id of ours that follows from it,
so the same file again keeps nothing twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from gofer.errors import Malformed
from gofer.memory.notes import MAX_NOTE, keep_note
from gofer.memory.records import Memory
from gofer.vault.envelope import Vault

MAX_ENTRIES = 5000
_TEXTS = ("text", "content", "memory", "summary", "gist", "title")
"""Fields in which others keep the words, in the order they are looked for."""
_IDS = ("id", "memory_id", "uuid", "key", "path")
_BULLET = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+(?:\[[ xX]\]\s+)?")
_HEADING = re.compile(r"^#{1,6}\s+(.*)")
_LATEST = 4_102_444_800.0  # the year 2100


@dataclass(frozen=True, slots=True)
class ImportedNote:
    """One thing to be imported."""

    text: str
    foreign_id: str = ""
    at: float | None = None


def exported(memory: Memory) -> dict[str, Any]:
    """A memory as one line of an export."""
    return {
        "id": memory.id,
        "version": memory.version,
        "kind": memory.kind,
        "scope": memory.scope_id,
        "text": memory.text,
        "author": memory.author,
        "trust": memory.trust,
        "conversation_id": memory.source.conversation_id,
        "message_seq": memory.source.message_seq,
        "at": memory.valid_from,
    }


def parse_import(text: str, form: str) -> list[ImportedNote]:
    """What a file says; raises Malformed with the line that is wrong."""
    entries = list(_markdown(text) if form == "markdown" else _lines(text))
    if not entries:
        raise Malformed("There is nothing to import in this file.")
    if len(entries) > MAX_ENTRIES:
        raise Malformed(
            f"An import has at most {MAX_ENTRIES} memories; this has {len(entries)}. Split the file."
        )
    _check(entries)
    return entries


def _check(entries: list[ImportedNote]) -> None:
    seen: dict[str, str] = {}
    for entry in entries:
        if len(entry.text) > MAX_NOTE:
            raise Malformed(
                f"A memory has at most {MAX_NOTE} characters; one of these has {len(entry.text)}."
            )
        if entry.foreign_id and seen.setdefault(entry.foreign_id, entry.text) != entry.text:
            raise Malformed(f"The id {entry.foreign_id[:60]!r} is there twice, with different words.")


def _lines(text: str) -> Iterator[ImportedNote]:
    """JSON lines. Superseded ones are left out; raises Malformed for a cycle of them, which would leave out all."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            found.append((number, _object(line, number)))
    gone = _superseded([value for _, value in found])
    for number, value in found:
        if str(value.get("id", "")) in gone or value.get("state") == "forgotten":
            continue
        words = next(
            (value[name] for name in _TEXTS if isinstance(value.get(name), str) and value[name].strip()), ""
        )
        if not words:
            raise Malformed(f"Line {number} has no text: say it as `text`.")
        foreign = next((str(value[name]) for name in _IDS if value.get(name)), "")
        yield ImportedNote(words, foreign, _time(value.get("at"), number))


def _superseded(values: list[dict[str, Any]]) -> set[str]:
    """Ids whose place another line takes."""
    takes: dict[str, set[str]] = {}
    for value in values:
        takes.setdefault(str(value.get("id", "")), set()).update(map(str, _list(value.get("supersedes"))))
    gone = set().union(*takes.values())
    left = {new: olds for new, olds in takes.items() if olds}
    while free := [new for new, olds in left.items() if not olds & left.keys()]:
        for new in free:
            del left[new]
    if left:
        raise Malformed(
            f"The memory {min(left)[:60]!r} supersedes itself, by way of others: it is in a cycle."
        )
    return gone


def _object(line: str, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise Malformed(f"Line {number} is no JSON. Each line holds one object.") from None
    if not isinstance(value, dict):
        raise Malformed(f"Line {number} is no object.")
    return value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []


def _time(value: Any, number: int) -> float | None:
    if value is None or isinstance(value, str):
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _LATEST:
        raise Malformed(f"Line {number}: `at` must be seconds since 1970, before the year 2100.")
    return float(value)


def _markdown(text: str) -> Iterator[ImportedNote]:
    """A note for each list item or paragraph, with the heading above it in front."""
    heading, paragraph = "", ""
    for line in [*text.splitlines(), ""]:
        title, bullet = _HEADING.match(line), _BULLET.match(line)
        if (title or bullet or not line.strip()) and paragraph:
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
    entries: list[ImportedNote],
    scope_id: str,
    trust: str,
    author: str,
) -> int:
    """Keep what was parsed; returns how many memories there are now of it."""
    key = vault.mac_key("memory of an import")
    kept = set()
    for entry in entries:
        memory_id = f"mem_{key.digest(scope_id, entry.foreign_id or entry.text)[:24]}"
        made = keep_note(
            connection,
            vault,
            scope_id=scope_id,
            text=entry.text,
            trust=trust,
            author=author,
            memory_id=memory_id,
            reason="import",
            at=entry.at,
        )
        kept.add(made.id)
    return len(kept)
