"""The registry of runtimes: who they are, whose they are, and what their hosts say of them.

An owner registers a runtime, which says whose host may announce it. From then on that member's host keeps it alive by
announcing it; its state is read from how long ago that was, so nobody has to tidy up after a host that died.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select, update

from gofer.errors import Conflict, Forbidden, Malformed, NotFound
from gofer.runtimes.chain import AWAY, HERE, STALE, RuntimeFacts
from gofer.store import row_macs
from gofer.store.db_time import now
from gofer.store.ids import new_id
from gofer.store.tables import agents, members, runtimes

CALLBACK = "callback"
MISSED_STALE, MISSED_OFFLINE = 3, 6
"""Heartbeats missed after which a runtime is stale, and offline."""
CRASH_WINDOW, MAX_CRASHES_KEPT = 600.0, 10
ALIVE = ("live", "idle")
STATES = ("registered", "live", "idle", "stale", "offline", "draining")
RESERVED = ("orders", "questions")
"""Names that the API's own addresses have."""
_RUNTIMES = (
    select(runtimes, agents.c.name.label("agent"), members.c.name.label("member"), now().label("now"))
    .join(agents, agents.c.id == runtimes.c.agent_id)
    .outerjoin(members, members.c.id == runtimes.c.member_id)
)


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a host says of a runtime."""

    agent: str
    kind: str
    host: str
    state: str
    session: str = ""
    program: str = ""
    can_resume: bool = False
    can_spawn: bool = False
    crashed: bool = False


def no_runtime(name: str) -> NotFound:
    """The error for a runtime that is not there, or is somebody else's."""
    return NotFound(
        f"There is no runtime {name[:60]!r} of yours. `gofer runtimes list` shows those there are; an owner adds one: "
        "gofer runtimes add NAME --agent AGENT"
    )


def register(
    connection: Connection,
    *,
    name: str,
    agent: str,
    kind: str,
    member_id: str,
    callback_url: str = "",
    callback_secret: str = "",
) -> Any:
    """Add a runtime; returns its row. Raises Conflict for a name that is taken."""
    if name in RESERVED:
        raise Malformed(f"name: {name!r} is an address of the API. Choose another.")
    taken = connection.execute(select(runtimes.c.id).where(runtimes.c.name == name)).first()
    if taken is not None:
        raise Conflict(f"There is a runtime {name!r} already. Remove it first: gofer runtimes remove {name}")
    agent_id = connection.execute(select(agents.c.id).where(agents.c.name == agent)).scalar()
    if agent_id is None:
        raise NotFound(f"There is no agent called {agent[:40]!r}. `gofer agents list` shows those there are.")
    values: dict[str, Any] = {
        "id": new_id("rt"),
        "name": name,
        "agent_id": agent_id,
        "kind": kind,
        "member_id": member_id,
        "host": CALLBACK if kind == CALLBACK else "",
        "program": "",
        "session": "",
        "can_resume": False,
        "can_spawn": False,
        "reported": "registered",
        "crashes": [],
        "callback_url": callback_url,
        "callback_secret": callback_secret,
        "created_at": now(),
    }
    row_macs.insert(connection, runtimes, values)
    return find_runtime(connection, name)


def find_runtime(connection: Connection, name: str) -> Any:
    """A runtime's row with the names of its agent and member; raises NotFound, or RowRefused for one that somebody else
    wrote."""
    row = connection.execute(_RUNTIMES.where(runtimes.c.name == name)).one_or_none()
    if row is None:
        raise no_runtime(name)
    row_macs.require(connection, runtimes, row)
    return row


def list_runtimes(connection: Connection) -> list[Any]:
    """Every runtime that is rightly signed, by name."""
    rows = connection.execute(_RUNTIMES.order_by(runtimes.c.name)).all()
    return [row for row in rows if row_macs.fits(connection, runtimes, row)]


def announce(connection: Connection, name: str, member_id: str, said: Announcement, every: float) -> Any:
    """Keep what a host says of its runtime; returns the row. Raises NotFound for one that is not this member's, and
    Conflict for one that is something else than the host says."""
    row = find_runtime(connection, name)
    if row.member_id != member_id or row.kind == CALLBACK:
        raise no_runtime(name)
    if (row.agent, row.kind) != (said.agent, said.kind):
        raise Conflict(
            f"The runtime {name!r} is registered as {row.kind} of the agent {row.agent}; the host says {said.kind} of "
            f"{said.agent[:40]}. Change the host's file, or remove the runtime and add it again."
        )
    if row.host not in ("", said.host) and presence(row, every) == HERE:
        raise Conflict(
            f"The runtime {name!r} is announced by the host {row.host} already. Stop that one, or wait "
            f"{math.ceil(MISSED_STALE * every)} seconds."
        )
    crashes = lately_crashed(row)
    if said.crashed:
        crashes = [*crashes, row.now][-MAX_CRASHES_KEPT:]
    was_alive, is_alive = row.reported in ALIVE, said.state in ALIVE
    values: dict[str, Any] = {
        "host": said.host,
        "program": said.program,
        "session": said.session or row.session,  # a session that has ended is the one to resume
        "can_resume": said.can_resume,
        "can_spawn": said.can_spawn,
        "reported": said.state,
        "crashes": crashes,
        "seen_at": now(),
    }
    if said.state == "live" or (is_alive and not was_alive):
        values["active_at"] = now()
    connection.execute(update(runtimes).where(runtimes.c.id == row.id).values(**values))
    return find_runtime(connection, name)


def drain(connection: Connection, name: str, *, on: bool = True) -> Any:
    """Give a runtime nothing new, or give it work again, also after crashes; returns its row."""
    row = find_runtime(connection, name)
    row_macs.update(connection, runtimes, runtimes.c.id == row.id, {"drained_at": now() if on else None})
    if not on:
        connection.execute(update(runtimes).where(runtimes.c.id == row.id).values(crashes=[]))
    return find_runtime(connection, name)


def remove(connection: Connection, name: str) -> None:
    """Forget a runtime. Its hops stay as history; its host's next announcement is refused."""
    row = find_runtime(connection, name)
    connection.execute(runtimes.delete().where(runtimes.c.id == row.id))


def check_owned(row: Any, member_id: str, *, is_owner: bool) -> None:
    """Raises Forbidden for somebody who may not change a runtime: an owner may, and whose it is."""
    if not is_owner and row.member_id != member_id:
        raise Forbidden(
            f"The runtime {row.name} is {row.member or 'somebody else'}'s. Ask them, or an owner."
        )


def presence(row: Any, every: float) -> str:
    """Whether a runtime's host is here, stale or away, by how many heartbeats it has missed."""
    if row.kind == CALLBACK:
        return HERE
    if row.seen_at is None:
        return AWAY
    missed = (row.now - row.seen_at) / every
    if missed <= MISSED_STALE:
        return HERE  # also when the clock went back since
    return STALE if missed <= MISSED_OFFLINE else AWAY


def state_of(row: Any, every: float) -> str:
    """A runtime's state for people."""
    if row.drained_at is not None:
        return "draining"
    if row.kind == CALLBACK:
        return "live"
    if row.seen_at is None:
        return "registered"
    return {HERE: str(row.reported), STALE: "stale", AWAY: "offline"}[presence(row, every)]


def facts_of(row: Any, every: float) -> RuntimeFacts:
    """What the chain has to know of a runtime."""
    if row.kind == CALLBACK:
        return RuntimeFacts(draining=row.drained_at is not None)
    return RuntimeFacts(
        host=presence(row, every),
        alive=row.reported in ALIVE,
        has_session=bool(row.session),
        can_resume=row.can_resume,
        can_spawn=row.can_spawn,
        silent_for=row.now - row.active_at if row.active_at is not None else float("inf"),
        crashes=len(lately_crashed(row)),
        draining=row.drained_at is not None,
    )


def lately_crashed(row: Any) -> list[float]:
    """When a runtime crashed in the last ten minutes, the oldest first."""
    return [at for at in row.crashes if isinstance(at, int | float) and row.now - at < CRASH_WINDOW]


def not_tried_until(row: Any, most: int) -> float | None:
    """When a runtime that crashed too often is tried again; None when it is tried now."""
    crashes = lately_crashed(row)
    return crashes[-most] + CRASH_WINDOW if len(crashes) >= most else None


_ORDER = {HERE: 0, STALE: 1, AWAY: 2}


def runtime_for(connection: Connection, agent_id: str, kind: str, every: float) -> Any | None:
    """The runtime that an agent's next hop goes to: one that is not drained, the liveliest first, then by name."""
    rows = connection.execute(_RUNTIMES.where(runtimes.c.agent_id == agent_id, runtimes.c.kind == kind)).all()
    fit = [row for row in rows if row_macs.fits(connection, runtimes, row)]

    def rank(row: Any) -> tuple[Any, ...]:
        facts = facts_of(row, every)
        return facts.draining, _ORDER[facts.host], not facts.alive, row.name

    return min(fit, key=rank, default=None)
