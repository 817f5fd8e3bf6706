"""The documentation against the code: what is there is documented, and what is documented is there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sqlmodel import SQLModel

from gofer import handlers
from gofer.agent import journal
from gofer.connections.registry import IntegrationRegistry
from gofer.store import tables
from gofer.store.events import KINDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def read(*parts: str) -> str:
    return DOCS.joinpath(*parts).read_text(encoding="utf-8")


def models() -> list[type[SQLModel]]:
    found = [each for each in vars(tables).values() if isinstance(each, type) and issubclass(each, SQLModel)]
    found.remove(SQLModel)
    assert len(found) == len(SQLModel.metadata.tables)
    return found


@pytest.mark.parametrize("model", models(), ids=lambda model: model.__name__)
def test_every_table_is_a_word_of_the_glossary(model: type[SQLModel]) -> None:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", model.__name__).lower()
    assert words in read("glossary.md").lower()


@pytest.mark.parametrize("kind", KINDS)
def test_every_event_is_documented(kind: str) -> None:
    assert f"| `{kind}` | {KINDS[kind]} |" in read("architecture.md")


def test_the_security_page_has_its_parts() -> None:
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    parts = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", page, re.MULTILINE))
    assert "Report a vulnerability" in parts["How to report"]
    assert (
        len(re.findall(r"^\| (?!Attacker|-)", parts["Who may attack, and what each has"], re.MULTILINE)) > 5
    )
    for name in ("What is promised", "What is not promised"):
        assert len(re.findall(r"^- ", parts[name], re.MULTILINE)) > 5, name
    assert all((ROOT / path).exists() for path in re.findall(r"\]\(([\w/.-]+)", page))


def _path_of_one_message() -> str:
    text = read("architecture.md")
    return text[text.index("## The path of one message") : text.index("## The ideas")]


def test_the_path_of_one_message_names_every_handler_of_the_worker() -> None:
    tree = ast.parse((ROOT / "platform/gofer/handlers.py").read_text(encoding="utf-8"))
    tables = [
        each.value
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and function.name.endswith("_handlers")
        for each in ast.walk(function)
        if isinstance(each, ast.Return) and isinstance(each.value, ast.Dict)
    ]
    kinds = {getattr(handlers, key.id) for table in tables for key in table.keys if isinstance(key, ast.Name)}
    rows = re.findall(r"^\| (`[a-z_]+`(?:, `[a-z_]+`)*) \| `", _path_of_one_message(), re.MULTILINE)
    assert {kind for row in rows for kind in re.findall(r"\w+", row)} == kinds


def test_the_path_of_one_message_names_files_and_what_is_in_them() -> None:
    said = re.findall(r"`(\w+)[\w.]*` (?:\(|in |from )`([a-z_/]+\.py)`", _path_of_one_message())
    assert len(said) > 20
    for name, path in said:
        text = (ROOT / "platform/gofer" / path).read_text(encoding="utf-8")
        assert re.search(rf"^\s*(?:async def |def |class )?{name}\b", text, re.MULTILINE), (name, path)


def test_the_path_of_one_message_names_the_files_of_integrations() -> None:
    rows = re.findall(r"^\| \d \| .+ \| (.+) \| (.+) \|$", _path_of_one_message(), re.MULTILINE)
    assert rows
    for package, cells in zip(("gofer_telegram", "gofer_github"), zip(*rows, strict=True), strict=True):
        for path, names in re.findall(r"`(\w+\.py)`(?:: ([^|]+))?", " ".join(f"{each} |" for each in cells)):
            text = (ROOT / "integrations" / package / path).read_text(encoding="utf-8")
            for name in re.findall(r"`(?:\w+\.)?(\w+)`", names):
                assert re.search(rf"^ *(?:async )?def {name}\b", text, re.MULTILINE), (package, path, name)


def test_every_event_of_a_run_is_documented() -> None:
    page = read("agents.md")
    for name, kind in journal.KINDS.items():
        assert f"| `{name}` | {kind.meaning} |" in page, name


def test_the_map_of_folders_is_that_of_the_platform() -> None:
    drawn = set(re.findall(r"^  (\w+(?:\.py|/)) ", read("architecture.md"), re.MULTILINE))
    platform = ROOT / "platform" / "gofer"
    there = {path.name for path in platform.glob("*.py") if not path.name.startswith("__")}
    there |= {f"{path.parent.name}/" for path in platform.glob("*/__init__.py")}
    assert drawn == there


def test_the_import_graph_is_that_of_the_code() -> None:
    check = [sys.executable, str(ROOT / "scripts" / "import-graph"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(IntegrationRegistry.installed().integrations))
def test_every_integration_has_a_page_with_its_settings_and_secrets(name: str) -> None:
    integration = IntegrationRegistry.installed().integrations[name]
    page = read("integrations", f"{name}.md")
    for setting in integration.settings.model_fields:
        assert f"`{setting}`" in page, setting
    for secret in integration.secrets:
        assert f"`{secret.name}`" in page, secret.name
    for heading in ("Set-up", "Verify", "Limits", "Troubleshooting", "Removal"):
        assert f"## {heading}" in page, heading


def test_every_decision_is_listed() -> None:
    listed = read("decisions", "README.md")
    for record in (DOCS / "decisions").glob("0*.md"):
        assert record.name in listed


@pytest.mark.parametrize(
    "page",
    sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")]),
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_contributing_names_what_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for path in re.findall(
        r"`((?:platform|integrations|sandbox|tests|docs|scripts|benchmarks)(?:/[a-z_/.]+)?)`", text
    ):
        assert (ROOT / path).exists(), path
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z]+)`", text)) <= targets


def test_platform_does_not_shadow_the_standard_library() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()
