"""The core of the contract: receive a request, read it, place a reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel

from gofer.errors import Refused
from gofer.integration.capabilities import (
    ConnectionContext,
    Inflow,
    NoSettings,
    People,
    ProgressDisplay,
    QuestionButtons,
    RunSupport,
    SecretField,
    Setup,
)
from gofer.integration.messages import Admission, Outgoing, Parsed, Request, Unread, adopt_old_methods


class Integration(Inflow, RunSupport, ProgressDisplay, QuestionButtons, People, Setup):
    """Speaks with one outside service.

    A message passes `verify`, `parse` and `admit` on its way in; a reply passes `split`, `find`, `place` and
    `complete` on its way out. Most services need `verify`, `parse`, `admit` and `place`.
    """

    name: ClassVar[str]
    """Lower case. The entry point, the docs page and the tests folder have the same name."""

    summary: ClassVar[str] = ""

    secrets: ClassVar[tuple[SecretField, ...]] = ()

    settings: ClassVar[type[BaseModel]] = NoSettings

    secret_headers: ClassVar[frozenset[str]] = frozenset()
    """Request headers that are never stored, beyond the usual ones."""

    same_body_window: ClassVar[float] = 0
    """Seconds in which an equal body is a repeat even when its delivery id differs. For services that do not sign the
    id."""

    reasons: ClassVar[Mapping[str, str]] = {}
    """Explains this integration's own reason codes to the operator, one sentence each."""

    def verify(self, request: Request, account: ConnectionContext) -> str | None:
        """Return when the request surely comes from the service; raise Refused otherwise.

        A returned text tells the owner what to change at the service before the next release.
        """
        raise Refused(f"{self.name} does not take webhooks.")

    def parse(self, request: Request, account: ConnectionContext) -> Parsed:
        """Read a verified request; raise Malformed when it makes no sense."""
        raise NotImplementedError

    async def admit(self, unread: Unread, account: ConnectionContext) -> Admission:
        """Decide how far the author is trusted, and fetch attachments. Runs once per message."""
        return Admission(trust=unread.known_as or "stranger")

    def split(self, text: str) -> Sequence[str]:
        """Split a reply into parts that the service accepts, in order."""
        return [text]

    async def find(self, outgoing: Outgoing, account: ConnectionContext) -> str | None:
        """Look for this part at the service and return its external id, or None.

        Called before a part is placed again. A service that can be searched makes replies exactly once here.
        """
        return None

    async def place(self, outgoing: Outgoing, account: ConnectionContext) -> str:
        """Create the part at the service and return its external id, which is stored before `complete`.

        Where a service has neither idempotency keys nor a search, send only opening lines here: a crash before
        the id is stored then leaves an orphan opening, never a second answer.
        """
        raise NotImplementedError

    async def complete(self, outgoing: Outgoing, external_id: str, account: ConnectionContext) -> None:
        """Bring the placed part to its full text. May run again at any time, and must be harmless then."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        adopt_old_methods(cls)
