"""What an integration can do beyond receiving and replying, each a small mixin with defaults that do nothing, safely.

`Integration` inherits them all: override what the service can do.
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
    """Where no webhook reaches Gofer, or while none did."""

    can_poll: ClassVar[bool] = False

    can_catch_up: ClassVar[bool] = False

    async def poll(self, account: ConnectionContext, last: str | None) -> Sequence[Request]:
        """Wait for updates after the delivery `last` and return them in order; they are stored before the next call."""
        return ()

    def catch_up(self, account: ConnectionContext, since: float) -> AsyncIterator[Request]:
        """Yield what the service tried to deliver since then and did not repeat by itself. Repeats are deduped."""
        raise NotImplementedError


class RunSupport:
    """What a run gets from the integration that it was asked for through."""

    tool_names: ClassVar[frozenset[str]] = frozenset()
    """What its `tools` and `delegated_tools` may be called: an agent's list may name these, and nothing unknown."""

    def tools(self, account: ConnectionContext, message: Incoming) -> Sequence[Tool[Any]]:
        """Tools for a run that this message asked for."""
        return ()

    def delegated_tools(self, account: ConnectionContext, subject: str) -> Sequence[Tool[Any]]:
        """Tools for a run elsewhere, asked for by an owner who is known here by this id."""
        return ()

    def instructions(self, account: ConnectionContext, message: Incoming) -> str:
        """What the operator wants of an agent where this message was said, beside the agent's own instructions."""
        return ""

    def limits(self, account: ConnectionContext, message: Incoming) -> Mapping[str, float]:
        """What a run that this message asked for may use at most (steps, active_minutes, tokens, job_dollars).
        The agent's own limits hold beside it."""
        return {}

    async def shell_access(self, message: Incoming, account: ConnectionContext) -> ShellAccess | None:
        """What the shell gets for a job that this message asked for. Asked when the first command needs it.
        A credential in it is to end with `account.job`."""
        return None


class ProgressDisplay:
    """Shown when it works, forgotten when it does not: nothing here ever costs a reply."""

    progress_every: ClassVar[float] = 0
    """Seconds between two calls of `show_progress` while a run works; 0 for none."""

    shows_run_summary: ClassVar[bool] = False
    """Whether it shows how a run went beside its answer, and so gets `Outgoing.work`."""

    def words_every(self, conversation: str, account: ConnectionContext) -> float:
        """Seconds between two calls of `show_progress` while the model's words come in; 0 to show none of them."""
        return 0

    async def acknowledge(self, message: Incoming, account: ConnectionContext) -> None:
        """Show that a message reached an agent (a reaction)."""

    async def finish(self, message: Incoming, well: bool, account: ConnectionContext) -> None:
        """Show at a message that the run which dealt with it has ended, well or not. May run again."""

    async def show_progress(
        self, conversation: str, progress: Progress, shown: str, account: ConnectionContext
    ) -> str:
        """Show that work goes on. `shown` is what an earlier call returned: the id of what is changed in place."""
        return shown

    async def clear_progress(self, conversation: str, shown: str, account: ConnectionContext) -> None:
        """Remove what `show_progress` left behind. May run again."""


class QuestionButtons:
    """Buttons under a question."""

    async def end_question(self, conversation: str, external_id: str, account: ConnectionContext) -> None:
        """Take the buttons off a question that nobody is to answer any more. May run again."""

    async def answer_callback(self, message: Incoming, outcome: str, account: ConnectionContext) -> None:
        """Tell whoever pressed a button what came of it; `message.text` is their answer, if it counted. May run
        again."""


class People:
    """Reaching people alone, pairing with them, and the places they talk in."""

    name: ClassVar[str]

    names_are_unique: ClassVar[bool] = False
    """Whether nobody but its author can have `Author.name`: a code made for a name may then be said in public."""

    def private_place(self, author_id: str) -> str | None:
        """The conversation in which a person can be reached alone, if people can be."""
        return None

    def invitation(self, code: str, account: ConnectionContext) -> str:
        """How a person presents a pairing code here, in words for whoever set the connection up; empty for not."""
        return ""

    def rename_conversation(self, settings: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
        """The settings when a place is called otherwise from now on."""
        return dict(settings)

    def allow_conversation(self, settings: Mapping[str, Any], place: str) -> dict[str, Any]:
        """The settings with which a place (a group) is heard from now on, because an owner allowed it."""
        raise Permanent(f"{self.name} has no places to allow.")


class Setup:
    """Making an account at the service, preparing it, and looking how it is doing."""

    name: ClassVar[str]

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

    async def finish_setup(
        self, settings: Mapping[str, Any], code: str
    ) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        """Exchange the code that a sign-up came back with for the account's settings and secrets."""
        raise Permanent(f"{self.name} has no sign-up.")

    async def set_up(self, account: ConnectionContext) -> Health:
        """Prepare the service after the connection was made or changed (set a webhook, commands …)."""
        return Health(True, "Nothing to set up.")

    async def tear_down(self, account: ConnectionContext) -> None:
        """Undo `set_up` before the connection is removed."""

    async def health(self, account: ConnectionContext) -> Health:
        """Look how the connection is doing."""
        return Health(True, "No check.")

    def proxy(self, settings: Mapping[str, Any], secrets: Mapping[str, Secret]) -> str:
        """The URL of the proxy through which a connection reaches its service (HTTP or SOCKS); empty for none."""
        return ""
