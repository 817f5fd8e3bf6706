"""A nudge without a model: what a heartbeat's run decided, written where the conversation is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sqlalchemy import Connection, select

from gofer.heartbeat.brief import Explained
from gofer.heartbeat.findings import QUESTION
from gofer.heartbeat.nudges import Nudge, NudgeAction, submit_nudge
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.locks import lock_conversation
from gofer.store.tables import bindings, participants
from gofer.vault.envelope import Vault

ACTIONS = (
    NudgeAction("Use main", "Use the branch main."),
    NudgeAction("Plan it", "Plan the release.", goal=True),
)


def nudge(connection: Connection, vault: Vault, conversation_id: str, job_id: int = 1) -> None:
    """Have the agent of a conversation nudge the people there."""
    lock_conversation(connection, conversation_id)
    here = participants.c.conversation_id == conversation_id
    agent = connection.execute(select(participants).where(here).limit(1)).one()
    of_it = select(bindings.c.connection_id).where(bindings.c.conversation_id == conversation_id).limit(1)
    place = {"conversation_id": conversation_id, "connection_id": connection.execute(of_it).scalar_one()}
    claim: Any = SimpleNamespace(id=job_id, workspace_id=FIRST_WORKSPACE, agent_id=agent.agent_id, **place)
    told = [Explained("find_1", 1, QUESTION, "question:q", "", "a question has been open")]
    words = Nudge("gofer", "You wanted to name the branch.", ("a question has been open",), ACTIONS)
    submit_nudge(connection, vault, claim, words, told, 1.0)
