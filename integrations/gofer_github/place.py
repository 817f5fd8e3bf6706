"""Where something is said: `owner/repo#number`, an issue or a pull request."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gofer.errors import Permanent

MARK = "<!-- gofer:"
"""How the hidden line in everything we write begins."""
_PLACE = re.compile(r"([A-Za-z0-9-]{1,39})/([A-Za-z0-9._-]{1,100})#([1-9][0-9]{0,17})")
_REPOSITORY = re.compile(r"[A-Za-z0-9-]{1,39}/(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True)
class Place:
    """One issue or pull request."""

    repository: str
    number: int

    @classmethod
    def of(cls, conversation: str) -> Place:
        found = _PLACE.fullmatch(conversation)
        if found is None:
            raise Permanent(f"{conversation!r} is not owner/repo#number.", reason="place")
        return cls(f"{found.group(1)}/{found.group(2)}", int(found.group(3)))

    def __str__(self) -> str:
        return f"{self.repository}#{self.number}"


def is_repository(name: str) -> bool:
    """Whether a full name can be one."""
    return _REPOSITORY.fullmatch(name) is not None
