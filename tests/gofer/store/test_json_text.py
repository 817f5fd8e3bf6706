"""What is kept as JSON comes back as it was."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gofer.integration import Attachment, Author, Incoming
from gofer.store import json_text

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_any_value_comes_back(value: Any) -> None:
    assert json_text.read(json_text.write(value)) == value
    assert json_text.read(json.dumps(value)) == value, "also what the standard library wrote"


@pytest.mark.parametrize("words", ["plain", "é\u2028\x00", "half a pair: \ud83d"])
def test_a_dataclass_is_kept_as_its_fields(words: str) -> None:
    message = Incoming("c", Author("a"), words, addressed=True, attachments=(Attachment("f", "n", "t", 3),))
    assert json_text.read(json_text.encode(message)) == json.loads(json.dumps(dataclasses.asdict(message)))


def test_what_json_does_not_know_is_refused() -> None:
    with pytest.raises(TypeError):
        json_text.write({"at": object()})


def test_what_python_adds_to_json_is_kept() -> None:
    assert json_text.read(json_text.write(math.inf)) == math.inf
