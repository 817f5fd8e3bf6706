"""Bringing a release to where the supervisor can run it: signed by somebody trusted, unpacked, checked and approved."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gofer
from gofer.errors import Conflict, NotFound
from gofer.releases.keys import check_signature, sign
from gofer.releases.lifecycle import in_use, prune
from gofer.releases.wheel import LOCK, ReleaseRefused, Wheel, build_wheel, read_wheel, unpack_wheel
from gofer.store import migrations
from gofer_supervisor.home import (
    MANIFEST,
    Home,
    Release,
    changed_below,
    file_digest,
    list_files,
    manifest_content,
    write_json,
)

MAX_MANIFEST = 1024 * 1024
CANARY = "gofer/releases/canary.py"
"""A release that has this file says by itself whether a conversation with it goes as it should."""
INSTALL_TIMEOUT = 1800.0
FREE_SPACE = 200 * 1024 * 1024
"""Bytes that staging leaves free."""
ALONE_TIMEOUT, LOOK_EVERY = 60.0, 0.2
"""Seconds to wait for another release that is being staged, and between two looks."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A release that can be deployed once it is approved."""

    build: str
    version: str
    signed_by: str
    """The id of the trusted key; empty when it is not signed, and somebody accepted that."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the release that runs, from which another one was built here."""

    diff: str
    summary: str
    agent: str
    by: str
    """Who asked the agent for it."""
    mark: str
    """The job that staged it."""


def build_release(
    source: Path, target: Path, *, revision: str = "", key: Path | None = None
) -> tuple[Path, Path]:
    """Build a source tree; returns the wheel and its manifest, which is signed if there is a key."""
    wheel = build_wheel(source, target)
    facts = read_wheel(wheel)
    manifest: dict[str, Any] = {
        "version": facts.version,
        "revision": revision,
        "wheel": facts.digest,
        "lock": facts.lock,
        "schema": newest_schema(source / "platform"),
        "built_at": int(time.time()),
    }
    if key is not None:
        manifest["signature"] = sign(manifest, key)
    place = manifest_of(wheel)
    write_json(str(place.absolute()), manifest)
    return wheel, place


def newest_schema(top: Path) -> str:
    """The version of the store that a release brings it to, read from its text; empty when that is unknown."""
    place = top / "gofer/store/migrations/__init__.py"
    lines = place.read_text().splitlines() if place.exists() else []
    return next((line.split('"')[1] for line in lines if line.startswith("NEWEST = ")), "")


def manifest_of(wheel: Path) -> Path:
    """Where the manifest of a wheel is: beside it."""
    return wheel.with_name(f"{wheel.name}.json")


def stage(
    home: Home,
    wheel: Path,
    check: Callable[[Release], str],
    *,
    unsigned: bool = False,
    change: Change | None = None,
) -> Staged:
    """Put a release into the home, if it is signed, whole and works. Whatever is wrong, nothing stays of it.

    `check` tries the release before anybody can deploy it, and returns what it found in a sentence. A release with a
    change was built here, so nobody else could have signed it.
    """
    facts, manifest = _verified(wheel, needed=not unsigned)
    signed_by = "" if change is not None else _signer(home, manifest, needed=not unsigned)
    _refuse_unreadable(str(manifest.get("schema") or ""))
    build = f"{facts.version}-{facts.digest[:12]}"
    staged = Staged(build, facts.version, signed_by)
    with _alone(home):
        if _is_staged(home, staged, change):
            return staged
        _need_space(home, wheel)
        _unpack_and_check(home, wheel, staged, check, _Origin(manifest, facts.lock, change))
        prune(home)
    return staged


def verify_release(home: Home, wheel: Path) -> str:
    """The version of a wheel that is whole, signed with a trusted key and can follow this release; raises
    ReleaseRefused. Nothing of it is run or kept."""
    facts, manifest = _verified(wheel, needed=True)
    check_signature(home, manifest)
    _refuse_unreadable(str(manifest.get("schema") or ""))
    return facts.version


@dataclass(frozen=True, slots=True)
class _Origin:
    """What the manifest of a wheel says, and the change it was built from, if there is one."""

    manifest: Mapping[str, Any]
    lock: str
    change: Change | None


def _signer(home: Home, manifest: Mapping[str, Any], *, needed: bool) -> str:
    """The id of the trusted key that signed a release; empty where there is none and none is needed."""
    try:
        return check_signature(home, manifest)
    except ReleaseRefused:
        if needed:
            raise
        return ""


@contextlib.contextmanager
def _alone(home: Home) -> Iterator[None]:
    """Stage one release at a time, and remove what one that was killed has left half done."""
    with open(f"{home.path}/stage.lock", "wb") as lock:
        give_up = time.monotonic() + ALONE_TIMEOUT
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() > give_up:
                    raise Conflict("Another release is being staged. Try again when that is done.") from error
                time.sleep(LOOK_EVERY)
        for place in Path(home.path, "releases").glob(".*"):
            shutil.rmtree(place, ignore_errors=True)
        yield


def _is_staged(home: Home, staged: Staged, change: Change | None) -> bool:
    """Whether this very staging was done before; raises Conflict when the release is here by another one. One that
    nobody had signed gives way to the same one with a signature, unless it is in use."""
    if not Path(home.path, "releases", staged.build).exists():
        return False
    known = home.manifests().get(staged.build, {})
    if change is not None and (known.get("change") or {}).get("mark") == change.mark:
        return True
    if (known.get("signed_by") or not staged.signed_by) or staged.build in in_use(home):
        raise Conflict(
            f"Release {staged.build} is staged already: gofer update list. "
            f"To stage it anew: gofer update drop {staged.build}"
        )
    return False


def _unpack_and_check(
    home: Home, wheel: Path, staged: Staged, check: Callable[[Release], str], origin: _Origin
) -> None:
    """Unpack a wheel beside its place, try it, and put it there as a whole."""
    build, target = staged.build, Path(home.path, "releases", staged.build)
    beside, old = target.with_name(f".{build}.new"), target.with_name(f".{build}.old")
    try:
        unpack_wheel(wheel, beside / "lib")
        python, packages = _python_for(home, beside / "lib" / LOCK, origin.lock)
        schema = str(origin.manifest.get("schema") or newest_schema(beside / "lib"))
        _refuse_unreadable(schema)
        tried = Release(build=build, version=staged.version, python=python, path=[str(beside / "lib")])
        told: dict[str, Any] = {
            "schema": schema,
            "built_at": origin.manifest.get("built_at"),
            "lock": origin.lock,
            "source": "file" if origin.change is None else "change",
            "signed_by": staged.signed_by,
            "checked": check(tried),
            "approved_by": "",
            "staged_at": time.time(),
            "canary": (beside / "lib" / CANARY).exists(),
            "record": file_digest(str(next((beside / "lib").glob("*.dist-info/RECORD")))),
            "packages": packages,
        }
        told["files"] = list_files(str(beside / "lib"))  # with what the check compiled
        if origin.change is not None:
            told["change"] = asdict(origin.change)
        release = Release(
            build=build,
            version=staged.version,
            python=python,
            path=[str(target / "lib")],
            revision=str(origin.manifest.get("revision", "")),
        )
        # The manifest comes with the files, so that a release is there as a whole or not at all.
        write_json(str(beside / MANIFEST), manifest_content(release, **told))
        if target.exists():
            os.replace(target, old)
        os.replace(beside, target)
    except OSError as error:
        raise ReleaseRefused(f"The release could not be staged: {error.strerror or error}.") from error
    finally:
        for place in (beside, old):
            shutil.rmtree(place, ignore_errors=True)


def _verified(wheel: Path, *, needed: bool) -> tuple[Wheel, dict[str, Any]]:
    """A wheel and its manifest, which must be about this very wheel; an empty one where none is needed or there."""
    facts = read_wheel(wheel)
    place = manifest_of(wheel)
    if not place.exists():
        if not needed:
            return facts, {}
        raise ReleaseRefused(
            f"{place.name}, the signed manifest of the wheel, is not beside it. "
            "To accept the wheel although nobody has signed it: --unsigned"
        )
    try:
        with place.open("rb") as file:
            manifest = json.loads(file.read(MAX_MANIFEST))
        right = (manifest["wheel"], manifest["lock"], manifest["version"]) == (
            facts.digest,
            facts.lock,
            facts.version,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ReleaseRefused(f"{place.name}, the manifest of the wheel, cannot be read: {error}") from error
    if not right:
        raise ReleaseRefused(f"{place.name} is the manifest of another wheel.")
    return facts, manifest


def _refuse_unreadable(schema: str) -> None:
    """A store that this release could not read after the new one has migrated it would make going back impossible."""
    if schema and schema != migrations.newest() and not migrations.runs_on(schema):
        raise ReleaseRefused(
            f"The release brings the store to version {schema}, which this one could not read any more. "
            "Install the releases between them first."
        )


def _need_space(home: Home, wheel: Path) -> None:
    needed = 20 * wheel.stat().st_size + FREE_SPACE
    if shutil.disk_usage(home.path).free < needed:
        raise ReleaseRefused(f"There is not enough room in {home.path}: {needed // 1_000_000} MB are needed.")


def _python_for(home: Home, lock: Path, digest: str) -> tuple[str, str]:
    """An interpreter with what a release needs: ours if it needs the same, else one of an environment of its own, with
    the digest of the list of all files in it."""
    ours = Path(gofer.__file__).parent / "requirements.lock"
    if not ours.exists():  # run from a source tree
        ours = Path(gofer.__file__).parents[2] / "requirements.lock"
    if ours.exists() and hashlib.sha256(ours.read_bytes()).hexdigest() == digest:
        return sys.executable, ""
    # What was changed since it was made is left to the releases that use it, and made again beside it.
    names = (f"{digest[:16]}-{number}" for number in itertools.count(1))
    place = next(place for name in names if not _is_damaged(place := Path(home.path, "deps", name)))
    python, listing = place / "bin" / "python", f"{place}.json"
    if not Path(listing).exists():
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(mode=0o700, exist_ok=True)
        _run([sys.executable, "-m", "venv", str(place)])
        _run([str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(lock)])
        list_files(str(place))
    return str(python), file_digest(listing)


def _is_damaged(place: Path) -> bool:
    """Whether an environment was made here and is not what it was then."""
    listing = f"{place}.json"
    return Path(listing).exists() and bool(changed_below(str(place), file_digest(listing)))


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT)
    except subprocess.CalledProcessError as error:
        words = (error.stderr or "").strip().splitlines()
        why = words[-1] if words else f"exit code {error.returncode}"
        raise ReleaseRefused(f"What the release needs could not be installed: {why}") from error
    except subprocess.TimeoutExpired as error:
        raise ReleaseRefused("What the release needs could not be installed in half an hour.") from error


def newer_releases(index: Path) -> list[tuple[str, Path]]:
    """The wheels in a directory that say they are newer than this release, the newest first."""
    if not index.is_dir():
        raise NotFound(f"There is no directory {index}.")
    found: list[tuple[str, Path]] = []
    for place in index.glob("*.whl"):
        try:
            version = str(json.loads(manifest_of(place).read_bytes()[:MAX_MANIFEST])["version"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if ordered_version(version) > ordered_version(gofer.__version__):
            found.append((version, place))
    return sorted(found, key=lambda one: ordered_version(one[0]), reverse=True)


def ordered_version(version: str) -> tuple[int, ...]:
    """A version as numbers that can be compared; what is no number counts as none."""
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("+")[0].split("."))
