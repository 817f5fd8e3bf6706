"""Who hears a message: the agents its routes lead to, the one it is meant for, or the reception.

Part of the one transaction of intake, whose caller holds the conversation's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, insert, literal, select

from gofer.intake.arrival import Arrival
from gofer.intake.joining import WHOLE_AFTER
from gofer.integration import Incoming
from gofer.jobs.kinds import RECEPTION
from gofer.jobs.queue import SERVICE, submit
from gofer.jobs.steer import begin_afresh, cancel_conversation, wake_participant
from gofer.store import hot
from gofer.store.ids import new_id
from gofer.store.tables import (
    SCHEDULE,
    Trust,
    agents,
    conversations,
    identities,
    messages,
    participants,
    routes,
)


def wake(connection: Connection, arrival: Arrival, message: Incoming, conversation_id: str, seq: int) -> bool:
    """Let every agent that hears this place take part, and wake those that it addresses."""
    woke = False
    stopped = 0
    if message.control == "stop" and _may_stop(connection, arrival, message, conversation_id, seq):
        stopped = cancel_conversation(connection, conversation_id, by=f"author:{message.author.id}")
        if not message.command:
            return stopped > 0
    if message.control == "new" and _is_known(connection, arrival, message, conversation_id, seq):
        # Not only when the command is answered: what is said next must not reach the old run.
        ended = begin_afresh(connection, conversation_id, seq, by=f"author:{message.author.id}")
        if not message.command:
            return ended > 0
    if message.command:
        _to_reception(connection, arrival, conversation_id, {"seq": seq, "stopped": stopped})
        return True
    via = arrival.connection_id
    for route in _heard(connection, arrival, message, conversation_id):
        participant_id = route.participant_id or _take_part(connection, conversation_id, route, seq)
        if message.addressed and route.trigger in ("any", message.trigger):
            # More parts of it are about to come: an agent should read it whole.
            delay = WHOLE_AFTER if message.joins else 0
            patient = message.event == SCHEDULE
            woke |= wake_participant(
                connection, participant_id, seq, arrival.workspace_id, via=via, delay=delay, patient=patient
            )
    return woke


def _heard(
    connection: Connection, arrival: Arrival, message: Incoming, conversation_id: str
) -> Iterable[Any]:
    """The routes by which agents hear a message; the one it is meant for hears it without any."""
    here = {"workspace": arrival.workspace_id, "conversation": conversation_id}
    if message.agent:
        meant = connection.execute(_MEANT, {**here, "called": message.agent}).first()
        if meant is not None:
            return [meant]
    routed = list(
        _first_per_agent(hot.fetch(connection, _ROUTES, {**here, "via": arrival.connection_id}), message)
    )
    chosen = routed[0].chosen if routed else None
    if chosen is None:
        return routed
    # An owner chose one for the conversation: that one alone hears it.
    own = [route for route in routed if route.agent_id == chosen]
    return own or connection.execute(_MEANT, {**here, "called": chosen}).all()


def _to_reception(
    connection: Connection, arrival: Arrival, conversation_id: str, payload: dict[str, Any]
) -> None:
    """A command is answered by the platform, in a lane of its own: it need not wait for a run to end."""
    submit(
        connection,
        workspace_id=arrival.workspace_id,
        kind=RECEPTION,
        lane=f"{RECEPTION}:{conversation_id}",
        pool=SERVICE,
        payload=payload,
        conversation_id=conversation_id,
        connection_id=arrival.connection_id,
    )


def _may_stop(
    connection: Connection, arrival: Arrival, message: Incoming, conversation_id: str, seq: int
) -> bool:
    """Whoever is paired here, or asked for what is being done; nobody else's stop stops anything."""
    asked = {"who": message.author.id, "conversation": conversation_id, "stop": seq}
    return _is_paired(connection, arrival, message) or connection.execute(_ASKED, asked).first() is not None


def _is_known(
    connection: Connection, arrival: Arrival, message: Incoming, conversation_id: str, seq: int
) -> bool:
    """Whoever is paired here, or was found to be known when they asked for what is being done.

    For all others it is found out when their command is answered.
    """
    asked = {"who": message.author.id, "conversation": conversation_id, "stop": seq}
    return (
        arrival.trust in _KNOWN
        or _is_paired(connection, arrival, message)
        or connection.execute(_ASKED.where(messages.c.trust.in_(_KNOWN)), asked).first() is not None
    )


def _is_paired(connection: Connection, arrival: Arrival, message: Incoming) -> bool:
    who = {"who": message.author.id, "workspace": arrival.workspace_id, "service": arrival.integration}
    return connection.execute(_PAIRED, who).first() is not None


_KNOWN = (Trust.OWNER, Trust.MEMBER)


_PAIRED = select(identities.c.id).where(
    identities.c.workspace_id == bindparam("workspace"),
    identities.c.integration == bindparam("service"),
    identities.c.subject == bindparam("who"),
)
_ASKED = (
    select(messages.c.seq)
    .join(participants, participants.c.conversation_id == messages.c.conversation_id)
    .where(messages.c.conversation_id == bindparam("conversation"), messages.c.author == bindparam("who"))
    .where(messages.c.addressed, messages.c.seq > participants.c.read_seq)
    .where(messages.c.seq < bindparam("stop"))
)

_HERE = (participants.c.conversation_id == bindparam("conversation")) & (
    participants.c.agent_id == agents.c.id
)
_MEANT = (
    select(
        agents.c.id.label("agent_id"),
        literal("any").label("trigger"),
        literal(0).label("priority"),
        participants.c.id.label("participant_id"),
    )
    .outerjoin(participants, _HERE)
    .where(agents.c.workspace_id == bindparam("workspace"))
    .where((agents.c.name == bindparam("called")) | (agents.c.id == bindparam("called")))
)

_ROUTES = (
    select(
        routes.c.agent_id,
        routes.c.event,
        routes.c.trigger,
        routes.c.priority,
        participants.c.id.label("participant_id"),
        select(conversations.c.agent_id)
        .where(conversations.c.id == bindparam("conversation"))
        .scalar_subquery()
        .label("chosen"),
    )
    .outerjoin(
        participants,
        (participants.c.conversation_id == bindparam("conversation"))
        & (participants.c.agent_id == routes.c.agent_id),
    )
    .where(routes.c.workspace_id == bindparam("workspace"))
    .where((routes.c.connection_id == bindparam("via")) | routes.c.connection_id.is_(None))
    .order_by(routes.c.priority, routes.c.id)
)


def _first_per_agent(heard: Sequence[Any], message: Incoming) -> Iterable[Any]:
    """One matching route per agent; one whose trigger fits is preferred to one that only listens."""
    chosen: dict[str, Any] = {}
    for route in heard:
        if not event_matches(route.event, message.event):
            continue
        held = chosen.get(route.agent_id)
        fits = route.trigger in ("any", message.trigger)
        if held is None or (fits and held.trigger not in ("any", message.trigger)):
            chosen[route.agent_id] = route
    return chosen.values()


def event_matches(pattern: str, event: str) -> bool:
    """Whether a route's pattern covers an event: equal, or a prefix ending in `*`."""
    return event.startswith(pattern[:-1]) if pattern.endswith("*") else event == pattern


def _take_part(connection: Connection, conversation_id: str, route: Any, seq: int) -> str:
    participant_id = new_id("part")
    connection.execute(
        insert(participants).values(
            id=participant_id,
            conversation_id=conversation_id,
            agent_id=route.agent_id,
            # What was said before it came is context, not a debt.
            read_seq=seq - 1,
            wake_seq=0,
            epoch_seq=0,
            priority=route.priority,
        )
    )
    return participant_id
