"""Posts: what a program says in a conversation in an agent's name, and what it asks a person there.

A post is a job. So it survives a crash, goes out through the reply ledger in order, and what it asks is a Question
that people answer by a button, on the dashboard or on the command line. Its text is somebody's words, so it is sealed
with the conversation's key.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, select

from gofer.connections.context import LoadedConnections
from gofer.crash import crash_point
from gofer.errors import NotFound
from gofer.jobs.kinds import POST
from gofer.jobs.outcome import Dead, Done, Draft, Outcome, Wait
from gofer.jobs.queue import SERVICE, Claim, submit
from gofer.jobs.worker import Run
from gofer.runs.agent_files import AgentFiles, in_force
from gofer.runs.store_adapters import StoreQuestions
from gofer.sanitize import defuse
from gofer.store.database import Database
from gofer.store.encryption import conversation_key, seal, unseal
from gofer.store.ids import new_id
from gofer.store.locks import lock_conversation
from gofer.store.messages import StoredMessage, open_readable
from gofer.store.tables import Trust, agents, bindings, jobs, messages
from gofer.vault.envelope import Vault
from gofer.vault.errors import Tampered
from gofer.vault.redaction import Redactor

ASKED = "post.asked"
"""The id of a post's question."""
LATE = "post.late"
"""Why a post ended without being sent: it came for a hop of a Trigger that was over."""
UNANSWERED = "question.expired"
"""Why a post ended that nobody answered in time."""


@dataclass(frozen=True, slots=True)
class Post:
    """Something to say, or to ask when it expects an answer."""

    text: str
    asks: bool = False
    choices: tuple[str, ...] = ()
    expires_after: float | None = None


def submit_post(
    connection: Connection,
    vault: Vault,
    post: Post,
    *,
    workspace_id: str,
    conversation_id: str,
    agent: str = "",
    unique_key: str | None = None,
    answers: int | None = None,
    late: bool = False,
    for_order: str = "",
) -> int:
    """Make the job that says or asks it, in the name of an agent if one is given; returns its id.

    `answers` is the message that it answers, `for_order` the order of a host that asks. What is `late` is kept with the
    job and never sent. With a key that was used before it is the id of the job that was made then. Raises NotFound.
    """
    lock_conversation(connection, conversation_id)
    place = _place(connection, conversation_id)
    agent_id = (
        connection.execute(select(agents.c.id).where(agents.c.name == agent)).scalar() if agent else None
    )
    mark = new_id("post")
    key = conversation_key(connection, vault, conversation_id)
    sealed = seal(key, asdict(post), *_bound_to(mark, conversation_id, agent_id))
    made = submit(
        connection,
        workspace_id=workspace_id,
        kind=POST,
        # What is said keeps its order; a question must not hold up what is said after it.
        lane=f"{POST}:{mark if post.asks else conversation_id}",
        pool=SERVICE,
        payload={
            "mark": mark,
            "sealed": base64.b64encode(sealed).decode(),
            "asks": post.asks,
            **({} if answers is None else {"answers": answers}),
            **({"late": True} if late else {}),
            **({"order": for_order} if for_order else {}),
        },
        conversation_id=conversation_id,
        agent_id=agent_id,
        connection_id=place.connection_id,
        unique_key=unique_key,
    )
    if made is None:
        made = connection.execute(select(jobs.c.id).where(jobs.c.unique_key == unique_key)).scalar_one()
    return int(made)


def _place(connection: Connection, conversation_id: str, connection_id: str | None = None) -> Any:
    query = select(bindings).where(bindings.c.conversation_id == conversation_id)
    if connection_id is not None:
        query = query.where(bindings.c.connection_id == connection_id)
    found = connection.execute(query.order_by(bindings.c.id).limit(1)).first()
    if found is None:
        raise NotFound("There is no such conversation. It may have been purged.")
    return found


def _bound_to(mark: str, conversation_id: str, agent_id: str | None) -> tuple[str, ...]:
    return (POST, mark, conversation_id, agent_id or "")


def read_post(connection: Connection, vault: Vault, job: Any) -> Post:
    """What a post says, by its job's row or claim. Raises what an unreadable one raises: NotFound, Tampered, KeyError
    or ValueError."""
    conversation_id, payload = str(job.conversation_id), job.payload
    key = conversation_key(connection, vault, conversation_id)
    bound = _bound_to(str(payload["mark"]), conversation_id, job.agent_id)
    opened: Mapping[str, Any] = unseal(key, base64.b64decode(payload["sealed"]), *bound)
    return Post(**opened)


@dataclass(eq=False, repr=False, kw_only=True)
class Poster:
    """Handles posts."""

    database: Database
    vault: Vault
    accounts: LoadedConnections
    redactor: Redactor
    agents: AgentFiles

    async def handle(self, run: Run) -> Outcome:
        """Say it; or ask, and end when the answer is there."""
        claim = run.claim
        if claim.payload.get("late"):
            return Done(reason=LATE)
        crash_point("post.saying")
        try:
            post, place, name, about = await self.database.read(self._read, claim=claim)
        except (NotFound, Tampered, KeyError, ValueError):
            return Dead("post.unreadable")
        if claim.payload.get("asks"):
            answered = await StoreQuestions(self.database, self.vault, claim).answer(ASKED)
            if answered is not None:
                return Done(reason=UNANSWERED if answered.expired else "")
        draft = await self._draft(post, place, name, about)
        if not post.asks:
            return Done((draft,))
        return Wait(
            post.text, ASKED, expires_after=post.expires_after, drafts=(draft,), choices=tuple(post.choices)
        )

    def _read(self, connection: Connection, claim: Claim) -> tuple[Post, Any, str, StoredMessage | None]:
        conversation_id, payload = str(claim.conversation_id), claim.payload
        post = read_post(connection, self.vault, claim)
        name = connection.execute(select(agents.c.name).where(agents.c.id == claim.agent_id)).scalar() or ""
        answers = payload.get("answers")
        about = None if answers is None else _answered(connection, self.vault, conversation_id, int(answers))
        place = _place(connection, conversation_id, about.connection_id if about is not None else None)
        return post, place, name, about

    async def _draft(self, post: Post, place: Any, name: str, about: StoredMessage | None) -> Draft:
        """A program's words: the conversation keeps them with a stranger's trust, unless the file of an external agent
        says that it is trusted; and then none of them acts as a link or a mention."""
        connected = await self.accounts.get(place.connection_id)
        known = {spec.name: spec for spec in in_force(await asyncio.to_thread(self.agents.look))}
        signature = f"**{name}**\n\n" if name and len(known) > 1 else ""
        trusted = name in known and known[name].runtime is not None and known[name].external.trusted
        choices = "".join(f"\n- {choice}" for choice in post.choices)
        text = self.redactor.redact(post.text + choices)
        if not trusted:
            people = (about.message.author.name,) if about is not None else ()
            text = await asyncio.to_thread(defuse, text, here=place.ref, people=people)
        parts = tuple(await asyncio.to_thread(connected.integration.split, signature + text))
        return Draft(
            place.id,
            parts,
            "note" if post.asks else "final",
            about.message.external_id if about is not None else "",
            about.message.facts if about is not None else {},
            signature=signature,
            narrowed=not trusted,
        )


def _answered(connection: Connection, vault: Vault, conversation_id: str, to: int) -> StoredMessage | None:
    """The last message up to a number that wants an answer and is from somebody known."""
    query = (
        select(messages)
        .where(messages.c.conversation_id == conversation_id, messages.c.seq <= to, messages.c.addressed)
        .where(messages.c.trust.in_((Trust.OWNER, Trust.MEMBER)), messages.c.sealed.is_not(None))
        .order_by(messages.c.seq.desc())
        .limit(1)
    )
    found = open_readable(
        conversation_key(connection, vault, conversation_id), connection.execute(query).all()
    )
    return found[0] if found else None
