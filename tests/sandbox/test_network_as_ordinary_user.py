"""The network tests that see a difference, once more without root."""

import pytest

from sandbox.ordinary_user import rerun


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "only"),
    [
        (
            "test_network_forward.py",
            "without_an_egress or allowed_host or gone_or_holds or comes_back",
        ),
        ("test_network_git.py", "clones_and_pushes or HEAD:refs/heads/main or cuts_off or made_by_hand"),
    ],
)
def test_network_as_ordinary_user(name: str, only: str) -> None:
    rerun(name, only)
