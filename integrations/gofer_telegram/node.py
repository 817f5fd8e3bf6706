"""Reading JSON that may be anything: every look into it answers with the type asked for, or with nothing."""

from __future__ import annotations

from typing import Any

_MOST = 2**63


class Node:
    """An object in an update; an empty one where there is none."""

    def __init__(self, value: Any) -> None:
        self._fields: dict[str, Any] = value if isinstance(value, dict) else {}

    def __bool__(self) -> bool:
        return bool(self._fields)

    def __contains__(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def node(self, name: str) -> Node:
        """An object."""
        return Node(self._fields.get(name))

    def nodes(self, name: str) -> list[Node]:
        """The objects of an array."""
        value = self._fields.get(name)
        return [Node(item) for item in value if isinstance(item, dict)] if isinstance(value, list) else []

    def raw(self, name: str) -> list[Any]:
        """An array as it is."""
        value = self._fields.get(name)
        return value if isinstance(value, list) else []

    def text(self, name: str) -> str:
        """A string."""
        value = self._fields.get(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> int | None:
        """An integer that fits 64 bits."""
        value = self._fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            return None
        return value if -_MOST <= value < _MOST else None

    def real(self, name: str) -> float:
        """A number."""
        value = self._fields.get(name)
        return float(value) if isinstance(value, int | float) and abs(value) < _MOST else 0.0

    def flag(self, name: str) -> bool:
        """Whether it is true."""
        return self._fields.get(name) is True

    def kind(self, names: tuple[str, ...]) -> str:
        """The first of the names that is there, or nothing."""
        return next((name for name in names if name in self), "")
