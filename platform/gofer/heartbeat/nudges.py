"""Nudges: what a heartbeat writes to a conversation, with buttons for what could be done next and one to mute it.

A nudge is a job of its own that waits for a press without a slot. It is made in the transaction that puts its findings
on record as told, so each finding is told once at most. Its words are sealed with the conversation's key.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from sqlalchemy import Connection, select

from gofer.connections.context import LoadedConnections
from gofer.crash import crash_point
from gofer.errors import NotFound, TooOften
from gofer.goals.requests import make_goal
from gofer.heartbeat.brief import Explained
from gofer.heartbeat.records import NUDGED, is_muted, set_muted, settle
from gofer.identity import private_person, role_now
from gofer.intake.arrival import Arrival, Taken
from gofer.intake.scheduled_messages import find_place
from gofer.intake.transaction import take_in
from gofer.integration import Author, Incoming, Parsed
from gofer.jobs.kinds import NUDGE
from gofer.jobs.notifications import EVENTS, JOBS, Signals
from gofer.jobs.outcome import Dead, Done, Draft, Outcome, Wait
from gofer.jobs.queue import SERVICE, Claim, submit
from gofer.jobs.worker import Run
from gofer.runs.agent_files import AgentFiles, in_force
from gofer.settings import Settings
from gofer.store import events as log
from gofer.store import row_macs
from gofer.store.database import Database
from gofer.store.encryption import body_digest, conversation_key, seal, unseal
from gofer.store.ids import new_id
from gofer.store.locks import lock_conversation
from gofer.store.messages import StoredMessage, binding_of
from gofer.store.tables import SCHEDULE, Trust, events, members, questions
from gofer.vault.envelope import Vault
from gofer.vault.errors import Tampered

ASKED = "nudge.asked"
"""The id of a nudge's question."""
EXPIRES = 7 * 86400.0
COMMAND_LINE = "command line"
"""Who presses on the machine itself."""
MUTE = "Mute"
WHY = "Why this came: {why}. It is the heartbeat of {agent}; nobody asked for it."
STOP = "To stop it here: the button Mute, or `/mute`. An owner can switch it off: gofer agents heartbeat {agent} off"
STOP_BY_WORDS = (
    "To stop it here, write `/mute`. An owner can switch it off: gofer agents heartbeat {agent} off"
)
MUTED = "Muted: the heartbeat of {agent} writes nothing more here. `/unmute` takes that back."


@dataclass(frozen=True, slots=True)
class NudgeAction:
    """A button, and what whoever presses it says."""

    label: str
    say: str
    goal: bool = False
    """Whether that is a goal, to be planned and done in tasks, rather than a message to be answered."""


@dataclass(frozen=True, slots=True)
class Nudge:
    """What a heartbeat writes."""

    agent: str
    text: str
    why: tuple[str, ...]
    actions: tuple[NudgeAction, ...] = ()
    narrowed: bool = False

    @property
    def choices(self) -> tuple[str, ...]:
        """The words on its buttons, each once; the last one mutes."""
        return (*(each.label for each in self.actions), MUTE)

    def words(self, *, buttons: bool) -> str:
        """All of it for people. Where there are no buttons, they are told what to write."""
        offers = "".join(f"\n- {_offer(each, buttons=buttons)}" for each in self.actions)
        why = WHY.format(why="; ".join(self.why), agent=self.agent)
        stop = (STOP if buttons else STOP_BY_WORDS).format(agent=self.agent)
        return "\n\n".join([self.text + (f"\n{offers}" if offers else ""), f"{why} {stop}"])


def _offer(action: NudgeAction, *, buttons: bool) -> str:
    if buttons:
        return f"{action.label}: {'a goal, ' if action.goal else ''}“{action.say}”"
    return (
        f"{action.label}: write `/goal {action.say}`"
        if action.goal
        else f"{action.label}: tell me “{action.say}”"
    )


def submit_nudge(
    connection: Connection, vault: Vault, claim: Claim, nudge: Nudge, told: Sequence[Explained], at: float
) -> None:
    """Make the job that writes it, and put its findings on record as told. The caller holds the conversation's lock and
    has looked at the bounds."""
    mark, conversation_id = new_id("nudge"), str(claim.conversation_id)
    key = conversation_key(connection, vault, conversation_id)
    sealed = seal(key, asdict(nudge), NUDGE, mark, conversation_id)
    made = submit(
        connection,
        workspace_id=claim.workspace_id,
        kind=NUDGE,
        lane=f"{NUDGE}:{mark}",
        pool=SERVICE,
        payload={"mark": mark, "sealed": base64.b64encode(sealed).decode()},
        conversation_id=conversation_id,
        agent_id=claim.agent_id,
        connection_id=claim.connection_id,
        unique_key=f"{NUDGE}:{claim.id}",
    )
    if made is None:
        return
    settle(connection, [each.id for each in told], NUDGED, at)
    for each in told:
        code, sentence = each.recommendation
        log.record(
            connection, "heartbeat.nudged", claim.workspace_id, conversation_id=conversation_id,
            data={"agent": nudge.agent, "finding": each.id, "code": each.code, "subject": each.subject,
                  "recommendation": sentence, "recommendation_code": code, "nudge": made},
        )  # fmt: skip


@dataclass(eq=False, repr=False, kw_only=True)
class Nudges:
    """Handles nudge jobs."""

    database: Database
    vault: Vault
    accounts: LoadedConnections
    agents: AgentFiles
    signals: Signals
    settings: Settings

    async def handle(self, run: Run) -> Outcome:
        """Write it; when somebody has pressed a button, do what that says."""
        claim = run.claim
        try:
            nudge = await self.database.read(partial(_opened, vault=self.vault, claim=claim))
            pressed = await self.database.read(partial(_pressed, vault=self.vault, job_id=claim.id))
        except (NotFound, Tampered, KeyError, TypeError, ValueError):
            return Dead("nudge.unreadable")
        if pressed is None:
            return await self._write(claim, nudge)
        crash_point("nudge.pressed")
        if pressed.text == MUTE:
            return await self._mute(claim, nudge, pressed)
        action = next((each for each in nudge.actions if each.label == pressed.text), None)
        if action is None:
            return Done(reason="" if pressed.text else "question.expired")
        try:
            await self._say(claim, nudge, action, pressed)
        except TooOften as error:
            draft = await self._draft(claim, nudge, str(error))
            return Done((draft,) if draft is not None else ())
        return Done()

    async def _write(self, claim: Claim, nudge: Nudge) -> Outcome:
        muted = partial(is_muted, agent_id=str(claim.agent_id), conversation_id=str(claim.conversation_id))
        draft = await self._draft(claim, nudge)
        if draft is None or await self.database.read(muted):
            return Done(reason="nudge.held_back")
        return Wait(nudge.text, ASKED, expires_after=EXPIRES, drafts=(draft,), choices=nudge.choices)

    async def _draft(self, claim: Claim, nudge: Nudge, answer: str = "") -> Draft | None:
        """The nudge itself, or what is said to a press."""
        binding = await self.database.read(
            partial(binding_of, conversation_id=claim.conversation_id, connection_id=claim.connection_id)
        )
        if binding is None or claim.connection_id is None:
            return None
        connected = await self.accounts.get(claim.connection_id)
        several = len(in_force(await asyncio.to_thread(self.agents.look))) > 1
        signature = f"**{nudge.agent}**\n\n" if several else ""
        integration = connected.integration
        words = integration.with_commands(answer or nudge.words(buttons=integration.has_buttons))
        parts = tuple(await asyncio.to_thread(integration.split, signature + words))
        said = "" if answer else nudge.text
        return Draft(binding, parts, "note", signature=signature, said=said, narrowed=nudge.narrowed)

    async def _mute(self, claim: Claim, nudge: Nudge, pressed: NudgePress) -> Outcome:
        agent_id, conversation_id = str(claim.agent_id), str(claim.conversation_id)
        await self.database.write(
            partial(set_muted, agent_id=agent_id, conversation_id=conversation_id, muted=True, by=pressed.by)
        )
        crash_point("nudge.muted")
        self.signals.wake(EVENTS)
        draft = await self._draft(claim, nudge, MUTED.format(agent=nudge.agent))
        return Done((draft,) if draft is not None else ())

    async def _say(self, claim: Claim, nudge: Nudge, action: NudgeAction, pressed: NudgePress) -> None:
        """Write what the button says into the conversation, in the name of whoever pressed it."""
        verb = partial(
            _take_in,
            vault=self.vault,
            settings=self.settings,
            claim=claim,
            agent=nudge.agent,
            action=action,
            pressed=pressed,
        )
        taken = await self.database.write(verb)
        crash_point("nudge.said")
        if taken.woke:
            self.signals.wake(JOBS)
        self.signals.wake(EVENTS)


@dataclass(frozen=True, slots=True)
class NudgePress:
    """What was pressed, and by whom."""

    text: str
    """The words on the button; empty when nobody pressed any in time."""
    by: str = ""
    """The presser's id where they pressed."""
    name: str = ""
    trust: str = ""


def _opened(connection: Connection, vault: Vault, claim: Claim) -> Nudge:
    conversation_id, payload = str(claim.conversation_id), claim.payload
    key = conversation_key(connection, vault, conversation_id)
    found: Mapping[str, Any] = unseal(
        key, base64.b64decode(payload["sealed"]), NUDGE, str(payload["mark"]), conversation_id
    )
    actions = tuple(NudgeAction(**each) for each in found["actions"])
    return Nudge(**{**found, "why": tuple(found["why"]), "actions": actions})


def _pressed(connection: Connection, vault: Vault, job_id: int) -> NudgePress | None:
    """What was pressed; None while nobody has."""
    mine = questions.c.job_id == job_id, questions.c.call_id == ASKED
    row = connection.execute(
        select(questions).where(*mine).order_by(questions.c.asked_at.desc()).limit(1)
    ).one_or_none()
    if row is None or row.answered_at is None:
        return None
    if row.answer is None or not row_macs.fits(connection, questions, row):
        return NudgePress("")
    given = unseal(conversation_key(connection, vault, row.conversation_id), row.answer, "answer", row.id)
    answered = select(events.c.data).where(events.c.job_id == job_id, events.c.kind == "question.answered")
    data = connection.execute(answered.order_by(events.c.seq.desc()).limit(1)).scalar() or {}
    return NudgePress(str(given["text"]), str(data.get("by", "")), str(given["by"]), str(given["trust"]))


def _signed_in(connection: Connection, pressed: NudgePress) -> bool:
    """Whether a press came from the dashboard, the API or the command line, by somebody who may act there now."""
    if pressed.trust not in ("owner", "member"):
        return False
    name = pressed.by.removesuffix(" (token)")
    row = connection.execute(select(members).where(members.c.name == name)).one_or_none()
    may = row is not None and row.role in ("owner", "operator") and row_macs.fits(connection, members, row)
    return may or pressed.by == COMMAND_LINE


def _take_in(
    connection: Connection,
    vault: Vault,
    settings: Settings,
    claim: Claim,
    agent: str,
    action: NudgeAction,
    pressed: NudgePress,
) -> Taken:
    conversation_id, text = str(claim.conversation_id), action.say
    lock_conversation(connection, conversation_id)
    place = find_place(connection, conversation_id)
    # Looked up once more: whoever lost their role since the press has a stranger's word.
    role = role_now(connection, claim.workspace_id, place.integration, pressed.by)
    known = role in ("owner", "member")
    if not known and not _signed_in(connection, pressed):
        return Taken("noted")
    message = Incoming(
        conversation=place.ref,
        # Somebody who pressed elsewhere, such as on the dashboard, has no identity here.
        author=Author(pressed.by if known else claim.lane, pressed.name),
        text=text,
        addressed=not action.goal,
        kind=place.kind,
        event="message" if known else SCHEDULE,
        trigger="button",
        agent=agent,
        external_id=f"nudge-{claim.id}",
        stable_id=place.lasting or "",
        private=private_person(connection, conversation_id) is not None,
    )
    body = text.encode("utf-8", "replace")
    arrival = Arrival(
        workspace_id=claim.workspace_id,
        connection_id=place.connection_id,
        integration=place.integration,
        source="button",
        # One press for each nudge, so its job's number makes what it says happen once.
        parsed=Parsed(f"{claim.lane}:{claim.id}", message.event, message),
        body=body,
        body_hash=body_digest(vault, body),
        trust=Trust(role if known else pressed.trust),
    )
    taken = take_in(connection, vault, arrival)
    if action.goal and taken.result == "accepted" and taken.seq is not None:
        read = StoredMessage(taken.seq, message, arrival.trust, place.connection_id)
        where = {"workspace_id": claim.workspace_id, "conversation_id": conversation_id}
        make_goal(connection, vault, settings, read, text, **where)
        return replace(taken, woke=True)
    return taken
