"""What is loaded: any module may be the first, and a server that nobody has asked yet loads no more than it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

PARTS = ("api.table", "auth", "chat", "dashboard.routes", "mcp", "onboarding", "protocols.gateway")
"""Of `gofer.web`."""
LOOK = """
import os, sys
import gofer.app
for name in sys.argv[1:]:
    if (child := os.fork()) == 0:
        __import__(name)
        os._exit(0)
    print(name, "is first" if os.waitpid(child, 0)[1] == 0 else "cannot be imported first")
import gofer.cli.serve, gofer.serve
print(*sys.modules)
"""


@pytest.fixture(scope="module")
def looked() -> list[str]:
    """What a Python of its own says: a line for each part, and then all that a start has loaded."""
    command = [sys.executable, "-c", LOOK, *(f"gofer.web.{part}" for part in PARTS)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


def test_any_part_of_the_web_can_be_imported_first(looked: list[str]) -> None:
    assert looked[:-1] == [f"gofer.web.{part} is first" for part in PARTS]


def test_a_start_loads_nothing_that_it_may_never_need_or_that_waits_for_its_first_request(
    looked: list[str],
) -> None:
    unwanted = {
        "PIL",
        "alembic",
        "anthropic",
        "asyncpg",
        "github",
        "gofer.client.mcp_server",
        "gofer.client.mcp_tools",
        "gofer.client.models",
        "gofer.mcp.oauth",
        "gofer.mcp.servers",
        "gofer.mcp.tools",
        "gofer.mcp.transport",
        "gofer.web.api.table",
        "gofer.web.protocols.gateway",
        "gofer.web.protocols.session",
        "jsonschema",
        "markdown_it",
        "mcp",
        "mcp_types",
        "openai",
        "prometheus_client",
        "redis",
        "sqlalchemy.dialects.postgresql",
    }
    assert not unwanted & set(looked[-1].split())
