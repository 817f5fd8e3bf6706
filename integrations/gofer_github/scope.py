"""What every tool works with: one conversation, its repository, and access to it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

from gofer.integration import ConnectionContext, Incoming
from gofer.tool import ToolContext
from gofer_github import marks
from gofer_github.access import Access
from gofer_github.client import login_of
from gofer_github.place import Place
from gofer_github.settings import Settings


@dataclass(frozen=True, slots=True)
class Scope:
    """The tools' view of one conversation."""

    access: Access
    account: ConnectionContext
    message: Incoming

    @property
    def place(self) -> Place:
        return Place.of(self.message.conversation, self.message.stable_id)

    @property
    def settings(self) -> Settings:
        return Settings.model_validate(self.account.settings)

    def path(self, rest: str) -> str:
        return f"/repos/{self.place.repository}/{rest}"

    def outgoing(self, context: ToolContext, text: str) -> str:
        """The model's text, safe to send."""
        login = str(self.message.facts.get("login", ""))
        return context.outgoing(text, here=self.message.conversation, people=(login,))

    def mark(self, context: ToolContext, number: int | None = None) -> str:
        """The hidden line that identifies what a call writes, here or on another issue."""
        narrowed = marks.NARROWED if context.narrowed else ""
        return marks.line(self.account, self._at(number), _call(context), narrowed)

    def has_written(self, one: dict[str, Any], context: ToolContext, number: int | None = None) -> bool:
        """Whether an earlier try of this call wrote a comment or review."""
        ours = self.settings.wrote(login_of(one))
        return ours and _call(context) in marks.words(self.account, self._at(number), one.get("body"))

    def has_strangers_words(self, one: dict[str, Any], number: int) -> bool:
        """Whether a run wrote this entry of ours after it had read strangers' text."""
        at = (self._at(number), marks.elsewhere(self.place.repository))
        return any(marks.NARROWED in marks.words(self.account, place, one.get("body")) for place in at)

    def _at(self, number: int | None) -> Place:
        return self.place if number is None else replace(self.place, number=number)


def _call(context: ToolContext) -> str:
    return f"call-{hashlib.sha256(context.call_id.encode()).hexdigest()[:16]}"
