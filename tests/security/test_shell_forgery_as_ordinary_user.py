"""The same without root, where server and session are one user."""

from __future__ import annotations

import pytest

from sandbox.ordinary_user import rerun


@pytest.mark.slow
def test_results_cannot_be_forged_without_root() -> None:
    rerun("../security/test_shell_forgery.py")
