"""Plays an agent that speaks ACP, with the library's own agent side: `python acp_agent.py FOLDER`.

What it does is what it is told to: "say X", "permit", "hang", "die", "flood", "nonsense", "refuse", "nothing", "count".
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from acp import PROTOCOL_VERSION, run_agent
from acp.helpers import text_block, update_agent_message
from acp.schema import (
    AgentCapabilities,
    InitializeResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PermissionOption,
    PromptResponse,
    ToolCallUpdate,
)

FOLDER = Path(sys.argv[1])
MODE = sys.argv[2] if len(sys.argv) > 2 else ""


class ScriptedAgent:
    def __init__(self) -> None:
        self.client: Any = None
        self.cancelled = asyncio.Event()

    def on_connect(self, conn: Any) -> None:
        self.client = conn

    async def initialize(self, protocol_version: int, **more: Any) -> InitializeResponse:
        if MODE == "mute":
            await asyncio.sleep(1000)
        version = 99 if MODE == "version" else PROTOCOL_VERSION
        return InitializeResponse(
            protocol_version=version, agent_capabilities=AgentCapabilities(load_session=True)
        )

    async def new_session(self, cwd: str, **more: Any) -> NewSessionResponse:
        number = len(list(FOLDER.glob("session-*"))) + 1
        (FOLDER / f"session-{number}").write_text("")
        note("environment", sorted(os.environ))
        return NewSessionResponse(session_id=f"session-{number}")

    async def load_session(self, cwd: str, session_id: str, **more: Any) -> LoadSessionResponse:
        await self.say(session_id, "(what was said before)")
        note("loaded", session_id)
        return LoadSessionResponse()

    async def prompt(self, session_id: str, prompt: list[Any], **more: Any) -> PromptResponse:
        text = prompt[0].text
        note("prompt", text)
        asked = re.search(
            r"commands to Gofer:\n[^:]*: (.*)", text
        )  # in what Gofer says, or the last line of a text
        verb, _, rest = (asked[1] if asked else text.rpartition("\n")[2]).partition(" ")
        ended: Any = await getattr(self, f"do_{verb}", self.do_say)(session_id, rest)
        return PromptResponse(stop_reason=ended)

    async def cancel(self, session_id: str, **more: Any) -> None:
        note("cancel", session_id)
        self.cancelled.set()

    async def do_say(self, session: str, rest: str) -> str:
        for piece in rest.split(" "):
            await self.say(session, f"{piece} ")
        return "end_turn"

    async def do_permit(self, session: str, rest: str) -> str:
        options = [
            PermissionOption(option_id="a", name="Yes", kind="allow_once"),
            PermissionOption(option_id="r", name="No", kind="reject_once"),
        ]
        call = ToolCallUpdate(tool_call_id="1", title=f"rm -rf \x1b[31m{rest}")
        answer = await self.client.request_permission(session_id=session, tool_call=call, options=options)
        await self.say(
            session, json.dumps(answer.outcome.model_dump(mode="json", by_alias=True, exclude_none=True))
        )
        return "end_turn"

    async def do_hang(self, session: str, rest: str) -> str:
        await self.cancelled.wait()
        return "cancelled"

    async def do_deaf(self, session: str, rest: str) -> str:
        await asyncio.sleep(1000)
        return "end_turn"

    async def do_die(self, session: str, rest: str) -> str:
        os._exit(3)

    async def do_refuse(self, session: str, rest: str) -> str:
        return "refusal"

    async def do_nothing(self, session: str, rest: str) -> str:
        return "end_turn"

    async def do_flood(self, session: str, rest: str) -> str:
        await self.say(session, "x" * int(rest))
        await self.say(session, "after")
        return "end_turn"

    async def do_nonsense(self, session: str, rest: str) -> str:
        for line in (b"hello\n", b"[1]\n", b'"x"\n', b"\xff\xfe\n", b"[" * 100_000 + b"\n", b'{"id": [1]}\n'):
            os.write(1, line)
        update = {"sessionId": session, "update": {"sessionUpdate": "made_up"}}
        os.write(
            1, json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": update}).encode() + b"\n"
        )
        await self.say(session, "sense")
        return "end_turn"

    async def say(self, session: str, text: str) -> None:
        await self.client.session_update(session_id=session, update=update_agent_message(text_block(text)))


def note(kind: str, what: Any) -> None:
    with open(FOLDER / "log", "a") as file:
        file.write(json.dumps([kind, what]) + "\n")


if __name__ == "__main__":
    if MODE == "garbage":
        os.write(1, b"this is no protocol\n" * 3000)
        sys.exit(sys.stdin.read() and 0)
    asyncio.run(run_agent(ScriptedAgent()))  # type: ignore[arg-type]
