"""Questions of a role: asked in the private chat of everybody who has it, and open on the dashboard and command line.

Any job with a conversation can ask one: its handler returns what `ask_role` gives, and finds the answer with
`gofer.jobs.control.answer_to` when it is called again. The first answer counts, the other places are told, and whoever
has lost the role by then may not answer any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection

from gofer.connections.context import LoadedConnection
from gofer.identity import people_of
from gofer.jobs.control import ROLES
from gofer.jobs.outcome import Draft, Wait
from gofer.store.messages import binding_at


def ask_role(
    connection: Connection,
    connected: Sequence[LoadedConnection],
    *,
    role: str,
    workspace_id: str,
    text: str,
    about: str,
    choices: tuple[str, ...],
    expires_after: float | None = None,
) -> Wait:
    """A question to everybody who has a role (`OWNERS` or `MEMBERS`). `about` is what it is known by, and signed."""
    drafts = [
        Draft(binding, tuple(one.integration.split(text)), "note")
        for one, binding in private_chats(connection, connected, workspace_id, ROLES[role])
    ]
    return Wait(text, about, role, expires_after, tuple(drafts), choices=choices)


def private_chats(
    connection: Connection, connected: Sequence[LoadedConnection], workspace_id: str, roles: Sequence[str]
) -> Iterator[tuple[LoadedConnection, str]]:
    """Where people with one of these roles can be reached alone, each place once."""
    for one in connected:
        if not one.enabled:
            continue
        for subject in people_of(connection, workspace_id, one.integration.name, roles):
            place = one.integration.private_place(subject)
            found = binding_at(connection, one.account.id, place) if place is not None else None
            if found is not None:
                yield one, str(found.id)
