"""The contract between Gofer and an integration.

An Integration is stateless code that speaks with one outside service; a Connection is one configured account of
it. Subclass `Integration`, export an instance through the entry point group `gofer.integrations`, and Gofer does
the rest: it receives, verifies, dedupes, stores, routes, runs the agent and keeps the ledger of what was sent.
`gofer_hello` is the smallest complete example; docs/integrations/hello.md walks through it.

What is pure (`verify`, `parse`, `split`) must touch no network, clock or database, and may run in any thread. What is
async may raise `gofer.errors.Temporary` (tried again, at `retry_after` if given) or `gofer.errors.Permanent` (given
up, visibly).
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import structlog
from pydantic import BaseModel, ConfigDict

from gofer.errors import Permanent, Refused, Temporary, Unset
from gofer.strict_json import load_json

if TYPE_CHECKING:
    import httpx2

    from gofer.tool import Tool
    from gofer.vault.secret import Secret

log = structlog.get_logger()

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
    replaces: str = ""
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
    quoted_here: bool = False
    """They were said here before, by us or by the author: still no more than quoted, but they cost no reach."""
    joins: str = ""
    """The mark its parts share when a service sends one message in several pieces, such as an album."""
    attachments: tuple[Attachment, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """JSON of the integration's own, handed back to `admit` and `place`."""
    lasting: str = ""
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


class Job:
    """A job while a worker is at it, for what must not outlive it, such as a token minted for it alone.

    It ends when the run does, well or badly, and before its answer is on its way. A job that is taken up again,
    by this worker or the next, is another one. Nothing ends when the process is killed: lend only what also ends
    by itself.
    """

    def __init__(self) -> None:
        self._endings: list[Callable[[], Awaitable[None]]] = []
        self._over = False

    def at_end(self, ending: Callable[[], Awaitable[None]]) -> None:
        """Have something ended with the job. What it raises is logged, and costs nobody their answer."""
        if self._over:
            raise Permanent("The job is over.", reason="job.over")
        self._endings.append(ending)

    async def end(self) -> None:
        """The platform calls this, once."""
        self._over = True
        for failed in await asyncio.gather(*(one() for one in self._endings), return_exceptions=True):
            if failed is not None:
                log.warning("job.not_given_back", error=type(failed).__name__, reason=str(failed))


@dataclass(frozen=True, slots=True)
class Account:
    """A Connection as its integration sees it."""

    id: str
    name: str
    settings: Mapping[str, Any]
    secrets: Mapping[str, Secret]
    hook_url: str | None = None
    """Where the service can reach us; None when Gofer has no public URL."""
    http: httpx2.AsyncClient | None = None
    """The shared client; only async methods have it."""
    proxied: httpx2.AsyncClient | None = None
    """The client that goes through the connection's proxy, where `Integration.proxy` names one."""
    job: Job | None = field(default=None, repr=False)
    """The job it is about, in `tools`, `errands` and `equip`; None in everything that Gofer does beside the jobs."""
    on_use: Callable[[str], None] | None = field(default=None, repr=False, compare=False)
    """Told the name of each secret that is asked for, so that its last use is known."""
    signer: Callable[..., str] | None = field(default=None, repr=False, compare=False)
    """How `mac` does it."""

    def secret(self, name: str) -> str:
        """A secret's value; raises Unset when it is missing or blank, so half a configuration stays closed."""
        value = self.secrets[name].reveal() if name in self.secrets else ""
        if not value.strip():
            raise Unset(f"The secret {name} of connection {self.id} is not set.")
        if self.on_use is not None:
            self.on_use(name)
        return value

    def secrets_of(self, name: str, *others: str) -> list[str]:
        """A secret's value and those of others that are set, such as a key that is about to replace it; raises
        Unset when the first is missing."""
        return [self.secret(name), *(self.secret(other) for other in others if other in self.secrets)]

    def mac(self, *parts: str) -> str:
        """A MAC in hex, with a key that only this Gofer has and that is this connection's for ever: for what is
        written outside and has to be known again."""
        if self.signer is None:
            raise Unset(f"The connection {self.id} has no key to sign with.")
        return self.signer(*parts)

    async def call(self, method: str, url: str, **arguments: Any) -> Any:
        """Ask the service, and return the JSON it answers; None for 404. Raises Temporary or Permanent."""
        assert self.http is not None
        response = await self.http.request(method, url, **arguments)
        if response.status_code == 429 or response.status_code >= 500:
            after = response.headers.get("retry-after", "")
            raise Temporary(
                f"The service answered {response.status_code}.",
                retry_after=float(after) if after.isascii() and after.isdigit() else None,
            )
        if response.status_code == 404:
            return None
        if response.is_error:
            raise Permanent(f"The service answered {response.status_code}.")
        return response.json()


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
    lasting: str = ""
    """What the place is for ever, where `Incoming.lasting` said so."""
    waits_for: str = ""
    """What it waits for: while nobody works on it, or while its model takes long to begin."""
    words: str = ""
    """What the model is saying in this turn, so far; where the integration has `words_every`. Secrets are masked, and
    nothing in it acts. Only to be shown for a while: the answer itself is placed as ever."""


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
    """How the run went, with its answer, where the integration `tells_work`. The same over every retry."""
    lasting: str = ""
    """What the place is for ever, where `Incoming.lasting` said so."""
    stopped_by: str = ""
    """Why the run ended before its work was done: `cancelled` when a person stopped it, else the code of a limit
    or guard. Empty for an answer."""
    narrowed: bool = False
    """The run had read strangers' text, which may speak through its words. Where they are read again from the service,
    they are strangers' words."""


Password: TypeAlias = str | Callable[[str], Awaitable[str]]
"""A secret, or how to get it: asked for with every request, where it does not last as long as a job may. Asked with
the one that the service refused before its time, or with nothing."""


@dataclass(frozen=True, slots=True)
class EgressRule:
    """A way out of a shell, as data: open only while a tool of the job that brought it runs."""

    name: str
    """Lower case, and unique within an integration."""
    upstream: str
    """Scheme, host and port."""
    paths: tuple[str, ...]
    """Allowed with everything below them; with git, repositories."""
    methods: tuple[str, ...] = ("GET", "HEAD")
    git_push: tuple[str, ...] | None = None
    """Patterns of full ref names that may be pushed, where git is spoken; None where it is not."""
    git_objections: Callable[[Sequence[str]], Awaitable[Mapping[str, str]]] | None = field(
        default=None, repr=False
    )
    """Asked about the full ref names of each push that is allowed otherwise: why those that may not be changed
    are not. While it raises, nothing is pushed."""
    git_commit_objections: Callable[[Sequence[str]], Awaitable[Mapping[str, str]]] | None = field(
        default=None, repr=False
    )
    """Asked about commits that a fetch wants by their numbers and that no branch or tag names: why those that may
    not be read are not. Without it none may; while it raises, none is."""
    allow_private: bool = False
    """Whether the upstream may be on a private network."""
    keep: str = ""
    """With git: what its first repository is kept under for later clones by jobs of the same connection. It names
    the repository for ever, not as it is called now; empty for not at all."""
    moved: Callable[[], Awaitable[Sequence[str]]] | None = field(default=None, repr=False)
    """Asked when the upstream sends a request to another path: where `paths` are now. These are allowed then, too."""
    password: Password = field(default="", repr=False)
    """Instead of the equipment's, where one way out may do less than another. Never enters the shell."""


@dataclass(frozen=True, slots=True)
class Equipment:
    """What a job brings into its shell: files, and ways out whose credential is added outside."""

    rules: tuple[EgressRule, ...] = ()
    user: str = ""
    password: Password = field(default="", repr=False)
    """Never enters the shell."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By path below the shell's home."""
    setup: str = ""
    """A command to run in the shell before the job's first."""


@dataclass(frozen=True, slots=True)
class Health:
    """How a connection is doing."""

    ok: bool
    line: str
    fix: str = ""
    """The exact command or step that mends it."""
    learned: Mapping[str, Any] = field(default_factory=dict)
    """Settings that `set_up` found out (a bot's name); they are stored with the connection."""


@dataclass(frozen=True, slots=True)
class SignUp:
    """A form that a person's browser posts to a service, which makes an account and sends them back with a code."""

    url: str
    fields: Mapping[str, str]
    asks: Mapping[str, str] = field(default_factory=dict)
    """What the account may do, and why, for the person to read first."""


@dataclass(frozen=True, slots=True)
class SecretField:
    """A secret that a connection has."""

    name: str
    help: str
    generated: bool = False
    """Made by Gofer when none is given."""
    optional: bool = False
    """A connection may do without it."""


@dataclass(frozen=True, slots=True)
class Command:
    """Something people may type after a slash, answered by the platform."""

    name: str
    help: str
    arguments: str = ""
    private: bool = False
    """Offered only where the author is alone with us."""


COMMANDS = (
    Command("help", "What I can do"),
    Command("new", "Start afresh: what was said before is forgotten"),
    Command("stop", "Stop what I am doing here"),
    Command("status", "What I am doing, and what it has cost so far"),
    Command("cost", "What was spent here, today and in all"),
    Command("agent", "Who hears this conversation; an owner can choose another", "[name]"),
    Command("model", "Which model answers; an owner can choose another", "[provider/model]"),
    Command("settings", "How this conversation is set up"),
    Command(
        "link",
        "Make yourself known elsewhere (@ and your name there), or here with a code",
        "[@name or code]",
    ),
    Command("start", "Say hello, or pair with a code", "[code]", private=True),
)
"""Every command the platform answers, wherever it is typed."""


class NoSettings(BaseModel):
    """The settings of an integration that has none."""

    model_config = ConfigDict(extra="forbid")


class Integration:
    """Speaks with one outside service. Override what it needs; the defaults do nothing, safely."""

    name: ClassVar[str]
    """Lower case; the entry point, the docs page and the tests folder have the same name."""
    summary: ClassVar[str] = ""
    secrets: ClassVar[tuple[SecretField, ...]] = ()
    settings: ClassVar[type[BaseModel]] = NoSettings
    secret_headers: ClassVar[frozenset[str]] = frozenset()
    """Request headers never to store, beyond the usual ones."""
    names_are_unique: ClassVar[bool] = False
    """Whether nobody but its author can have `Author.name`: a code made for a name may then be said in public."""
    same_body_window: ClassVar[float] = 0
    """Seconds in which an equal body is a repeat although its delivery id differs (for unsigned ids)."""
    can_poll: ClassVar[bool] = False
    can_catch_up: ClassVar[bool] = False
    progress_every: ClassVar[float] = 0
    """Seconds between two calls of `show_progress` while a run works; 0 for none."""
    reasons: ClassVar[Mapping[str, str]] = {}
    """What a reason of its own means, such as one why polling is interrupted, in a sentence for the operator."""
    tool_names: ClassVar[frozenset[str]] = frozenset()
    """What its `tools` and `errands` may be called: an agent's list may name these, and nothing unknown."""
    tells_work: ClassVar[bool] = False
    """Whether it shows how a run went beside its answer, and so gets `Outgoing.work`."""

    # Pure: bytes in, values out.

    def verify(self, request: Request, account: Account) -> str | None:
        """Return when the request surely comes from the service; raise Refused otherwise.

        What is returned is for the owner: how the service should be changed before a coming release.
        """
        raise Refused(f"{self.name} does not take webhooks.")

    def parse(self, request: Request, account: Account) -> Parsed:
        """Read a verified request; raise Malformed when it makes no sense."""
        raise NotImplementedError

    def split(self, text: str) -> Sequence[str]:
        """A reply's text in parts the service can take, in order."""
        return [text]

    def private_place(self, author_id: str) -> str | None:
        """The conversation in which a person can be reached alone, if people can be."""
        return None

    def words_every(self, conversation: str, account: Account) -> float:
        """Seconds between two calls of `show_progress` while the model's words come in; 0 to show none of them."""
        return 0

    def proxy(self, settings: Mapping[str, Any], secrets: Mapping[str, Secret]) -> str:
        """The URL of the proxy through which a connection reaches its service (HTTP or SOCKS); empty for none."""
        return ""

    def invitation(self, code: str, account: Account) -> str:
        """How a person presents a pairing code here, in words for whoever set the connection up; empty for not."""
        return ""

    def sign_up(
        self,
        settings: Mapping[str, Any],
        *,
        name: str,
        owner: str,
        hook_url: str | None,
        back_url: str,
        homepage: str,
        state: str,
    ) -> SignUp | None:
        """How an account is made in one click, for an owner (an organisation) or the person; None for not."""
        return None

    def move(self, settings: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
        """The settings when a place is called otherwise from now on."""
        return dict(settings)

    def allow(self, settings: Mapping[str, Any], place: str) -> dict[str, Any]:
        """The settings with which a place (a group) is heard from now on, because an owner allowed it."""
        raise Permanent(f"{self.name} has no places to allow.")

    # Async: may use the network through `account.http`.

    async def admit(self, unread: Unread, account: Account) -> Admission:
        """Find out how far the author is trusted, and fetch what came along. Runs once per message."""
        return Admission(trust=unread.known_as or "stranger")

    async def find(self, outgoing: Outgoing, account: Account) -> str | None:
        """Look for an earlier, perhaps half-sent placing of this part; its external id if it is there.

        Asked before placing again. A service that can be searched makes replies exactly once here.
        """
        return None

    async def place(self, outgoing: Outgoing, account: Account) -> str:
        """Make the part exist outside and return its external id, which is stored before `complete`.

        Where a service has neither idempotency keys nor a search, send only opening lines here: a crash before
        the id is stored then leaves an orphan opening, never a second answer.
        """
        raise NotImplementedError

    async def complete(self, outgoing: Outgoing, external_id: str, account: Account) -> None:
        """Bring the placed part to its full text. May run again at any time, and must do no harm then."""

    # Decoration: shown when it works, forgotten when it does not. What these raise never costs a reply.

    async def notice(self, message: Incoming, account: Account) -> None:
        """Show that a message reached an agent (a reaction)."""

    async def finish(self, message: Incoming, well: bool, account: Account) -> None:
        """Show at a message that the run which dealt with it has ended, well or not. May run again."""

    async def show_progress(self, conversation: str, progress: Progress, shown: str, account: Account) -> str:
        """Show that work goes on. `shown` is what an earlier call returned: the id of what is changed in place."""
        return shown

    async def clear_progress(self, conversation: str, shown: str, account: Account) -> None:
        """Remove what `show_progress` left behind. May run again."""

    async def end_question(self, conversation: str, external_id: str, account: Account) -> None:
        """Take the buttons off a question that nobody is to answer any more. May run again."""

    async def settle(self, message: Incoming, outcome: str, account: Account) -> None:
        """Tell whoever pressed a button what came of it; `message.text` is their answer, if it counted. May run
        again."""

    async def signed_up(
        self, settings: Mapping[str, Any], code: str
    ) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        """Exchange the code that a sign-up came back with for the account's settings and secrets."""
        raise Permanent(f"{self.name} has no sign-up.")

    async def set_up(self, account: Account) -> Health:
        """Prepare the service after the connection was made or changed (set a webhook, commands …)."""
        return Health(True, "Nothing to set up.")

    async def tear_down(self, account: Account) -> None:
        """Undo `set_up` before the connection is removed."""

    async def health(self, account: Account) -> Health:
        """Look how the connection is doing."""
        return Health(True, "No check.")

    async def poll(self, account: Account, last: str | None) -> Sequence[Request]:
        """Wait for updates after the delivery `last` and return them in order; they are stored before the next call."""
        return ()

    def catch_up(self, account: Account, since: float) -> AsyncIterator[Request]:
        """Yield what the service tried to deliver since then and did not repeat by itself. Repeats are deduped."""
        raise NotImplementedError

    def tools(self, account: Account, message: Incoming) -> Sequence[Tool[Any]]:
        """Tools for a run that this message asked for."""
        return ()

    def instructions(self, account: Account, message: Incoming) -> str:
        """What the operator wants of an agent where this message was said, beside the agent's own instructions."""
        return ""

    def limits(self, account: Account, message: Incoming) -> Mapping[str, float]:
        """What a run that this message asked for may use at most (steps, active_minutes, tokens, job_dollars).
        The agent's own limits hold beside it."""
        return {}

    def errands(self, account: Account, subject: str) -> Sequence[Tool[Any]]:
        """Tools for a run elsewhere, asked for by an owner who is known here by this id."""
        return ()

    async def equip(self, message: Incoming, account: Account) -> Equipment | None:
        """What the shell gets for a job that this message asked for. Asked when the first command needs it.
        A credential in it is to end with `account.job`."""
        return None
