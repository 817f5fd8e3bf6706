"""The wheel of a release: made from a source tree without running anything of it, and unpacked without trusting it."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import stat
import tomllib
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from gofer.errors import GoferError

NAME = "gofer"
MAX_FILES, MAX_BYTES = 20_000, 512 * 1024 * 1024
"""What a wheel may unpack to."""
LOCK = "gofer/requirements.lock"
"""Where a wheel keeps the pinned versions of what it needs."""
PROJECT = "pyproject.toml"
"""Where the package `gofer` of a wheel keeps the file that says what the wheel is made of."""
SKIPPED = ("__pycache__", ".pyc")
_VERSION = re.compile(r'^__version__ = "([0-9A-Za-z.+-]{1,40})"$', re.M)
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of every file in a wheel, so that the same source gives the same bytes."""


class ReleaseRefused(GoferError):
    """The release is damaged, forged or not one of Gofer's, so nothing of it is used."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """What a wheel holds."""

    version: str
    digest: str
    """SHA-256 of the file."""
    lock: str
    """SHA-256 of the pinned versions that it needs."""


def build_wheel(source: Path, target: Path) -> Path:
    """Make the wheel of a source tree; returns where it is. Nothing of the tree is imported or run."""
    project = _project(source)
    version = _version(source, project)
    files = dict(_files(source, project))
    info = f"{NAME}-{version}.dist-info"
    files |= {f"{info}/{name}": content for name, content in _metadata(project, version).items()}
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for name, content in sorted(files.items()):
        rows.writerow([name, f"sha256={_record_digest(content)}", len(content)])
    rows.writerow([f"{info}/RECORD", "", ""])
    place = target / f"{NAME}-{version}-py3-none-any.whl"
    target.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in [*sorted(files.items()), (f"{info}/RECORD", record.getvalue().encode())]:
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)
    return place


def _project(source: Path) -> dict[str, Any]:
    try:
        project = tomllib.loads((source / "pyproject.toml").read_text())
        if project["project"]["name"] != NAME:
            raise ReleaseRefused(f"{source} is the source of {project['project']['name']}, not of Gofer.")
    except (OSError, ValueError, KeyError) as error:
        raise ReleaseRefused(f"{source} is no source tree of Gofer: {error}") from error
    return project


def _version(source: Path, project: dict[str, Any]) -> str:
    place = project["tool"]["hatch"]["version"]["path"]
    found = _VERSION.search((source / place).read_text())
    if found is None:
        raise ReleaseRefused(f"{place} names no version.")
    return found[1]


def _files(source: Path, project: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Every file of the wheel with its place in it."""
    for folder, inside in places(project).items():
        root = source / folder
        if root.is_file():
            yield inside, root.read_bytes()
        for place in sorted(root.rglob("*")):
            skipped = any(part == SKIPPED[0] for part in place.parts) or place.name.endswith(SKIPPED[1])
            if place.is_file() and not place.is_symlink() and not skipped:
                yield f"{inside}/{place.relative_to(root).as_posix()}", place.read_bytes()


def places(project: Mapping[str, Any]) -> dict[str, str]:
    """Which folder or file of a source tree is put where in its wheel."""
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    packages = {package: PurePosixPath(package).name for package in wheel["packages"]}
    return {**packages, **wheel.get("force-include", {})}


def _metadata(project: dict[str, Any], version: str) -> dict[str, bytes]:
    about = project["project"]
    lines = ["Metadata-Version: 2.4", f"Name: {NAME}", f"Version: {version}"]
    lines += [f"Requires-Python: {about['requires-python']}"]
    lines += [f"Requires-Dist: {needed}" for needed in about["dependencies"]]
    points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items()) + "\n"
        for group, entries in {"console_scripts": about["scripts"], **about["entry-points"]}.items()
    )
    made = "Wheel-Version: 1.0\nGenerator: gofer\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    return {
        "METADATA": "\n".join([*lines, ""]).encode(),
        "WHEEL": made.encode(),
        "entry_points.txt": points.encode(),
    }


def read_wheel(place: Path) -> Wheel:
    """Check a wheel as far as that goes without its signature; raises ReleaseRefused."""
    with _opened(place) as wheel:
        content = _checked(wheel)
        about = _about(content)
        if about.get("Name") != NAME or LOCK not in content:
            raise ReleaseRefused(f"{place.name} is no wheel of Gofer.")
        lock = hashlib.sha256(content[LOCK]).hexdigest()
    return Wheel(about["Version"], hashlib.sha256(place.read_bytes()).hexdigest(), lock)


def _about(content: Mapping[str, bytes]) -> dict[str, str]:
    """The head of a wheel's metadata."""
    for name, data in content.items():
        if name.endswith(".dist-info/METADATA"):
            head = data.decode("utf-8", "replace").partition("\n\n")[0]
            return dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    return {}


def unpack_wheel(place: Path, target: Path) -> None:
    """Unpack a wheel into a new directory, every file checked; raises ReleaseRefused and leaves nothing half done."""
    with _opened(place) as wheel:
        for name, content in _checked(wheel).items():
            file = target / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            os.chmod(file, 0o644)


def _opened(place: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(place)
    except FileNotFoundError as error:
        raise ReleaseRefused(f"There is no file {place}.") from error
    except (OSError, zipfile.BadZipFile) as error:
        raise ReleaseRefused(f"{place.name} is damaged: {error}") from error


def _checked(wheel: zipfile.ZipFile) -> dict[str, bytes]:
    """Every file, if all of them are what the wheel's own record says, and belong where they would be put."""
    entries = wheel.infolist()
    if len(entries) > MAX_FILES or sum(entry.file_size for entry in entries) > MAX_BYTES:
        raise ReleaseRefused("The wheel unpacks to more than a release may have.")
    content: dict[str, bytes] = {}
    try:
        for entry in entries:
            if not entry.is_dir():
                content[_safe_name(entry, content)] = wheel.read(entry)
    except (
        OSError,
        zipfile.BadZipFile,
        RuntimeError,
        NotImplementedError,
        EOFError,
        ValueError,
        zlib.error,
    ) as error:
        raise ReleaseRefused(f"The wheel is damaged: {error}") from error
    records = [name for name in content if re.fullmatch(r"[^/]+\.dist-info/RECORD", name)]
    if len(records) != 1:
        raise ReleaseRefused("The wheel has no record of its files.")
    listed = {
        row[0]: row[1] for row in csv.reader(io.StringIO(content[records[0]].decode())) if len(row) == 3
    }
    for name, data in content.items():
        if name != records[0] and listed.get(name) != f"sha256={_record_digest(data)}":
            raise ReleaseRefused(f"{name} in the wheel is not what its record says: the file was changed.")
    if missing := set(listed) - set(content):
        raise ReleaseRefused(f"{min(missing)} is missing from the wheel.")
    return content


def _safe_name(entry: zipfile.ZipInfo, seen: dict[str, bytes]) -> str:
    """A name that stays below where the wheel is unpacked, of a plain file, given once."""
    name = entry.filename
    parts = PurePosixPath(name).parts
    outside = name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or not parts
    kind = entry.external_attr >> 16
    if outside or name in seen or (stat.S_IFMT(kind) not in (0, stat.S_IFREG)):
        raise ReleaseRefused(f"The wheel has a file that does not belong into it: {name[:100]!r}.")
    return name


def _record_digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
