"""Where something is said: `owner/repo#number`, an issue or a pull request."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gofer.errors import Permanent

MARK = "<!-- gofer:"
"""The start of the hidden line in everything we write."""
_PLACE = re.compile(r"([A-Za-z0-9_-]{1,39})/([A-Za-z0-9._-]{1,100})#([1-9][0-9]{0,17})")
_STABLE_ID = re.compile(r"([1-9][0-9]{0,17})/([1-9][0-9]{0,17})#[1-9][0-9]{0,17}")
_REPOSITORY = re.compile(r"[A-Za-z0-9_-]{1,39}/(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}")


class Repository(str):
    """A repository's full name, with its owner's id and its own when a signed event told them.

    Tokens are minted for these ids, so a name that now belongs to another repository gives no access.
    """

    owner: int
    number: int

    def __new__(cls, name: str, owner: int = 0, number: int = 0) -> Repository:
        made = super().__new__(cls, name)
        made.owner, made.number = owner, number
        return made

    @classmethod
    def known(cls, name: str) -> Repository:
        """The repository with this name; its ids may be unknown."""
        return name if isinstance(name, cls) else cls(name)


@dataclass(frozen=True, slots=True)
class Place:
    """One issue or pull request."""

    repository: Repository
    number: int

    @classmethod
    def of(cls, conversation: str, stable_id: str = "") -> Place:
        """The place of a conversation, by its name and, if known, its stable id."""
        found = _PLACE.fullmatch(conversation)
        if found is None:
            name, lost, _ = conversation.partition(" (was ")
            detail = f"{name} is another repository now; the one this was said in is gone." if lost else ""
            raise Permanent(detail or f"{conversation!r} is not owner/repo#number.", reason="place")
        known = _STABLE_ID.fullmatch(stable_id)
        numbers = (int(known.group(1)), int(known.group(2))) if known else (0, 0)
        return cls(Repository(f"{found.group(1)}/{found.group(2)}", *numbers), int(found.group(3)))

    @property
    def stable_id(self) -> str:
        """The id made of the owner's and the repository's ids. A renamed repository keeps it. One that was recreated
        under the same name, or moved to another owner, has another: other people may write to it."""
        return f"{self.repository.owner}/{self.repository.number}#{self.number}"

    def __str__(self) -> str:
        return f"{self.repository}#{self.number}"


def is_repository(name: str) -> bool:
    """Whether a full name can be one."""
    return _REPOSITORY.fullmatch(name) is not None
