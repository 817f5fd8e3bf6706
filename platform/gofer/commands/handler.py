"""Answers commands and pressed buttons at once, beside whatever an agent is doing."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
from collections.abc import Set
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from zoneinfo import ZoneInfo

import structlog
from sqlalchemy import Connection, select, update

from gofer.agent.models.catalogue import Catalogue
from gofer.agent.prices import load_prices
from gofer.commands.answers import CommandRequest, answer_to
from gofer.commands.goals import GOAL_COMMANDS, answer_goal
from gofer.commands.memory import MEMORY_COMMANDS, answer_memory
from gofer.commands.questions import GONE, NOT_OPEN, NOT_YOURS, answer_in_words, press
from gofer.connections.context import LoadedConnection, LoadedConnections
from gofer.errors import ConfigError, Conflict, GoferError, NotFound, Temporary
from gofer.heartbeat.records import mute_everybody
from gofer.identity import WEB_CHAT, TooManyGuesses, link, new_link, redeem
from gofer.intake.admit import Admitter, read_one
from gofer.intake.unknown_senders import request_approval
from gofer.jobs.control import begin_afresh
from gofer.jobs.notifications import JOBS, Signals
from gofer.jobs.outcome import Done, Draft, Outcome, Retry, Snooze
from gofer.jobs.queue import Claim
from gofer.jobs.worker import Run
from gofer.memory.recall import Recall
from gofer.runs.agent_files import DEFAULT_MODEL, AgentFiles, choosable
from gofer.runs.model_keys import ModelKeys
from gofer.settings import Settings
from gofer.store import events
from gofer.store.database import Database
from gofer.store.locks import lock_conversation
from gofer.store.messages import StoredMessage, binding_of
from gofer.store.tables import Trust, agents, conversations
from gofer.vault.envelope import Vault

BACK = frozenset({"default", "auto", "-"})
"""Words that undo a choice."""
NOT_AN_OWNER = "Only an owner can change that."
_MODEL = re.compile(r"[a-z0-9_-]+/\S{1,200}")


def choose_agent(
    connection: Connection, conversation_id: str, workspace_id: str, name: str, by: str, there: Set[str]
) -> str:
    """Have one agent alone hear a conversation from now on; returns what to tell. The store also knows agents that
    are gone, so those that are there have to be named."""
    if name in BACK:
        _set(connection, conversation_id, workspace_id, by, agent_id=None)
        return "From now on whoever is meant to hears this conversation."
    known = dict(
        connection.execute(
            select(agents.c.name, agents.c.id).where(
                agents.c.workspace_id == workspace_id, agents.c.name.in_(there)
            )
        ).all()
    )
    if name not in known:
        return f"There is no agent {name[:40]!r}. There are: {', '.join(sorted(known))}."
    _set(connection, conversation_id, workspace_id, by, agent_id=known[name])
    return f"From now on {name} hears this conversation."


def choose_model(
    connection: Connection, catalogue: Catalogue, conversation_id: str, workspace_id: str, name: str, by: str
) -> str:
    """Have a conversation answered by one model from now on; returns what to tell."""
    if name in BACK:
        _set(connection, conversation_id, workspace_id, by, model="")
        return "From now on the agent's own model answers here."
    if not _MODEL.fullmatch(name):
        return "A model is named provider/model, such as anthropic/claude-sonnet-5; `/model default` takes it back."
    try:
        catalogue.model(name)
    except ConfigError as error:
        return f"That cannot be had: {error}"
    _set(connection, conversation_id, workspace_id, by, model=name)
    return f"From now on {name} answers here."


def _set(
    connection: Connection, conversation_id: str, workspace_id: str, by: str, **values: str | None
) -> None:
    connection.execute(update(conversations).where(conversations.c.id == conversation_id).values(**values))
    events.record(
        connection,
        "conversation.changed",
        workspace_id,
        conversation_id=conversation_id,
        data={**values, "by": by},
    )


log = structlog.get_logger()

PAIRED = "You are paired: you are my {role} now. Write to me what you need."
WRONG_CODE = "That code is not valid. Codes live for an hour and work once."
LINK = (
    "To be known to me in another private chat, write this to me there within an hour: /link {code}\n"
    "Where others can read along, such as on GitHub, a code must be yours alone: for that, write /link @ and your "
    "name there, such as /link @octocat"
)
LINK_AS = (
    "To be known to me on GitHub, where you are {name}, comment this within an hour on any issue I hear: "
    "/gofer link {code}\nIt works once, and for @{name} alone, whoever else reads it. If that is not you, write "
    "/link again with the right name."
)
LINKED = "You are known to me: from now on I know that you are the same person."
NOT_HERE = "A code is made only where we are alone: write /link to me in private, and bring the code here."
NO_NAME = "That can be nobody's name: letters, digits, dots, dashes and underscores only."
NAME = re.compile(r"[A-Za-z0-9._-]{0,100}")
NOT_PAIRED = "You are not paired with me, so there is nobody to link you with."
FRESH = "A fresh start: I no longer have in mind what was said before. Ask me to recall it if you need it."
MUTED = "No heartbeat writes here from now on. `/unmute` takes that back."
UNMUTED = "A heartbeat that is switched on may write here again."
NOTHING_TO_STOP = "I am doing nothing here."
STOPPING = "Stopping …"
MAX_OFFERS = 20
"""Buttons below what a command answers."""
NOT_CHOSEN = (STOPPING, NOTHING_TO_STOP, NOT_YOURS, NOT_OPEN, GONE, NOT_AN_OWNER)
"""The answer to a press that answered no question."""
UNHEARD = (
    "No agent answers messages here, so this one stays unanswered. An owner can choose one with /agent NAME; "
    "`default = true` in an agent's file makes it answer everywhere."
)
CLOSED = (
    "This conversation is closed, so nobody wakes the agent that you mean. What you said waits for it until the "
    "conversation is opened again."
)


@dataclass(eq=False, repr=False, kw_only=True)
class CommandHandler:
    """Handles reception jobs."""

    settings: Settings
    database: Database
    vault: Vault
    accounts: LoadedConnections
    admitter: Admitter
    signals: Signals
    keys: ModelKeys
    recall: Recall

    async def handle(self, run: Run) -> Outcome:
        """Answer one command or press."""
        claim = run.claim
        seq = int(claim.payload["seq"])
        try:
            read = await self.database.read(
                read_one, vault=self.vault, conversation_id=str(claim.conversation_id), seq=seq
            )
            if read is None or read.connection_id is None:
                return Done()
            connected = await self.accounts.get(read.connection_id)
            if (paired := await self._pair(claim, read, connected)) is not None:
                return paired
            if (linked := await self._link(claim, read, connected)) is not None:
                return linked
            (read,) = await self.admitter.admit(claim, [read])
            return await self._answer(claim, read, connected)
        except Temporary as error:
            after = error.retry_after
            return Retry(error.reason) if after is None else Snooze(after, error.reason)
        except NotFound:
            return Done()

    async def _pair(self, claim: Claim, read: StoredMessage, connected: LoadedConnection) -> Outcome | None:
        """A code is looked at before anything else: it comes from somebody nobody knows yet."""
        message = read.message
        if message.command != "start" or not message.arguments or not message.private:
            return None
        verb = partial(
            redeem,
            connection_id=connected.account.id,
            integration=connected.integration.name,
            subject=message.author.id,
            name=message.author.name,
            code=message.arguments[:64],
        )
        try:
            role = await self.database.write(verb)
        except TooManyGuesses as error:
            log.warning("pairing.locked", connection=connected.account.id, error=str(error))
            return Done()
        words = WRONG_CODE if role is None else PAIRED.format(role=role)
        return await self._say(claim, read, connected, words)

    async def _link(self, claim: Claim, read: StoredMessage, connected: LoadedConnection) -> Outcome | None:
        """A code that somebody made elsewhere; like a pairing code, it says who they are before anybody asks.

        Where others read along it counts only if it was made for the name of whoever says it.
        """
        message = read.message
        given = message.arguments.strip()
        if message.command != "link" or not given or given.startswith("@"):
            return None
        if not message.private and not connected.integration.names_are_unique:
            return Done()
        verb = partial(
            link,
            workspace_id=claim.workspace_id,
            connection_id=connected.account.id,
            integration=connected.integration.name,
            subject=message.author.id,
            code=given[:64],
            name="" if message.private else message.author.name,
        )
        try:
            linked = await self.database.write(verb)
        except TooManyGuesses as error:
            log.warning("pairing.locked", connection=connected.account.id, error=str(error))
            return Done()
        if not linked and not message.private:
            return Done()  # whoever tries codes in public is not answered there
        return await self._say(claim, read, connected, LINKED if linked else WRONG_CODE)

    async def _new_link(self, claim: Claim, read: StoredMessage) -> str:
        if not read.message.private:
            return NOT_HERE
        connected = await self.accounts.get(str(read.connection_id))
        name = read.message.arguments.strip().lstrip("@")
        if not NAME.fullmatch(name):
            return NO_NAME
        verb = partial(
            new_link,
            workspace_id=claim.workspace_id,
            integration=connected.integration.name,
            subject=read.message.author.id,
            name=name,
        )
        try:
            code = await self.database.write(verb)
        except Conflict as error:
            return str(error)
        if code is None:
            return NOT_PAIRED
        return LINK_AS.format(code=code, name=name) if name else LINK.format(code=code)

    async def _answer(self, claim: Claim, read: StoredMessage, connected: LoadedConnection) -> Outcome:
        message, known = read.message, read.trust in (Trust.OWNER, Trust.MEMBER)
        if message.event == "button":
            await self._pressed(claim, read, connected, known)
            return Done()
        if message.command == "allow":
            if read.trust is Trust.OWNER:
                await self.database.write(_wish_to_listen, claim=claim, read=read)
                self.signals.wake(JOBS)
            return Done()
        if message.command == "stop" and claim.payload.get("stopped"):
            # What is stopped says so itself.
            return Done()
        # Services turn strangers away themselves; a member who may only look is told by us.
        if not known and not (connected.integration.name == WEB_CHAT and message.command == "goal"):
            return Done()
        words = await self._words(claim, read)
        return await self._say(claim, read, connected, words) if words else Done()

    async def _words(self, claim: Claim, read: StoredMessage) -> str:
        if claim.payload.get("unheard"):
            return CLOSED if claim.payload.get("closed") else UNHEARD
        if read.message.command == "stop":
            return NOTHING_TO_STOP
        if read.message.command == "new":
            await self.database.write(_begin_afresh, claim=claim, read=read)
            self.signals.wake(JOBS)
            return FRESH
        if read.message.command == "link":
            return await self._new_link(claim, read)
        if read.message.command in GOAL_COMMANDS:
            return await self._goal(claim, read)
        if read.message.command in MEMORY_COMMANDS:
            on = self.settings.memory_v1
            return await answer_memory(self.database, self.vault, self.recall, claim, read, on=on)
        if read.message.command in ("mute", "unmute"):
            muted = read.message.command == "mute"
            by = f"author:{read.message.author.id}"
            await self.database.write(
                mute_everybody, conversation_id=str(claim.conversation_id), muted=muted, by=by
            )
            return MUTED if muted else UNMUTED
        if read.message.command in ("agent", "model") and read.message.arguments.strip():
            return await self._switch(claim, read)
        if read.message.command == "answer":
            connected = await self.accounts.get(str(read.connection_id))
            given = partial(answer_in_words, claim=claim, read=read, integration=connected.integration.name)
            said = await self.database.write(given, vault=self.vault)
            self.signals.wake(JOBS)
            return said
        asking = CommandRequest(
            message=read.message,
            trust=read.trust,
            conversation_id=str(claim.conversation_id),
            connection_id=str(read.connection_id),
            agents=AgentFiles.of(self.settings),
            today=datetime.now(ZoneInfo(self.settings.timezone)).strftime("%Y-%m-%d"),
            timezone=self.settings.timezone,
            auto=(await self.keys.catalogue(claim.workspace_id)).resolve(DEFAULT_MODEL),
        )
        return await self.database.read(answer_to, asking=asking)

    async def _goal(self, claim: Claim, read: StoredMessage) -> str:
        said = await answer_goal(self.database, self.vault, self.settings, claim, read)
        self.signals.wake(JOBS)
        return said

    async def _switch(self, claim: Claim, read: StoredMessage) -> str:
        if read.trust is not Trust.OWNER:
            return NOT_AN_OWNER
        where, workspace = str(claim.conversation_id), claim.workspace_id
        name, by = read.message.arguments.strip(), f"author:{read.message.author.id}"
        if read.message.command == "agent":
            there = await asyncio.to_thread(choosable, AgentFiles.of(self.settings))
            chosen = partial(choose_agent, conversation_id=where, workspace_id=workspace, name=name, by=by)
            return await self.database.write(chosen, there=there)
        catalogue = await self.keys.catalogue(workspace)
        return await self.database.write(
            choose_model, catalogue=catalogue, conversation_id=where, workspace_id=workspace, name=name, by=by
        )

    async def _say(
        self, claim: Claim, read: StoredMessage, connected: LoadedConnection, words: str
    ) -> Outcome:
        binding = await self.database.read(
            binding_of, conversation_id=claim.conversation_id, connection_id=connected.account.id
        )
        if binding is None:
            return Done()
        parts = tuple(connected.integration.split(connected.integration.with_commands(words)))
        facts = {"offers": offers} if (offers := await self._offers(claim, read)) else {}
        return Done((Draft(binding, parts, kind="note", reply_to=read.message.external_id, facts=facts),))

    async def _offers(self, claim: Claim, read: StoredMessage) -> list[str]:
        """What an owner who only looks may choose next, as commands."""
        command = read.message.command
        if read.trust is not Trust.OWNER or read.message.arguments.strip():
            return []
        if command == "agent":
            names = sorted(await asyncio.to_thread(choosable, AgentFiles.of(self.settings)))
        elif command == "model":
            catalogue = await self.keys.catalogue(claim.workspace_id)
            names = _to_be_had(catalogue, self.settings.data_dir / "prices.toml")
        else:
            return []
        return [f"{command} {name}" for name in [*names[: MAX_OFFERS - 1], "default"]]

    async def _pressed(
        self, claim: Claim, read: StoredMessage, connected: LoadedConnection, known: bool
    ) -> None:
        """Take a press as the answer it is, and tell the presser what came of it."""
        message = read.message
        if not known:
            outcome = NOT_YOURS
        elif message.command == "stop":
            outcome = STOPPING if claim.payload.get("stopped") else NOTHING_TO_STOP
        elif message.command in ("agent", "model") and message.arguments.strip():
            outcome = await self._switch(claim, read)
        elif message.command == "goal":
            outcome = await self._goal(claim, read)
        elif not message.answers:
            outcome = GONE
        else:
            name = connected.integration.name
            outcome = await self.database.write(
                press, vault=self.vault, claim=claim, read=read, integration=name
            )
            self.signals.wake(JOBS)
        told = dataclasses.replace(message, text="" if outcome in NOT_CHOSEN else outcome)
        if outcome in (NOT_YOURS, NOT_AN_OWNER):
            told = dataclasses.replace(told, answers="")
        try:
            await connected.integration.answer_callback(told, outcome, connected.account)
        except GoferError as error:
            log.info("button.not_settled", error=str(error))


def _to_be_had(catalogue: Catalogue, prices: Path) -> list[str]:
    """The models whose price is known and that can be asked now."""
    found: list[str] = []
    with contextlib.suppress(ConfigError):
        for name in load_prices(prices, catalogue.prices()).table:
            with contextlib.suppress(ConfigError):
                catalogue.model(name)
                found += [] if name.endswith("/*") else [name]
    return found


def _begin_afresh(connection: Connection, claim: Claim, read: StoredMessage) -> None:
    where = str(claim.conversation_id)
    lock_conversation(connection, where)
    begin_afresh(connection, where, read.seq, by=f"author:{read.message.author.id}")


def _wish_to_listen(connection: Connection, claim: Claim, read: StoredMessage) -> None:
    lock_conversation(connection, str(claim.conversation_id))
    message = read.message
    what = {
        "what": "place",
        "subject": message.arguments,
        "name": message.title[:100],
        "by": message.author.id,
    }
    request_approval(connection, claim, connection_id=str(read.connection_id), what=what)
