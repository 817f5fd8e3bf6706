"""Agents as data: a folder `agents/<name>/` with `agent.toml` and identity layers, or `agents/<name>.toml` with
`agents/<name>.md` for instructions, in the data directory.

Files are looked at when a run starts, so a change needs no restart. A change that does not make sense leaves the
last good version in force, and says where it is wrong. That version is kept beside the file, as `.<name>.good.json`,
so that it outlives the process that has read it.
"""

from __future__ import annotations

import contextlib
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import structlog
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from gofer.agent.context.compressor import ContextSettings
from gofer.agent.limits import LimitSettings
from gofer.agent.models.providers import BUILT_IN, provider_names
from gofer.agent.models.providers import FILE as PROVIDERS_FILE
from gofer.agent.tools.builtin import DELEGATE, builtin_tools
from gofer.agent.tools.registry import plugin_tools
from gofer.connections.registry import IntegrationRegistry
from gofer.errors import ConfigError, NotFound
from gofer.mcp.settings import McpServerSettings, ServerName
from gofer.runs.external_settings import KINDS, ExternalSettings, RuntimeKind
from gofer.runs.heartbeat_settings import HEARTBEAT_FILE, HeartbeatList, HeartbeatSettings, read_items
from gofer.runs.layers import (
    LAYERS,
    MAX_BYTES,
    PEOPLE,
    Layer,
    LayerError,
    LayerFiles,
    Packet,
    read_text,
    stamp,
    write_atomically,
)
from gofer.settings import Settings
from gofer.store.bootstrap import FIRST_AGENT
from gofer.validation import first_error

log = structlog.get_logger()

PROPOSE = "propose_identity"
"""The tool with which an agent proposes to change who it is."""
SUGGEST_GOAL, TELL_GOAL = "suggest_goal", "tell_goal"
"""The tools by which a run makes something a goal, with consent, and passes words on to one."""
GET_SOURCE, PROPOSE_RELEASE = "gofer_source", "propose_release"
"""The tools with which an agent changes Gofer itself."""
SETTINGS = "agent.toml"
AGENT_LAYER = "AGENT.md"
MAX_SETTINGS = 256 * 1024
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
MODEL = re.compile(r"[a-z0-9_-]+/\S+")
DEFAULT_MODEL = "auto"


class RouteSettings(BaseModel):
    """Which events wake the agent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    connection: str = "*"
    event: str = "*"
    trigger: str = "any"
    priority: int = 0
    also: bool = False
    """Answer beside the agent that answers anyway; without it, one agent answers a message."""


class FetchSettings(BaseModel):
    """Where `fetch` may go once the run has read strangers' text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hosts: tuple[str, ...] = ()


def _model_or(default: str) -> Callable[[str], str]:
    def check(model: str) -> str:
        if model != default and not MODEL.fullmatch(model):
            raise ValueError("should be provider/model, such as anthropic/claude-sonnet-5-5")
        return model

    return check


Effort = Literal["off", "low", "medium", "high", "max"]


def _effort(value: object) -> object:
    """Once it was only on or off; on is what providers call high."""
    return {True: "high", False: "off"}.get(value, value) if isinstance(value, bool) else value


class AgentSpec(BaseModel):
    """One agent. Every field can be set in its file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=rf"^{NAME.pattern}$")
    model: Annotated[str, AfterValidator(_model_or(DEFAULT_MODEL))] = DEFAULT_MODEL
    """provider/model; auto takes the best that a key is there for, else the offline model."""
    fallback: Annotated[str, AfterValidator(_model_or(""))] = ""
    """A second model, for when the first cannot be had."""
    worker_model: Annotated[str, AfterValidator(_model_or(""))] = ""
    """The model of its worker runs that only read; its own if not given."""
    thinking: Annotated[Effort, BeforeValidator(_effort)] = "off"
    """How hard the model thinks before it answers, where it can: off, low, medium, high or max."""
    instructions: str = ""
    tools: tuple[str, ...] = ("*",)
    max_running: int | None = Field(default=None, ge=1)
    """Jobs of it that run at once, over all workers."""
    limits: LimitSettings = LimitSettings()
    context: ContextSettings = ContextSettings()
    fetch: FetchSettings = FetchSettings()
    mcp: dict[ServerName, McpServerSettings] = Field(default_factory=dict)
    """MCP servers whose tools it may use, by name."""
    self_update: bool = False
    """Whether it may propose changes of Gofer itself, when an owner asks for one."""
    default: bool | None = None
    """Whether it answers what no agent's route fits. Without a word in any file, the built-in agent does."""
    routes: tuple[RouteSettings, ...] = ()
    """What wakes it. Without one it answers where it is named or chosen, and as the default agent."""
    heartbeat: HeartbeatSettings = HeartbeatSettings()
    """Whether it looks after its conversations by itself, how often, and what that may cost."""
    runtime: RuntimeKind | None = None
    """How somebody else's agent is reached: tmux, acp or callback. Without it, Gofer runs the agent itself."""
    external: ExternalSettings = ExternalSettings()
    """How an external agent is woken, and who stands in for it."""

    @model_validator(mode="after")
    def _check_external(self) -> Self:
        if self.runtime is None and self.external != ExternalSettings():
            raise ValueError(f"external is for an agent with runtime = {' or '.join(map(repr, KINDS))}")
        if self.runtime is not None and self.heartbeat.enabled:
            raise ValueError(
                "heartbeat is for agents that Gofer runs itself, and runtime says that it does not"
            )
        if self.external.fallback == self.name:
            raise ValueError("external.fallback: an agent cannot stand in for itself")
        return self

    @property
    def effort(self) -> str:
        """The level of thinking, empty for none."""
        return "" if self.thinking == "off" else self.thinking


BUILT_IN_AGENT = AgentSpec(name=FIRST_AGENT)
"""The agent of a fresh install."""


class AgentFileError(ConfigError):
    """An agent's file makes no sense; the text says where and why."""

    def __init__(self, path: Path, line: int, message: str) -> None:
        super().__init__(f"{path}:{line}: {message}")
        self.path = path
        self.line = line
        self.message = message


@dataclass(frozen=True, slots=True)
class AgentPaths:
    """Where an agent's settings and instructions are, or would be."""

    name: str
    settings: Path
    notes: Path
    folder: Path | None = None
    """The agent's own; None for one in flat files."""

    @classmethod
    def flat(cls, directory: Path, name: str) -> AgentPaths:
        return cls(name, directory / f"{name}.toml", directory / f"{name}.md")

    @classmethod
    def inside(cls, folder: Path) -> AgentPaths:
        return cls(folder.name, folder / SETTINGS, folder / AGENT_LAYER, folder)


SETTABLE = tuple(name for name in AgentSpec.model_fields if name != "name")
"""What an agent's file may set."""


def load_agent(paths: AgentPaths, providers: Sequence[str] = BUILT_IN) -> AgentSpec:
    """Read one agent, whose model is of one of these providers; raises AgentFileError."""
    path = paths.settings
    text = _text(path, paths)
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        found = re.search(r"line (\d+)", str(error))
        raise AgentFileError(
            path, int(found.group(1)) if found else text.count("\n") + 1, str(error)
        ) from error
    if os.path.lexists(paths.notes):
        if "instructions" in data:
            line = _line_of(text, ("instructions",))
            raise AgentFileError(path, line, f"instructions are also in {paths.notes.name}; keep one of them")
        if paths.folder is None:  # in a folder they are read with the other layers
            data["instructions"] = _text(paths.notes, paths)
    try:
        spec = AgentSpec.model_validate({"name": paths.name, **data})
    except ValidationError as error:
        first = first_error(error)
        unknown = first.place and first.place[0] not in AgentSpec.model_fields
        known = f". An agent has: {', '.join(SETTABLE)}" if unknown else ""
        raise AgentFileError(path, _line_of(text, first.place), f"{first}{known}") from error
    _check_names(paths, text, spec, providers)
    return spec


def is_agent_folder(path: Path) -> bool:
    """Whether a folder is an agent's."""
    if path.name == PEOPLE or not NAME.fullmatch(path.name) or not path.is_dir():
        return False
    return any(os.path.lexists(path / name) for name in (SETTINGS, *(f"{layer}.md" for layer in LAYERS)))


def providers_of(directory: Path) -> Sequence[str]:
    """Providers that agents in this directory may name. Errors in the file of providers are reported elsewhere."""
    try:
        return provider_names(directory.parent / PROVIDERS_FILE)
    except ConfigError:
        return ()


def _check_names(paths: AgentPaths, text: str, spec: AgentSpec, providers: Sequence[str]) -> None:
    """What a file names must be there. Checked here alone: a kept version stays good when a plugin goes."""
    path = paths.settings
    if spec.name != paths.name:
        # It would be looked for in a file of that name, and without one have every tool there is.
        called = (
            f"file, which is {path.name}; rename the file" if paths.folder is None else "folder; rename that"
        )
        message = f"name: an agent is called like its {called} instead"
        raise AgentFileError(path, _line_of(text, ("name",)), message)
    for key in ("model", "fallback"):
        provider = getattr(spec, key).partition("/")[0]
        if providers and provider not in ("", DEFAULT_MODEL, *providers):
            there = ", ".join(providers)
            message = f"{key}: there is no provider {provider!r} (there are: {there})"
            raise AgentFileError(path, _line_of(text, (key,)), message)
    for tool in spec.tools:
        if tool != "*" and tool not in known_tools():
            line = _line_of_word(text, _line_of(text, ("tools",)), tool)
            raise AgentFileError(
                path,
                line,
                f"tools: there is no tool {tool[:64]!r} (there are: {', '.join(sorted(known_tools()))})",
            )


def _line_of_word(text: str, start: int, word: str) -> int:
    """The line, from a key's own on, on which a quoted word stands."""
    lines = text.splitlines()
    quoted = (f'"{word}"', f"'{word}'")
    return next(
        (number for number in range(start, len(lines) + 1) if any(q in lines[number - 1] for q in quoted)),
        start,
    )


def _text(path: Path, paths: AgentPaths) -> str:
    """A file's text; whatever keeps it from being read is a problem of this one agent."""
    is_settings = path == paths.settings
    try:
        return read_text(path, paths.folder, MAX_SETTINGS if is_settings else MAX_BYTES)
    except LayerError as error:
        which = "" if is_settings else f"{path.name} "
        raise AgentFileError(paths.settings, 1, f"{which}{error}") from error


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
class AgentFiles:
    """The agents of a data directory, read again when their files change."""

    directory: Path
    layered: bool = True
    """Whether folders and layers are read; without them an agent is its settings and instructions."""
    problems: dict[str, AgentFileError] = field(default_factory=dict)
    """Of files whose last change makes no sense; the version before it is in force."""
    layers: LayerFiles = field(init=False)
    _known: dict[str, tuple[tuple[Any, ...], AgentSpec]] = field(default_factory=dict)
    _lists: dict[str, tuple[tuple[Any, ...], HeartbeatList]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.layers = LayerFiles(self.directory)

    @classmethod
    def of(cls, settings: Settings) -> AgentFiles:
        """The agents of an instance."""
        return cls(settings.data_dir / "agents", settings.agent_runtime_v1)

    def names(self) -> list[str]:
        flat = {path.stem for path in self.directory.glob("*.toml") if NAME.fullmatch(path.stem)}
        return sorted(flat | {path.name for path in self._folders() if is_agent_folder(path)})

    def _folders(self) -> list[Path]:
        found = self.directory.glob("[!.]*") if self.layered else ()
        return [path for path in found if path.is_dir() and path.suffix != ".toml"]

    def packet(self, spec: AgentSpec, person: str | None = None) -> Packet:
        """Who an agent is, in a conversation that is private with a person or in any other."""
        paths = self.paths(spec.name)
        file = paths.notes if paths.folder is None and os.path.lexists(paths.notes) else paths.settings
        own = Layer("AGENT", str(file.relative_to(self.directory)), spec.instructions)
        if not self.layered:
            return Packet(spec.instructions.strip(), (own,) if spec.instructions else ())
        return self.layers.packet(spec.name, own if spec.instructions.strip() else None, person)

    def paths(self, name: str) -> AgentPaths:
        """Where an agent's files are; those of an agent that is not there yet are flat."""
        folder = self.directory / name
        in_folder = self.layered and is_agent_folder(folder)
        return AgentPaths.inside(folder) if in_folder else AgentPaths.flat(self.directory, name)

    def heartbeat_list(self, spec: AgentSpec) -> HeartbeatList:
        """What HEARTBEAT.md in an agent's folder asks it to look at, read again when it changes."""
        folder = self.paths(spec.name).folder
        yesterday = (datetime.now(UTC) - timedelta(days=1)).date()  # today somewhere may be yesterday here
        seen = (None if folder is None else stamp(folder / HEARTBEAT_FILE), spec.heartbeat, yesterday)
        known = self._lists.get(spec.name)
        if known is None or known[0] != seen:
            known = self._lists[spec.name] = seen, read_items(folder, spec.heartbeat, yesterday)
        return known[1]

    def strays(self) -> dict[str, str]:
        """Files that no agent is made of, by name, and why not."""
        named = self.names()
        found = {
            path.name: "not read: an agent's name has a-z, 0-9 and -, 40 characters at most"
            for path in self.directory.glob("[!.]*.toml")
            if path.stem not in named
        }
        for path in self.directory.glob("[!.]*.md"):
            if self.layered and path.stem in LAYERS:
                continue
            if path.stem not in named:
                found[path.name] = f"not read: there is no {path.stem}.toml beside it (an empty one will do)"
        for path in self._folders():
            if path.name not in (*named, PEOPLE):
                found[f"{path.name}/"] = (
                    f"not read: it needs {SETTINGS} or {AGENT_LAYER}, and an agent's name"
                )
        return dict(sorted(found.items()))

    def get(self, name: str) -> AgentSpec:
        """The agent as its file says, or last said when it made sense; raises NotFound, or AgentFileError for one
        that never did. The first agent always did: it is built in."""
        if not NAME.fullmatch(name):
            raise NotFound(f"There is no agent called {name[:40]!r} in {self.directory}.")
        paths, flat = self.paths(name), AgentPaths.flat(self.directory, name)
        path = paths.settings
        if paths.folder is None and not os.path.lexists(path):
            raise NotFound(f"There is no agent called {name[:40]!r} in {self.directory}.")
        files = (path, flat.settings, paths.notes, self.directory.parent / PROVIDERS_FILE)
        seen = tuple(stamp(each) for each in files)
        known = self._known.get(name)
        if known is not None and known[0] == seen:
            return known[1]
        try:
            if paths.folder is not None and os.path.lexists(flat.settings):
                message = f"there is also {flat.settings.name}; keep the folder or the file"
                raise AgentFileError(path, 1, message)
            spec = AgentSpec(name=name)
            if os.path.lexists(path):
                spec = load_agent(paths, providers_of(self.directory))
        except AgentFileError as error:
            self.problems[name] = error
            before = good_one(path) or (known[1] if known is not None else None)
            if before is None and name != FIRST_AGENT:
                raise
            return before or AgentSpec(name=name)
        self.problems.pop(name, None)
        self._known[name] = seen, spec
        keep_good(path, spec)
        return spec

    def look(self) -> dict[str, tuple[AgentSpec | None, str]]:
        """Every file: the agent that is in force for it, if any, and what is wrong with it, if anything."""
        found: dict[str, tuple[AgentSpec | None, str]] = {}
        for name in self.names():
            spec = None
            with contextlib.suppress(AgentFileError, NotFound):
                spec = self.get(name)
            problem = self.problems.get(name)
            found[name] = spec, _problem_line(problem, spec) if problem is not None else ""
        found |= {name: (None, problem) for name, problem in self.strays().items()}
        return found | self._layer_problems(found)

    def _layer_problems(
        self, found: Mapping[str, tuple[AgentSpec | None, str]]
    ) -> dict[str, tuple[AgentSpec | None, str]]:
        """What is wrong with the files of layers: said with the agent they are of, or by themselves."""
        if not self.layered:
            return {}
        for spec in in_force(found):
            self.packet(spec)
            for person in self.layers.people(spec.name):
                self.packet(spec, person)
        said: dict[str, tuple[AgentSpec | None, str]] = {}
        lists = [
            {f"{spec.name}/{HEARTBEAT_FILE} {number}": problem}
            for spec in in_force(found)
            for number, problem in enumerate(self.heartbeat_list(spec).problems, 1000)
        ]
        misnamed = [self.layers.misnamed(path.name) for path in self._folders() if path.name in found]
        problems = {
            file: why for each in (self.layers.problems, *misnamed, *lists) for file, why in each.items()
        }
        for file, problem in sorted(problems.items()):
            name = file.partition("/")[0]
            name = name if name in found else file
            of, before = said.get(name) or found.get(name, (None, ""))
            said[name] = of, "; ".join(part for part in (before, problem) if part)
        return said


def in_force(looked: Mapping[str, tuple[AgentSpec | None, str]]) -> list[AgentSpec]:
    """The agents that can answer: those of the files, and the built-in one, which needs none."""
    found = {spec.name: spec for spec, _ in looked.values() if spec is not None}
    return [*found.values(), *([] if FIRST_AGENT in found else [BUILT_IN_AGENT])]


def default_agent(specs: Sequence[AgentSpec]) -> str | None:
    """The agent that answers what no route fits: the one whose file says so, else the built-in one unless its file
    says no."""
    named = sorted(spec.name for spec in specs if spec.default)
    if named:
        return named[0]
    return next((spec.name for spec in specs if spec.name == FIRST_AGENT and spec.default is not False), None)


def choosable(agents: AgentFiles) -> list[str]:
    """Those a person may have answer, by name, the default agent first."""
    specs = in_force(agents.look())
    default = default_agent(specs)
    return sorted((spec.name for spec in specs), key=lambda name: (name != default, name))


def _problem_line(problem: AgentFileError, spec: AgentSpec | None) -> str:
    force = "the last good version is in force" if spec is not None else "it hears nothing"
    return f"line {problem.line}: {problem.message} ({force})"


def good_copy(path: Path) -> Path:
    """Where the last version of settings that makes sense is kept."""
    return path.with_name(f".{path.stem}.good.json")


def keep_good(path: Path, spec: AgentSpec) -> None:
    """Keep a version that makes sense, for when the next does not."""
    if good_one(path) == spec:
        return
    try:
        if path.parent.is_dir():
            write_atomically(good_copy(path), spec.model_dump_json())
    except OSError as error:
        log.warning("agent.not_kept", agent=spec.name, error=str(error))


def good_one(path: Path) -> AgentSpec | None:
    """The last version of settings that made sense; None when there was none."""
    try:
        return AgentSpec.model_validate_json(good_copy(path).read_bytes())
    except (OSError, ValidationError):
        return None


@cache
def known_tools() -> frozenset[str]:
    """Built in, from plugins, and from integrations. Looked for once: what is installed stays while we run."""
    brought = (tool.name for tool in [*builtin_tools(), *plugin_tools()])
    installed = IntegrationRegistry.installed().integrations.values()
    return frozenset(
        (*brought, DELEGATE, PROPOSE, SUGGEST_GOAL, TELL_GOAL, GET_SOURCE, PROPOSE_RELEASE)
    ).union(*(each.tool_names for each in installed))
