"""`/goal` and `/goals`: people want something larger, look how far it is, and steer it, where they are."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection

from gofer.crash import crash_point
from gofer.errors import GoferError, NotFound
from gofer.goals import records
from gofer.goals.requests import agents_elsewhere, goal_of_message
from gofer.jobs.queue import Claim
from gofer.sanitize import clean
from gofer.settings import Settings
from gofer.store.database import Database
from gofer.store.messages import StoredMessage
from gofer.store.tables import Trust
from gofer.vault.envelope import Vault

GOAL_COMMANDS = ("goal", "goals")
VERBS: dict[str, Callable[..., str]] = {
    "pause": records.pause,
    "resume": records.resume,
    "cancel": records.cancel,
    "stop": records.cancel,
}
MAX_LISTED = 10
NONE = "There are no goals here. `/goal` and what you want makes one."
NONE_LIVE = "No goal is under way here. `/goals` shows those that have ended."
WHICH = "Several goals are under way here. Say which:\n{lines}"
WHAT = (
    "Say what you want: `/goal` and a sentence. Then I plan it, work on it step by step, and report.\n"
    "`/goals` lists the goals here. `/goal pause`, `/goal resume` and `/goal cancel` steer one (with its id, if "
    "there are several), and `/goal + words` tells it something new."
)
SAID = {
    "paused": "Paused. What runs goes on to its end; `/goal resume {id}` goes on with the rest.",
    "planning": "Going on.",
    "active": "Going on.",
    "blocked": "Going on; my question is still open.",
    "cancelled": "Cancelling {id}.",
    "told": "Noted. The plan is looked at again with that in mind.",
    "answered": "Thanks, going on.",
}
STRANGER = "Only people I know can give me goals."
_VERB = re.compile(r"(pause|resume|cancel|stop)(?:\s+(goal_[a-z0-9]+))?", re.I)
_LIST = re.compile(r"(?:status|list|show)", re.I)
_TELL = re.compile(r"(?:\+\s*)?(goal_[a-z0-9]+)\s+(.+)|\+\s*(.+)", re.S)


async def answer_goal(
    database: Database, vault: Vault, settings: Settings, claim: Claim, read: StoredMessage
) -> str:
    """What to say to a command about goals; empty when the goal itself says what comes of it."""
    words = clean(read.message.arguments).strip()
    if read.trust not in (Trust.OWNER, Trust.MEMBER):
        return STRANGER
    here: dict[str, Any] = {"vault": vault, "claim": claim}
    try:
        if read.message.command == "goals" or _LIST.fullmatch(words):
            return await database.read(_listed, **here)
        if (steered := _VERB.fullmatch(words)) is not None:
            verb = VERBS[steered[1].lower()]
            return await database.write(_steer, **here, read=read, verb=verb, which=steered[2])
        if (told := _TELL.fullmatch(words)) is not None:
            which, said = told[1], (told[2] or told[3]).strip()
            return await database.write(_tell, **here, read=read, which=which, words=said)
        if not words.strip("+ "):
            return WHAT
        elsewhere = await asyncio.to_thread(agents_elsewhere, settings)
        asked: dict[str, Any] = {"settings": settings, "read": read, "text": words, "elsewhere": elsewhere}
        said = await database.write(goal_of_message, **here, **asked)
        crash_point("goal.asked")
        return said
    except GoferError as error:
        return str(error)


def _steer(
    connection: Connection,
    vault: Vault,
    claim: Claim,
    read: StoredMessage,
    verb: Callable[..., str],
    which: str | None,
) -> str:
    goal_id = _which(connection, vault, claim, which)
    state = verb(connection, goal_id, by=f"author:{read.message.author.id}")
    return SAID[state].format(id=goal_id)


def _tell(
    connection: Connection, vault: Vault, claim: Claim, read: StoredMessage, which: str | None, words: str
) -> str:
    author = read.message.author
    goal_id = _which(connection, vault, claim, which)
    became = records.tell(
        connection, vault, goal_id, words, by=author.id, name=author.name, trust=read.trust.value
    )
    return SAID[became]


def _which(connection: Connection, vault: Vault, claim: Claim, named: str | None) -> str:
    """The goal that is meant: the one named, or the only one under way here; raises NotFound with what to say."""
    here = str(claim.conversation_id)
    if named is not None:
        found = records.find_goal(connection, named)
        if found.conversation_id != here:  # whose goal it is, is not for everybody to know
            raise NotFound(f"There is no goal {named!r} here. `/goals` shows those there are.")
        return str(found.id)
    live = records.goals_in(connection, here, live=True)
    if not live:
        raise NotFound(NONE_LIVE)
    if len(live) > 1:
        raise NotFound(WHICH.format(lines="\n".join(_line(connection, vault, goal) for goal in live)))
    return str(live[0].id)


def _listed(connection: Connection, vault: Vault, claim: Claim) -> str:
    found = records.goals_in(connection, str(claim.conversation_id), limit=MAX_LISTED)
    return "\n".join(_line(connection, vault, goal) for goal in found) or NONE


def _line(connection: Connection, vault: Vault, goal: Any) -> str:
    text = " ".join(records.request_of(connection, vault, goal).text.split())
    done, total = records.task_count(connection, goal.id)
    steps = f", {done} of {total} tasks done" if total else ""
    return f"`{goal.id}` {goal.state}{steps}: {text[:80]}"
