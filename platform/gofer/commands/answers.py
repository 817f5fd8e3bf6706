"""Answers the commands that change nothing: status, cost, agent, model, settings, help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from gofer.errors import GoferError, NotFound
from gofer.identity import private_person
from gofer.integration import COMMANDS, Incoming
from gofer.jobs.children import FOR_ALL, FOR_ANY
from gofer.jobs.kinds import ANSWER
from gofer.jobs.wait_reasons import clock_time, why
from gofer.runs.agent_files import DEFAULT_MODEL, AgentFiles, AgentSpec, choosable, in_force
from gofer.store.db_time import now
from gofer.store.tables import (
    LIVE,
    JobState,
    Trust,
    agents,
    attempts,
    connections,
    conversations,
    events,
    in_state,
    jobs,
    participants,
    spends,
)

STATES = {
    "ready": "about to begin",
    "running": "working",
    "waiting": "waiting for an answer to my question",
}
PUT_OFF = "waiting to try again at {at}: {why}"
HELLO = "Hello. Write to me what you need; I work on it and answer here."
UNKNOWN = "I do not know /{name}. I know:\n"


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """A command, who gave it, and where."""

    message: Incoming
    trust: Trust
    conversation_id: str
    connection_id: str
    agents: AgentFiles
    today: str
    timezone: str
    auto: str
    """The model that `auto` stands for now."""


def answer_to(connection: Connection, asking: CommandRequest) -> str:
    """The answer to a command that changes nothing."""
    answer = _ANSWERS.get(asking.message.command)
    if answer is None:
        return UNKNOWN.format(name=asking.message.command[:40]) + _list()
    return answer(connection, asking)


def _list() -> str:
    return "\n".join(f"/{command.name} – {command.help}" for command in COMMANDS)


def _help(connection: Connection, asking: CommandRequest) -> str:
    return f"{HELLO}\n\n{_list()}"


def _status(connection: Connection, asking: CommandRequest) -> str:
    query = (
        select(jobs, now().label("current"))
        .where(jobs.c.conversation_id == asking.conversation_id, jobs.c.kind == ANSWER, in_state(*LIVE))
        .order_by(jobs.c.id)
    )
    found = connection.execute(query).all()
    if not found:
        return f"I am doing nothing here. {_spent(connection, asking)}"
    lines = []
    for job in found:
        turns = select(func.count()).select_from(events).where(events.c.job_id == job.id)
        steps = int(connection.execute(turns.where(events.c.kind == "turn.started")).scalar_one())
        tries = int(connection.execute(_TRIES.where(attempts.c.job_id == job.id)).scalar_one())
        again = f", try {tries}" if tries > 1 else ""
        age = int(job.current - job.created_at)
        lines.append(f"I am {_doing(job, asking.timezone)} ({age} s, step {steps}{again}).")
    return "\n".join([*lines, _spent(connection, asking)])


def _doing(job: Any, timezone: str) -> str:
    """What a job is doing; for a postponed job also why, and when it goes on."""
    if job.state == JobState.WAITING and job.reason in (FOR_ALL, FOR_ANY):
        return "waiting for the tasks that I delegated"
    if job.state != JobState.SCHEDULED:
        return STATES.get(job.state, str(job.state))
    if not job.reason:
        return STATES["ready"]  # it waits for the rest of what is being said
    return PUT_OFF.format(at=clock_time(job.run_at, timezone, job.current), why=why(job.reason))


_TRIES = select(func.count()).select_from(attempts)


def _spent(connection: Connection, asking: CommandRequest) -> str:
    here = spends.c.conversation_id == asking.conversation_id
    total = select(func.coalesce(func.sum(spends.c.micros), 0)).where(here)
    in_all = int(connection.execute(total).scalar_one())
    today = int(connection.execute(total.where(spends.c.day == asking.today)).scalar_one())
    return f"Spent in this conversation: ${today / 1e6:.4f} today, ${in_all / 1e6:.4f} in all."


def _agents_here(connection: Connection, asking: CommandRequest) -> list[AgentSpec]:
    """Who hears the conversation: the one an owner chose, those who took part and are still there, or all there are."""
    here = conversations.c.id == asking.conversation_id
    chosen, model = connection.execute(
        select(conversations.c.agent_id, conversations.c.model).where(here)
    ).one()
    query = select(agents.c.name).order_by(agents.c.name)
    taking_part = query.join(participants, participants.c.agent_id == agents.c.id).where(
        participants.c.conversation_id == asking.conversation_id
    )
    wanted = query.where(agents.c.id == chosen) if chosen else taking_part
    hearing = {spec.name for spec in in_force(asking.agents.look())}
    names = [name for name in connection.execute(wanted).scalars() if chosen or name in hearing]
    specs = [_spec(asking.agents, name) for name in names or sorted(hearing)]
    return [spec.model_copy(update={"model": model}) if model else spec for spec in specs]


def _spec(agents: AgentFiles, name: str) -> AgentSpec:
    try:
        return agents.get(name)
    except (NotFound, GoferError):
        return AgentSpec(name=name)


def _agent(connection: Connection, asking: CommandRequest) -> str:
    names = sorted(choosable(asking.agents))
    lines = [f"{spec.name} hears this conversation." for spec in _agents_here(connection, asking)]
    return "\n".join([*lines, f"An owner can choose: /agent {' | '.join(names)} | default"])


def _model(connection: Connection, asking: CommandRequest) -> str:
    lines = [f"{spec.name} answers with {_named(spec, asking)}." for spec in _agents_here(connection, asking)]
    return "\n".join([*lines, "An owner can choose: /model provider/model | default"])


def _named(spec: AgentSpec, asking: CommandRequest) -> str:
    model = (
        f"{asking.auto} (auto: the best there is a key for)" if spec.model == DEFAULT_MODEL else spec.model
    )
    return f"{model}, or with {spec.fallback} when that cannot be had" if spec.fallback else model


def _settings(connection: Connection, asking: CommandRequest) -> str:
    kind = connection.execute(
        select(conversations.c.kind).where(conversations.c.id == asking.conversation_id)
    ).scalar_one()
    name = connection.execute(
        select(connections.c.name).where(connections.c.id == asking.connection_id)
    ).scalar_one()
    person = private_person(connection, asking.conversation_id)
    return "\n".join(
        [
            f"Conversation: {asking.conversation_id} ({kind})",
            f"Connection: {asking.connection_id} ({name})",
            f"You are: {asking.trust.value} (id {asking.message.author.id})",
            # Agents know what is in this file where the person is alone with them.
            *([f"You as a person: {person} (users/{person}.md)"] if person is not None else []),
            "Settings are changed by the operator: gofer connections set, or the dashboard.",
        ]
    )


_ANSWERS: dict[str, Callable[[Connection, CommandRequest], str]] = {
    "start": _help,
    "help": _help,
    "status": _status,
    "cost": _spent,
    "agent": _agent,
    "model": _model,
    "settings": _settings,
}
