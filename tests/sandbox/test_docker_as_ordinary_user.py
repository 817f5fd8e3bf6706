"""The same docker tests, once more without root."""

from sandbox.ordinary_user import rerun


def test_docker_as_ordinary_user() -> None:
    rerun("test_docker.py")
