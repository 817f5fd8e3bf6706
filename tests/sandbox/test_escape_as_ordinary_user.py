"""The same escapes, once more without root."""

from sandbox.ordinary_user import rerun


def test_escapes_as_ordinary_user() -> None:
    rerun("test_escape.py")
