"""A few cycles of `make chaos` in every run of CI, so that it works when it is needed."""

from __future__ import annotations

import random

import pytest

from chaos.campaign import campaign


@pytest.mark.slow
@pytest.mark.parametrize(("database", "service"), [("sqlite", "hello"), ("postgresql", "probe")])
async def test_nothing_is_lost_in_a_few_cycles(database: str, service: str) -> None:
    tally = await campaign(database, service, 3, seed=random.randrange(1_000_000))
    assert not tally.complaints
    assert tally.messages > 0
