"""The core of the contract: what every integration does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel

from gofer.errors import Refused
from gofer.integration.capabilities import Inflow, People, ProgressDisplay, QuestionButtons, RunSupport, Setup
from gofer.integration.connection import ConnectionContext, NoSettings, SecretField
from gofer.integration.deprecated import adopt_old_methods
from gofer.integration.messages import Admission, Outgoing, Parsed, Request, Unread


class Integration(Inflow, RunSupport, ProgressDisplay, QuestionButtons, People, Setup):
    """Speaks with one outside service. Override what it needs; the defaults do nothing, safely."""

    name: ClassVar[str]
    """Lower case; the entry point, the docs page and the tests folder have the same name."""

    summary: ClassVar[str] = ""

    secrets: ClassVar[tuple[SecretField, ...]] = ()

    settings: ClassVar[type[BaseModel]] = NoSettings

    secret_headers: ClassVar[frozenset[str]] = frozenset()
    """Request headers never to store, beyond the usual ones."""

    same_body_window: ClassVar[float] = 0
    """Seconds in which an equal body is a repeat although its delivery id differs (for unsigned ids)."""

    reasons: ClassVar[Mapping[str, str]] = {}
    """What a reason of its own means, such as one why polling is interrupted, in a sentence for the operator."""

    def verify(self, request: Request, account: ConnectionContext) -> str | None:
        """Return when the request surely comes from the service; raise Refused otherwise.

        What is returned is for the owner: how the service should be changed before a coming release.
        """
        raise Refused(f"{self.name} does not take webhooks.")

    def parse(self, request: Request, account: ConnectionContext) -> Parsed:
        """Read a verified request; raise Malformed when it makes no sense."""
        raise NotImplementedError

    def split(self, text: str) -> Sequence[str]:
        """A reply's text in parts the service can take, in order."""
        return [text]

    async def admit(self, unread: Unread, account: ConnectionContext) -> Admission:
        """Find out how far the author is trusted, and fetch what came along. Runs once per message."""
        return Admission(trust=unread.known_as or "stranger")

    async def find(self, outgoing: Outgoing, account: ConnectionContext) -> str | None:
        """Look for an earlier, perhaps half-sent placing of this part; its external id if it is there.

        Asked before placing again. A service that can be searched makes replies exactly once here.
        """
        return None

    async def place(self, outgoing: Outgoing, account: ConnectionContext) -> str:
        """Make the part exist outside and return its external id, which is stored before `complete`.

        Where a service has neither idempotency keys nor a search, send only opening lines here: a crash before
        the id is stored then leaves an orphan opening, never a second answer.
        """
        raise NotImplementedError

    async def complete(self, outgoing: Outgoing, external_id: str, account: ConnectionContext) -> None:
        """Bring the placed part to its full text. May run again at any time, and must do no harm then."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        adopt_old_methods(cls)
