"""The same escapes, once more without root."""

import pytest

from sandbox.ordinary_user import rerun


@pytest.mark.slow
def test_escapes_as_ordinary_user() -> None:
    rerun("test_escape.py")
