"""Names for rows."""

from __future__ import annotations

from collections import Counter

from gofer.store.ids import new_id


def test_an_id_has_its_prefix_and_sixteen_letters_none_of_which_is_likelier_than_another() -> None:
    ids = [new_id("conv") for _ in range(4000)]
    assert len(set(ids)) == len(ids)
    assert {len(each.removeprefix("conv_")) for each in ids} == {16}
    counts = Counter("".join(each.removeprefix("conv_") for each in ids))
    assert set(counts) == set("abcdefghjkmnpqrstuvwxyz23456789")
    # Each is expected 2,065 times; a byte too many for a letter would make it an eighth more.
    assert max(counts.values()) < 1.12 * 64_000 / 31
