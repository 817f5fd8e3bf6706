"""Agents as data: `agents/<name>.toml`, with `agents/<name>.md` for instructions, in the data directory.

Files are looked at when a run starts, so a change needs no restart. A change that does not make sense leaves the
last good version in force, and says where it is wrong.
"""

from __future__ import annotations

import re
import tempfile
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gofer.agent.context.compressor import ContextSettings
from gofer.agent.limits import LimitSettings
from gofer.errors import ConfigError, NotFound

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
DEFAULT_MODEL = "auto"


class RouteSettings(BaseModel):
    """Which events wake the agent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    connection: str = "*"
    event: str = "*"
    trigger: str = "any"
    priority: int = 0


class FetchSettings(BaseModel):
    """Where `fetch` may go once the run has read strangers' text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hosts: tuple[str, ...] = ()


class AgentSpec(BaseModel):
    """One agent. Every field can be set in its file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=rf"^{NAME.pattern}$")
    model: str = Field(default=DEFAULT_MODEL, pattern=r"^(auto|[a-z0-9_-]+/\S+)$")
    """provider/model; auto takes the best that a key is there for, else the offline model."""
    fallback: str = Field(default="", pattern=r"^(|[a-z0-9_-]+/\S+)$")
    """A second model, for when the first cannot be had."""
    thinking: bool = False
    instructions: str = ""
    tools: tuple[str, ...] = ("*",)
    max_running: int | None = Field(default=None, ge=1)
    """Jobs of it that run at once, over all workers."""
    limits: LimitSettings = LimitSettings()
    context: ContextSettings = ContextSettings()
    fetch: FetchSettings = FetchSettings()
    routes: tuple[RouteSettings, ...] = (RouteSettings(),)


class AgentFileError(ConfigError):
    """An agent's file makes no sense; the text says where and why."""

    def __init__(self, path: Path, line: int, message: str) -> None:
        super().__init__(f"{path}:{line}: {message}")
        self.path = path
        self.line = line
        self.message = message


def load_agent(path: Path) -> AgentSpec:
    """Read one agent; raises AgentFileError."""
    text = path.read_text("utf-8")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"line (\d+)", str(error))
        raise AgentFileError(
            path, int(found.group(1)) if found else text.count("\n") + 1, str(error)
        ) from error
    notes = path.with_suffix(".md")
    if notes.is_file():
        if "instructions" in data:
            line = _line_of(text, ("instructions",))
            raise AgentFileError(path, line, f"instructions are also in {notes.name}; keep one of them")
        data["instructions"] = notes.read_text("utf-8")
    try:
        return AgentSpec.model_validate({"name": path.stem, **data})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = tuple(str(part) for part in first["loc"])
        raise AgentFileError(path, _line_of(text, place), f"{'.'.join(place)}: {first['msg']}") from error


def _line_of(text: str, place: tuple[str, ...]) -> int:
    """The line on which the deepest known part of a key stands."""
    lines = text.splitlines()
    start = best = 0
    tables = [part for part in place if not part.isdigit()]
    for depth in range(len(tables), 0, -1):
        header = re.compile(rf"\s*\[\[?\s*{re.escape('.'.join(tables[:depth]))}\s*\]\]?")
        found = [index for index, line in enumerate(lines) if header.match(line)]
        if found:
            number = next((int(part) for part in place if part.isdigit()), 0)
            start = best = found[min(number, len(found) - 1)]
            tables = tables[depth:]
            break
    if tables:
        key = re.compile(rf"\s*(?:{re.escape(tables[0])})\s*[=.]")
        best = next((index for index in range(start, len(lines)) if key.match(lines[index])), best)
    return best + 1


@dataclass(slots=True)
class Agents:
    """The agents of a data directory, read again when their files change."""

    directory: Path
    problems: dict[str, AgentFileError] = field(default_factory=dict)
    """Of files whose last change makes no sense; the version before it is in force."""
    _known: dict[str, tuple[tuple[Any, ...], AgentSpec]] = field(default_factory=dict)

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.directory.glob("*.toml") if NAME.fullmatch(path.stem))

    def get(self, name: str) -> AgentSpec:
        """The agent as its file says now; raises NotFound, or AgentFileError when it never made sense."""
        path = self.directory / f"{name}.toml"
        if not NAME.fullmatch(name) or not path.is_file():
            raise NotFound(f"There is no agent called {name[:40]!r} in {self.directory}.")
        stamp = (*_stamp(path), *_stamp(path.with_suffix(".md")))
        known = self._known.get(name)
        if known is not None and known[0] == stamp:
            return known[1]
        try:
            spec = load_agent(path)
        except AgentFileError as error:
            self.problems[name] = error
            if known is None:
                raise
            return known[1]
        self.problems.pop(name, None)
        self._known[name] = stamp, spec
        return spec


def _stamp(path: Path) -> tuple[Any, ...]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return (None,)
    return found.st_mtime_ns, found.st_size, found.st_ino


def put_agent(directory: Path, name: str, toml: str, instructions: str | None = None) -> AgentSpec:
    """Write an agent's files, whole or not at all; raises AgentFileError before anything is changed."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name[:40]!r} is no name for an agent: use a-z, 0-9 and -, 40 characters at most."
        )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".new-") as new:
        trial = Path(new) / f"{name}.toml"
        trial.write_text(toml, "utf-8")
        if instructions is not None:
            trial.with_suffix(".md").write_text(instructions, "utf-8")
        spec = load_agent(trial)
        if instructions is not None:
            trial.with_suffix(".md").replace(directory / f"{name}.md")
        trial.replace(directory / f"{name}.toml")
    return spec


def remove_agent(directory: Path, name: str) -> None:
    """Remove an agent's files; raises NotFound. Its conversations keep their history."""
    path = directory / f"{name}.toml"
    if not NAME.fullmatch(name) or not path.is_file():
        raise NotFound(f"There is no file for an agent called {name[:40]!r}.")
    path.unlink()
    path.with_suffix(".md").unlink(missing_ok=True)
