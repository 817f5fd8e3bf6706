"""Read a service's JSON without trusting its shape: every read returns the type asked for, or an empty value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gofer.errors import Malformed

_LIMIT = 2**63


@dataclass(frozen=True, slots=True)
class Payload:
    """A JSON object. A field that is missing or has another type reads as empty; `required_…` raises Malformed."""

    value: dict[str, Any]
    path: str = ""
    """Where it is in the whole, for errors: `issue.user.`"""

    @classmethod
    def of(cls, value: Any) -> Payload:
        """The whole payload; raises Malformed when it is not an object."""
        if not isinstance(value, dict):
            raise Malformed("Expected a JSON object.")
        return cls(value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __contains__(self, name: str) -> bool:
        return self.value.get(name) is not None

    def child(self, name: str) -> Payload:
        """The object in a field."""
        found = self.value.get(name)
        return Payload(found if isinstance(found, dict) else {}, f"{self.path}{name}.")

    def children(self, name: str) -> list[Payload]:
        """The objects in an array."""
        return [Payload(each, f"{self.path}{name}.") for each in self.array(name) if isinstance(each, dict)]

    def array(self, name: str) -> list[Any]:
        """An array as it is."""
        found = self.value.get(name)
        return found if isinstance(found, list) else []

    def text(self, name: str) -> str:
        """A string."""
        found = self.value.get(name)
        return found if isinstance(found, str) else ""

    def number(self, name: str) -> int | None:
        """An integer that fits 64 bits."""
        found = self.value.get(name)
        fits = isinstance(found, int) and not isinstance(found, bool) and -_LIMIT <= found < _LIMIT
        return found if fits else None

    def real(self, name: str) -> float:
        """A number with decimals."""
        found = self.value.get(name)
        return float(found) if isinstance(found, int | float) and abs(found) < _LIMIT else 0.0

    def flag(self, name: str) -> bool:
        """Whether a field is `true`."""
        return self.value.get(name) is True

    def first_of(self, names: tuple[str, ...]) -> str:
        """The first of these names that is present."""
        return next((name for name in names if name in self), "")

    def required_text(self, name: str) -> str:
        """A string that is not empty."""
        if found := self.text(name):
            return found
        raise Malformed(f"The event has no {self.path}{name}.")

    def required_number(self, name: str) -> int:
        """A positive integer."""
        if (found := self.number(name)) and found > 0:
            return found
        raise Malformed(f"The event has no {self.path}{name}.")
