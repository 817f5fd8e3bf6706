"""The same file tests, once more without root."""

from sandbox.ordinary_user import rerun


def test_files_as_ordinary_user() -> None:
    rerun("test_files.py")
