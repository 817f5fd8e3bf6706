"""A connection as its integration sees it, and what some services can do beyond receiving messages and placing replies.

`Integration` inherits all of these mixins. Every default is harmless, so override only what the service supports.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import structlog
from pydantic import BaseModel, ConfigDict

from gofer.errors import Permanent, Temporary, Unset
from gofer.integration.messages import Incoming, Progress, Request
from gofer.integration.shell_access import ShellAccess

if TYPE_CHECKING:
    from gofer.tool import Tool
    from gofer.vault.redaction import Secret

if TYPE_CHECKING:
    import httpx2

    from gofer.vault.redaction import Secret


class Inflow:
    """Fetching messages: by polling instead of a webhook, or after an outage."""

    can_poll: ClassVar[bool] = False

    can_catch_up: ClassVar[bool] = False

    async def poll(self, account: ConnectionContext, last: str | None) -> Sequence[Request]:
        """Wait for updates after the delivery `last` and return them in order. They are stored before the next call."""
        return ()

    def catch_up(self, account: ConnectionContext, since: float) -> AsyncIterator[Request]:
        """Yield deliveries since then that failed and that the service will not repeat. Repeats are deduped."""
        raise NotImplementedError


class RunSupport:
    """What a run gets from the integration that its request came through."""

    tool_names: ClassVar[frozenset[str]] = frozenset()
    """Names that `tools` and `delegated_tools` may use. An agent's list of tools may name these."""

    def tools(self, account: ConnectionContext, message: Incoming) -> Sequence[Tool[Any]]:
        """Tools for a run that this message asked for."""
        return ()

    def delegated_tools(self, account: ConnectionContext, subject: str) -> Sequence[Tool[Any]]:
        """Tools for a run that an owner asked for elsewhere. `subject` is the owner's author id here."""
        return ()

    def instructions(self, account: ConnectionContext, message: Incoming) -> str:
        """Instructions for the place of this message, in addition to the agent's own."""
        return ""

    def limits(self, account: ConnectionContext, message: Incoming) -> Mapping[str, float]:
        """Limits for a run that this message asked for: steps, active_minutes, tokens, job_dollars.
        The agent's own limits apply as well."""
        return {}

    async def shell_access(self, message: Incoming, account: ConnectionContext) -> ShellAccess | None:
        """Files and network access for the shell of a run that this message asked for. Called before its first command.
        Revoke credentials made here with `account.job.at_end`."""
        return None


class ProgressDisplay:
    """Showing what a run does. Best effort: a failure here never delays or loses a reply."""

    progress_every: ClassVar[float] = 0
    """Seconds between two calls of `show_progress` while a run works; 0 for none."""

    shows_run_summary: ClassVar[bool] = False
    """Whether replies show how the run went. They then have `Outgoing.work`."""

    def words_every(self, conversation: str, account: ConnectionContext) -> float:
        """Seconds between two calls of `show_progress` while the model writes its answer; 0 to show none of it."""
        return 0

    async def acknowledge(self, message: Incoming, account: ConnectionContext) -> None:
        """Show that a message reached an agent, such as by a reaction."""

    async def finish(self, message: Incoming, well: bool, account: ConnectionContext) -> None:
        """Show at a message that its run has ended, and whether it succeeded. May run again."""

    async def show_progress(
        self, conversation: str, progress: Progress, shown: str, account: ConnectionContext
    ) -> str:
        """Show progress and return the id of what shows it. `shown` is the id to edit; empty on the first call."""
        return shown

    async def clear_progress(self, conversation: str, shown: str, account: ConnectionContext) -> None:
        """Remove what `show_progress` left behind. May run again."""


class QuestionButtons:
    """Buttons under a question, and what people write where there are none."""

    has_buttons: ClassVar[bool] = False
    """Whether choices are shown as buttons. Where they are not, people are told what to write."""
    command_prefix: ClassVar[str] = "/"
    """What commands begin with there."""

    def with_commands(self, text: str) -> str:
        """A text of Gofer's own with its commands, such as `/goals`, as people write them there."""
        return text.replace("`/", f"`{self.command_prefix}")

    async def end_question(self, conversation: str, external_id: str, account: ConnectionContext) -> None:
        """Remove the buttons of a question that no longer needs an answer. May run again."""

    async def answer_callback(self, message: Incoming, outcome: str, account: ConnectionContext) -> None:
        """Tell the person who pressed a button what happened. `message.text` is their answer if it counted. May run
        again."""


class People:
    """Private conversations, pairing, and the places where people talk."""

    name: ClassVar[str]

    names_are_unique: ClassVar[bool] = False
    """Whether no two people can have the same `Author.name`. A pairing code made for a name may then be public."""

    def private_place(self, author_id: str) -> str | None:
        """The private conversation with a person; None when the service has none."""
        return None

    def invitation(self, code: str, account: ConnectionContext) -> str:
        """Tell the person who made the connection how to send a pairing code here; empty when nobody can."""
        return ""

    def rename_conversation(self, settings: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
        """The settings after a conversation got another name."""
        return dict(settings)

    def allow_conversation(self, settings: Mapping[str, Any], place: str) -> dict[str, Any]:
        """The settings after an owner allowed a conversation, such as a group."""
        raise Permanent(f"{self.name} has no places to allow.")


class Setup:
    """Creating an account at the service, preparing it, and checking its health."""

    name: ClassVar[str]

    can_sign_up: ClassVar[bool] = False
    """Whether `sign_up` and `finish_setup` create an account in one click."""

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
        """The form that creates an account for `owner` (an organisation), or for the person when it is empty. None when
        these settings allow no sign-up."""
        return None

    async def finish_setup(
        self, settings: Mapping[str, Any], code: str
    ) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        """Exchange the code that a sign-up returned for the account's settings and secrets."""
        raise Permanent(f"{self.name} has no sign-up.")

    async def set_up(self, account: ConnectionContext) -> Health:
        """Prepare the service after the connection was added or changed: set the webhook, the commands."""
        return Health(True, "Nothing to set up.")

    async def tear_down(self, account: ConnectionContext) -> None:
        """Undo `set_up` before the connection is removed."""

    async def health(self, account: ConnectionContext) -> Health:
        """Check the connection."""
        return Health(True, "No check.")

    def proxy(self, settings: Mapping[str, Any], secrets: Mapping[str, Secret]) -> str:
        """The URL of the HTTP or SOCKS proxy to reach the service through; empty for none."""
        return ""


log = structlog.get_logger()


class JobScope:
    """One worker's work on a job, for what must end with it, such as a token minted for this job.

    It ends with the run, before its answer is sent, whether the run succeeded or not. A job that is resumed gets a new
    scope. A killed process ends nothing: use only credentials that also expire.
    """

    def __init__(self) -> None:
        self._endings: list[Callable[[], Awaitable[None]]] = []
        self._over = False

    def at_end(self, ending: Callable[[], Awaitable[None]]) -> None:
        """Call `ending` when the job ends. What it raises is logged and does not affect the answer."""
        if self._over:
            raise Permanent("The job is over.", reason="job.over")
        self._endings.append(ending)

    async def end(self) -> None:
        """Gofer calls this, once."""
        self._over = True
        for failed in await asyncio.gather(*(one() for one in self._endings), return_exceptions=True):
            if failed is not None:
                log.warning("job.cleanup_failed", error=type(failed).__name__, reason=str(failed))


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """A Connection as its integration sees it."""

    id: str
    name: str
    settings: Mapping[str, Any]
    secrets: Mapping[str, Secret]
    hook_url: str | None = None
    """The webhook's URL; None when Gofer has no public URL."""
    http: httpx2.AsyncClient | None = None
    """The shared client, in async methods only."""
    proxied: httpx2.AsyncClient | None = None
    """The client through the connection's proxy, when `Integration.proxy` names one."""
    job: JobScope | None = field(default=None, repr=False)
    """The job that asks for tools or shell access; None outside a job."""
    on_use: Callable[[str], None] | None = field(default=None, repr=False, compare=False)
    """Called with the name of each secret that is read, to record its last use."""
    signer: Callable[..., str] | None = field(default=None, repr=False, compare=False)
    """Computes `mac`."""

    def secret(self, name: str) -> str:
        """A secret's value; raises Unset when it is missing or blank, so an incomplete connection accepts nothing."""
        value = self.secrets[name].reveal() if name in self.secrets else ""
        if not value.strip():
            raise Unset(f"The secret {name} of connection {self.id} is not set.")
        if self.on_use is not None:
            self.on_use(name)
        return value

    def secrets_of(self, name: str, *others: str) -> list[str]:
        """A secret's value and the values of others that are set, such as the key that will replace it; raises Unset
        when the first is missing."""
        return [self.secret(name), *(self.secret(other) for other in others if other in self.secrets)]

    def mac(self, *parts: str) -> str:
        """A MAC in hex with a key of this connection that never changes or leaves Gofer, to recognise what Gofer wrote
        at the service."""
        if self.signer is None:
            raise Unset(f"The connection {self.id} has no key to sign with.")
        return self.signer(*parts)

    async def call(self, method: str, url: str, **arguments: Any) -> Any:
        """Send a request to the service and return its JSON, None for 404; raises Temporary or Permanent."""
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
class Health:
    """Whether a connection works."""

    ok: bool
    line: str
    fix: str = ""
    """The exact command or step that fixes it."""
    learned: Mapping[str, Any] = field(default_factory=dict)
    """Settings that `set_up` learned, such as the bot's name; stored with the connection."""


@dataclass(frozen=True, slots=True)
class SignUp:
    """A form that the browser posts to a service, which creates an account and redirects back with a code."""

    url: str
    fields: Mapping[str, str]
    asks: Mapping[str, str] = field(default_factory=dict)
    """What the account may do, and why; shown before the form is sent."""


@dataclass(frozen=True, slots=True)
class SecretField:
    """A secret that a connection has."""

    name: str
    help: str
    generated: bool = False
    """Gofer makes one when none is given."""
    optional: bool = False
    """A connection works without it."""


class NoSettings(BaseModel):
    """The settings of an integration that has none."""

    model_config = ConfigDict(extra="forbid")
