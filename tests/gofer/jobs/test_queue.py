"""Submitting and claiming: order, priority, lanes, delays, caps; the same on both databases."""

from __future__ import annotations

from world import World


async def test_jobs_are_claimed_in_the_order_they_came(world: World) -> None:
    made = [await world.submit() for _ in range(3)]
    assert [claim.id for claim in await world.claim(limit=10)] == made
