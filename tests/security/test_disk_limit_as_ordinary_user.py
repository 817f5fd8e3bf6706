"""The same without root."""

from __future__ import annotations

import pytest

from sandbox.ordinary_user import rerun


@pytest.mark.slow
def test_the_disk_limit_binds_without_root() -> None:
    rerun("../security/test_disk_limit.py")
