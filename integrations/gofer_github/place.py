"""Where something is said: `owner/repo#number`, an issue or a pull request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gofer.errors import Permanent

MARK = "<!-- gofer:"
"""How the hidden line in everything we write begins."""
_PLACE = re.compile(r"([A-Za-z0-9-]{1,39})/([A-Za-z0-9._-]{1,100})#([1-9][0-9]{0,17})")
_REPOSITORY = re.compile(r"[A-Za-z0-9-]{1,39}/(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}")


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
    def of(cls, conversation: str, facts: Mapping[str, Any] = MappingProxyType({})) -> Place:
        """The place of a conversation; `facts` are those of a message that was said there."""
        found = _PLACE.fullmatch(conversation)
        if found is None:
            name, lost, _ = conversation.partition(" (was ")
            told = f"{name} is another repository now; the one this was said in is gone." if lost else ""
            raise Permanent(told or f"{conversation!r} is not owner/repo#number.", reason="place")
        numbers = (int(facts.get(name) or 0) for name in ("owner_id", "repository_id"))
        return cls(Repository(f"{found.group(1)}/{found.group(2)}", *numbers), int(found.group(3)))

    def __str__(self) -> str:
        return f"{self.repository}#{self.number}"


def is_repository(name: str) -> bool:
    """Whether a full name can be one."""
    return _REPOSITORY.fullmatch(name) is not None
