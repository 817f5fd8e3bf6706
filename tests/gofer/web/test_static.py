"""Files of others are what their makers published, and every file is served under its hash."""

from __future__ import annotations

import hashlib

import pytest

from gofer.web.static_files import FOLDER

PINNED = {
    "htmx-4.0.0.min.js": "e484d9171a9db30a39c8f16e3d709d4137f3211c659f8e6125816635033d593f",
    "uplot-1.6.32.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot-1.6.32.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
}


def test_every_vendored_file_is_pinned() -> None:
    assert {path.name for path in (FOLDER / "vendor").iterdir() if path.suffix != ".md"} == set(PINNED)


@pytest.mark.parametrize("name", PINNED)
def test_a_vendored_file_is_the_published_one(name: str) -> None:
    assert hashlib.sha256((FOLDER / "vendor" / name).read_bytes()).hexdigest() == PINNED[name]
