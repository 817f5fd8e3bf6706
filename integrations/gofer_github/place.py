"""Where something is said: `owner/repo#number`, an issue or a pull request."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gofer.errors import Permanent

MARK = "<!-- gofer:"
"""How the hidden line in everything we write begins."""
_PLACE = re.compile(r"([A-Za-z0-9_-]{1,39})/([A-Za-z0-9._-]{1,100})#([1-9][0-9]{0,17})")
_LASTING = re.compile(r"([1-9][0-9]{0,17})/([1-9][0-9]{0,17})#[1-9][0-9]{0,17}")
_REPOSITORY = re.compile(r"[A-Za-z0-9_-]{1,39}/(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}")


class Repository(str):
    """A repository's full name, with its owner's number and its own where a signed event told them.

    Tokens are minted by them: a name that means another repository by now opens nothing.
    """

    owner: int
    number: int

    def __new__(cls, name: str, owner: int = 0, number: int = 0) -> Repository:
        made = super().__new__(cls, name)
        made.owner, made.number = owner, number
        return made

    @classmethod
    def known(cls, name: str) -> Repository:
        """One of which perhaps nothing but the name is known."""
        return name if isinstance(name, cls) else cls(name)


@dataclass(frozen=True, slots=True)
class Place:
    """One issue or pull request."""

    repository: Repository
    number: int

    @classmethod
    def of(cls, conversation: str, lasting: str = "") -> Place:
        """The place of a conversation, by what it is called and what it is for ever, if that is known."""
        found = _PLACE.fullmatch(conversation)
        if found is None:
            name, lost, _ = conversation.partition(" (was ")
            told = f"{name} is another repository now; the one this was said in is gone." if lost else ""
            raise Permanent(told or f"{conversation!r} is not owner/repo#number.", reason="place")
        known = _LASTING.fullmatch(lasting)
        numbers = (int(known.group(1)), int(known.group(2))) if known else (0, 0)
        return cls(Repository(f"{found.group(1)}/{found.group(2)}", *numbers), int(found.group(3)))

    @property
    def lasting(self) -> str:
        """What it is for ever: by the numbers of owner and repository. A renamed repository is the same, one made
        again under its name is not, nor is one that another owner has: who may write to it is other people."""
        return f"{self.repository.owner}/{self.repository.number}#{self.number}"

    def __str__(self) -> str:
        return f"{self.repository}#{self.number}"


def is_repository(name: str) -> bool:
    """Whether a full name can be one."""
    return _REPOSITORY.fullmatch(name) is not None
