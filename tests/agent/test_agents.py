"""Agents are files: read without a restart, and wrong ones are pointed at by line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gofer.agent.models.providers import BUILT_IN
from gofer.errors import NotFound
from gofer.runs.agent_files import AgentFileError, AgentFiles, AgentSpec, known_tools
from gofer.runs.agent_writer import as_toml, remove_agent
from gofer.runs.model_keys import ModelKeys
from gofer.settings import Settings

FILE = """\
model = "anthropic/claude-opus-5-5"
tools = ["read", "grep"]

[limits]
steps = 40
job_dollars = 2.5

[[routes]]
event = "issue.*"

[[routes]]
event = "message"
trigger = "mention"
"""


def write(path: Path, text: str) -> None:
    path.write_text(text)
    later = path.stat().st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(later, later))


def test_a_file_and_its_instructions(tmp_path: Path) -> None:
    (tmp_path / "coder.toml").write_text(FILE)
    (tmp_path / "coder.md").write_text("Write small functions.")
    spec = AgentFiles(tmp_path).get("coder")
    assert spec.name == "coder"
    assert spec.instructions == "Write small functions."
    assert spec.limits.steps == 40
    assert spec.limits.day_dollars == 10, "what is not said keeps its default"
    assert [route.trigger for route in spec.routes] == ["any", "mention"]


def test_a_change_needs_no_restart(tmp_path: Path) -> None:
    write(tmp_path / "a.toml", 'instructions = "one"')
    agents = AgentFiles(tmp_path)
    assert agents.get("a").instructions == "one"
    write(tmp_path / "a.toml", 'instructions = "two"')
    assert agents.get("a").instructions == "two"
    write(tmp_path / "a.toml", "")
    (tmp_path / "a.md").write_text("three")
    assert agents.get("a").instructions == "three"


def test_a_change_that_makes_no_sense_leaves_the_last_good_one_in_force(tmp_path: Path) -> None:
    write(tmp_path / "a.toml", 'instructions = "good"')
    agents = AgentFiles(tmp_path)
    agents.get("a")
    write(tmp_path / "a.toml", "instructions = 7")
    assert agents.get("a").instructions == "good"
    assert agents.problems["a"].line == 1
    write(tmp_path / "a.toml", 'instructions = "better"')
    assert agents.get("a").instructions == "better"
    assert agents.problems == {}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("model = \n", 1, "Invalid value"),
        ('model = "opus"\n', 1, "model: should be provider/model, such as"),
        ('fallback = "auto"\n', 1, "fallback: should be provider/model, such as"),
        ("limits = 3\n", 1, "limits: should be a table"),
        (FILE.replace("steps = 40", "steps = 0"), 5, "limits.steps"),
        (FILE.replace("job_dollars = 2.5", 'job_dollars = "much"'), 6, "limits.job_dollars"),
        (FILE.replace('trigger = "mention"', "trigger = 3"), 13, "routes.1.trigger"),
        (FILE.replace("[limits]", "[limit]"), 4, "limit: is not known here. An agent has: model, "),
        (FILE.replace('"anthropic/claude-opus-5-5"', '"opus"'), 1, "model"),
        ("\n\nlimits.steps = -1\n", 3, "limits.steps"),
        ('\nmodel = "nope/zz"\n', 2, "no provider 'nope'"),
        ('model = "auto"\nname = "y"\n', 2, "called like its file"),
        ('fallback = "nope/zz"\n', 1, "fallback: there is no provider"),
        ('tools = [\n  "bash",\n  "nonexist",\n]\n', 3, "no tool 'nonexist'"),
    ],
)
def test_an_error_points_at_its_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(AgentFileError, match=f"x.toml:{line}: .*{words}") as caught:
        AgentFiles(tmp_path).get("x")
    assert caught.value.line == line


def test_the_last_good_version_outlives_the_process(tmp_path: Path) -> None:
    write(tmp_path / "a.toml", 'instructions = "good"')
    assert AgentFiles(tmp_path).look()["a"][1] == ""
    write(tmp_path / "a.toml", "instructions = 7")
    later = AgentFiles(tmp_path)
    assert later.get("a").instructions == "good"
    assert "the last good version is in force" in later.look()["a"][1]
    remove_agent(tmp_path, "a")
    write(tmp_path / "a.toml", "instructions = 7")
    with pytest.raises(AgentFileError):
        AgentFiles(tmp_path).get("a")


def test_the_first_agent_is_built_in_and_so_was_good_before(tmp_path: Path) -> None:
    write(tmp_path / "gofer.toml", "model = \n")
    assert AgentFiles(tmp_path).get("gofer") == AgentSpec(name="gofer")


def test_what_is_written_down_of_an_agent_makes_the_same_one(tmp_path: Path) -> None:
    write(tmp_path / "a.toml", FILE)
    for name, spec in (("gofer", AgentSpec(name="gofer")), ("b", AgentFiles(tmp_path).get("a"))):
        write(tmp_path / f"{name}.toml", as_toml(spec))
        assert AgentFiles(tmp_path).get(name) == spec.model_copy(update={"name": name})


def test_whatever_lies_in_the_directory_costs_only_itself(tmp_path: Path) -> None:
    write(tmp_path / "good.toml", "")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    write(tmp_path / "notes.toml", "")
    (tmp_path / "notes.md").write_bytes(b"\xff\xfe")
    (tmp_path / "dir.toml").mkdir()
    (tmp_path / "gone.toml").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "Bad Name.toml").write_text("")
    (tmp_path / "orphan.md").write_text("")
    write(tmp_path / "deep.toml", "x = " + "[" * 100_000)
    found = AgentFiles(tmp_path).look()
    assert found.pop("good") == (AgentSpec(name="good"), "")
    assert {name: spec for name, (spec, _) in found.items() if spec} == {}
    words = {
        "bytes": "not UTF-8", "notes": "notes.md cannot be read", "dir": "not a file", "gone": "No such file",
        "pipe": "not a file", "Bad Name.toml": "a-z, 0-9", "orphan.md": "no orphan.toml", "deep": "line 1",
    }  # fmt: skip
    assert {name: word in found[name][1] for name, word in words.items()} == dict.fromkeys(found, True)


def test_tools_of_integrations_and_plugins_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.toml", 'tools = ["bash", "send_file", "github_open_pull", "github_ask"]')
    assert AgentFiles(tmp_path).look()["a"][1] == ""
    write(tmp_path / "b.toml", 'tools = ["example_weather"]')
    assert "no tool 'example_weather'" in AgentFiles(tmp_path).look()["b"][1]
    _install(tmp_path / "lib", "example_weather", monkeypatch)
    known_tools.cache_clear()
    try:
        assert AgentFiles(tmp_path).look()["b"][1] == ""
    finally:
        known_tools.cache_clear()


def _install(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package on the path that brings one tool."""
    info = folder / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[gofer.tools]\n{name} = {name}:tools\n")
    (folder / f"{name}.py").write_text(
        "import dataclasses\nfrom gofer.agent.tools.builtin import TODO\n"
        f"def tools():\n    return [dataclasses.replace(TODO, name={name!r})]\n"
    )
    monkeypatch.syspath_prepend(folder)


def test_every_provider_that_can_have_a_key_may_be_named() -> None:
    settings = Settings(anthropic_key="a", openai_key="b")
    nothing: Any = None
    keys = ModelKeys(settings=settings, database=nothing, vault=nothing, http=nothing)
    assert {*keys.trial({}).providers, "offline"} == set(BUILT_IN)


@pytest.mark.parametrize("name", ["", "../etc/passwd", "nobody", "A", "x" * 99])
def test_names_do_not_leave_the_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotFound):
        AgentFiles(tmp_path).get(name)


def test_defaults_are_on() -> None:
    limits = AgentSpec(name="a").limits
    assert (limits.job_dollars, limits.day_dollars, limits.steps) == (1, 10, 100)
