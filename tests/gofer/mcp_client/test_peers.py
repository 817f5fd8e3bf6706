"""Against other people's programs: the conformance suite on our transport, and the reference server in our sandbox.

The suite sends no token and calls tools of its own, so it is run on an app with our guard, our endpoint and a server
that has those tools. What needs a server to ask its client something is left out: ours keeps no sessions.
"""

from __future__ import annotations

import asyncio
import base64
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from benchmarks.node_peers import NODE, ROOT, NotInstalled, install
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp_types import (
    AudioContent,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
)
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Route

from gofer.app import open_app
from gofer.mcp.servers import McpServers
from gofer.mcp.settings import McpServerSettings
from gofer.settings import Settings
from gofer.tool import ToolContext
from gofer.web.auth import Guard
from gofer.web.auth.guard import check_origin
from gofer.web.mcp import PATH, McpEndpoint
from gofer_sandbox import Bubblewrap
from gofer_standins.loopback import serve
from support.async_bridge import Elsewhere
from support.hostile_mcp import PIXEL
from support.sqlite_template import with_tables

pytestmark = pytest.mark.peer
WANTED = ROOT / "benchmarks" / "node" / "mcp" / "package.json"
PLACE = ROOT / ".bench" / "mcp"
SCENARIOS = [
    *(
        "server-initialize",
        "ping",
        "tools-list",
        "tools-call-simple-text",
        "tools-call-image",
        "tools-call-audio",
    ),
    *(
        "tools-call-embedded-resource",
        "tools-call-mixed-content",
        "tools-call-error",
        "tools-call-with-progress",
    ),
    *(
        "resources-list",
        "resources-read-text",
        "resources-read-binary",
        "resources-templates-read",
        "prompts-list",
    ),
    *(
        "prompts-get-simple",
        "prompts-get-with-args",
        "prompts-get-embedded-resource",
        "prompts-get-with-image",
    ),
    *("dns-rebinding-protection", "server-sse-multiple-streams"),
]
SILENCE = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA=="


def packages() -> Path:
    try:
        return install(WANTED, PLACE)
    except NotInstalled as error:
        pytest.skip(str(error))


def resource(uri: str = "test://embedded-resource") -> EmbeddedResource:
    return EmbeddedResource(resource=TextResourceContents(uri=uri, mime_type="text/plain", text="Embedded."))


def picture() -> ImageContent:
    return ImageContent(data=PIXEL, mime_type="image/png")


def suite_server() -> MCPServer[Any]:
    """The tools, resources and prompts that the suite calls."""
    server: MCPServer[Any] = MCPServer("suite")

    @server.tool()
    def test_simple_text() -> str:
        """Text."""
        return "This is a simple text response for testing."

    @server.tool()
    def test_image_content() -> list[ImageContent]:
        """A picture."""
        return [picture()]

    @server.tool()
    def test_audio_content() -> list[AudioContent]:
        """A sound."""
        return [AudioContent(data=SILENCE, mime_type="audio/wav")]

    @server.tool()
    def test_embedded_resource() -> list[EmbeddedResource]:
        """A file."""
        return [resource()]

    @server.tool()
    def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
        """All of them."""
        return [TextContent(text="Several:"), picture(), resource("test://mixed-content-resource")]

    @server.tool()
    def test_error_handling() -> str:
        """An error."""
        raise ToolError("This tool intentionally returns an error for testing")

    @server.tool()
    async def test_tool_with_progress(context: Context[Any]) -> str:
        """Progress."""
        for step in (0, 50, 100):
            await context.report_progress(step, 100, f"step {step}")
            await asyncio.sleep(0.05)
        return "done"

    @server.resource("test://static-text", mime_type="text/plain")
    def text() -> str:
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", mime_type="image/png")
    def binary() -> bytes:
        return base64.b64decode(PIXEL)

    @server.resource("test://template/{id}/data", mime_type="application/json")
    def template(id: str) -> str:
        return f'{{"id": "{id}", "templateTest": true, "data": "Data for ID: {id}"}}'

    @server.prompt()
    def test_simple_prompt() -> str:
        """Simple."""
        return "This is a simple prompt for testing."

    @server.prompt()
    def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
        """With arguments."""
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    @server.prompt()
    def test_prompt_with_embedded_resource(resourceUri: str) -> list[Any]:
        """With a file."""
        return [UserMessage(resource(resourceUri)), UserMessage("Process it.")]

    @server.prompt()
    def test_prompt_with_image() -> list[Any]:
        """With a picture."""
        return [UserMessage(picture()), UserMessage("Look at it.")]

    return server


class OpenEndpoint(McpEndpoint):
    """Ours, for callers without a token."""

    def check(self, request: Request) -> None:
        if request.headers.get("origin"):
            check_origin(request)

    def build(self) -> Any:
        return suite_server()._lowlevel_server


@asynccontextmanager
async def suite_app(folder: Path) -> AsyncIterator[str]:
    async with open_app(with_tables(Settings(data_dir=folder)), roles=frozenset({"web"})) as platform:
        app = Starlette(
            routes=[Route(PATH, OpenEndpoint(platform), methods=["GET", "POST", "DELETE"])],
            middleware=[Middleware(Guard, platform=platform)],
        )
        async with serve(app) as url:
            yield url + PATH


@pytest.fixture(scope="module")
def suite_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("data")
    folder.chmod(0o700)
    loop, app = Elsewhere(), suite_app(folder)
    yield loop.run(app.__aenter__())
    loop.run(app.__aexit__(None, None, None))
    loop.close()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_our_transport_conforms(suite_url: str, scenario: str) -> None:
    suite = packages() / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    command = [str(NODE), str(suite), "server", "--url", suite_url, "--scenario", scenario]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


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
