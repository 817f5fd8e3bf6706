"""A release gets to where it can be run only if somebody trusted has signed it, it is whole, and it works."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gofer.errors import Conflict, NotFound
from gofer.releases import stage as stage_module
from gofer.releases.stage import (
    approve,
    build_release,
    compile_release,
    deploy,
    manifest_of,
    newer_releases,
    prune,
    stage,
    trust_key,
)
from gofer.releases.wheel import ReleaseRefused
from gofer_sandbox.bubblewrap import binary
from gofer_supervisor.home import Home, Release

ROOT = Path(__file__).parents[3]


def works(release: Release) -> str:
    return "it works"


def write_key(place: Path) -> Path:
    private = Ed25519PrivateKey.generate()
    form = serialization.PrivateFormat.PKCS8
    place.write_bytes(private.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    place.with_suffix(".pub").write_bytes(public)
    return place


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed release; the key is beside it."""
    folder = tmp_path_factory.mktemp("dist")
    build_release(ROOT, folder, revision="abc", key=write_key(folder / "release.pem"))
    return folder


@pytest.fixture
def wheel(signed: Path, tmp_path: Path) -> Path:
    shutil.copytree(signed, tmp_path / "dist")
    return next((tmp_path / "dist").glob("*.whl"))


@pytest.fixture
def home(tmp_path: Path, signed: Path) -> Home:
    made = Home(str(tmp_path / "home"))
    made.prepare()
    trust_key(made, signed / "release.pub")
    return made


def test_a_signed_release_is_staged_and_runs(home: Home, wheel: Path) -> None:
    staged = stage(home, wheel, works)
    manifest = home.manifest(staged.build)
    assert (manifest["checked"], manifest["revision"], manifest["source"]) == ("it works", "abc", "file")
    release = home.release(staged.build)
    asked = subprocess.run(
        release.command("version"), env=release.environment(), capture_output=True, text=True, check=True
    )
    assert asked.stdout.strip() == staged.version
    compile_release(home, staged.build)
    assert list(Path(release.path[0], "gofer", "__pycache__").glob("serve.*.pyc")), "it starts at once"


def test_it_is_checked_before_it_is_there(home: Home, wheel: Path) -> None:
    def fails(release: Release) -> str:
        assert home.builds() == []
        raise ReleaseRefused("It does not start.")

    with pytest.raises(ReleaseRefused, match="does not start"):
        stage(home, wheel, fails)
    assert home.builds() == []
    assert list(Path(home.path, "releases").iterdir()) == []


def test_an_unsigned_release_takes_an_explicit_word(home: Home, wheel: Path) -> None:
    manifest_of(wheel).unlink()
    with pytest.raises(ReleaseRefused, match="cannot be read"):
        stage(home, wheel, works)
    assert stage(home, wheel, works, unsigned=True).signed_by == ""


FORGED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no signature": (lambda manifest: manifest.pop("signature"), "not signed"),
    "another version": (lambda manifest: manifest.update(version="9.9.9"), "another wheel"),
    "another revision": (lambda manifest: manifest.update(revision="def"), "signature is wrong"),
    "another schema": (lambda manifest: manifest.update(schema=""), "signature is wrong"),
    "another key": (lambda manifest: manifest["signature"].update(key="0" * 16), "not trusted"),
    "no base64": (lambda manifest: manifest["signature"].update(value="%%"), "signature is wrong"),
    "an empty signature": (lambda manifest: manifest["signature"].update(value=""), "signature is wrong"),
    "a signature that is a list": (lambda manifest: manifest.update(signature=[]), "not signed"),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_manifest_is_refused(home: Home, wheel: Path, what: str) -> None:
    change, why = FORGED[what]
    manifest = json.loads(manifest_of(wheel).read_text())
    change(manifest)
    manifest_of(wheel).write_text(json.dumps(manifest))
    with pytest.raises(ReleaseRefused, match=why):
        stage(home, wheel, works)
    assert home.builds() == []


def test_the_right_manifest_beside_another_wheel_is_refused(home: Home, wheel: Path) -> None:
    with wheel.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(ReleaseRefused):
        stage(home, wheel, works)


def test_a_key_that_nobody_trusts_here_does_not_help(home: Home, wheel: Path, tmp_path: Path) -> None:
    build_release(ROOT, wheel.parent, key=write_key(tmp_path / "other.pem"))
    with pytest.raises(ReleaseRefused, match="not trusted here"):
        stage(home, wheel, works)


@pytest.mark.parametrize("content", [b"", b"not a key", b"-----BEGIN PUBLIC KEY-----\n"])
def test_what_is_no_key_is_not_trusted(home: Home, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(ReleaseRefused, match="no public key"):
        trust_key(home, tmp_path / "key")


def test_a_release_whose_store_this_one_could_not_read_is_refused(
    home: Home, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gofer.store.migrations.NEWEST", "0003-0003")
    with pytest.raises(ReleaseRefused, match="could not read any more"):
        stage(home, wheel, works)


def test_a_full_disk_leaves_nothing_behind(home: Home, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_module, "FREE_SPACE", 10**18)
    with pytest.raises(ReleaseRefused, match="not enough room"):
        stage(home, wheel, works)
    assert home.builds() == []


FULL = """
import os, sys
from pathlib import Path
from gofer.releases import stage as module
from gofer.releases.wheel import ReleaseRefused
from gofer_supervisor.home import Home

home = Home(sys.argv[1])
home.prepare()
for look in (True, False):  # it looks for room first; somebody else may take that room afterwards
    if not look:
        module._need_space = lambda *_: None
    try:
        module.stage(home, Path(sys.argv[2]), lambda release: "fine", unsigned=True)
    except ReleaseRefused as error:
        print(error)
    print(os.listdir(home.path + "/releases"))
"""


def test_a_disk_that_is_really_full_leaves_nothing_behind(wheel: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    alone = [str(binary.find()), "--dev-bind", "/", "/", "--size", str(4 << 20), "--tmpfs", str(disk)]
    command = [*alone, sys.executable, "-c", FULL, str(disk / "home"), str(wheel)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [said[1], said[3]] == ["[]", "[]"]
    assert "not enough room" in said[0]
    assert "No space left on device" in said[2]


def test_a_release_is_staged_once(home: Home, wheel: Path) -> None:
    stage(home, wheel, works)
    with pytest.raises(Conflict, match="staged already"):
        stage(home, wheel, works)


def test_only_what_was_approved_is_deployed_and_one_at_a_time(home: Home, wheel: Path) -> None:
    build = stage(home, wheel, works).build
    with pytest.raises(Conflict, match="not approved"):
        deploy(home, build, by="ada")
    approve(home, build, by="ada")
    approve(home, build, by="eve")
    assert home.manifest(build)["approved_by"] == "ada"
    deploy(home, build, by="ada")
    assert {"do": "deploy", "build": build, "by": "ada"}.items() <= (home.asked() or {}).items()
    with pytest.raises(Conflict, match="under way"):
        deploy(home, build, by="ada")
    with pytest.raises(NotFound, match="gofer update list"):
        approve(home, "other", by="ada")


def test_old_releases_go_and_those_that_are_needed_stay(home: Home) -> None:
    for number in range(6):
        release = Release(build=f"b{number}", version="1", python=sys.executable)
        home.add(release, source="file", lock="x")
    home.link("good", "b0")
    home.link("current", "b1")
    assert prune(home, keep=2) == ["b2", "b3"]
    assert sorted(home.builds()) == ["b0", "b1", "b4", "b5"]


def test_a_newer_release_is_found_in_a_directory(tmp_path: Path) -> None:
    for version in ("0.0.1", "99.1.0", "99.0.9", "nonsense"):
        place = tmp_path / f"gofer-{version}-py3-none-any.whl"
        place.touch()
        manifest_of(place).write_text(json.dumps({"version": version}))
    (tmp_path / "other.whl").touch()
    assert [version for version, _ in newer_releases(tmp_path)] == ["99.1.0", "99.0.9"]
    with pytest.raises(NotFound):
        newer_releases(tmp_path / "none")
