"""A scene on the stand-in."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from support.github_scene import Scene, open_scene


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with open_scene() as made:
        yield made


@pytest.fixture(params=[False, True], ids=["enterprise", "public"])
async def either_scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    async with open_scene(public=request.param) as made:
        yield made


@pytest.fixture
async def public_scene() -> AsyncIterator[Scene]:
    async with open_scene(public=True) as made:
        yield made
