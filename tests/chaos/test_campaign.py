"""A few cycles of `make chaos` in every run of CI, so that it works when it is needed."""

from __future__ import annotations

import random

import pytest

from chaos.campaign import campaign
from chaos.deployments import Case, deployments


@pytest.mark.slow(long=True)
@pytest.mark.parametrize(("database", "service"), [("sqlite", "hello"), ("postgresql", "probe")])
async def test_nothing_is_lost_in_a_few_cycles(database: str, service: str) -> None:
    tally = await campaign(database, service, 3, seed=random.randrange(1_000_000))
    assert not tally.complaints
    assert tally.messages > 0


@pytest.mark.parametrize(
    ("database", "chosen"),
    [
        pytest.param(
            "sqlite", ("crashes at start", "prove", "supervisor"), marks=pytest.mark.slow(long=True)
        ),
        pytest.param("postgresql", ("good", "never", ""), marks=pytest.mark.slow(long=True)),
        pytest.param("sqlite", ("good", "migrate", "tree"), marks=pytest.mark.chaos),
        pytest.param("postgresql", ("dies of a message", "ready", "supervisor"), marks=pytest.mark.chaos),
    ],
)
async def test_deployments_lose_nothing_and_are_told_of_once(database: str, chosen: Case) -> None:
    tally = await deployments(database, [chosen])
    assert not tally.complaints
    assert tally.messages > 0
