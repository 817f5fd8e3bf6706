"""docs/api.md against the errors and the roles."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import gofer
from gofer.errors import GoferError
from gofer.web.auth.principal import AS_ROLE

DOCS = Path(__file__).parents[2] / "docs"


def codes(kind: type[GoferError]) -> Iterator[str]:
    yield kind.code
    for each in kind.__subclasses__():
        yield from codes(each)


def test_every_error_code_is_documented() -> None:
    for module in pkgutil.walk_packages(gofer.__path__, "gofer."):
        if not module.name.endswith("__main__") and "migrations" not in module.name:
            importlib.import_module(module.name)
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    ours = {code for code in codes(GoferError) if code}
    assert [code for code in sorted(ours) if f"`{code}`" not in page] == []


def test_every_scope_is_documented_with_its_role() -> None:
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    for scope, role in AS_ROLE.items():
        assert f"| `{scope}` | {role} |" in page
