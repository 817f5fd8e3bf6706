"""docs/operations.md against the settings, the commands and the exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gofer.cli import exit_codes
from gofer.cli.commands import COMMANDS, NOUNS
from gofer.settings import PREFIX, Settings
from gofer.store import migrations

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_documented(name: str) -> None:
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{PREFIX}{name.upper()}` |")]
    assert (Settings.model_fields[name].description or "nothing") in line


@pytest.mark.parametrize("name", [*COMMANDS, *NOUNS])
def test_every_command_is_documented(name: str) -> None:
    assert f"`gofer {name}`" in PAGE


def test_every_exit_code_is_documented() -> None:
    codes = {value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    assert all(f"\n| {code} |" in PAGE for code in codes)


def test_the_newest_migration_is_the_one_that_is_named() -> None:
    from alembic.script import ScriptDirectory

    head = ScriptDirectory.from_config(migrations._config(None)).get_current_head()
    assert head is not None
    assert migrations._stored(head) == migrations.newest()
