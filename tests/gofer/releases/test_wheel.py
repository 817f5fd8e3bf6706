"""A wheel is built without running anything of its source, and nothing of one that was changed is used."""

from __future__ import annotations

import csv
import io
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gofer.releases.wheel import LOCK, ReleaseRefused, build_wheel, read_wheel, unpack_wheel

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("dist"))


def test_it_has_the_files_that_hatchling_puts_into_one(wheel: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (theirs,) = tmp_path.glob("*.whl")
    names = [
        {name for name in zipfile.ZipFile(place).namelist() if "/licenses/" not in name}
        for place in (wheel, theirs)
    ]
    assert names[0] == names[1]
    points = [
        zipfile.ZipFile(place).read(next(name for name in names[0] if name.endswith("entry_points.txt")))
        for place in (wheel, theirs)
    ]
    assert sorted(points[0].split()) == sorted(points[1].split())


def test_the_same_source_gives_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    assert build_wheel(ROOT, tmp_path).read_bytes() == wheel.read_bytes()


def test_what_is_no_source_of_gofer_is_not_built(tmp_path: Path) -> None:
    with pytest.raises(ReleaseRefused, match="no source tree"):
        build_wheel(tmp_path, tmp_path)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\n')
    with pytest.raises(ReleaseRefused, match="of other, not of Gofer"):
        build_wheel(tmp_path, tmp_path)


def test_an_unpacked_wheel_can_be_run(wheel: Path, tmp_path: Path) -> None:
    unpack_wheel(wheel, tmp_path / "lib")
    asked = [sys.executable, "-c", "import gofer; print(gofer.__file__)"]
    found = subprocess.run(
        asked, env={"PYTHONPATH": str(tmp_path / "lib")}, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == str(tmp_path / "lib" / "gofer" / "__init__.py")


def changed(wheel: Path, target: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """A copy with other files in it, its record as it was."""
    with zipfile.ZipFile(wheel) as old:
        files = {name: old.read(name) for name in old.namelist()}
    change(files)
    place = target / wheel.name
    with zipfile.ZipFile(place, "w") as new:
        for name, content in files.items():
            new.writestr(name, content)
    return place


def recorded(files: dict[str, bytes]) -> list[list[str]]:
    (name,) = (name for name in files if name.endswith("/RECORD"))
    return list(csv.reader(io.StringIO(files[name].decode())))


TAMPERED: dict[str, tuple[Callable[[dict[str, bytes]], object], str]] = {
    "a changed file": (lambda files: files.update({"gofer/__init__.py": b"import evil"}), "was changed"),
    "a file more": (lambda files: files.update({"gofer/extra.py": b""}), "was changed"),
    "a file less": (lambda files: files.pop("gofer/errors.py"), "is missing"),
    "no lock": (lambda files: files.pop(LOCK), "is missing"),
    "a path upwards": (lambda files: files.update({"../evil.py": b""}), "does not belong"),
    "a path from the root": (lambda files: files.update({"/tmp/evil.py": b""}), "does not belong"),
    "a path of Windows": (lambda files: files.update({"..\\evil.py": b""}), "does not belong"),
    "no record": (lambda files: files.pop(next(n for n in files if n.endswith("RECORD"))), "no record"),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_nothing_of_a_wheel_that_was_changed_is_used(wheel: Path, tmp_path: Path, what: str) -> None:
    change, why = TAMPERED[what]
    place = changed(wheel, tmp_path, change)  # type: ignore[arg-type]
    with pytest.raises(ReleaseRefused, match=why):
        unpack_wheel(place, tmp_path / "lib")
    assert not (tmp_path / "lib").exists()
    assert not (tmp_path / "evil.py").exists()


def test_a_link_in_a_wheel_is_refused(wheel: Path, tmp_path: Path) -> None:
    place = tmp_path / wheel.name
    shutil.copy(wheel, place)
    entry = zipfile.ZipInfo("gofer/link")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(place, "a") as new:
        new.writestr(entry, "/etc/passwd")
    with pytest.raises(ReleaseRefused, match="does not belong"):
        read_wheel(place)


@pytest.mark.parametrize("end", [0, 10, 1000, -1])
def test_a_file_that_was_cut_is_refused(wheel: Path, tmp_path: Path, end: int) -> None:
    place = tmp_path / wheel.name
    place.write_bytes(wheel.read_bytes()[:end])
    with pytest.raises(ReleaseRefused):
        read_wheel(place)


def test_a_flipped_bit_anywhere_is_noticed(wheel: Path, tmp_path: Path) -> None:
    whole = wheel.read_bytes()
    before = read_wheel(wheel)
    for where in range(1000, len(whole), len(whole) // 20):
        place = tmp_path / wheel.name
        place.write_bytes(whole[:where] + bytes([whole[where] ^ 1]) + whole[where + 1 :])
        try:
            found = read_wheel(place)
        except ReleaseRefused:
            continue
        assert (
            found.digest != before.digest
        )  # in what no file's content depends on; the signature is over the digest


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReleaseRefused, match="There is no file"):
        read_wheel(tmp_path / "none.whl")
