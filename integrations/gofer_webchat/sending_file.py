"""Files from the workspace to the page, by a tool."""

from __future__ import annotations

import mimetypes
from pathlib import PurePosixPath

from pydantic import Field

from gofer.tool import Arguments, Tier, Tool, ToolContext, ToolResult

LARGEST = 20 * 1024 * 1024
DESCRIPTION = (
    "Show a file from the workspace in this chat, at most 20 MB: a picture is shown, anything else can be downloaded. "
    "Use it when a person asked for a file, or when a result is better looked at as one."
)


class SendFile(Arguments):
    """What to send."""

    path: str = Field(description="The file, by its path in the workspace.")


async def _run(given: SendFile, context: ToolContext) -> ToolResult:
    if context.shell is None or context.blobs is None:
        return ToolResult("There is no workspace to send a file from.", is_error=True)
    content = await context.shell.read(given.path, limit=LARGEST + 1)
    if len(content) > LARGEST:
        return ToolResult(f"{given.path} is larger than 20 MB, which the chat does not take.", is_error=True)
    name = PurePosixPath(given.path).name[:200]
    media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
    digest = await context.blobs.put(content, media_type)
    file = {"hash": digest, "name": name, "media_type": media_type, "size": len(content)}
    return ToolResult(f"Sent {name} ({len(content)} bytes).", details={"file": file}, progress=True)


SEND_FILE = Tool("send_file", DESCRIPTION, SendFile, _run, Tier.WRITE, timeout=120)
