"""What goes in and out: requests, messages, replies, and how a run is getting on. Plain values."""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gofer.errors import Refused
from gofer.integration.deprecated import old_fields
from gofer.strict_json import load_json

Role = Literal["owner", "member"]


TrustLevel = Literal["owner", "member", "stranger"]


@dataclass(frozen=True, slots=True)
class Request:
    """An inbound request or polled update, exactly as received."""

    body: bytes
    headers: tuple[tuple[str, bytes], ...] = ()
    """Names in lower case."""
    received_at: float = field(default_factory=time.time, compare=False)

    def header(self, name: str) -> bytes | None:
        """The value of a header, None when absent. A doubled one is refused: which would be the real one?"""
        values = [value for key, value in self.headers if key == name]
        if len(values) > 1:
            raise Refused(f"The header {name} was sent more than once.")
        return values[0] if values else None

    def text_header(self, name: str) -> str:
        """The value as text, empty when absent; bytes that are not ASCII become question marks."""
        return (self.header(name) or b"").decode("ascii", errors="replace")

    def json(self) -> Any:
        """The body as strict JSON; raises Malformed."""
        return load_json(self.body)

    def check_hmac(self, header: str, key: str, *, prefix: str = "") -> None:
        """Return when a header carries the HMAC-SHA256 of the raw body in hex; raises Refused."""
        expected = prefix.encode() + hmac.digest(key.encode(), self.body, "sha256").hex().encode()
        if not hmac.compare_digest(self.header(header) or b"", expected):
            raise Refused("The signature does not match the body.")

    def check_signature(self, header: str, *keys: str) -> str | None:
        """Return when a header carries a signature that `sign_body` made with one of the keys, within five minutes;
        raises Refused. A bare HMAC of the body is taken for one more release: returns what to tell its sender's
        owner."""
        value = self.header(header) or b""
        said = _SIGNATURE.fullmatch(value)
        signed, given = (said[1] + b"." + self.body, said[2]) if said else (self.body, value)
        fits = [
            hmac.compare_digest(given, hmac.digest(k.encode(), signed, "sha256").hex().encode()) for k in keys
        ]
        if not any(fits):
            raise Refused("The signature does not match the body.")
        if said is None:
            return f"It signs without a time: {header} must be t=SECONDS,v1=HEX from the next release on."
        if abs(self.received_at - int(said[1])) > MAX_SIGNATURE_AGE:
            raise Refused(
                f"The signature is not of the last {MAX_SIGNATURE_AGE} s. Compare the sender's clock."
            )
        return None


MAX_SIGNATURE_AGE = 300
"""Seconds that the time of a signature may be away from ours, in both directions."""


_SIGNATURE = re.compile(rb"t=([0-9]{1,12}),v1=([0-9a-f]{64})")


def sign_body(body: bytes, key: str, at: float) -> str:
    """The value of a signature header: a time, and the HMAC-SHA256 over it, a dot and the body."""
    said = str(int(at)).encode()
    return f"t={int(at)},v1={hmac.digest(key.encode(), said + b'.' + body, 'sha256').hex()}"


@dataclass(frozen=True, slots=True)
class Author:
    """Who wrote a message, by the service's unchangeable id."""

    id: str
    name: str = ""
    is_bot: bool = False


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that came with a message, still at the service until `admit` fetches it."""

    ref: str
    name: str = ""
    media_type: str = "application/octet-stream"
    size: int = 0


@old_fields(lasting="stable_id", joins="group_id", replaces="replaces_id", quoted_here="quote_is_ours")
@dataclass(frozen=True, slots=True)
class Incoming:
    """One message, or one event that reads like a message."""

    conversation: str
    """The service's reference of the place it was said in."""
    author: Author
    text: str
    addressed: bool
    """Whether it wants an agent: it names it, answers it, commands it, or is said in private."""
    kind: str = "chat"
    """What the place is: chat, group, topic, issue, pull, web …"""
    title: str = ""
    private: bool = False
    """Only the author and we are there; pairing works nowhere else."""
    event: str = "message"
    trigger: str = "any"
    """What in it addressed an agent: mention, reply, command, label, assignment …; routes may ask for one."""
    agent: str = ""
    """The one agent it is meant for, by name, where a person may choose; empty for whoever hears the place."""
    usual_agent: str = ""
    """The agent that answers in this place, by name, unless an owner chose another one there; one that is gone does not
    count."""
    external_id: str = ""
    """Its id at the service."""
    reply_to: str = ""
    """The id at the service of the message it answers."""
    replaces_id: str = ""
    """The id at the service of the message it is a new version of; an unread one is replaced."""
    control: Literal["", "stop", "new"] = ""
    """stop: cancel what the agents are doing here. new: that too, and begin a new epoch."""
    command: str = ""
    """A command without its slash. The platform answers it at once, beside whatever an agent is doing."""
    arguments: str = ""
    answers: str = ""
    """The id of the Question that a pressed button answers …"""
    choice: int = -1
    """… and which of its choices was pressed."""
    quoted: str = ""
    """Somebody else's words that came along (a forward, the message it answers): never more than quoted."""
    quote_is_ours: bool = False
    """They were said here before, by us or by the author: still no more than quoted, but they cost no reach."""
    group_id: str = ""
    """The mark its parts share when a service sends one message in several pieces, such as an album."""
    attachments: tuple[Attachment, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """JSON of the integration's own, handed back to `admit` and `place`."""
    stable_id: str = ""
    """What the place is for ever, where `conversation` is a name that it may lose and another may get: the
    conversation goes with this. Empty where the reference itself lasts."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a request turned out to be."""

    delivery_id: str
    """The service's id of this delivery; a second one with the same id is a repeat."""
    event: str
    message: Incoming | None = None
    note: str = ""
    """Why there is no message: known but unhandled is said, not dropped."""
    message_id: str = ""
    """Where the service does not sign the delivery's id: what it does sign that names this message, or this event, and
    no other. A second delivery of it is a repeat for ever, also once the first was pruned or purged."""
    moved: tuple[str, str] | None = None
    """What is called by the first reference is called by the second from now on: the conversation, and those whose
    references go on with a `#`."""


@dataclass(frozen=True, slots=True)
class File:
    """A file fetched by `admit`."""

    name: str
    media_type: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Unread:
    """A message about to reach an agent for the first time."""

    message: Incoming
    known_as: Role | None
    """The role of the author's Principal, if the author is paired with one."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What `admit` found out. Stored with the message, so it is asked once."""

    trust: TrustLevel
    text: str | None = None
    """Replaces the text, when looking closer changed it."""
    message: Incoming | None = None
    """Replaces the whole message, when it turned out to be another's request, or nobody's (`addressed`)."""
    files: tuple[File, ...] = ()
    note: str = ""
    """For the event log: why."""
    turn_away: str = ""
    """What to tell a stranger, at most once a day; their wish to be let in is put to an owner, if one is near."""
    cost: float = 0
    """What looking closer cost, in dollars: counted with what the run spends."""


@dataclass(frozen=True, slots=True)
class PlanItem:
    """One line of the plan that a run keeps of a longer task."""

    text: str
    state: Literal["open", "doing", "done", "dropped"] = "open"


@old_fields(lasting="stable_id")
@dataclass(frozen=True, slots=True)
class Progress:
    """How a run is getting on; with its answer, how it went."""

    seconds: float
    """For which it was worked on."""
    steps: int = 0
    doing: str = ""
    """The tool at work, if one is."""
    message: str = ""
    """The id at the service of the message it works on; of several, the first."""
    plan: tuple[PlanItem, ...] = ()
    cost: float = 0
    """In dollars, so far."""
    url: str = ""
    """Its page; empty when Gofer has no public URL."""
    stable_id: str = ""
    """What the place is for ever, where `Incoming.stable_id` said so."""
    waits_for: str = ""
    """What it waits for: while nobody works on it, or while its model takes long to begin."""
    words: str = ""
    """What the model is saying in this turn, so far; where the integration has `words_every`. Secrets are masked, and
    nothing in it acts. Only to be shown for a while: the answer itself is placed as ever."""


@old_fields(lasting="stable_id")
@dataclass(frozen=True, slots=True)
class Outgoing:
    """One part of a reply on its way out."""

    id: str
    """Stable over every retry and unique: the marker or idempotency key."""
    conversation: str
    text: str
    part: int = 1
    parts: int = 1
    kind: Literal["final", "error", "note"] = "final"
    reply_to: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Of the message it answers. `offers` are commands with their arguments, such as `agent sailor`, that whoever
    reads it may give by a button, where there are some."""
    question: str = ""
    """The id of the Question this part asks …"""
    choices: tuple[str, ...] = ()
    """… and what may be chosen, as buttons where there are some; the press comes back as `Incoming.answers`."""
    work: Progress | None = None
    """How the run went, with its answer, where the integration `shows_run_summary`. The same over every retry."""
    stable_id: str = ""
    """What the place is for ever, where `Incoming.stable_id` said so."""
    stopped_by: str = ""
    """Why the run ended before its work was done: `cancelled` when a person stopped it, else the code of a limit
    or guard. Empty for an answer."""
    narrowed: bool = False
    """The run had read strangers' text, which may speak through its words. Where they are read again from the service,
    they are strangers' words."""
