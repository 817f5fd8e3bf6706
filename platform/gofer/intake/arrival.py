"""A delivery on its way into the store, and the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gofer.integration import Parsed
from gofer.store.tables import Trust

Source = Literal["webhook", "poll", "catchup", "replay", "schedule", "button"]
Result = Literal["accepted", "repeat", "redriven", "noted"]


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of a delivery."""

    result: Result
    delivery_id: int | None = None
    conversation_id: str | None = None
    seq: int | None = None
    woke: bool = False
    """Whether workers should look for a new or changed job."""
    external_id: str = ""
    """The service's id of the delivery."""
    moved: bool = False
    """Whether the delivery changed the connection's settings."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Everything intake knows of one delivery before the transaction begins."""

    workspace_id: str
    connection_id: str
    integration: str
    source: Source
    parsed: Parsed
    body: bytes
    body_hash: str
    headers: tuple[tuple[str, str], ...] = ()
    """Without the secret ones."""
    same_body_window: float = 0
    message_digest: str | None = None
    """A keyed digest of `Parsed.message_id`: what came before with the same one is a repeat, however long ago."""
    settings: Mapping[str, Any] | None = None
    """The connection's settings from now on, when the delivery changes them: a place has moved."""
    trust: Trust = Trust.UNKNOWN
    """The author's trust, where it is known without asking a service."""

    def taken(
        self,
        result: Result,
        delivery_id: int | None = None,
        conversation_id: str | None = None,
        seq: int | None = None,
        *,
        woke: bool = False,
    ) -> Taken:
        """The result of this delivery."""
        moved = self.settings is not None
        return Taken(result, delivery_id, conversation_id, seq, woke, self.parsed.delivery_id, moved)
