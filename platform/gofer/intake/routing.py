"""Who gets a message: the agents its routes lead to, the one it names, or the platform's own commands.

Part of the one transaction of intake, whose caller holds the conversation's lock.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, insert, literal, select

from gofer.identity import known_principal
from gofer.intake.albums import WHOLE_AFTER
from gofer.intake.arrival import Arrival
from gofer.integration import Incoming
from gofer.jobs.control import begin_afresh, cancel_conversation, wake_participant
from gofer.jobs.ensure import asleep_when_closed
from gofer.jobs.kinds import RECEPTION
from gofer.jobs.queue import SERVICE, submit
from gofer.store import events as log
from gofer.store import fast_sql, row_macs
from gofer.store.db_time import now
from gofer.store.ids import new_id
from gofer.store.tables import (
    SCHEDULE,
    Trust,
    agents,
    conversations,
    events,
    messages,
    participants,
    routes,
)


def wake(
    connection: Connection,
    arrival: Arrival,
    message: Incoming,
    conversation_id: str,
    seq: int,
    *,
    closed: bool = False,
) -> bool:
    """Let every agent that a route leads to take part, and wake those that the message addresses; in a closed
    conversation not those that are asleep there."""
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
    answering = left_out = 0
    sleeping = asleep_when_closed(connection) if closed else set()
    for route in _matching_routes(connection, arrival.workspace_id, via, message, conversation_id):
        participant_id = route.participant_id or _take_part(connection, conversation_id, route, seq)
        if message.addressed:
            asleep = route.agent_id in sleeping
            answering += not asleep
            left_out += asleep
            # More parts of it are about to come: an agent should read it whole.
            delay = WHOLE_AFTER if message.group_id else 0
            patient = message.event == SCHEDULE
            woke |= wake_participant(
                connection, participant_id, seq, arrival.workspace_id,
                via=via, delay=delay, patient=patient, asleep=asleep,
            )  # fmt: skip
    if message.addressed and not answering:
        _note_unanswered(connection, arrival, conversation_id, seq, closed=left_out > 0)
    return woke or (message.addressed and not answering)


def _note_unanswered(
    connection: Connection, arrival: Arrival, conversation_id: str, seq: int, *, closed: bool
) -> None:
    """Record that nobody answers this message, for the overview, and tell its author the first time."""
    told = connection.execute(_UNHEARD_NOTICE, {"conversation": conversation_id}).first() is not None
    log.record(
        connection, UNHEARD, arrival.workspace_id, conversation_id=conversation_id, data={"seq": seq}
    )  # fmt: skip
    if not told:
        why = {"closed": True} if closed else {}
        _to_reception(connection, arrival, conversation_id, {"seq": seq, "unheard": True, **why})


UNHEARD = "message.unheard"
_UNHEARD_NOTICE = (
    select(events.c.id)
    .where(events.c.conversation_id == bindparam("conversation"), events.c.kind == UNHEARD)
    .where(events.c.at > now() - 600)
    .limit(1)
)


def _matching_routes(
    connection: Connection, workspace_id: str, connection_id: str, message: Incoming, conversation_id: str
) -> Iterable[Any]:
    """The routes by which agents hear a message, each agent once; who is meant or chosen needs no route.

    One agent answers what is addressed to an agent: the one whose route fits first. Routes that say `also` add theirs.
    Talk that is not addressed is heard by everybody who could be asked about it.
    """
    here = {"workspace": workspace_id, "conversation": conversation_id}
    if message.agent:
        meant = _meant(connection, {**here, "called": message.agent})
        if meant:
            return meant
    found = fast_sql.fetch(connection, _ROUTES, {**here, "via": connection_id})
    routed = [row for row in found if row_macs.fits_as_before(connection, routes, row)]
    if message.addressed and (named := _named(connection, message, routed, here)):
        return named
    chosen = routed[0].chosen if routed else connection.execute(_CHOSEN, here).scalar()
    if chosen is not None:
        # An owner chose one for the conversation: that one alone hears it.
        return _meant(connection, {**here, "called": chosen})
    if message.usual_agent and (usual := _meant(connection, {**here, "called": message.usual_agent})):
        return usual
    return _chosen_routes(routed, message)


NAME = "name"
"""The trigger of a route for messages that begin with the agent's name."""
_FIRST_WORD = re.compile(r"\s*(?:@[\w-]+[,:]?\s+)?@?([A-Za-z0-9][A-Za-z0-9-]{0,39})(?![\w-])")
"""Behind the mention of a bot, if there is one."""


def _named(
    connection: Connection, message: Incoming, routed: Sequence[Any], here: dict[str, str]
) -> list[Any]:
    """The agent whose name the message begins with, if a route of that agent has the trigger `name`."""
    by_name = {
        row.agent_id for row in routed if row.trigger == NAME and event_matches(row.event, message.event)
    }
    found = _FIRST_WORD.match(message.text[:100]) if by_name else None
    meant = _meant(connection, {**here, "called": found[1].lower()}) if found is not None else []
    return [row for row in meant if row.agent_id in by_name]


def answering_agents(
    connection: Connection,
    message: Incoming,
    *,
    workspace_id: str,
    connection_id: str,
    conversation_id: str,
    seq: int,
) -> list[tuple[str, str]]:
    """The agents that would answer a message if it were meant for an agent: their ids, and their ids as participants,
    which they become. One where an owner chose one or a single route fits. The caller holds the conversation's lock."""
    found = _answering_routes(connection, message, workspace_id, connection_id, conversation_id)
    return [
        (route.agent_id, route.participant_id or _take_part(connection, conversation_id, route, seq))
        for route in found
    ]


def hearing_agents(
    connection: Connection, message: Incoming, *, workspace_id: str, connection_id: str, conversation_id: str
) -> list[str]:
    """The agents of a conversation: those that would answer this message, and then those that take part."""
    found = _answering_routes(connection, message, workspace_id, connection_id, conversation_id)
    joined = select(participants.c.agent_id).where(participants.c.conversation_id == conversation_id)
    taking_part = connection.execute(joined.order_by(participants.c.id)).scalars()
    return list(dict.fromkeys([*(str(route.agent_id) for route in found), *map(str, taking_part)]))


def _answering_routes(
    connection: Connection, message: Incoming, workspace_id: str, connection_id: str, conversation_id: str
) -> list[Any]:
    found: list[Any] = []
    for trigger in (message.trigger, "any"):
        asked = dataclasses.replace(message, addressed=True, trigger=trigger)
        found = found or list(
            _matching_routes(connection, workspace_id, connection_id, asked, conversation_id)
        )
    return found


def _meant(connection: Connection, called: dict[str, str]) -> list[Any]:
    """The agent of that name or id, as if a route led to it."""
    found = connection.execute(_MEANT, called).all()
    return [row for row in found if row_macs.fits(connection, agents, row)]


def _to_reception(
    connection: Connection, arrival: Arrival, conversation_id: str, payload: dict[str, Any]
) -> None:
    """The platform answers a command, in a lane of its own, so that it need not wait for a run to end."""
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
    """Whether the author may stop a run: they are paired here, or asked for what is being done."""
    asked = {"who": message.author.id, "conversation": conversation_id, "stop": seq}
    return _is_paired(connection, arrival, message) or connection.execute(_ASKED, asked).first() is not None


def _is_known(
    connection: Connection, arrival: Arrival, message: Incoming, conversation_id: str, seq: int
) -> bool:
    """Whether the author is paired here, or was found to be known when they asked for the current work. For all others
    this is found out when their command is answered."""
    asked = {"who": message.author.id, "conversation": conversation_id, "stop": seq}
    return (
        arrival.trust in _KNOWN
        or _is_paired(connection, arrival, message)
        or connection.execute(_ASKED.where(messages.c.trust.in_(_KNOWN)), asked).first() is not None
    )


def _is_paired(connection: Connection, arrival: Arrival, message: Incoming) -> bool:
    found = known_principal(connection, arrival.workspace_id, arrival.integration, message.author.id)
    return found is not None and found.role in _KNOWN


_KNOWN = (Trust.OWNER, Trust.MEMBER)


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
        *agents.c,
        agents.c.id.label("agent_id"),
        literal("any").label("trigger"),
        literal(0).label("priority"),
        participants.c.id.label("participant_id"),
    )
    .outerjoin(participants, _HERE)
    .where(agents.c.workspace_id == bindparam("workspace"))
    .where((agents.c.name == bindparam("called")) | (agents.c.id == bindparam("called")))
)

_CHOSEN = select(conversations.c.agent_id).where(conversations.c.id == bindparam("conversation"))
_ROUTES = (
    select(
        *routes.c,
        participants.c.id.label("participant_id"),
        _CHOSEN.scalar_subquery().label("chosen"),
    )
    .outerjoin(
        participants,
        (participants.c.conversation_id == bindparam("conversation"))
        & (participants.c.agent_id == routes.c.agent_id),
    )
    .where(routes.c.workspace_id == bindparam("workspace"))
    .where((routes.c.connection_id == bindparam("via")) | routes.c.connection_id.is_(None))
    .order_by(routes.c.rank, routes.c.id)
)


def _chosen_routes(routed: Sequence[Any], message: Incoming) -> Iterable[Any]:
    """One matching route per agent that answers, or hears along, in the order of the routes."""
    heard: dict[str, Any] = {}
    answered = False
    for route in routed:
        if not event_matches(route.event, message.event):
            continue
        if message.addressed:
            if route.trigger not in ("any", message.trigger) or (answered and route.kind != "also"):
                continue
            answered |= route.kind != "also"
        heard.setdefault(route.agent_id, route)
    return heard.values()


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
