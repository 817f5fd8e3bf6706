"""Our endpoint for the conformance suite, which sends no token and calls tools, resources and prompts of its own."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import mcp_types as types
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.shared.exceptions import MCPError
from mcp_types import AudioContent, EmbeddedResource, ImageContent, TextContent, TextResourceContents
from pydantic import Field
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Route

from gofer.app import open_app
from gofer.settings import Settings
from gofer.web.auth import Guard
from gofer.web.auth.guard import check_origin
from gofer.web.mcp import PATH, McpEndpoint
from gofer_standins.loopback import serve
from support.hostile_mcp import PIXEL
from support.sqlite_template import with_tables

SILENCE = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA=="
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


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

    _add_the_rest(server)
    return server


def _add_the_rest(server: MCPServer[Any]) -> None:
    """What the suite calls that is no tool, resource or prompt; and tools whose answer is not all there is to them."""

    @server.tool()
    async def test_tool_with_logging(context: Context[Any]) -> str:
        """Lines of a log."""
        for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            note = types.LoggingMessageNotificationParams(level="info", data=line)
            related = types.LoggingMessageNotification(params=note)
            await context.session.send_notification(related, related_request_id=context.request_id)
            await asyncio.sleep(0.05)
        return "done"

    @server.tool(name="json_schema_2020_12_tool")
    def json_schema() -> str:
        """A schema with references."""
        return "done"

    @server.tool()
    def test_missing_capability() -> str:
        """What needs sampling, which the suite does not offer."""
        needed: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "This needs sampling.", needed)

    @server.tool()
    def test_header(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})] = "") -> str:
        """An argument that is also a header."""
        return region

    @server.completion()  # type: ignore[no-untyped-call,untyped-decorator]
    async def complete(ref: Any, argument: Any, context: Any) -> types.Completion:
        return types.Completion(values=["paris"], total=1, has_more=False)

    inner = server._lowlevel_server
    listed = inner._request_handlers["tools/list"].handler

    async def list_tools(context: Any, params: Any) -> Any:
        found: Any = await listed(context, params)
        for tool in found.tools:
            if tool.name == "json_schema_2020_12_tool":
                tool.input_schema = SCHEMA
        return found

    async def nothing(context: Any, params: Any) -> types.EmptyResult:
        return types.EmptyResult()

    inner.add_request_handler("tools/list", types.PaginatedRequestParams, list_tools)
    inner.add_request_handler("logging/setLevel", types.SetLevelRequestParams, nothing)
    inner.add_request_handler("resources/subscribe", types.SubscribeRequestParams, nothing)
    inner.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, nothing)


class OpenEndpoint(McpEndpoint):
    """Ours, for callers without a token."""

    def check(self, request: Request) -> str:
        if request.headers.get("origin"):
            check_origin(request)
        return "suite"

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
