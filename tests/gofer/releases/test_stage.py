"""A release gets to where it can be run only if somebody trusted has signed it, it is whole, and it works."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gofer.errors import Conflict, NotFound
from gofer.releases import stage as stage_module
from gofer.releases.keys import trust_key, trusted_keys, untrust_key
from gofer.releases.lifecycle import approve, decline, deploy, drop, last_failure, prune, release_states
from gofer.releases.stage import build_release, manifest_of, newer_releases, stage
from gofer.releases.trial import compile_release
from gofer.releases.wheel import ReleaseRefused
from gofer_sandbox.bubblewrap import binary
from gofer_supervisor.home import Home, Release, list_files, write_json
from support.releases import compiled_place, plant_compiled, small_source, write_key

ROOT = Path(__file__).parents[3]


def works(release: Release) -> str:
    return "it works"


def works_and_compiles(release: Release) -> str:
    compile_release(release)
    return "it works"


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
    staged = stage(home, wheel, works_and_compiles)
    manifest = home.manifest(staged.build)
    assert (manifest["checked"], manifest["revision"], manifest["source"]) == ("it works", "abc", "file")
    release = home.release(staged.build)
    asked = subprocess.run(
        release.command("version"), env=release.environment(), capture_output=True, text=True, check=True
    )
    assert asked.stdout.strip() == staged.version
    assert list(Path(release.path[0], "gofer", "__pycache__").glob("serve.*.pyc")), "it starts at once"
    assert home.changed_file(staged.build) == "", "running it changes nothing of it"


def _forget(top: Path) -> None:
    next(top.glob("*.dist-info/RECORD")).unlink()


def _forge(top: Path) -> None:
    """Change a file, and have the record fit."""
    (top / "gofer" / "serve.py").write_bytes(b"pass\n")
    record = next(top.glob("*.dist-info/RECORD"))
    lines = record.read_text().splitlines()
    record.write_text("\n".join(one for one in lines if not one.startswith("gofer/serve.py,")) + "\n")


def _link(top: Path) -> None:
    (top / "gofer" / "serve.py").rename(top.parent / "serve.py")
    (top / "gofer" / "serve.py").symlink_to(top.parent / "serve.py")


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file is changed": (lambda top: (top / "gofer" / "serve.py").write_bytes(b"pass\n"), "serve.py"),
    "a file is removed": (lambda top: (top / "gofer" / "serve.py").unlink(), "serve.py"),
    "a file is added": (lambda top: (top / "sitecustomize.py").touch(), "sitecustomize.py"),
    "a compiled file is added": (lambda top: (top / "sitecustomize.pyc").touch(), "sitecustomize.pyc"),
    "a directory is added": (lambda top: (top / "yaml").symlink_to(top / "gofer"), "yaml"),
    "a file is a link": (_link, "serve.py"),
    "the record is removed": (_forget, "RECORD"),
    "the record is changed": (_forge, "RECORD"),
    "everything is removed": (shutil.rmtree, "METADATA"),
    "what Python compiled is another": (
        lambda top: plant_compiled(top / "gofer" / "serve.py", "pass"),
        compiled_place(Path("serve.py")).name,
    ),
    "what Python compiled is added": (
        lambda top: compiled_place(top / "gofer" / "shadow.py").touch(),
        compiled_place(Path("shadow.py")).name,
    ),
    "the list is changed": (lambda top: top.with_name("lib.json").write_text("{}"), "lib.json"),
}


def test_whatever_is_changed_after_a_release_was_staged_is_noticed(home: Home, wheel: Path) -> None:
    build = stage(home, wheel, works_and_compiles).build
    release = Path(home.release(build).path[0]).parent
    assert home.changed_file(build) == ""
    for what, (change, name) in CHANGES.items():
        shutil.copytree(release, kept := release.with_name("kept"))
        change(release / "lib")
        assert Path(home.changed_file(build)).name == name, what
        shutil.rmtree(release)
        kept.rename(release)
    assert home.changed_file(build) == ""


def test_a_release_that_was_staged_without_a_list_is_held_to_the_record_of_its_wheel(
    home: Home, wheel: Path
) -> None:
    build = stage(home, wheel, works).build
    manifest = home.manifest(build)
    del manifest["files"]
    write_json(f"{home.path}/releases/{build}/manifest.json", manifest)
    top = Path(home.release(build).path[0])
    compiled_place(top / "gofer" / "serve.py").parent.mkdir()
    compiled_place(top / "gofer" / "serve.py").touch()
    assert home.changed_file(build) == "", "such a release was compiled after it was staged"
    (top / "gofer" / "serve.py").write_bytes(b"pass\n")
    assert home.changed_file(build) == "gofer/serve.py"


@pytest.mark.slow
def test_packages_that_were_changed_are_noticed_and_made_again(home: Home, tmp_path: Path) -> None:
    """A release with other requirements gets an environment of its own; the next one with the same shares it."""
    builds = []
    for number in (1, 2, 3):
        source = small_source(tmp_path / f"source-{number}", f"9.{number}")
        (source / "requirements.lock").write_text("# nothing\n")
        packed, _ = build_release(source, tmp_path / f"dist-{number}")
        builds.append(stage(home, packed, works, unsigned=True).build)
        assert [home.changed_file(build) for build in builds] == [""] * len(builds)
        if number == 2:
            one, other = (Path(home.release(build).python) for build in builds)
            assert one == other
            package = next(one.parents[1].rglob("site-packages")) / "pip" / "__init__.py"
            package.write_text(f"{package.read_text()}# changed")
            assert {Path(home.changed_file(build)) for build in builds} == {
                package.relative_to(one.parents[1])
            }
            builds.clear()
    assert Path(home.release(builds[0]).python) != one


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
    with pytest.raises(ReleaseRefused, match="--unsigned"):
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


def test_a_signed_release_takes_the_place_of_the_same_one_that_nobody_had_signed(
    home: Home, wheel: Path, signed: Path
) -> None:
    manifest = manifest_of(wheel)
    kept = manifest.read_bytes()
    manifest.unlink()
    build = stage(home, wheel, works, unsigned=True).build
    assert home.manifest(build)["schema"], "read from the wheel where no manifest says it"
    approve(home, build, by="ada")
    manifest.write_bytes(kept)
    again = stage(home, wheel, works)
    assert (again.build, home.manifest(build)["signed_by"]) == (build, again.signed_by)
    assert again.signed_by
    assert release_states(home)[build] == "waits for approval"
    assert sorted(place.name for place in Path(home.path, "releases").iterdir()) == [build]
    with pytest.raises(Conflict, match="staged already"):
        stage(home, wheel, works, unsigned=True)


def test_an_unsigned_release_that_runs_is_not_replaced(home: Home, wheel: Path) -> None:
    manifest = manifest_of(wheel)
    kept = manifest.read_bytes()
    manifest.unlink()
    build = stage(home, wheel, works, unsigned=True).build
    home.link("current", build)
    manifest.write_bytes(kept)
    with pytest.raises(Conflict, match="staged already"):
        stage(home, wheel, works)


def test_of_two_that_stage_the_same_release_at_once_one_does(home: Home, wheel: Path) -> None:
    begun = threading.Event()

    def slowly(release: Release) -> str:
        begun.set()
        time.sleep(0.3)
        return works(release)

    with ThreadPoolExecutor() as pool:
        first = pool.submit(stage, home, wheel, slowly)
        begun.wait(60)
        with pytest.raises(Conflict, match="staged already"):
            stage(home, wheel, works)
        assert release_states(home) == {first.result().build: "waits for approval"}


def test_what_is_signed_with_a_key_that_is_not_trusted_any_more_is_not_deployed(
    home: Home, wheel: Path
) -> None:
    staged = stage(home, wheel, works)
    approve(home, staged.build, by="ada")
    untrust_key(home, staged.signed_by)
    assert trusted_keys(home) == {}
    with pytest.raises(ReleaseRefused, match="not trusted any more"):
        deploy(home, staged.build, by="ada")
    assert home.asked() is None
    with pytest.raises(NotFound):
        untrust_key(home, "../../current")


def test_a_staged_release_can_be_dropped_and_one_that_is_needed_cannot(home: Home, wheel: Path) -> None:
    build = stage(home, wheel, works).build
    for name in ("current", "good"):
        home.link(name, build)
        with pytest.raises(Conflict, match="runs"):
            drop(home, build)
        Path(home.path, name).unlink()
    approve(home, build, by="ada")
    deploy(home, build, by="ada")
    with pytest.raises(Conflict, match="being deployed"):
        drop(home, build)
    home.answered()
    drop(home, build)
    assert home.builds() == []
    with pytest.raises(NotFound):
        drop(home, build)
    assert stage(home, wheel, works).build == build


def test_every_release_says_how_it_stands(home: Home) -> None:
    def add(build: str, **facts: Any) -> None:
        home.add(Release(build=build, version="1", python=sys.executable), **{"source": "file", **facts})

    ended = {"to": "runs", "reason": "It fell over.", "at": 5.0, "asked": False}
    add("runs", proved_at=1.0, previous="before")
    add("before", proved_at=1.0)
    add("bad", approved_by="ada", taken_back=ended)
    add("wanted", approved_by="ada")
    add("unwanted")
    add("new")
    add("old", source="installed")
    decline(home, "unwanted", by="ada")
    home.link("current", "runs")
    home.link("good", "runs")
    assert release_states(home) == {
        "runs": "runs",
        "before": "ran before",
        "bad": "taken back",
        "wanted": "approved, not deployed",
        "unwanted": "declined",
        "new": "waits for approval",
        "old": "was installed",
    }
    failure = last_failure(home)
    assert failure == {"build": "bad", "to": "runs", "reason": "It fell over.", "at": 5.0}
    state = home.load()
    state.trial = {"build": "wanted", "previous": "runs", "by": "ada", "at": 0, "step": "migrate"}
    home.save(state)
    assert release_states(home)["wanted"] == "being deployed (migrate)"
    home.link("current", "wanted")
    state.trial["step"] = "prove"
    home.save(state)
    assert release_states(home)["wanted"] == "runs, on probation"
    assert release_states(home)["runs"] == "comes back if the new one fails"


@pytest.mark.parametrize(("asked", "proved_at"), [(True, 1.0), (False, 9.0)])
def test_what_a_person_took_back_or_what_is_long_over_is_no_failure(
    home: Home, asked: bool, proved_at: float
) -> None:
    ended = {"to": "runs", "reason": "Because.", "at": 5.0, "asked": asked}
    home.add(Release(build="runs", version="1", python=sys.executable), proved_at=proved_at)
    home.add(Release(build="bad", version="1", python=sys.executable), taken_back=ended)
    home.link("good", "runs")
    assert last_failure(home) is None


def test_a_release_that_is_deployed_once_more_is_no_failure_yet(home: Home) -> None:
    ended = {"to": "runs", "reason": "A file was changed.", "at": 5.0, "asked": False}
    home.add(Release(build="bad", version="1", python=sys.executable), taken_back=ended)
    assert last_failure(home) is not None
    state = home.load()
    state.trial = {"build": "bad", "previous": "runs", "by": "ada", "at": 6.0, "step": "prove"}
    home.save(state)
    assert last_failure(home) is None


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
        packages = Path(home.path, "deps", f"x-{number}")
        (packages / "bin").mkdir(parents=True)
        list_files(str(packages))
        release = Release(build=f"b{number}", version="1", python=str(packages / "bin" / "python"))
        home.add(release, source="file", lock="x")
    home.link("good", "b0")
    home.link("current", "b1")
    assert prune(home, keep=2) == ["b2", "b3"]
    assert sorted(home.builds()) == ["b0", "b1", "b4", "b5"]
    left = {place.name for place in Path(home.path, "deps").iterdir()}
    assert left == {name for number in (0, 1, 4, 5) for name in (f"x-{number}", f"x-{number}.json")}


def test_a_newer_release_is_found_in_a_directory(tmp_path: Path) -> None:
    for version in ("0.0.1", "99.1.0", "99.0.9", "nonsense"):
        place = tmp_path / f"gofer-{version}-py3-none-any.whl"
        place.touch()
        manifest_of(place).write_text(json.dumps({"version": version}))
    (tmp_path / "other.whl").touch()
    assert [version for version, _ in newer_releases(tmp_path)] == ["99.1.0", "99.0.9"]
    with pytest.raises(NotFound):
        newer_releases(tmp_path / "none")
