"""Whatever is sealed opens where it was sealed, and nowhere else."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gofer.vault.envelope import Vault, aad, key_id
from gofer.vault.errors import KeyMissing, Tampered, VaultError
from gofer.vault.keyring import KeyRing, MasterKey

OLD, NEW = MasterKey.new(), MasterKey.new()
VAULT = Vault(KeyRing([NEW, OLD]))
PLACE = aad("ws_1", "secret", "sec_1", "data_key")
KEY = VAULT.unwrap(VAULT.new_data_key(PLACE), PLACE)

unhurried = settings(deadline=None, max_examples=100)
parts = st.lists(st.text(max_size=6) | st.integers(), max_size=5)


def flipped(data: bytes, bit: int) -> bytes:
    bit %= len(data) * 8
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


@unhurried
@given(st.binary(max_size=4096), parts)
def test_round_trip(plaintext: bytes, place: list[str | int]) -> None:
    assert KEY.open(KEY.seal(plaintext, aad(*place)), aad(*place)) == plaintext
    assert VAULT.open(VAULT.wrap(plaintext, aad(*place)), aad(*place)) == plaintext


@unhurried
@given(st.binary(max_size=64), st.integers(min_value=0))
def test_any_flipped_bit_is_an_error(plaintext: bytes, bit: int) -> None:
    with pytest.raises(Tampered):
        KEY.open(flipped(KEY.seal(plaintext, PLACE), bit), PLACE)
    with pytest.raises((Tampered, KeyMissing)):
        VAULT.open(flipped(VAULT.wrap(plaintext, PLACE), bit), PLACE)


@unhurried
@given(st.binary(max_size=64), st.integers(min_value=0), st.booleans())
def test_any_truncation_or_extension_is_an_error(plaintext: bytes, length: int, front: bool) -> None:
    for open_, sealed in ((KEY.open, KEY.seal(plaintext, PLACE)), (VAULT.open, VAULT.wrap(plaintext, PLACE))):
        keep = length % len(sealed)
        with pytest.raises(VaultError):
            open_(sealed[keep + 1 :] if front else sealed[:keep], PLACE)
        with pytest.raises(VaultError):
            open_(sealed + bytes(keep + 1), PLACE)


@unhurried
@given(parts, parts)
def test_another_place_is_an_error(here: list[str | int], there: list[str | int]) -> None:
    sealed, wrapped = KEY.seal(b"value", aad(*here)), VAULT.wrap(b"value", aad(*here))
    if [str(part) for part in here] == [str(part) for part in there]:
        assert aad(*here) == aad(*there)
        return
    with pytest.raises(Tampered):
        KEY.open(sealed, aad(*there))
    with pytest.raises(Tampered):
        VAULT.open(wrapped, aad(*there))


def test_no_two_places_look_alike() -> None:
    places = [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"), ("a\x00b", "c"), ("a", "\x00bc")]
    assert len({aad(*place) for place in places}) == len(places)


def test_the_first_byte_is_the_format_and_both_are_bound() -> None:
    sealed, wrapped = KEY.seal(b"x", PLACE), VAULT.wrap(b"x", PLACE)
    for version in set(range(256)) - {sealed[0]}:
        with pytest.raises(Tampered):
            KEY.open(bytes([version]) + sealed[1:], PLACE)
    for version in set(range(256)) - {wrapped[0]}:
        with pytest.raises(Tampered):
            VAULT.open(bytes([version]) + wrapped[1:], PLACE)


def test_naming_another_key_of_the_ring_is_tampering() -> None:
    wrapped = VAULT.wrap(b"value", PLACE)
    with pytest.raises(Tampered):
        VAULT.open(wrapped[:1] + OLD.fingerprint + wrapped[9:], PLACE)


def test_an_error_tells_nothing_about_its_cause() -> None:
    sealed = KEY.seal(b"value", PLACE)
    wrongs = [b"", b"\x07", sealed[:20], flipped(sealed, 300), sealed + b"!"]
    errors = []
    for wrong in wrongs:
        with pytest.raises(Tampered) as caught:
            KEY.open(wrong, PLACE)
        assert caught.value.__cause__ is None
        errors.append(str(caught.value))
    assert len(set(errors)) == 1


def test_a_data_key_of_another_owner_opens_nothing() -> None:
    other = VAULT.unwrap(VAULT.new_data_key(PLACE), PLACE)
    with pytest.raises(Tampered):
        other.open(KEY.seal(b"value", PLACE), PLACE)


def test_something_wrapped_that_is_no_key_is_not_used_as_one() -> None:
    with pytest.raises(Tampered):
        VAULT.unwrap(VAULT.wrap(b"sixteen bytes ok", PLACE), PLACE)


def test_equal_values_seal_differently() -> None:
    assert len({KEY.seal(b"same", PLACE) for _ in range(50)}) == 50


def test_rewrap_moves_to_the_active_key_and_is_idempotent() -> None:
    wrapped = Vault(KeyRing([OLD])).wrap(b"value", PLACE)
    moved = VAULT.rewrap(wrapped, PLACE)
    assert key_id(wrapped) == OLD.fingerprint
    assert key_id(moved) == NEW.fingerprint
    assert VAULT.rewrap(moved, PLACE) is moved
    assert Vault(KeyRing([NEW])).open(moved, PLACE) == b"value"
    with pytest.raises(KeyMissing):
        Vault(KeyRing([NEW])).open(wrapped, PLACE)


def test_unwrap_remembers_a_bounded_number_and_checks_the_place_each_time() -> None:
    vault = Vault(KeyRing([NEW]), cached_keys=2)
    wrapped = [vault.new_data_key(PLACE) for _ in range(3)]
    keys = [vault.unwrap(one, PLACE) for one in wrapped]
    assert vault.unwrap(wrapped[2], PLACE) is keys[2]
    assert vault.unwrap(wrapped[0], PLACE) is not keys[0]
    with pytest.raises(Tampered):
        vault.unwrap(wrapped[2], aad("elsewhere"))
    vault.forget(wrapped[2], PLACE)
    assert vault.unwrap(wrapped[2], PLACE) is not keys[2]


def test_threads_share_a_vault() -> None:
    vault = Vault(KeyRing([NEW]), cached_keys=4)
    wrapped = [vault.new_data_key(aad(number)) for number in range(8)]

    def work(number: int) -> bool:
        place = aad(number % 8)
        key = vault.unwrap(wrapped[number % 8], place)
        return key.open(key.seal(b"v" * number, place), place) == b"v" * number

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(400)))


def test_keys_do_not_show_or_travel() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(KEY)
    assert repr(KEY) == "DataKey()"
