"""Gofer's own source: the files of the release that runs, a copy for an agent to change, and a diff applied to them.

A wheel holds all that its source tree has for building it, so every release is its own source. A diff is applied here
and not by git: exactly, to text files alone, and to nothing outside of the tree.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import gofer
from gofer.releases.wheel import PROJECT, SKIPPED, ReleaseRefused, places
from gofer.sanitize import clean

MAX_DIFF = 256 * 1024
"""Bytes of a diff at most: more than that nobody reads before they approve it."""
MAX_CHANGED = 100
FIXED = ("pyproject.toml", "requirements.lock")
"""Files that say what a release is made of and which packages it needs. Those come from outside, so they stay."""
_HEADER = re.compile(r"diff --git a/(?P<old>\S+) b/(?P<new>\S+)")
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@.*", re.S)
_NO_NEWLINE = "\\ No newline at end of file\n"
_EXTENDED = (
    "index ",
    "new file mode 100644",
    "new file mode 100755",
    "deleted file mode 100644",
    "deleted file mode 100755",
)


def release_source() -> dict[str, bytes]:
    """The files of the release that runs, by their place in a source tree."""
    package = Path(gofer.__file__).parent
    tree = package.parents[1] if (package.parents[1] / "pyproject.toml").exists() else None
    project = tomllib.loads((tree / "pyproject.toml" if tree else package / PROJECT).read_text())
    found: dict[str, bytes] = {}
    wanted = places(project)
    for where, inside in wanted.items():
        top = tree / where if tree else package.parent / inside
        # In a wheel, what comes from elsewhere lies inside of a package, and is not a part of it.
        others = () if tree else tuple(package.parent / one for one in wanted.values() if one != inside)
        found |= {str(PurePosixPath(where, name)): place.read_bytes() for name, place in _below(top, others)}
    return found


def _below(top: Path, others: tuple[Path, ...]) -> Iterator[tuple[str, Path]]:
    if top.is_file():
        yield "", top
    for place in sorted(top.rglob("*")):
        if (
            place.is_symlink()
            or not place.is_file()
            or SKIPPED[0] in place.parts
            or place.suffix == SKIPPED[1]
        ):
            continue
        if not any(place.is_relative_to(other) for other in others if not top.is_relative_to(other)):
            yield place.relative_to(top).as_posix(), place


def source_digest(files: Mapping[str, bytes]) -> str:
    """A short name for what a source tree holds."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    return digest.hexdigest()[:16]


def source_archive(files: Mapping[str, bytes]) -> bytes:
    """A source tree as a compressed archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=3) as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def write_source(files: Mapping[str, bytes], folder: Path) -> None:
    """Put a source tree into a folder."""
    for name, content in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)


# Diffs


@dataclass(slots=True)
class FileChange:
    """What a diff says of one file."""

    name: str
    is_new: bool = False
    is_gone: bool = False
    hunks: list[tuple[int, list[str], list[str]]] = field(default_factory=list)
    """From which line on which lines are replaced with which."""
    added: int = 0
    removed: int = 0


def parse_diff(diff: bytes) -> list[FileChange]:
    """What a diff as git makes it changes; raises ReleaseRefused for whatever is no plain change of text."""
    if len(diff) > MAX_DIFF:
        raise ReleaseRefused(f"The change is larger than {MAX_DIFF // 1024} KiB. Propose a smaller one.")
    lines = _lines_of("The diff", diff)
    if not diff.endswith(b"\n"):
        raise ReleaseRefused("Nothing is changed." if not diff else "The diff is cut off.")
    changes: list[FileChange] = []
    at = 0
    while at < len(lines):
        change, at = _parse_file(lines, at)
        changes.append(change)
    if len(changes) > MAX_CHANGED:
        raise ReleaseRefused(f"The change touches more than {MAX_CHANGED} files. Propose a smaller one.")
    return changes


def _parse_file(lines: list[str], at: int) -> tuple[FileChange, int]:
    header = _HEADER.fullmatch(lines[at].rstrip("\n"))
    if header is None or header["old"] != header["new"]:
        raise ReleaseRefused(f"This is no line of a plain diff: {lines[at].strip()[:100]!r}.")
    change = FileChange(_checked_name(header["new"]))
    at += 1
    while at < len(lines) and not lines[at].startswith(("--- ", "diff --git ")):
        if not lines[at].startswith(_EXTENDED):
            what = "its contents are no text" if lines[at].startswith("Binary") else lines[at].strip()[:100]
            raise ReleaseRefused(f"{change.name} cannot be changed so: {what}.")
        change.is_new = change.is_new or lines[at].startswith("new file")
        change.is_gone = change.is_gone or lines[at].startswith("deleted file")
        at += 1
    if at < len(lines) and lines[at].startswith("--- "):
        old = "/dev/null" if change.is_new else f"a/{change.name}"
        new = "/dev/null" if change.is_gone else f"b/{change.name}"
        if [line.rstrip("\t\n") for line in lines[at : at + 2]] != [f"--- {old}", f"+++ {new}"]:
            raise ReleaseRefused(f"The diff names two files for one change: {change.name}.")
        at += 2
    while at < len(lines) and lines[at].startswith("@@ "):
        at = _parse_hunk(change, lines, at)
    return change, at


def _checked_name(name: str) -> str:
    parts = PurePosixPath(name).parts
    if name.startswith(("/", '"')) or ".." in parts or "\\" in name or any(p.startswith(".") for p in parts):
        raise ReleaseRefused(f"{name[:100]!r} is no file of the source.")
    if name in FIXED:
        raise ReleaseRefused(f"{name} stays as it is: a self-made change cannot bring other packages.")
    return name


def _parse_hunk(change: FileChange, lines: list[str], at: int) -> int:
    numbers = _HUNK.fullmatch(lines[at])
    if numbers is None:
        raise ReleaseRefused(f"A part of the change of {change.name} cannot be read.")
    start, olds, news = int(numbers[1]), int(numbers[2] or 1), int(numbers[4] or 1)
    old: list[str] = []
    new: list[str] = []
    at += 1
    while (len(old), len(new)) != (olds, news) or (at < len(lines) and lines[at] == _NO_NEWLINE):
        if at >= len(lines) or len(old) > olds or len(new) > news:
            raise ReleaseRefused(f"The change of {change.name} is cut off.")
        mark, text = lines[at][:1], lines[at][1:]
        if lines[at] == _NO_NEWLINE:
            for side, was in ((old, "- "), (new, "+ ")):
                if side and lines[at - 1][:1] in was:
                    side[-1] = side[-1].removesuffix("\n")
        elif mark in (" ", "-", "+") and lines[at]:
            if mark == "+" and clean(text) != text:
                raise ReleaseRefused(
                    f"{change.name} gets invisible characters, which nobody could approve. Write them as escapes."
                )
            if mark != "+":
                old.append(text)
            if mark != "-":
                new.append(text)
            change.added += mark == "+"
            change.removed += mark == "-"
        else:
            raise ReleaseRefused(f"The change of {change.name} cannot be read: {lines[at].strip()[:100]!r}.")
        at += 1
    change.hunks.append((start if olds else start + 1, old, new))
    return at


def apply_diff(files: Mapping[str, bytes], changes: list[FileChange]) -> dict[str, bytes]:
    """A source tree with a change; raises ReleaseRefused where the tree is not what the change was made for."""
    changed = dict(files)
    for change in changes:
        if change.is_new == (change.name in changed):
            raise ReleaseRefused(f"{change.name} is {'there already' if change.is_new else 'not there'}.")
        before = _lines_of(change.name, changed.pop(change.name, b""))
        after = _replaced(change, before)
        if not change.is_gone:
            changed[change.name] = "".join(after).encode()
        elif after:
            raise ReleaseRefused(f"{change.name} is removed, and a part of it stays.")
    if changed == files:
        raise ReleaseRefused("Nothing is changed.")
    return changed


def _lines_of(name: str, content: bytes) -> list[str]:
    try:
        return re.findall(r"[^\n]*\n|[^\n]+", content.decode())
    except UnicodeDecodeError as error:
        raise ReleaseRefused(f"{name} is no text.") from error


def _replaced(change: FileChange, before: list[str]) -> list[str]:
    after: list[str] = []
    done = 0
    for start, old, new in change.hunks:
        if start - 1 < done or before[start - 1 : start - 1 + len(old)] != old:
            raise ReleaseRefused(f"{change.name} is not what the change was made for.")
        after += [*before[done : start - 1], *new]
        done = start - 1 + len(old)
    return after + before[done:]


def describe_changes(changes: list[FileChange]) -> str:
    """What a diff changes, in a line: how many files and lines, and which files."""
    added, removed = sum(one.added for one in changes), sum(one.removed for one in changes)
    names = ", ".join(f"`{one.name}`" for one in changes[:5])
    more = f" and {len(changes) - 5} more" if len(changes) > 5 else ""
    count = "1 file" if len(changes) == 1 else f"{len(changes)} files"
    return f"{count} (+{added} −{removed} lines): {names}{more}"
