"""The audit log as a chain: each entry has a place and a hash over the one before, and the last one is signed.

Whoever can write to the database can still take entries away or change them, but not so that the chain leads to its
signed head. An older head put back with the log of that time is found by a machine that has seen a later one, or with
an export.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import structlog
from sqlalchemy import Connection, Row, insert, select, update

from gofer.store.db_time import now
from gofer.store.row_macs import signing_of
from gofer.store.tables import audit_entries, audit_heads

log = structlog.get_logger()

AnyRow: TypeAlias = Row[*tuple[Any, ...]]

HEAD = "head"
CHAIN = ("place", "link", "end_mac")
"""The columns of the chain, which lists leave out."""
_LINKED = ("workspace_id", "member_id", "name", "via", "address", "action", "subject", "at")
_PAGE = 500
_MAX_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class Head:
    """Where the chain ends."""

    place: int
    link: str
    """In hex."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check of the whole log."""

    entries: int
    head: Head | None
    problems: tuple[str, ...]


def append(connection: Connection, facts: Mapping[str, Any]) -> int:
    """Add an entry to the end of the chain; returns its id. One at a time: the head's row is the lock."""
    head = _locked_head(connection)
    values = {"data": {}, "status": 0, **facts, "at": now()}
    entry = connection.execute(insert(audit_entries).values(**values).returning(*audit_entries.c)).one()
    if head is None or _is_taken(connection, head.place + 1):
        # The change is not refused for it: that it was asked for is on record, and `gofer audit verify` tells the rest.
        log.error("audit.head_refused", entry=entry.id, fix="gofer audit verify")
        return int(entry.id)
    _link(connection, entry, head)
    return int(entry.id)


def end(connection: Connection, entry: int, *, status: int, data: dict[str, Any]) -> None:
    """Note how the request of an entry was answered."""
    here = audit_entries.c.id == entry
    link = connection.execute(select(audit_entries.c.link).where(here)).scalar_one_or_none()
    mac = None if link is None else _end_mac(connection, link, status, data)
    connection.execute(update(audit_entries).where(here).values(status=status, data=data, end_mac=mac))


def begin_chain(connection: Connection) -> int:
    """Give the chain a head and put every entry that has no place into it, oldest first; returns how many."""
    connection.execute(audit_heads.delete())
    connection.execute(update(audit_entries).values(place=None, link=None, end_mac=None))
    head = Head(0, "")
    _put_head(connection, head, fresh=True)
    count = 0
    for entry in _pages(connection, audit_entries.c.id):
        head = _link(connection, entry, head)
        count += 1
    return count


def verify(connection: Connection, seen: Head | None = None) -> Verdict:
    """Check the log from its first entry to its head, and that it still contains a head seen before."""
    problems: list[str] = []
    stored = connection.execute(select(audit_heads).where(audit_heads.c.id == HEAD)).one_or_none()
    head = _right_head(connection, stored)
    if head is None:
        problems.append(
            "The head of the log is missing." if stored is None else "The head of the log is not ours."
        )
    place, link, met = 0, "", seen is None or seen.place == 0
    for entry in _pages(connection, audit_entries.c.place):
        if len(problems) >= _MAX_PROBLEMS:
            break
        if entry.place != place + 1:
            problems.append(f"{entry.place - place - 1} entries before entry {entry.id} are missing.")
        elif entry.link != _hashed(link, entry.place, entry):
            problems.append(f"Entry {entry.id} was changed, or the one before it was.")
        place, link = entry.place, bytes(entry.link or b"").hex()
        answered = bool(entry.status) or entry.end_mac is not None or bool(entry.data)
        if answered and (
            entry.link is None or entry.end_mac != _end_mac(connection, entry.link, entry.status, entry.data)
        ):
            problems.append(f"How entry {entry.id} was answered was changed.")
        if seen is not None and seen.place == place:
            met = True
            if seen.link != link:
                problems.append(f"Entry {entry.id} is not the one that was seen in its place before.")
    if head is not None and len(problems) < _MAX_PROBLEMS and (head.place, head.link) != (place, link):
        problems.append(f"The log ends at place {place}, and its head says {head.place}.")
    if not met and seen is not None:
        problems.append(f"The log ends at place {place}, and it was seen to reach {seen.place}.")
    nowhere = audit_entries.c.place.is_(None) | (audit_entries.c.place < 1)
    outside = connection.execute(select(audit_entries.c.id).where(nowhere)).scalars().all()
    if outside:
        problems.append(
            f"{len(outside)} entries are not in the chain, the first of them {min(outside)}: the release before "
            "wrote them, or somebody else."
        )
    return Verdict(place, head, tuple(problems))


def current_head(connection: Connection) -> Head | None:
    """Where the chain ends; None when its head is missing or not ours."""
    stored = connection.execute(select(audit_heads).where(audit_heads.c.id == HEAD)).one_or_none()
    return _right_head(connection, stored)


def reaches(connection: Connection, seen: Head) -> bool:
    """Whether a head that was seen before is still part of the log."""
    if seen.place == 0:
        return True
    query = select(audit_entries.c.link).where(audit_entries.c.place == seen.place)
    link = connection.execute(query).scalar_one_or_none()
    return link is not None and bytes(link).hex() == seen.link


def _locked_head(connection: Connection) -> Head | None:
    query = select(audit_heads).where(audit_heads.c.id == HEAD).with_for_update()
    return _right_head(connection, connection.execute(query).one_or_none())


def _is_taken(connection: Connection, place: int) -> bool:
    """Whether somebody else has put an entry behind the last."""
    query = select(audit_entries.c.id).where(audit_entries.c.place == place)
    return connection.execute(query).first() is not None


def _right_head(connection: Connection, row: AnyRow | None) -> Head | None:
    if row is None:
        return None
    head = Head(row.place, bytes(row.link).hex())
    right = signing_of(connection).audit_key.fits(row.mac, HEAD, head.place, head.link)
    return head if right else None


def _put_head(connection: Connection, head: Head, *, fresh: bool = False) -> None:
    mac = signing_of(connection).audit_key.mac(HEAD, head.place, head.link)
    values = {"place": head.place, "link": bytes.fromhex(head.link), "mac": mac}
    if fresh:
        connection.execute(insert(audit_heads).values(id=HEAD, **values))
    else:
        connection.execute(update(audit_heads).where(audit_heads.c.id == HEAD).values(**values))


def _link(connection: Connection, entry: AnyRow, head: Head) -> Head:
    place = head.place + 1
    link = _hashed(head.link, place, entry)
    values: dict[str, Any] = {"place": place, "link": link}
    if entry.status or entry.data:
        values["end_mac"] = _end_mac(connection, link, entry.status, entry.data)
    connection.execute(update(audit_entries).where(audit_entries.c.id == entry.id).values(**values))
    moved = Head(place, link.hex())
    _put_head(connection, moved)
    return moved


def _hashed(before: str, place: int, entry: AnyRow) -> bytes:
    said = [before, place, entry.id, *(getattr(entry, name) for name in _LINKED)]
    return hashlib.sha256(json.dumps(said, separators=(",", ":")).encode()).digest()


def _end_mac(connection: Connection, link: bytes, status: int, data: dict[str, Any]) -> bytes:
    said = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return signing_of(connection).audit_key.mac("end", bytes(link), status, said)


def _pages(connection: Connection, order: Any) -> Iterator[AnyRow]:
    query, last = select(audit_entries).order_by(order).limit(_PAGE), 0
    while page := connection.execute(query.where(order > last)).all():
        yield from page
        last = getattr(page[-1], order.key)
