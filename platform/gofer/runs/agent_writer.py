"""Writes agents: their settings, instructions and layers, in flat files or in a folder of their own."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gofer.errors import ConfigError, Conflict, Malformed, NotFound
from gofer.runs.agent_files import (
    AGENT_LAYER,
    NAME,
    SETTINGS,
    AgentFileError,
    AgentPaths,
    AgentSpec,
    good_copy,
    good_one,
    is_agent_folder,
    keep_good,
    load_agent,
    providers_of,
)
from gofer.runs.heartbeat_settings import HEARTBEAT_FILE, with_switch
from gofer.runs.layers import LAYERS, MAX_BYTES, PEOPLE, good_layer, write_atomically

EXAMPLE = """# Every field is explained in docs/agents.md. What is left out has its default.
model = "auto"
tools = ["*"]

[limits]
job_dollars = 1.0
day_dollars = 10.0

# Without a route it answers where it is chosen: /agent NAME, or the page of a connection.
# [[routes]]
# connection = "telegram"
# trigger = "mention"
"""
TEMPLATES = {
    "SOUL": """<!-- Values and hard limits. Only somebody who can write this file changes them. A section here wins over
a section of the same name in every other file. Until something stands outside of this comment, SOUL.md in the folder
above counts. -->
""",
    "AGENT": """<!-- The job: what to do, how to work, which tools to prefer. An owner can change it on the dashboard.

# Work

Look at the tests before you change code, and run them after.
-->
""",
    "IDENTITY": """<!-- Name, voice and self-description. The agent may propose changes; an owner approves them.

# Voice

Short sentences, no flattery.
-->
""",
    "USER": """<!-- What the agent knows about the people it works for, in every conversation, groups too. What concerns
one person goes into users/ID.md with the person's id: the agent knows it only where that person talks to it in private.
The agent may propose changes; an owner approves them. -->
""",
}


@dataclass(frozen=True, slots=True)
class AgentTexts:
    """An agent's own files as they can be shown, whatever is in them."""

    toml: str
    instructions: str
    layers: Mapping[str, str] = field(default_factory=dict)
    """By name, AGENT left out: that is the instructions."""
    folder: bool = False


def texts(paths: AgentPaths) -> AgentTexts:
    """An agent's own files; empty where there is nothing to show."""
    if paths.folder is None:
        return AgentTexts(_shown(paths.settings), _shown(paths.notes))
    folder = paths.folder
    layers = {name: _shown(folder / f"{name}.md", folder) for name in LAYERS if f"{name}.md" != AGENT_LAYER}
    return AgentTexts(_shown(paths.settings, folder), _shown(paths.notes, folder), layers, folder=True)


def _shown(path: Path, within: Path | None = None) -> str:
    """What can be shown of a file, also of one that is broken. What a link out of the folder leads to is not."""
    real = Path(os.path.realpath(path))
    if within is not None and not real.is_relative_to(os.path.realpath(within)):
        return ""
    try:
        if not real.is_file():
            return ""
        with real.open("rb") as file:
            return file.read(4 * MAX_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ""


def as_toml(spec: AgentSpec) -> str:
    """A file that says what the agent is, every setting named but for what is empty."""
    data = spec.model_dump(mode="json", exclude={"name"}, exclude_none=True)
    plain = {key: value for key, value in data.items() if not isinstance(value, dict) and key != "routes"}
    lines = [_setting(key, value) for key, value in plain.items() if value != ""]
    tables = [(f"[{key}]", value) for key, value in data.items() if isinstance(value, dict)]
    tables += [("[[routes]]", route) for route in data["routes"]]
    for header, table in tables:
        lines += ["", header, *(_setting(key, value) for key, value in table.items() if value is not None)]
    return "\n".join(lines) + "\n"


def _setting(key: str, value: Any) -> str:
    return f"{key} = {json.dumps(value)}"  # TOML writes these values as JSON does


def check_layer(name: str, text: str) -> None:
    """Raises Malformed for a text that no layer can have."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise Malformed(f"{name}: a layer has at most {MAX_BYTES // 1024} KiB.")
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise Malformed(f"{name}: it has characters that no text file can have.")


def put_agent(
    directory: Path,
    name: str,
    toml: str,
    instructions: str | None = None,
    layers: Mapping[str, str] | None = None,
) -> AgentSpec:
    """Write an agent's files; raises AgentFileError before anything is changed.

    With layers, or when it has a folder already, they go into its folder, and flat files that it had are removed. A
    layer that is not given stays as it is; an empty one is removed.
    """
    if not NAME.fullmatch(name) or name == PEOPLE:
        raise ConfigError(
            f"{name[:40]!r} is no name for an agent: use a-z, 0-9 and -, 40 characters at most."
        )
    for layer, text in {**(layers or {}), "AGENT": instructions or ""}.items():
        check_layer(layer, text)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (directory / f"{name}.toml").is_dir():
        raise Conflict(f"{name}.toml is a directory. Remove it first.")
    if layers is None and not is_agent_folder(directory / name):
        return _put_flat(directory, name, toml, instructions)
    return _put_folder(directory, name, toml, instructions, layers or {})


def _put_flat(directory: Path, name: str, toml: str, instructions: str | None) -> AgentSpec:
    with tempfile.TemporaryDirectory(dir=directory, prefix=".new-") as new:
        trial, paths = AgentPaths.flat(Path(new), name), AgentPaths.flat(directory, name)
        trial.settings.write_text(toml, "utf-8")
        if instructions is not None:
            trial.notes.write_text(instructions, "utf-8")
        spec = load_agent(trial, providers_of(directory))
        if instructions is not None:
            trial.notes.replace(paths.notes)
        trial.settings.replace(paths.settings)
    keep_good(paths.settings, spec)
    return spec


def _put_folder(
    directory: Path, name: str, toml: str, instructions: str | None, layers: Mapping[str, str]
) -> AgentSpec:
    folder, flat = directory / name, AgentPaths.flat(directory, name)
    if instructions is None:
        instructions = _shown(folder / AGENT_LAYER, folder) or _shown(flat.notes)
    files = {f"{layer}.md": text for layer, text in layers.items()} | {AGENT_LAYER: instructions}
    with tempfile.TemporaryDirectory(dir=directory, prefix=".new-") as new:
        trial = Path(new) / name
        trial.mkdir(mode=0o700)
        for file, text in {**files, SETTINGS: toml}.items():
            if text or file == SETTINGS:
                (trial / file).write_text(text, "utf-8")
        spec = load_agent(AgentPaths.inside(trial), providers_of(directory))
        if not os.path.lexists(folder):
            trial.rename(folder)
            files = {}
    for file, text in {**files, SETTINGS: toml}.items():
        if text or file == SETTINGS:
            write_atomically(folder / file, text)
        else:
            (folder / file).unlink(missing_ok=True)
    for path in (flat.settings, flat.notes, good_copy(flat.settings)):
        path.unlink(missing_ok=True)
    keep_good(folder / SETTINGS, spec)
    return spec


def switch_heartbeat(directory: Path, name: str, *, enabled: bool, layered: bool = True) -> AgentSpec:
    """Switch an agent's heartbeat on or off in its settings; raises Conflict when they say it in another way.

    An agent without a file gets a folder, so that it can have a HEARTBEAT.md.
    """
    folder, flat = directory / name, AgentPaths.flat(directory, name)
    in_folder = layered and NAME.fullmatch(name) and is_agent_folder(folder)
    paths = AgentPaths.inside(folder) if in_folder else flat
    path = paths.settings
    there = os.path.lexists(path)
    shown = _shown(path, folder if in_folder else None)
    toml = with_switch(shown, enabled=enabled)
    try:
        spec = put_agent(directory, name, toml, layers=None if there or in_folder or not layered else {})
    except AgentFileError as error:
        good = good_one(path) if there and _is_broken(paths, directory) else None
        if enabled or good is None:
            raise Conflict(f"{path.name} line {error.line}: {error.message}. Fix it first.") from error
        # The last good settings are in force. Whoever wants silence gets it, also from a file that is broken.
        if toml.count("heartbeat") == shown.count("heartbeat"):
            write_atomically(path, toml)
        off = good.heartbeat.model_copy(update={"enabled": False})
        spec = good.model_copy(update={"heartbeat": off})
        keep_good(path, spec)
    return spec


def _is_broken(paths: AgentPaths, directory: Path) -> bool:
    try:
        load_agent(paths, providers_of(directory))
    except AgentFileError:
        return True
    return False


def new_agent(directory: Path, name: str) -> AgentSpec:
    """Make an agent's folder with files that explain themselves; raises Conflict when it is there already."""
    if os.path.lexists(directory / name) or os.path.lexists(directory / f"{name}.toml"):
        raise Conflict(f"There is an agent or a file called {name[:40]!r} already.")
    layers = {layer: text for layer, text in TEMPLATES.items() if layer != "AGENT"}
    return put_agent(directory, name, EXAMPLE, TEMPLATES["AGENT"], layers)


def remove_agent(directory: Path, name: str) -> None:
    """Remove an agent's files; raises NotFound. Its conversations keep their history."""
    folder = directory / name
    if NAME.fullmatch(name) and is_agent_folder(folder):
        _remove_folder(folder)
        return
    paths = AgentPaths.flat(directory, name)
    if not NAME.fullmatch(name) or not paths.settings.is_file():
        raise NotFound(f"There is no file for an agent called {name[:40]!r}.")
    for path in (paths.settings, paths.notes, good_copy(paths.settings)):
        path.unlink(missing_ok=True)


def _remove_folder(folder: Path) -> None:
    """Remove what is ours; what else somebody keeps there stays."""
    if folder.is_symlink():
        folder.unlink()
        return
    people = [path for path in (folder / PEOPLE).glob("*.md") if not path.name.startswith(".")]
    layers = [folder / f"{layer}.md" for layer in LAYERS] + people
    settings = (folder / SETTINGS, good_copy(folder / SETTINGS), folder / HEARTBEAT_FILE)
    for path in (*layers, *map(good_layer, layers), *settings):
        if not path.is_dir():
            path.unlink(missing_ok=True)
    for left in (folder / PEOPLE, folder):
        with contextlib.suppress(OSError):
            left.rmdir()
