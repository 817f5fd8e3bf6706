"""Master keys: made once, kept tight, refused with the way out, rewritten in one step."""

from __future__ import annotations

import base64
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from gofer.errors import ConfigError
from gofer.vault.errors import KeyMissing, KeyRefused
from gofer.vault.keyring import KeyRing, MasterKey, open_ring, ring_from_file, ring_from_value
from gofer.vault.redaction import Secret


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "master.key"


def key_text(byte: int = 7, length: int = 32) -> str:
    return base64.b64encode(bytes([byte]) * length).decode()


def open_file(path: Path) -> KeyRing:
    return ring_from_file(path, ciphertext_exists=True)


def write(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text)
    path.chmod(mode)


def test_a_first_start_makes_a_private_file_and_the_next_reads_it(folder: Path, path: Path) -> None:
    old = os.umask(0)
    try:
        made = open_ring(folder, ciphertext_exists=False)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600
    assert open_ring(folder, ciphertext_exists=True).active.id == made.active.id


def test_two_first_starts_at_once_end_with_one_key(path: Path) -> None:
    script = (
        "import sys, pathlib; from gofer.vault.keyring import ring_from_file;"
        "path = pathlib.Path(sys.argv[1]); sys.stdin.read();"
        "print(ring_from_file(path, ciphertext_exists=False).active.id)"
    )
    starts = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    ids = {start.communicate("")[0].strip() for start in starts}
    assert ids == {open_file(path).active.id}


def test_a_missing_file_is_refused_while_ciphertext_exists(path: Path) -> None:
    with pytest.raises(KeyRefused, match=r"missing.*backup"):
        ring_from_file(path, ciphertext_exists=True)
    assert not path.exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666, 0o610, 0o700, 0o400 | 0o040])
def test_a_file_open_to_others_is_refused(path: Path, mode: int) -> None:
    write(path, key_text(), mode)
    with pytest.raises(KeyRefused, match="chmod 600"):
        open_file(path)


def test_a_read_only_file_is_fine(path: Path) -> None:
    write(path, key_text(), 0o400)
    assert open_file(path).active.id == MasterKey.parse(key_text()).id


def test_a_symbolic_link_is_refused(folder: Path, path: Path) -> None:
    write(folder / "elsewhere", key_text())
    path.symlink_to(folder / "elsewhere")
    with pytest.raises(KeyRefused, match="symbolic link"):
        open_file(path)


def test_a_dangling_link_is_not_written_through(folder: Path, path: Path) -> None:
    path.symlink_to(folder / "elsewhere")
    with pytest.raises(KeyRefused, match="symbolic link"):
        ring_from_file(path, ciphertext_exists=False)
    assert not (folder / "elsewhere").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(path: Path) -> None:
    write(path, key_text())
    os.chown(path, 65534, 65534)
    with pytest.raises(KeyRefused, match=r"another user.*chown"):
        open_file(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(folder: Path, path: Path) -> None:
    os.chown(folder, 65534, 65534)
    with pytest.raises(KeyRefused, match="belongs to another user"):
        ring_from_file(path, ciphertext_exists=False)


def test_a_folder_others_may_write_to_is_refused(folder: Path, path: Path) -> None:
    folder.chmod(0o777)
    with pytest.raises(KeyRefused, match="chmod go-w"):
        ring_from_file(path, ciphertext_exists=False)


def test_a_folder_that_is_not_there_is_refused(folder: Path) -> None:
    with pytest.raises(KeyRefused, match="cannot be used"):
        ring_from_file(folder / "none" / "master.key", ciphertext_exists=False)


def test_something_else_than_a_file_is_refused(path: Path) -> None:
    os.mkfifo(path, 0o600)
    with pytest.raises(KeyRefused, match="regular file"):
        open_file(path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "empty"),
        ("\n\n# nothing\n", "empty"),
        ("not base64 at all!", "not base64"),
        ("schlüssel", "not base64"),
        (key_text(length=31), "31 bytes, fewer than 32"),
        (f"{key_text()}\n{key_text(length=16)}", "16 bytes"),
    ],
)
def test_bad_content_is_refused_with_the_command_that_makes_a_key(
    path: Path, text: str, sentence: str
) -> None:
    write(path, text)
    with pytest.raises(KeyRefused, match=sentence):
        open_file(path)
    with pytest.raises(ConfigError, match=sentence):
        ring_from_value(Secret(text))


def test_a_refusal_never_quotes_the_key() -> None:
    with pytest.raises(KeyRefused) as refusal:
        ring_from_value(Secret("hunter2hunter2hunter2!"))
    assert "hunter2" not in str(refusal.value)


def test_a_value_goes_before_the_file_and_its_first_key_is_active(folder: Path) -> None:
    ring = open_ring(
        folder, value=Secret(f" {key_text(1)} , {key_text(2)}\n"), path=None, ciphertext_exists=True
    )
    assert ring.ids == (MasterKey.parse(key_text(1)).id, MasterKey.parse(key_text(2)).id)
    assert ring.active.id == ring.ids[0]
    assert not (folder / "master.key").exists()


def test_urlsafe_and_unpadded_base64_name_the_same_key() -> None:
    material = bytes(range(220, 252))
    standard, urlsafe = base64.b64encode(material).decode(), base64.urlsafe_b64encode(material).decode()
    assert MasterKey.parse(standard).id == MasterKey.parse(urlsafe.rstrip("=")).id
    assert standard != urlsafe


def test_keys_do_not_show_themselves() -> None:
    key = MasterKey.parse(key_text())
    ring = KeyRing([key])
    assert key_text() not in f"{key!r} {key} {ring!r} {ring}"
    with pytest.raises(TypeError):
        pickle.dumps(key)


def test_adding_and_retiring_rewrites_the_file(path: Path) -> None:
    ring = ring_from_file(path, ciphertext_exists=False)
    old = ring.active.id
    new = ring.add_key().id
    assert ring.active.id == new != old
    assert open_file(path).ids == (new, old)
    assert ring.retire_behind(new) == (old,)
    assert open_file(path).ids == (new,)
    assert path.stat().st_mode & 0o777 == 0o600
    assert not path.with_name("master.key.new").exists()


def test_a_retired_key_stays_readable_for_rows_already_in_hand(path: Path) -> None:
    ring = ring_from_file(path, ciphertext_exists=False)
    old = ring.active
    ring.retire_behind(ring.add_key().id)
    assert ring.find(old.fingerprint).id == old.id


def test_an_unknown_key_is_looked_for_in_the_file_again(path: Path) -> None:
    mine = ring_from_file(path, ciphertext_exists=False)
    theirs = open_file(path)
    new = theirs.add_key()
    assert mine.find(new.fingerprint).id == new.id
    assert mine.active.id == new.id


def test_a_key_nobody_has_is_named_with_the_fix() -> None:
    missing = MasterKey.new()
    with pytest.raises(KeyMissing, match=rf"{missing.id}.*Put it back"):
        KeyRing([MasterKey.new()]).find(missing.fingerprint)


def test_two_processes_that_rotate_lose_no_key(path: Path) -> None:
    mine = ring_from_file(path, ciphertext_exists=False)
    theirs = open_file(path)
    first = mine.active.id
    second, third = mine.add_key().id, theirs.add_key().id
    assert open_file(path).ids == (third, second, first)
    assert mine.retire_behind(second) == (first,)
    assert open_file(path).ids == (third, second)
    assert theirs.retire_behind(third) == (second,)
    assert mine.retire_behind(second) == ()
    assert open_file(path).ids == (third,)


def test_a_ring_from_the_environment_says_how_to_rotate_it() -> None:
    with pytest.raises(KeyRefused, match="NEW,OLD"):
        KeyRing([MasterKey.new()]).add_key()


def test_a_left_over_temporary_file_does_no_harm(path: Path) -> None:
    ring = ring_from_file(path, ciphertext_exists=False)
    path.with_name("master.key.new").write_text("half a ke")
    ring.add_key()
    assert len(open_file(path).ids) == 2
