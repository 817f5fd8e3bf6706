"""Growing delays: who signs in wrongly waits, also across restarts.

A browser that a member signed in with before has a throttle of its own, so nobody else's guesses hold its owner up.
Every other try counts for its address, after a few mistakes, and for the name, after more than any person makes: it
bounds those who guess from many addresses.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sqlalchemy import Connection, delete, select

from gofer.errors import TooOften
from gofer.store.db_time import now
from gofer.store.fast_sql import upsert
from gofer.store.tables import sign_in_delays
from gofer.web.auth.client_address import network_of

FREE = 5
"""Wrong tries of an address, or of a known browser, that cost nothing: people mistype."""
FREE_FOR_NAME = 300
"""Wrong tries with a name, from anywhere: a stranger who guesses must not keep the name's owner out."""
FORGOTTEN = 86400.0


@dataclass(frozen=True, slots=True)
class _Throttle:
    key: str
    free: int
    longest: float
    """Seconds."""


def attempt(connection: Connection, name: str, address: str, device: str = "") -> None:
    """Count a try before it is looked at, so that many at once count as many; raises TooOften.

    `succeeded` takes it back.
    """
    connection.execute(delete(sign_in_delays).where(sign_in_delays.c.failed_at < now() - FORGOTTEN))
    # In one order, so that two tries never wait for each other.
    for throttle in sorted(_throttles(name, address, device), key=lambda each: each.key):
        _fail(connection, throttle)


def clear_failures(connection: Connection, name: str, address: str, device: str = "") -> None:
    """Forget the failures of a throttle."""
    keys = [throttle.key for throttle in _throttles(name, address, device)]
    connection.execute(delete(sign_in_delays).where(sign_in_delays.c.key.in_(keys)))


def _throttles(name: str, address: str, device: str) -> list[_Throttle]:
    if device:
        return [_Throttle(_key("device", device), FREE, 60.0)]
    return [
        _Throttle(_key("name", name), FREE_FOR_NAME, 60.0),
        _Throttle(_key("address", network_of(address)), FREE, 900.0),
    ]


def _fail(connection: Connection, throttle: _Throttle) -> None:
    connection.execute(
        upsert(connection.dialect.name, sign_in_delays)
        .values(key=throttle.key, failures=0, failed_at=now(), until=0)
        .on_conflict_do_nothing(index_elements=["key"])
    )
    row = connection.execute(
        select(sign_in_delays.c.failures, (sign_in_delays.c.until - now()).label("wait"))
        .where(sign_in_delays.c.key == throttle.key)
        .with_for_update()
    ).one()
    if row.wait > 0:
        raise TooOften(f"Too many wrong tries. Wait {int(row.wait) + 1} s.", retry_after=row.wait)
    failures = row.failures + 1
    over = failures - throttle.free
    wait = min(2.0 ** min(over, 20), throttle.longest) if over > 0 else 0.0
    connection.execute(
        sign_in_delays.update()
        .where(sign_in_delays.c.key == throttle.key)
        .values(failures=failures, failed_at=now(), until=now() + wait if wait else 0)
    )


def _key(kind: str, value: str) -> str:
    return hashlib.sha256(f"{kind}:{value.strip().lower()}".encode("utf-8", "surrogatepass")).hexdigest()
