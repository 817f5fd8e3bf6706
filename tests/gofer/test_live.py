"""What runs say as they say it, over to other processes: joined, in order, sealed, and never too much at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gofer.jobs.notifications import LocalSignals
from gofer.live import MAX_PARCELS, MAX_SHARED, SharedLive, Watcher
from gofer.vault.envelope import Vault
from gofer.vault.keyring import open_ring

SOON = 0.15


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send more often, so that nobody here waits long."""
    monkeypatch.setattr("gofer.live.PAUSE", 0.05)


class Wire(LocalSignals):
    """Brings parcels to every process at once, and remembers them."""

    def __init__(self) -> None:
        super().__init__()
        self.takers: list[Callable[[str], None]] = []
        self.sendings: list[Sequence[str]] = []
        self.broken = False

    def on_parcel(self, take: Callable[[str], None]) -> None:
        self.takers.append(take)

    def post(self, parcels: Sequence[str]) -> None:
        self.sendings.append(parcels)
        for parcel in parcels if not self.broken else ():
            for take in self.takers:
                take(parcel)


def two(vault: Vault) -> tuple[Wire, SharedLive, SharedLive]:
    wire = Wire()
    return wire, SharedLive(wire, vault, "proc_here"), SharedLive(wire, vault, "proc_there")


async def all_of(watcher: Watcher) -> list[tuple[str, str]]:
    """What came, a call and its words, after everything was sent."""
    await asyncio.sleep(SOON)
    return [(fresh.call_id, fresh.text) for fresh in watcher.fresh({1}) if fresh.text]


async def test_what_is_said_is_joined_and_seen_once_at_once_here_and_soon_elsewhere(vault: Vault) -> None:
    wire, here, there = two(vault)
    with (
        there.watching("conv_a") as watcher,
        there.watching("conv_b") as other,
        here.watching("conv_a") as near,
    ):
        asked = len(wire.sendings)
        for word in "what a day":
            here.tell("conv_a", 1, "text.delta", {"text": word})
        for word in ("one\n", "two\n"):
            here.tell("conv_a", 1, "tool.delta", {"call_id": "c", "text": word})
            here.tell("conv_a", 1, "thinking.delta", {"text": "hm"})
        for each in (near, watcher):
            assert await all_of(each) == [("", "what a day"), ("c", "one\ntwo\n")]
            assert not await each.wait(1), "there is nothing new in the log"
            assert each.fresh({1}) == []
        here.tell("conv_a", 1, "text.delta", {"text": ", today"})
        here.tell("conv_a", 1, "turn.finished", {"content": [], "stop": "end"})
        for each in (near, watcher):
            assert await all_of(each) == [("", ", today")]
            assert await each.wait(1), "there is something new in the log"
        assert other.fresh({1}) == []
    assert len(wire.sendings) == asked + 2
    assert not any("day" in parcel for parcels in wire.sendings for parcel in parcels)


async def test_who_comes_late_gets_the_beginning_and_what_is_in_the_log_is_not_told(vault: Vault) -> None:
    _, here, there = two(vault)
    here.tell("conv_a", 1, "turn.started", {})
    here.tell("conv_a", 1, "text.delta", {"text": "It was " * 2000})
    await asyncio.sleep(SOON)
    with there.watching("conv_a") as watcher, here.watching("conv_a") as near:
        for each in (watcher, near):
            assert await all_of(each) == [("", "It was " * 2000)]
        here.tell("conv_a", 1, "turn.failed", {})
        here.tell("conv_a", 1, "text.delta", {"text": "Again"})
        for each in (watcher, near):
            assert await all_of(each) == [("", "Again")]
            each.forget(1)
            assert await all_of(each) == [("", "Again")], "it was wiped off, and goes on"
        here.tell("conv_a", 1, "turn.finished", {"content": [], "stop": "max_tokens"})
        here.tell("conv_a", 1, "turn.started", {})
        here.tell("conv_a", 1, "text.delta", {"text": " and on"})
        for each in (watcher, near):
            assert await all_of(each) == [("", " and on")]
        here.over("conv_a", 1)
        await all_of(watcher)
        for each in (watcher, near):
            each.forget(1)
            assert await all_of(each) == []
    with there.watching("conv_a") as watcher:
        assert await all_of(watcher) == []


async def test_what_gets_lost_on_the_way_is_asked_for(vault: Vault) -> None:
    wire, here, there = two(vault)
    with there.watching("conv_a") as watcher:
        here.tell("conv_a", 1, "text.delta", {"text": "one "})
        assert await all_of(watcher) == [("", "one ")]
        wire.broken = True
        here.tell("conv_a", 1, "text.delta", {"text": "two "})
        assert await all_of(watcher) == []
        wire.broken = False
        here.tell("conv_a", 1, "text.delta", {"text": "three"})
        await asyncio.sleep(SOON)
        assert await all_of(watcher) == [("", "two three")]


async def test_what_is_over_is_let_go(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gofer.live.AFTERGLOW", 0.1)
    _, here, there = two(vault)
    with there.watching("conv_a") as watcher:
        here.tell("conv_a", 1, "tool.delta", {"call_id": "c", "text": "printed"})
        assert await all_of(watcher) == [("c", "printed")]
        here.over("conv_a", 1)
        await all_of(watcher)
        assert not here._said
    assert not there._said
    assert not here._sent
    assert not there._sent


@pytest.mark.parametrize("character", ["x", "\x01", "😀", "\udc80", "\\"])
async def test_a_flood_is_cut_and_each_parcel_fits_in_a_notification(vault: Vault, character: str) -> None:
    wire, here, there = two(vault)
    with there.watching("conv_a") as watcher:
        for _ in range(50):
            here.tell("conv_a", 1, "tool.delta", {"call_id": "call" * 10, "text": character * 5000})
        assert sum(len(text) for _, text in await all_of(watcher)) == MAX_SHARED
        for number in range(200):
            here.tell("conv_a", 1, "tool.delta", {"call_id": f"call-{number}", "text": character * 5000})
        await all_of(watcher)
    parcels = [parcel for parcels in wire.sendings for parcel in parcels]
    assert max(len(parcel) for parcel in parcels) < 8000
    assert all(len(parcels) <= MAX_PARCELS for parcels in wire.sendings)
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
        assert await all_of(watcher) == [("", "ours")]
        # A parcel of one conversation is not shown in another.
        wire.post([wire.sendings[-1][0].replace("conv_a", "conv_b")])
        assert elsewhere.fresh({1}) == []
