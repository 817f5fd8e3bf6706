"""What is loaded: any module may be the first, and a server that nobody has asked yet loads no more than it needs."""

from __future__ import annotations

import subprocess
import sys

FIRST = """
import os, sys
import gofer.app
for name in sys.argv[1:]:
    if (child := os.fork()) == 0:
        __import__(name)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit(f"{name} cannot be imported first")
"""


def python(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_any_part_of_the_web_can_be_imported_first() -> None:
    parts = ("api.table", "auth", "chat", "dashboard.routes", "mcp", "onboarding", "protocols.gateway")
    python(FIRST, *(f"gofer.web.{part}" for part in parts))


def test_a_start_loads_nothing_that_waits_for_its_first_request() -> None:
    loaded = set(python("import sys, gofer.cli.serve, gofer.serve; print(*sys.modules)").split())
    unwanted = {
        "alembic",
        "anthropic",
        "asyncpg",
        "gofer.client.models",
        "gofer.web.api.table",
        "gofer.web.protocols.gateway",
        "gofer.web.protocols.session",
        "mcp",
        "openai",
        "prometheus_client",
        "sqlalchemy.dialects.postgresql",
    }
    assert not unwanted & loaded
