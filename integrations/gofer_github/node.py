"""Reading a payload without trusting its shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gofer.errors import Malformed


@dataclass(frozen=True, slots=True)
class Node:
    """A JSON object; what is missing reads as empty, what must be there raises Malformed."""

    value: dict[str, Any]
    path: str = ""

    @classmethod
    def of(cls, value: Any) -> Node:
        if not isinstance(value, dict):
            raise Malformed("Expected a JSON object.")
        return cls(value)

    def node(self, name: str) -> Node:
        """A nested object, empty when there is none."""
        found = self.value.get(name)
        return Node(found if isinstance(found, dict) else {}, f"{self.path}{name}.")

    def nodes(self, name: str) -> list[Node]:
        """A list of objects."""
        found = self.value.get(name)
        return [Node(one) for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    def text(self, name: str) -> str:
        """A text, empty when there is none."""
        found = self.value.get(name)
        return found if isinstance(found, str) else ""

    def must_text(self, name: str) -> str:
        """A text that has to be there."""
        if found := self.text(name):
            return found
        raise Malformed(f"The event has no {self.path}{name}.")

    def must_number(self, name: str) -> int:
        """A whole number that has to be there."""
        if found := self.number(name):
            return found
        raise Malformed(f"The event has no {self.path}{name}.")

    def number(self, name: str) -> int:
        """A whole number, 0 when there is none."""
        found = self.value.get(name)
        return found if isinstance(found, int) and not isinstance(found, bool) and 0 < found < 2**63 else 0

    def __bool__(self) -> bool:
        return bool(self.value)
