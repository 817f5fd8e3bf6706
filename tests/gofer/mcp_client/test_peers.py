"""Against other people's programs: the reference server in our sandbox."""

from __future__ import annotations

import pytest
from benchmarks.node_peers import NODE

from gofer.mcp.servers import McpServers
from gofer.mcp.settings import McpServerSettings
from gofer.tool import ToolContext
from gofer_sandbox import Bubblewrap
from support.mcp_packages import packages

pytestmark = pytest.mark.peer


async def nobody(name: str) -> str:
    raise AssertionError(name)


async def test_the_reference_server_runs_in_our_sandbox() -> None:
    folder = packages()
    if not all(parent.stat().st_mode & 0o1 for parent in (folder, *folder.parents)):
        pytest.skip("the user of a sandbox cannot read the checkout")
    entry = folder / "node_modules" / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
    settings = McpServerSettings(
        command=str(NODE),
        args=(str(entry), "stdio"),
        readonly=(str(folder), str(NODE.parent)),
        start_timeout=120,
    )
    async with McpServers(Bubblewrap(), nobody).for_run({"every": settings}) as brought:
        assert brought.notes == ()
        tools = {tool.name.removeprefix("mcp__every__"): tool for tool in brought.tools}
        context = ToolContext("call_1")
        echo = tools["echo"]
        assert (
            "Echo: hello"
            in (await echo.run(echo.arguments.model_validate({"message": "hello"}), context)).content
        )
        image = next(tool for name, tool in tools.items() if "image" in name)
        assert (await image.run(image.arguments.model_validate({}), context)).images
