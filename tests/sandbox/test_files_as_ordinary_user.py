"""The same file tests, once more without root."""

import pytest

from sandbox.ordinary_user import rerun


@pytest.mark.slow
def test_files_as_ordinary_user() -> None:
    rerun("test_files.py")
