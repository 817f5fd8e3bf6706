"""Identity layers: SOUL, AGENT, IDENTITY and USER, merged into the packet that a run begins with.

An agent's own files are in `agents/<name>/`; what it lacks comes from `agents/` itself. A person's own USER file is
`users/<principal>.md` in either folder. A file that cannot be used leaves its last good version in force; that version
is kept beside it, so that it outlives the process that has read it.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from gofer.errors import ConfigError

log = structlog.get_logger()

LAYERS = ("SOUL", "AGENT", "IDENTITY", "USER")
"""From the highest to the lowest."""
PEOPLE = "users"
"""The folder of people's own USER files."""
MAX_BYTES = 64 * 1024
MAX_SHOWN = 4000
"""Characters of each text in a conflict."""
MAX_CONFLICTS = 100
MAX_PACKETS = 64
PERSON = re.compile(r"[A-Za-z0-9_-]{1,64}")
OPENING = "Who you are, in layers. Where two of them disagree, the one that stands first counts."
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*))?")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_NO_PARAGRAPH = re.compile(r" {0,3}(#|>|[-*+] |\d+[.)] |\||```|~~~|<)|\s*$| {4}|\t")


class LayerError(ConfigError):
    """A layer's file cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One file of an agent's identity."""

    name: str
    file: str
    """Below `agents/`."""
    text: str


@dataclass(frozen=True, slots=True)
class ShadowedSection:
    """A section that a higher layer's section of the same name shadows."""

    heading: str
    kept_in: str
    kept: str
    shadowed_in: str
    shadowed: str


@dataclass(frozen=True, slots=True)
class Packet:
    """Who an agent is, as it is told at the beginning of every request of a run."""

    text: str
    layers: tuple[Layer, ...] = ()
    conflicts: tuple[ShadowedSection, ...] = ()

    @property
    def digest(self) -> str:
        """Names exactly this text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(slots=True)
class _Section:
    level: int
    heading: str
    lines: list[str]

    @property
    def key(self) -> str:
        return heading_key(self.heading)


def heading_key(heading: str) -> str:
    """The form in which headings are compared: without case, Unicode variants and invisible characters."""
    shown = "".join(char for char in heading if unicodedata.category(char) != "Cf")
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", shown).casefold())
    return " ".join(folded.split())


def merge(layers: Sequence[Layer]) -> Packet:
    """One packet from layers in the order of precedence. The same files make the same bytes."""
    taken: dict[str, tuple[str, str]] = {}
    kept: list[tuple[str, str]] = []
    conflicts: list[ShadowedSection] = []
    for layer in layers:
        found = list(_sections(layer.text))
        own: dict[str, tuple[str, str]] = {}
        lines: list[str] = []
        index = 0
        while index < len(found):
            section = found[index]
            whole = _subtree(found, index)
            if section.key and section.key in taken:
                conflicts.append(_conflict(section.heading, taken[section.key], layer.file, _text_of(whole)))
                index += len(whole)
                continue
            if section.key:
                own.setdefault(section.key, (layer.file, _text_of(whole)))
            lines += section.lines
            index += 1
        taken |= own
        if text := "\n".join(lines).strip():
            kept.append((layer.name, text))
    return Packet(_joined(kept), tuple(layers), tuple(conflicts[:MAX_CONFLICTS]))


def _joined(kept: list[tuple[str, str]]) -> str:
    if [name for name, _ in kept] in ([], ["AGENT"]):
        return "".join(text for _, text in kept)
    return "\n\n".join([OPENING, *(f'<layer name="{name}">\n{text}\n</layer>' for name, text in kept)])


def _subtree(found: list[_Section], index: int) -> list[_Section]:
    """A section with those below it."""
    end = index + 1
    while end < len(found) and found[end].level > found[index].level > 0:
        end += 1
    return found[index:end]


def _text_of(sections: Sequence[_Section]) -> str:
    return "\n".join(line for section in sections for line in section.lines).strip()


def _conflict(heading: str, winner: tuple[str, str], file: str, text: str) -> ShadowedSection:
    return ShadowedSection(heading, winner[0], _short(winner[1]), file, _short(text))


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + " …"


def _sections(text: str) -> Iterator[_Section]:
    """The text before the first heading, which has no name, and then a section for each heading."""
    section, fence = _Section(0, "", []), ""
    for line in text.split("\n"):
        fence, inside = _fenced(line, fence)
        found = None if inside else _heading(line, section.lines)
        if found is None:
            section.lines.append(line)
            continue
        level, heading, taken = found
        begun = section.lines[len(section.lines) - taken :]
        del section.lines[len(section.lines) - taken :]
        yield section
        section = _Section(level, heading, [*begun, line])
    yield section


def _fenced(line: str, fence: str) -> tuple[str, bool]:
    """The fence that is open after a line, and whether the line is part of fenced code."""
    found = _FENCE.match(line)
    if not fence:
        return (found[1], True) if found else ("", False)
    closes = found and found[1][0] == fence[0] and len(found[1]) >= len(fence)
    return ("" if closes and line.strip() == found[1] else fence), True  # type: ignore[index]


def _heading(line: str, before: list[str]) -> tuple[int, str, int] | None:
    """A heading's level and words, and how many lines before this one belong to it."""
    if found := _HEADING.fullmatch(line):
        words = re.sub(r"(^|[ \t]+)#+[ \t]*$", "", found[2] or "").strip()
        return len(found[1]), words, 0
    underlines = bool(before) and not _NO_PARAGRAPH.match(before[-1])
    if underlines and (len(before) == 1 or not before[-2].strip()) and (found := _UNDERLINE.fullmatch(line)):
        return 1 if found[1][0] == "=" else 2, before[-1].strip(), 1
    return None


def replaced_section(text: str, heading: str, section: str) -> str:
    """A layer's text with another section of that name, or with one more; without it when the section is empty."""
    found = list(_sections(text))
    at = next((i for i, each in enumerate(found) if each.level and each.key == heading_key(heading)), None)
    level = found[at].level if at is not None else 1
    made = f"{'#' * level} {heading.strip()}\n\n{section.strip()}" if section.strip() else ""
    end = len(found) if at is None else at + len(_subtree(found, at))
    before, after = _text_of(found[: len(found) if at is None else at]), _text_of(found[end:])
    return "\n\n".join(part for part in (before, made, after) if part) + "\n"


def without_comments(text: str) -> str:
    """A layer's text without front matter and without comments on lines of their own: those are for people."""
    lines = text.split("\n")
    if lines[0].strip() == "---" and "---" in [line.rstrip() for line in lines[1:]]:
        lines = lines[2 + [line.rstrip() for line in lines[1:]].index("---") :]
    kept: list[str] = []
    fence, comment = "", list[str]()
    for line in lines:
        if comment:
            comment.append(line)
        else:
            fence, inside = _fenced(line, fence)
            if inside or not line.lstrip(" ").startswith("<!--"):
                kept.append(line)
                continue
            comment = [line]
        if "-->" in line:
            rest = line.partition("-->")[2]
            kept += [rest] if rest.strip() else []
            comment = []
    return "\n".join([*kept, *comment])


def read_text(path: Path, within: Path | None = None, most: int = MAX_BYTES) -> str:
    """A file's text; raises LayerError for whatever is no text of a proper size, at once. With `within`, the file a
    link leads to must be in that folder."""
    real = Path(os.path.realpath(path))
    if within is not None and not real.is_relative_to(os.path.realpath(within)):
        raise LayerError("cannot be read: it is a link to a file outside of its folder")
    try:
        data = _bytes_of(real, most + 1)
    except OSError as error:
        raise LayerError(f"cannot be read: {error.strerror}") from error
    if len(data) > most:
        raise LayerError(f"cannot be read: it has more than {most // 1024} KiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LayerError("cannot be read: it is not UTF-8 text") from error
    if "\0" in text:
        raise LayerError("cannot be read: it is not text, for it has NUL bytes")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _bytes_of(path: Path, most: int) -> bytes:
    # Without waiting for somebody who writes into a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise LayerError("cannot be read: it is not a file")
        data = b""
        while len(data) < most and (more := os.read(descriptor, most - len(data))):
            data += more
        return data
    finally:
        os.close(descriptor)


def stamp(path: Path) -> tuple[Any, ...]:
    """What changes when a file does, or what its links lead to."""
    try:
        found = path.stat()
    except OSError:
        return (None, os.path.lexists(path))
    return found.st_mtime_ns, found.st_size, found.st_ino, os.path.realpath(path)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file as a whole, durably."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as new:
        try:
            new.write(text.encode())
            new.flush()
            os.fsync(new.fileno())
            Path(new.name).replace(path)
        except OSError:
            Path(new.name).unlink(missing_ok=True)
            raise
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class LayerFiles:
    """The layers in a data directory's `agents/`, read again when their files change."""

    directory: Path
    problems: dict[str, str] = field(default_factory=dict)
    """By file: what is wrong with it, and what is in force instead."""
    _known: dict[Path, tuple[tuple[Any, ...], str | None]] = field(default_factory=dict)
    _packets: dict[tuple[Layer, ...], Packet] = field(default_factory=dict)

    def packet(self, agent: str, instructions: Layer | None = None, person: str | None = None) -> Packet:
        """Who an agent is, in a conversation that is private with a person or in any other."""
        layers = tuple(self.layers(agent, instructions, person))
        found = self._packets.get(layers)  # threads share this: what was there a moment ago may be gone
        if found is None:
            if len(self._packets) >= MAX_PACKETS:
                self._packets.clear()
            found = self._packets[layers] = merge(layers)
        return found

    def layers(
        self, agent: str, instructions: Layer | None = None, person: str | None = None
    ) -> Iterator[Layer]:
        """Those that are in force, in the order of precedence. What is known of one person comes before what is known
        of all."""
        for name in LAYERS:
            if name == "AGENT" and instructions is not None:
                yield instructions
                continue
            known = name == "USER" and person is not None and PERSON.fullmatch(person)
            if known and (own := self._first(agent, name, f"{PEOPLE}/{person}.md")):
                yield own
            if found := self._first(agent, name, f"{name}.md"):
                yield found

    def missing(self, agent: str) -> list[str]:
        """The layers that an agent with a folder of its own has nowhere."""
        if not (self.directory / agent).is_dir():
            return []
        there = {layer.name for layer in self.layers(agent)}
        return [name for name in LAYERS if name not in there]

    def misnamed(self, agent: str) -> dict[str, str]:
        """Files in an agent's folder that are meant as layers and are none, and why."""
        folder = self.directory / agent
        return {
            f"{agent}/{path.name}": f"{agent}/{path.name} is not read: it must be called {path.stem.upper()}.md"
            for path in sorted(folder.glob("[!.]*.md"))
            if path.stem not in LAYERS and path.stem.upper() in LAYERS
        }

    def people(self, agent: str) -> list[str]:
        """The Principals who have a USER file that this agent is told of."""
        found = {
            path.stem
            for folder in (self.directory / agent, self.directory)
            for path in (folder / PEOPLE).glob("*.md")
            if PERSON.fullmatch(path.stem)
        }
        return sorted(found)

    def _first(self, agent: str, name: str, file: str) -> Layer | None:
        """The agent's own file, or else everybody's."""
        for folder in (self.directory / agent, self.directory):
            path = folder / file
            if (text := self._text(path, folder)) is not None:
                return Layer(name, str(path.relative_to(self.directory)), text)
        return None

    def _text(self, path: Path, folder: Path) -> str | None:
        """A file's text as it was last usable; None when it has nothing to say."""
        if folder != self.directory and folder.is_symlink():
            folder = self.directory
        file, seen = str(path.relative_to(self.directory)), stamp(path)
        known = self._known.get(path)
        if known is not None and known[0] == seen:
            return known[1]
        text: str | None = None
        if os.path.lexists(path):
            try:
                text = without_comments(read_text(path, folder)).strip() or None
            except LayerError as error:
                text = self._last_good(path) or (known[1] if known is not None else None)
                force = (
                    "the last good version is in force" if text is not None else "nothing of it is in force"
                )
                self.problems[file] = f"{file} {error} ({force})"
                self._known[path] = seen, text
                return text
        self.problems.pop(file, None)
        self._known[path] = seen, text
        self._keep(path, text)
        return text

    def _keep(self, path: Path, text: str | None) -> None:
        """Keep a version that can be used, for when the next cannot; of a file that is gone, nothing."""
        copy = good_layer(path)
        try:
            if text is None:
                copy.unlink(missing_ok=True)
            elif self._last_good(path) != text:
                write_atomically(copy, text)
        except OSError as error:
            log.warning("agent.not_kept", file=str(path), error=str(error))

    def _last_good(self, path: Path) -> str | None:
        try:
            return read_text(good_layer(path), path.parent)
        except LayerError:
            return None


def good_layer(path: Path) -> Path:
    """Where the last usable version of a layer is kept."""
    return path.with_name(f".{path.stem}.good.md")
