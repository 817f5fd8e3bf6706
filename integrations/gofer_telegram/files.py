"""Files from the workspace back to the chat, by a tool."""

from __future__ import annotations

from pathlib import PurePosixPath

from pydantic import Field

from gofer.integration import Account
from gofer.tool import Arguments, Tier, Tool, ToolContext, ToolResult
from gofer_telegram.client import Client
from gofer_telegram.content import clean_name
from gofer_telegram.place import place_of

UPLOAD_LIMIT = 50 * 1024 * 1024
DESCRIPTION = (
    "Send a file from the workspace to this chat as a document, at most 50 MB. Use it when a person asked for a file, "
    "or when a result is better read as one."
)


class SendFile(Arguments):
    """What to send."""

    path: str = Field(description="The file, by its path in the workspace.")
    caption: str = Field(default="", max_length=1000, description="A line to go with it.")


def send_file_tool(account: Account, conversation: str) -> Tool[SendFile]:
    """The tool for one conversation: it sends nowhere else."""

    async def run(given: SendFile, context: ToolContext) -> ToolResult:
        if context.shell is None:
            return ToolResult("There is no workspace to send a file from.", is_error=True)
        content = await context.shell.read(given.path, limit=UPLOAD_LIMIT + 1)
        if len(content) > UPLOAD_LIMIT:
            return ToolResult(
                f"{given.path} is larger than 50 MB, which Telegram does not take.", is_error=True
            )
        if not content:
            return ToolResult(f"{given.path} is empty; Telegram takes no empty files.", is_error=True)
        name = clean_name(PurePosixPath(given.path).name)
        await send_file(Client(account), conversation, name, content, given.caption)
        return ToolResult(f"Sent {name} ({len(content)} bytes).", progress=True)

    return Tool("send_file", DESCRIPTION, SendFile, run, Tier.WRITE, timeout=120)


async def send_file(client: Client, conversation: str, name: str, content: bytes, caption: str = "") -> None:
    """Send a document."""
    await client.call(
        "sendDocument",
        **place_of(conversation).sending,
        caption=caption or None,
        files={"document": (name, content)},
        within=120,
    )
