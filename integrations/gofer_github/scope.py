"""What every tool has in its hands: one conversation, its repository, and how to reach it."""

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
        """The model's words as they may be sent."""
        login = str(self.message.facts.get("login", ""))
        return context.outgoing(text, here=self.message.conversation, people=(login,))

    def mark(self, context: ToolContext, number: int | None = None) -> str:
        """The hidden line of what a call writes, here or on another issue, by which it is known again."""
        narrowed = marks.NARROWED if context.narrowed else ""
        return marks.line(self.account, self._at(number), _call(context), narrowed)

    def has_written(self, one: dict[str, Any], context: ToolContext, number: int | None = None) -> bool:
        """Whether a comment or review is what this call wrote when it was made before."""
        ours = self.settings.wrote(login_of(one))
        return ours and _call(context) in marks.words(self.account, self._at(number), one.get("body"))

    def has_strangers_words(self, one: dict[str, Any], number: int) -> bool:
        """Whether an entry of ours on an issue was written by a run that had read strangers' text."""
        at = (self._at(number), marks.elsewhere(self.place.repository))
        return any(marks.NARROWED in marks.words(self.account, place, one.get("body")) for place in at)

    def _at(self, number: int | None) -> Place:
        return self.place if number is None else replace(self.place, number=number)


def _call(context: ToolContext) -> str:
    return f"call-{hashlib.sha256(context.call_id.encode()).hexdigest()[:16]}"
