"""What a pydantic model refused, in words for whoever gave it: one place and what is wrong there."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import ValidationError

_PLAINER = {
    "missing": "is required",
    "extra_forbidden": "is not known here",
    "model_type": "should be a table of names and values",
    "model_attributes_type": "should be a table of names and values",
    "dict_type": "should be a table of names and values",
}
"""For what pydantic says to programmers alone: `Field required`, `Extra inputs are not permitted`."""


class FieldError(NamedTuple):
    """One thing that is wrong with what was given."""

    place: tuple[str, ...]
    """The names that lead to it; none when the whole is meant."""
    words: str

    @property
    def name(self) -> str:
        """Its place as people write it: `limits.steps`."""
        return ".".join(self.place)

    def __str__(self) -> str:
        return f"{self.name}: {self.words}" if self.place else self.words


def first_error(error: ValidationError) -> FieldError:
    """The first thing that is wrong; without what was given, which may be a secret."""
    return field_errors(error)[0]


def field_errors(error: ValidationError) -> list[FieldError]:
    """Everything that is wrong, in the order of the fields."""
    return [
        FieldError(
            tuple(str(part) for part in one["loc"]),
            _PLAINER.get(one["type"]) or one["msg"].removeprefix("Value error, "),
        )
        for one in error.errors(include_input=False, include_url=False)
    ]
