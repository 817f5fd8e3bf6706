"""Bringing a release to where the supervisor can run it: signed by somebody trusted, unpacked, checked and approved."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

import gofer
from gofer.errors import Conflict, NotFound
from gofer.releases.wheel import LOCK, ReleaseRefused, Wheel, build_wheel, read_wheel, unpack_wheel
from gofer.store import migrations
from gofer_supervisor.home import (
    CURRENT,
    GOOD,
    MANIFEST,
    Home,
    HomeError,
    Release,
    manifest_content,
    write_json,
)

SIGNED = b"gofer release\0"
"""What a signature is over begins so, and nothing else that is signed does."""
MAX_MANIFEST = 1024 * 1024
KEPT = 3
"""Releases that are kept; those that are current or good are kept beside them."""
CANARY = "gofer/releases/canary.py"
"""A release that has this file says by itself whether a conversation with it goes as it should."""
INSTALL_TIMEOUT, COMPILE_TIMEOUT = 1800.0, 300.0
FREE_SPACE = 200 * 1024 * 1024
"""Bytes that staging leaves free."""


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
        "schema": newest_schema(source),
        "built_at": int(time.time()),
    }
    if key is not None:
        manifest["signature"] = sign(manifest, key)
    place = manifest_of(wheel)
    write_json(str(place.absolute()), manifest)
    return wheel, place


def newest_schema(source: Path) -> str:
    """The version of the store that a source tree brings it to, read from its text."""
    text = (source / "platform/gofer/store/migrations/__init__.py").read_text()
    return next(line.split('"')[1] for line in text.splitlines() if line.startswith("NEWEST = "))


def manifest_of(wheel: Path) -> Path:
    """Where the manifest of a wheel is: beside it."""
    return wheel.with_name(f"{wheel.name}.json")


# Signatures


def sign(manifest: Mapping[str, Any], key: Path) -> dict[str, str]:
    """A signature over a manifest, by an Ed25519 key in PEM form."""
    try:
        private = serialization.load_pem_private_key(key.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ReleaseRefused(f"{key} holds no private key in PEM form: {error}") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise ReleaseRefused(
            f"{key} is no Ed25519 key. Make one: openssl genpkey -algorithm ed25519 -out {key}"
        )
    value = base64.b64encode(private.sign(_signed_bytes(manifest))).decode()
    return {"key": key_id(private.public_key()), "value": value}


def _signed_bytes(manifest: Mapping[str, Any]) -> bytes:
    plain = {name: value for name, value in manifest.items() if name != "signature"}
    return SIGNED + json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def key_id(key: Ed25519PublicKey) -> str:
    """A short name for a public key."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]


def trust_key(home: Home, key: Path) -> str:
    """Believe releases that are signed with this public key from now on; returns its id."""
    try:
        public = serialization.load_pem_public_key(key.read_bytes())
    except (OSError, ValueError) as error:
        raise ReleaseRefused(f"{key} holds no public key in PEM form: {error}") from error
    if not isinstance(public, Ed25519PublicKey):
        raise ReleaseRefused(f"{key} is no Ed25519 key.")
    directory = Path(home.path, "trusted")
    directory.mkdir(mode=0o700, exist_ok=True)
    (directory / f"{key_id(public)}.pub").write_bytes(public.public_bytes_raw())
    return key_id(public)


def trusted_keys(home: Home) -> dict[str, Ed25519PublicKey]:
    """The keys that releases may be signed with, by id."""
    found: dict[str, Ed25519PublicKey] = {}
    for place in Path(home.path, "trusted").glob("*.pub"):
        key = Ed25519PublicKey.from_public_bytes(place.read_bytes())
        found[key_id(key)] = key
    return found


def check_signature(home: Home, manifest: Mapping[str, Any]) -> str:
    """The id of the trusted key that signed a manifest; raises ReleaseRefused."""
    signature = manifest.get("signature")
    if not isinstance(signature, dict):
        raise ReleaseRefused("The release is not signed. If you know where it is from: --unsigned")
    key = trusted_keys(home).get(str(signature.get("key")))
    if key is None:
        raise ReleaseRefused(
            f"The release is signed with the key {str(signature.get('key'))[:16]}, which is not trusted here. "
            "If you know whose it is: gofer update trust KEY.pem"
        )
    try:
        key.verify(base64.b64decode(str(signature.get("value")), validate=True), _signed_bytes(manifest))
    except (InvalidSignature, binascii.Error, ValueError) as error:
        raise ReleaseRefused(
            "The signature is wrong: the manifest was changed after it was signed."
        ) from error
    return str(signature["key"])


# Staging


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
    signed_by = "" if unsigned or change is not None else check_signature(home, manifest)
    _refuse_unreadable(home, str(manifest.get("schema", "")))
    build = f"{facts.version}-{facts.digest[:12]}"
    target = Path(home.path, "releases", build)
    if target.exists():
        if change is not None and manifest_in(home, build).get("change", {}).get("mark") == change.mark:
            return Staged(build, facts.version, signed_by)
        raise Conflict(f"Release {build} is staged already.")
    _need_space(home, wheel)
    beside = target.with_name(f".{build}.new")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        unpack_wheel(wheel, beside / "lib")
        python = _python_for(home, beside / "lib" / LOCK, facts.lock)
        tried = Release(build=build, version=facts.version, python=python, path=[str(beside / "lib")])
        found = check(tried)
        told: dict[str, Any] = {name: manifest.get(name) for name in ("schema", "built_at", "lock")}
        told |= {"source": "file", "signed_by": signed_by, "checked": found, "approved_by": ""}
        told["canary"] = (beside / "lib" / CANARY).exists()
        if change is not None:
            told |= {"source": "change", "change": asdict(change)}
        release = Release(
            build=build,
            version=facts.version,
            python=python,
            path=[str(target / "lib")],
            revision=str(manifest.get("revision", "")),
        )
        # The manifest comes with the files, so that a release is there as a whole or not at all.
        write_json(str(beside / MANIFEST), manifest_content(release, **told))
        os.replace(beside, target)
    except OSError as error:
        raise ReleaseRefused(f"The release could not be staged: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    prune(home)
    return Staged(build, facts.version, signed_by)


def _verified(wheel: Path, *, needed: bool) -> tuple[Wheel, dict[str, Any]]:
    """A wheel and its manifest, which must be about this very wheel; an empty one where none is needed or there."""
    facts = read_wheel(wheel)
    place = manifest_of(wheel)
    if not place.exists() and not needed:
        return facts, {}
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


def _refuse_unreadable(home: Home, schema: str) -> None:
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


def _python_for(home: Home, lock: Path, digest: str) -> str:
    """An interpreter with what a release needs: ours if it needs the same, else one of an environment of its own."""
    ours = Path(gofer.__file__).parent / "requirements.lock"
    if not ours.exists():  # run from a source tree
        ours = Path(gofer.__file__).parents[2] / "requirements.lock"
    if ours.exists() and hashlib.sha256(ours.read_bytes()).hexdigest() == digest:
        return sys.executable
    place = Path(home.path, "deps", digest[:16])
    python = place / "bin" / "python"
    if not (place / "complete").exists():
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(mode=0o700, exist_ok=True)
        _run([sys.executable, "-m", "venv", str(place)])
        _run([str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(lock)])
        (place / "complete").touch()
    return str(python)


def compile_release(home: Home, build: str) -> None:
    """Compile a staged release now, so that nobody waits for it when it starts. Nothing is lost if that fails."""
    release = home.release(build)
    command = [release.python, "-I", "-m", "compileall", "-q", *release.path]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(command, capture_output=True, timeout=COMPILE_TIMEOUT)


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
    """The wheels in a directory that are newer than this release, the newest first. Staging checks them."""
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


def approve(home: Home, build: str, *, by: str) -> None:
    """Let a release be deployed."""
    manifest = manifest_in(home, build)
    if not manifest.get("approved_by"):
        write_json(f"{home.path}/releases/{build}/manifest.json", {**manifest, "approved_by": by})


def decline(home: Home, build: str, *, by: str) -> None:
    """Keep a release from being deployed. Somebody at the command line may still approve it."""
    manifest = manifest_in(home, build)
    if not manifest.get("approved_by") and not manifest.get("declined_by"):
        write_json(f"{home.path}/releases/{build}/manifest.json", {**manifest, "declined_by": by})


def waiting_releases(home: Home) -> list[str]:
    """Staged releases that nobody has approved or declined."""
    return [
        build
        for build, manifest in home.manifests().items()
        if manifest.get("source") != "installed"
        and not manifest.get("approved_by")
        and not manifest.get("declined_by")
    ]


def deploy(home: Home, build: str, *, by: str) -> None:
    """Ask the supervisor to deploy a release that was approved."""
    if not manifest_in(home, build).get("approved_by"):
        raise Conflict(f"Release {build} is not approved yet: gofer update approve {build}")
    if build == home.linked(CURRENT):
        raise Conflict(f"Release {build} runs already.")
    _ask(home, {"do": "deploy", "build": build, "by": by})


def roll_back(home: Home, *, by: str) -> None:
    """Ask the supervisor to go back to the release before the current one."""
    _ask(home, {"do": "rollback", "by": by})


def _ask(home: Home, request: dict[str, Any]) -> None:
    if home.asked() is not None or (home.load().trial or {}).get("step", "prove") != "prove":
        raise Conflict("Another deployment is under way: gofer update list")
    try:
        home.ask(request)
    except FileExistsError as error:
        raise Conflict("Another deployment is under way: gofer update list") from error


def manifest_in(home: Home, build: str) -> dict[str, Any]:
    """All that is known of a release; raises NotFound."""
    try:
        return home.manifest(build)
    except HomeError as error:
        raise NotFound(f"{error} `gofer update list` shows those there are.") from error


def prune(home: Home, keep: int = KEPT) -> list[str]:
    """Remove the oldest releases; never those that run, ran well or are on probation. Returns what went."""
    trial = home.load().trial or {}
    needed = {home.linked(CURRENT), home.linked(GOOD), trial.get("build"), trial.get("previous")}
    staged = [build for build, manifest in home.manifests().items() if manifest.get("source") != "installed"]
    spare = [build for build in staged if build not in needed]
    gone = spare[: max(0, len(spare) - keep)]
    for build in gone:
        shutil.rmtree(Path(home.path, "releases", build), ignore_errors=True)
    used = {manifest.get("lock") for manifest in home.manifests().values()}
    for place in Path(home.path, "deps").glob("*"):
        if not any(str(lock).startswith(place.name) for lock in used):
            shutil.rmtree(place, ignore_errors=True)
    return gone
