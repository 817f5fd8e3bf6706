"""MCP's programs from npm: the reference server, and the conformance suite as it is released and as it will be."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.node_peers import ROOT, NotInstalled, install

WANTED = ROOT / "benchmarks" / "node" / "mcp" / "package.json"
PLACE = ROOT / ".bench" / "mcp"
RELEASED = Path("@modelcontextprotocol", "conformance", "dist", "index.js")
NEXT = Path("conformance-next", "dist", "index.js")
"""An alpha: the released suite has no scenarios for 2026-07-28."""


def packages() -> Path:
    """Where they are installed."""
    try:
        return install(WANTED, PLACE)
    except NotInstalled as error:
        pytest.skip(str(error))
