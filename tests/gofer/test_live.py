"""What runs say as they say it, over to other processes: joined, in order, sealed, and never too much at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gofer.jobs.signals import LocalSignals
from gofer.live import MOST_PARCELS, MOST_SHARED, PAUSE, Live, SharedLive, Watcher
from gofer.vault.envelope import Vault
from gofer.vault.keyring import open_ring


class Wire(LocalSignals):
    """Brings parcels to every process at once, and remembers them."""

    def __init__(self) -> None:
        super().__init__()
        self.takers: list[Callable[[str], None]] = []
        self.sendings: list[Sequence[str]] = []

    def on_parcel(self, take: Callable[[str], None]) -> None:
        self.takers.append(take)

    def post(self, parcels: Sequence[str]) -> None:
        self.sendings.append(parcels)
        for parcel in parcels:
            for take in self.takers:
                take(parcel)


def two(vault: Vault) -> tuple[Wire, Live, Live]:
    wire = Wire()
    return wire, SharedLive(wire, vault, "proc_here"), SharedLive(wire, vault, "proc_there")


async def all_of(watcher: Watcher) -> list[tuple[str, str]]:
    """What came, a kind and its words, after everything was sent."""
    await asyncio.sleep(PAUSE * 2)
    return [(piece.kind, piece.data["text"]) for piece in await watcher.wait(5)]


async def test_what_is_said_is_joined_between_events_and_keeps_its_order(vault: Vault) -> None:
    wire, here, there = two(vault)
    with (
        there.watching("conv_a") as watcher,
        there.watching("conv_b") as other,
        here.watching("conv_a") as near,
    ):
        for word in "what a day":
            here.tell("conv_a", 1, "text.delta", {"text": word})
        here.tell("conv_a", 1, "turn.finished", {"content": ["what a day"]})
        for word in ("one\n", "two\n"):
            here.tell("conv_a", 1, "tool.delta", {"call_id": "c", "text": word})
            here.tell("conv_a", 1, "thinking.delta", {"text": "hm"})
        came = await all_of(watcher)
        assert came == [("text.delta", "what a day"), ("turn.finished", ""), ("tool.delta", "one\ntwo\n")]
        assert await other.wait(0) == []
        assert len(await near.wait(5)) == 15
    assert len(wire.sendings) == 1
    assert not any("day" in parcel for parcels in wire.sendings for parcel in parcels)


@pytest.mark.parametrize("character", ["x", "\x01", "😀", "\udc80", "\\"])
async def test_a_flood_is_cut_and_each_parcel_fits_in_a_notification(vault: Vault, character: str) -> None:
    wire, here, there = two(vault)
    with there.watching("conv_a") as watcher:
        for _ in range(50):
            here.tell("conv_a", 1, "tool.delta", {"call_id": "call" * 10, "text": character * 5000})
        assert sum(len(text) for _, text in await all_of(watcher)) == MOST_SHARED
        for number in range(200):
            here.tell("conv_a", 1, "tool.delta", {"call_id": f"call-{number}", "text": character * 5000})
        await all_of(watcher)
    parcels = [parcel for parcels in wire.sendings for parcel in parcels]
    assert max(len(parcel) for parcel in parcels) < 8000
    assert all(len(parcels) <= MOST_PARCELS for parcels in wire.sendings)
    assert all(parcel.isascii() for parcel in parcels)


async def test_a_parcel_that_is_none_of_ours_is_nothing(vault: Vault, tmp_path: Path) -> None:
    wire, here, there = two(vault)
    strangers = Vault(open_ring(tmp_path, value=None, ciphertext_exists=False))
    foreign = SharedLive(wire, strangers, "proc_foreign")
    with there.watching("conv_a") as watcher, there.watching("conv_b") as elsewhere:
        foreign.tell("conv_a", 1, "text.delta", {"text": "not yours"})
        for nonsense in ("", "a b", "proc_x conv_a !!! !!!", "proc_x conv_a AAAA AAAA"):
            wire.post([nonsense])
        here.tell("conv_a", 1, "text.delta", {"text": "ours"})
        assert await all_of(watcher) == [("text.delta", "ours")]
        # A parcel of one conversation is not shown in another.
        wire.post([wire.sendings[-1][0].replace("conv_a", "conv_b")])
        assert await elsewhere.wait(0) == []
