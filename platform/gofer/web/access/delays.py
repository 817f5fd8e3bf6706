"""Growing delays: who signs in wrongly waits, by name and by address, also across restarts."""

from __future__ import annotations

import hashlib
from ipaddress import ip_address, ip_network

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from gofer.errors import TooOften
from gofer.store.clock import now
from gofer.store.tables import sign_in_delays

FREE = 5
"""Wrong tries that cost nothing: people mistype."""
LONGEST_FOR_NAME, LONGEST_FOR_ADDRESS = 60.0, 900.0
"""Seconds. A name's wait is short, or anybody could keep its owner out."""
FORGOTTEN = 86400.0


def attempt(connection: Connection, name: str, address: str) -> None:
    """Count a try before it is looked at, so that many at once count as many; raises TooOften.

    `succeeded` takes it back.
    """
    longest = {
        _key("name", name): LONGEST_FOR_NAME,
        _key("address", _network(address)): LONGEST_FOR_ADDRESS,
    }
    connection.execute(delete(sign_in_delays).where(sign_in_delays.c.failed_at < now() - FORGOTTEN))
    # In one order, so that two tries never wait for each other.
    for key in sorted(longest):
        _fail(connection, key, longest[key])


def succeeded(connection: Connection, name: str, address: str) -> None:
    """Forget the failures."""
    keys = (_key("name", name), _key("address", _network(address)))
    connection.execute(delete(sign_in_delays).where(sign_in_delays.c.key.in_(keys)))


def _fail(connection: Connection, key: str, longest: float) -> None:
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    connection.execute(
        dialect.insert(sign_in_delays)
        .values(key=key, failures=0, failed_at=now(), until=0)
        .on_conflict_do_nothing(index_elements=["key"])
    )
    row = connection.execute(
        select(sign_in_delays.c.failures, (sign_in_delays.c.until - now()).label("wait"))
        .where(sign_in_delays.c.key == key)
        .with_for_update()
    ).one()
    if row.wait > 0:
        raise TooOften(f"Too many wrong tries. Wait {int(row.wait) + 1} s.", retry_after=row.wait)
    failures = row.failures + 1
    wait = min(2.0 ** (failures - FREE), longest) if failures > FREE else 0.0
    connection.execute(
        sign_in_delays.update()
        .where(sign_in_delays.c.key == key)
        .values(failures=failures, failed_at=now(), until=now() + wait if wait else 0)
    )


def _key(kind: str, value: str) -> str:
    return hashlib.sha256(f"{kind}:{value.strip().lower()}".encode("utf-8", "surrogatepass")).hexdigest()


def _network(address: str) -> str:
    """An IPv6 host has 2**64 addresses of its own; they count as one."""
    try:
        ip = ip_address(address)
    except ValueError:
        return address
    return str(ip_network(f"{ip}/64", strict=False)) if ip.version == 6 else str(ip)
