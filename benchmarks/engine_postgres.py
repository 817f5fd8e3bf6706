"""The engine on PostgreSQL: draining, starting, a deep conversation, handing over, intake, the journal."""

from __future__ import annotations

from benchmarks import figures, intake, ours, postgres, postgres_floor
from benchmarks.measure import Measured, Rounds
from benchmarks.peers import DBOS, PGQUEUER, PROCRASTINATE
from benchmarks.report import Row

GROUP = "engine_postgres"
PEERS = {PGQUEUER: 0.45, PROCRASTINATE: 3.0, DBOS: 3.0}
"""How many times a peer's drain ours has to be."""


async def main(quick: bool) -> list[Row]:
    """Run them."""
    jobs, samples, rounds = (600, 60, 1) if quick else (3000, 200, 3)
    async with postgres.server() as server:
        found = await _contend(server, jobs, samples, rounds)
        rows = _rows(found)
        async with ours.platform(await server.fresh()) as platform:
            rows += [await figures.hot_conversation(GROUP, platform, 2000 if quick else 20_000, jobs // 2)]
            rows += [await figures.hand_over(GROUP, platform, samples // 2, found.start("Gofer", 50))]
            rows += await figures.journal(GROUP, platform, jobs // 2)
            rows += [await intake.with_wake_ups(GROUP, platform, jobs // 2)]
        return rows


async def _contend(server: postgres.Server, jobs: int, samples: int, rounds: int) -> Rounds:
    found = Rounds()
    for _ in range(rounds):
        url = await server.fresh()
        raw = await postgres_floor.drain(url, jobs)
        found.add("floor", Measured(raw, await postgres_floor.starts(url, samples)))
        found.add("Gofer", await ours.measure(await server.fresh(), jobs=jobs, samples=samples))
        for peer in PEERS:
            share = 1 if peer is PGQUEUER else 5
            url = await server.fresh()
            found.add(peer.name, await peer.measure(url, jobs=jobs // share, samples=samples // 3))
    return found


def _rows(found: Rounds) -> list[Row]:
    drain = found.drain("Gofer")
    floor = "raw asyncpg, 8 connections"
    rows = [Row(GROUP, "drain, 16 slots", drain, "jobs/s", floor, found.drain("floor"), at_least=0.6)]
    rows += [
        Row(GROUP, "drain, 16 slots", drain, "jobs/s", peer.name, found.drain(peer.name), at_least=least)
        for peer, least in PEERS.items()
        if peer.name in found.drains
    ]
    for hundredths, most in ((50, 2.0), (99, 4.0)):
        ours_, raw = found.start("Gofer", hundredths), found.start("floor", hundredths)
        rows.append(
            Row(GROUP, f"start p{hundredths}", ours_, "ms", "raw asyncpg and NOTIFY", raw, at_most=most)
        )
    rows += [
        Row(
            GROUP,
            "start p50",
            found.start("Gofer", 50),
            "ms",
            peer.name,
            found.start(peer.name, 50),
            at_most=1.0,
        )
        for peer in PEERS
        if peer.name in found.starts
    ]
    return rows
