"""The docker tests that see a difference, once more without root."""

import pytest

from sandbox.ordinary_user import rerun


@pytest.mark.slow
def test_docker_as_ordinary_user() -> None:
    rerun(
        "test_docker.py",
        "everything_closed or keeps_its_state or files_are or attached or opened_like or does_not_answer",
    )
