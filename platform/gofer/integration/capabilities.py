"""What some services can do beyond receiving messages and placing replies.

`Integration` inherits all of these mixins. Every default is harmless, so override only what the service supports.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from gofer.errors import Permanent
from gofer.integration.connection import ConnectionContext, Health, SignUp
from gofer.integration.messages import Incoming, Progress, Request
from gofer.integration.shell_access import ShellAccess

if TYPE_CHECKING:
    from gofer.tool import Tool
    from gofer.vault.secret import Secret


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
