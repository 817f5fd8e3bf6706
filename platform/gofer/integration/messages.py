"""Plain values that go in and out: requests, messages, replies, commands, and the progress of a run."""

from __future__ import annotations

import functools
import hmac
import re
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from gofer.errors import Malformed, Refused
from gofer.strict_json import load_json

T = TypeVar("T", bound=type)

OLD_NAMES = {"Account": "ConnectionContext", "Job": "JobScope", "Equipment": "ShellAccess"}
OLD_METHODS = {
    "notice": "acknowledge",
    "settle": "answer_callback",
    "move": "rename_conversation",
    "allow": "allow_conversation",
    "errands": "delegated_tools",
    "equip": "shell_access",
    "signed_up": "finish_setup",
    "tells_work": "shows_run_summary",
}
"""Names of the contract before 0.2. They work for one more release, and warn."""


def adopt_old_methods(integration: type) -> None:
    """Give what an integration defines under an old name its new name."""
    for old, new in OLD_METHODS.items():
        if old in vars(integration) and new not in vars(integration):
            _warn(f"{integration.__name__}.{old}", new)
            setattr(integration, new, vars(integration)[old])
    if "sign_up" in vars(integration) and not getattr(integration, "can_sign_up", False):
        # Until 0.2 overriding `sign_up` was enough.
        message = f"{integration.__name__}.sign_up needs can_sign_up = True from the next release on."
        warnings.warn(message, DeprecationWarning, stacklevel=3)
        setattr(integration, "can_sign_up", True)  # noqa: B010 - mypy refuses the plain assignment


def old_fields(**renamed: str) -> Callable[[T], T]:
    """Let a dataclass be created and read by the old names of its fields."""

    def decorate(cls: T) -> T:
        make: Any = vars(cls)["__init__"]
        old_names = frozenset(renamed)

        @functools.wraps(make)
        def init(self: Any, *values: Any, **named: Any) -> None:
            if not old_names.isdisjoint(named):
                for old in old_names & named.keys():
                    _warn(f"{cls.__name__}({old}=)", renamed[old])
                    named[renamed[old]] = named.pop(old)
            make(self, *values, **named)

        setattr(cls, "__init__", init)  # noqa: B010 - mypy refuses the plain assignment
        for old, new in renamed.items():
            setattr(cls, old, property(functools.partial(_read, cls.__name__, old, new)))
        return cls

    return decorate


def _read(cls: str, old: str, new: str, value: Any) -> Any:
    _warn(f"{cls}.{old}", new)
    return getattr(value, new)


def warn_of_name(old: str) -> str:
    """Warn of an old name of `gofer.integration`, and return the new one."""
    _warn(f"gofer.integration.{old}", OLD_NAMES[old])
    return OLD_NAMES[old]


def _warn(old: str, new: str) -> None:
    message = f"{old} is called {new} now. The old name goes with the next release."
    warnings.warn(message, DeprecationWarning, stacklevel=4)


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
        """The value of a header, None when absent; raises Refused when it was sent twice."""
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
        expected = prefix + hmac.new(key.encode(), self.body, "sha256").hexdigest()
        if not hmac.compare_digest(self.header(header) or b"", expected.encode()):
            raise Refused("The signature does not match the body.")

    def check_signature(self, header: str, *keys: str) -> str | None:
        """Return when a header carries a signature that `sign_body` made with one of the keys within the last five
        minutes; raise Refused otherwise. A bare HMAC of the body is accepted for one more release: the returned text
        warns the owner."""
        value = self.header(header) or b""
        said = _SIGNATURE.fullmatch(value)
        signed, given = (said[1] + b"." + self.body, said[2]) if said else (self.body, value)
        fits = [
            hmac.compare_digest(given, hmac.new(k.encode(), signed, "sha256").hexdigest().encode())
            for k in keys
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
"""Seconds by which a signature's time may differ from ours, in both directions."""
_SIGNATURE = re.compile(rb"t=([0-9]{1,12}),v1=([0-9a-f]{64})")


def sign_body(body: bytes, key: str, at: float) -> str:
    """The value of a signature header: a time, and the HMAC-SHA256 over it, a dot and the body."""
    said = str(int(at)).encode()
    return f"t={int(at)},v1={hmac.digest(key.encode(), said + b'.' + body, 'sha256').hex()}"


@dataclass(frozen=True, slots=True)
class Author:
    """Who wrote a message. The id never changes at the service."""

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
    """The service's reference of the place where it was said."""
    author: Author
    text: str
    addressed: bool
    """Whether it is for an agent: it mentions, answers or commands one, or is private."""
    kind: str = "chat"
    """The kind of place: chat, group, topic, issue, pull, web …"""
    title: str = ""
    private: bool = False
    """Whether nobody but the author and Gofer reads the place. Pairing works nowhere else."""
    event: str = "message"
    trigger: str = "any"
    """What addressed the agent: mention, reply, command, label, assignment … Routes can match it."""
    agent: str = ""
    """The name of the agent that the author chose; empty for the agent that hears the place."""
    usual_agent: str = ""
    """The name of the agent that answers here unless an owner chose another. Ignored when no such agent exists."""
    external_id: str = ""
    """Its id at the service."""
    reply_to: str = ""
    """The id at the service of the message it answers."""
    replaces_id: str = ""
    """The id at the service of the message that it is an edit of. An unread message is replaced."""
    control: Literal["", "stop", "new"] = ""
    """stop: cancel the runs of this conversation. new: the same, and start a new epoch."""
    command: str = ""
    """The name of a command, without its slash. Gofer answers it at once, even while an agent works."""
    arguments: str = ""
    answers: str = ""
    """The id of the Question that a pressed button answers."""
    choice: int = -1
    """The index of the choice that was pressed."""
    quoted: str = ""
    """Other text that came along, such as a forward or the message it answers. The model gets it as a quotation."""
    quote_is_ours: bool = False
    """Whether Gofer or the author said the quoted text here before. It then does not make the run narrowed."""
    group_id: str = ""
    """The id that messages share when the service sends one in several pieces, such as an album."""
    attachments: tuple[Attachment, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The integration's own JSON, passed back to `admit` and `place`."""
    stable_id: str = ""
    """Stable id of the place when `conversation` can be renamed or reused; empty when it cannot."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a request means."""

    delivery_id: str
    """The service's id of this delivery; a second one with the same id is a repeat."""
    event: str
    message: Incoming | None = None
    note: str = ""
    """Why there is no message. A known event without one is recorded, not dropped."""
    message_id: str = ""
    """A unique id of this message or event within the signed body, for services that do not sign the delivery id.
    A second delivery with it is a repeat for ever, even after the first was pruned or purged."""
    moved: tuple[str, str] | None = None
    """The old and the new reference of a renamed conversation. References that continue the old one with `#` are
    renamed as well."""
    closed: tuple[str, bool] | None = None
    """The reference of a place without a message in this request, and whether it is closed now: an issue that was
    closed, a group that the bot left. In a closed place no external agent is woken."""


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
    """The role of the author's Principal, if paired."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The result of `admit`. It is stored with the message, so `admit` runs once."""

    trust: TrustLevel
    text: str | None = None
    """Replaces the text."""
    message: Incoming | None = None
    """Replaces the whole message, when it is another person's request or is not `addressed`."""
    files: tuple[File, ...] = ()
    note: str = ""
    """The reason, for the event log."""
    turn_away: str = ""
    """What to tell a stranger, at most once a day. An owner in the same place is asked to let them in."""
    cost: float = 0
    """Dollars that `admit` spent; added to the run's cost."""


@dataclass(frozen=True, slots=True)
class PlanItem:
    """One line of a run's plan."""

    text: str
    state: Literal["open", "doing", "done", "dropped"] = "open"


@old_fields(lasting="stable_id")
@dataclass(frozen=True, slots=True)
class Progress:
    """What a run is doing; with its answer, how it went."""

    seconds: float
    """Working time so far."""
    steps: int = 0
    doing: str = ""
    """The tool that is running, if any."""
    message: str = ""
    """The id at the service of the first message it works on."""
    plan: tuple[PlanItem, ...] = ()
    cost: float = 0
    """In dollars, so far."""
    url: str = ""
    """The run's page; empty when Gofer has no public URL."""
    stable_id: str = ""
    """`Incoming.stable_id` of the place."""
    waits_for: str = ""
    """What it waits for, while no worker has it or while its model is slow to start."""
    goal: str = ""
    """What is wanted, when it is a goal: `plan` then has its tasks. Show it at once, and keep it until it is over."""
    offers: tuple[str, ...] = ()
    """Commands with arguments to show as buttons, such as `goal pause goal_k3v9`."""
    words: str = ""
    """The model's text of this turn so far, when the integration has `words_every`. Secrets are masked, and mentions
    and commands are defused. Show it only until the answer is placed."""


@old_fields(lasting="stable_id")
@dataclass(frozen=True, slots=True)
class Outgoing:
    """One part of a reply."""

    id: str
    """Unique, and the same in every retry: use it as the marker or idempotency key."""
    conversation: str
    text: str
    part: int = 1
    parts: int = 1
    kind: Literal["final", "error", "note"] = "final"
    reply_to: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """`facts` of the message it answers. `offers` lists commands with arguments, such as `agent sailor`, to show as
    buttons."""
    question: str = ""
    """The id of the Question that this part asks."""
    choices: tuple[str, ...] = ()
    """Its choices, to show as buttons. A press comes back as `Incoming.answers` and `choice`."""
    work: Progress | None = None
    """How the run went, when the integration `shows_run_summary`. The same in every retry."""
    stable_id: str = ""
    """`Incoming.stable_id` of the place."""
    stopped_by: str = ""
    """Why the run ended early: `cancelled` when a person stopped it, otherwise the code of a limit or guard. Empty for
    an answer."""
    narrowed: bool = False
    """Whether the run read strangers' text, which may have shaped the reply. When the reply is read again from the
    service, treat it as strangers' text."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command that people type after a slash. Gofer answers it, in every integration."""

    name: str
    help: str
    arguments: str = ""
    private: bool = False
    """Offered only in private conversations."""


COMMANDS = (
    Command("help", "What I can do"),
    Command("new", "Start afresh, without what was said before in mind"),
    Command("stop", "Stop what I am doing here"),
    Command("status", "What I am doing, and what it has cost so far"),
    Command("cost", "What was spent here, today and in all"),
    Command("agent", "Who hears this conversation; an owner can choose another", "[name]"),
    Command("model", "Which model answers; an owner can choose another", "[provider/model]"),
    Command("settings", "How this conversation is set up"),
    Command(
        "goal", "Plan something larger, do it and report; or steer a goal", "[what, or pause|resume|cancel]"
    ),
    Command("goals", "The goals of this conversation, and how far they are"),
    Command("remember", "Remember something; an owner adds `everybody:` for all I talk to", "[what]"),
    Command("forget", "Forget something I remember, by its id", "[mem_…]"),
    Command(
        "memory",
        "What I remember here, or what fits some words; or change a memory",
        "[words, or restore|edit|pin|audience mem_…]",
    ),
    Command("answer", "Answer a question of mine, by its id", "[q_… and the answer]"),
    Command("mute", "Have my heartbeat write nothing here"),
    Command("unmute", "Let my heartbeat write here again"),
    Command(
        "link",
        "Make yourself known elsewhere (@ and your name there), or here with a code",
        "[@name or code]",
    ),
    Command("start", "Say hello, or pair with a code", "[code]", private=True),
)


_LIMIT = 2**63


@dataclass(frozen=True, slots=True)
class Payload:
    """A JSON object. A field that is missing or has another type reads as empty; `required_…` raises Malformed."""

    value: dict[str, Any]
    path: str = ""
    """Where it is in the whole, for errors: `issue.user.`"""

    @classmethod
    def of(cls, value: Any) -> Payload:
        """The whole payload; raises Malformed when it is not an object."""
        if not isinstance(value, dict):
            raise Malformed("Expected a JSON object.")
        return cls(value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __contains__(self, name: str) -> bool:
        return self.value.get(name) is not None

    def child(self, name: str) -> Payload:
        """The object in a field."""
        found = self.value.get(name)
        return Payload(found if isinstance(found, dict) else {}, f"{self.path}{name}.")

    def children(self, name: str) -> list[Payload]:
        """The objects in an array."""
        return [Payload(each, f"{self.path}{name}.") for each in self.array(name) if isinstance(each, dict)]

    def array(self, name: str) -> list[Any]:
        """An array as it is."""
        found = self.value.get(name)
        return found if isinstance(found, list) else []

    def text(self, name: str) -> str:
        """A string."""
        found = self.value.get(name)
        return found if isinstance(found, str) else ""

    def number(self, name: str) -> int | None:
        """An integer that fits 64 bits."""
        found = self.value.get(name)
        fits = isinstance(found, int) and not isinstance(found, bool) and -_LIMIT <= found < _LIMIT
        return found if fits else None

    def real(self, name: str) -> float:
        """A number with decimals."""
        found = self.value.get(name)
        return float(found) if isinstance(found, int | float) and abs(found) < _LIMIT else 0.0

    def flag(self, name: str) -> bool:
        """Whether a field is `true`."""
        return self.value.get(name) is True

    def first_of(self, names: tuple[str, ...]) -> str:
        """The first of these names that is present."""
        return next((name for name in names if name in self), "")

    def required_text(self, name: str) -> str:
        """A string that is not empty."""
        if found := self.text(name):
            return found
        raise Malformed(f"The event has no {self.path}{name}.")

    def required_number(self, name: str) -> int:
        """A positive integer."""
        if (found := self.number(name)) and found > 0:
            return found
        raise Malformed(f"The event has no {self.path}{name}.")
