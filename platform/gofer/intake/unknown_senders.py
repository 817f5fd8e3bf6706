"""Unknown senders: they are told so once in a while, and an owner is asked whether to let them in.

An approval job asks the owner, about a person or about a place, and does what the owner answers.
"""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from gofer.connections.changes import change_settings
from gofer.connections.context import LoadedConnection, LoadedConnections
from gofer.errors import NotFound, Permanent, Temporary
from gofer.identity import grant_role, may_notify, owners_of
from gofer.jobs.control import answer_to
from gofer.jobs.kinds import APPROVAL
from gofer.jobs.outcome import Dead, Done, Draft, Outcome, Retry, Snooze, Wait
from gofer.jobs.queue import SERVICE, Claim, submit
from gofer.jobs.reply_planner import plan_replies
from gofer.jobs.worker import Run
from gofer.sanitize import display_name
from gofer.store import events as log
from gofer.store.database import Database
from gofer.store.messages import StoredMessage, binding_at, binding_of
from gofer.store.tables import LIVE, in_state, jobs
from gofer.vault.envelope import Vault

MAX_REQUESTS = 3
"""Requests that may wait for an owner at once, per connection."""
YES, NO = "Yes", "No"
# In a name of one's own choosing nothing may look like words of ours, or like a link.
PERSON = "`{name}` (id {subject}) wants to talk to me. May they?"
PLACE = "May I listen in this group (`{name}`)? I answer when I am mentioned, and only people I know."
WELCOME = "You may talk to me now."
LISTENING = "I am listening here now."
EXPIRES = 86400.0


def decline(connection: Connection, vault: Vault, claim: Claim, read: StoredMessage, words: str) -> None:
    """Tell them at most daily that they are not known, and ask an owner. The caller has locked the conversation."""
    assert claim.conversation_id is not None
    assert read.connection_id is not None
    binding_id = binding_of(connection, claim.conversation_id, read.connection_id)
    author = read.message.author
    if binding_id is None or not may_notify(connection, read.connection_id, author.id):
        return
    plan_replies(connection, vault, claim, (Draft(binding_id, (words,), kind="note"),))
    log.record(
        connection, "stranger.turned_away", claim.workspace_id, conversation_id=claim.conversation_id,
        data={"connection": read.connection_id},
    )  # fmt: skip
    request_approval(
        connection,
        claim,
        connection_id=read.connection_id,
        what={
            "what": "person",
            "subject": author.id,
            "name": display_name(author.name),
            "binding": binding_id,
        },
    )


def request_approval(
    connection: Connection, claim: Claim, *, connection_id: str, what: dict[str, str]
) -> bool:
    """Make the job that asks an owner, unless there is one or too many wait. The caller has locked the conversation."""
    lane = f"{APPROVAL}:{connection_id}:{what['what']}:{what['subject']}"
    open_ones = select(func.count()).select_from(jobs).where(in_state(*LIVE), jobs.c.kind == APPROVAL)
    waiting = connection.execute(open_ones.where(jobs.c.connection_id == connection_id)).scalar_one()
    same = connection.execute(select(jobs.c.id).where(jobs.c.lane == lane, in_state(*LIVE)).limit(1)).first()
    if same is not None or int(waiting) >= MAX_REQUESTS:
        return False
    submit(
        connection,
        workspace_id=claim.workspace_id,
        kind=APPROVAL,
        lane=lane,
        pool=SERVICE,
        payload=what,
        conversation_id=claim.conversation_id,
        connection_id=connection_id,
    )
    return True


class Approvals:
    """Handles approval jobs."""

    def __init__(self, *, database: Database, vault: Vault, accounts: LoadedConnections) -> None:
        self._database = database
        self._vault = vault
        self._accounts = accounts

    async def handle(self, run: Run) -> Outcome:
        """Ask; when the answer is there, act on it."""
        claim = run.claim
        try:
            connected = await self._accounts.get(str(claim.connection_id))
            given = await self._database.read(
                answer_to, vault=self._vault, job_id=claim.id, call_id=_about(claim)
            )
            if not given.asked:
                return await self._database.read(_ask, claim=claim, connected=connected)
            if given.text != YES:
                return Done()
            done = await self._database.write(_act, claim=claim, connected=connected)
        except Temporary as error:
            return (
                Retry(error.reason) if error.retry_after is None else Snooze(error.retry_after, error.reason)
            )
        except (NotFound, Permanent) as error:
            return Dead(error.code)
        self._accounts.forget()
        return done


def _ask(connection: Connection, claim: Claim, connected: LoadedConnection) -> Outcome:
    """Ask the first owner who can be reached alone; about a place, in that place."""
    payload = claim.payload
    integration = connected.integration
    owners = owners_of(connection, workspace_id=claim.workspace_id, integration=integration.name)
    if payload["what"] == "place":
        binding = binding_of(connection, claim.conversation_id, connected.account.id)
        return _question(PLACE, claim, binding, str(payload["by"]))
    for owner in owners:
        private = integration.private_place(owner)
        found = binding_at(connection, connected.account.id, private) if private is not None else None
        if found is not None:
            return _question(PERSON, claim, found.id, owner)
    return Done()


def _question(words: str, claim: Claim, binding: str | None, asked_of: str) -> Outcome:
    if binding is None:
        return Done()
    name = display_name(str(claim.payload["name"])) or "Somebody"
    text = words.format(name=name, subject=claim.payload["subject"])
    draft = Draft(binding, (text,), kind="note")
    return Wait(
        text, _about(claim), asked_of=asked_of, expires_after=EXPIRES, drafts=(draft,), choices=(YES, NO)
    )


def _about(claim: Claim) -> str:
    """The subject of the question, as stored in its signed row."""
    return f"{claim.payload['what']} {claim.connection_id} {claim.payload['subject']}"


def _act(connection: Connection, claim: Claim, connected: LoadedConnection) -> Outcome:
    payload, integration, account = claim.payload, connected.integration, connected.account
    if payload["what"] == "place":
        settings = integration.allow_conversation(account.settings, str(payload["subject"]))
        change_settings(
            connection, connection_id=account.id, integration=integration, settings=settings, by="an owner"
        )
        binding = binding_of(connection, claim.conversation_id, account.id)
        return Done((Draft(binding, (LISTENING,), kind="note"),)) if binding else Done()
    grant_role(
        connection,
        workspace_id=claim.workspace_id,
        integration=integration.name,
        subject=str(payload["subject"]),
        name=str(payload["name"]),
        role="member",
        by="an owner",
    )
    return Done((Draft(str(payload["binding"]), (WELCOME,), kind="note"),))
