"""OpenClaw's SDK from PyPI, unchanged, against a server of ours: gateway_peer.py URL"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from openclaw_sdk import ClientConfig, OpenClawClient
from openclaw_sdk.gateway.protocol import ProtocolGateway


async def talk(url: str) -> dict[str, Any]:
    first = ProtocolGateway(url)
    await first.connect()
    client = OpenClawClient(config=ClientConfig(), gateway=first)
    agent = client.get_agent("gofer", "from-pypi")
    answer = await agent.execute("$ echo one two")
    long = asyncio.create_task(agent.execute("$ sleep 60"))
    for _ in range(100):
        await asyncio.sleep(0.1)
        if (await first.chat_abort(agent.session_key))["aborted"]:
            break
    aborted = await long
    healthy = (await first.health()).healthy
    await first.close()
    await first.connect()
    history = await first.chat_history(agent.session_key)
    after = await agent.execute("$ echo three")
    await first.close()
    return {
        "success": answer.success,
        "content": answer.content,
        "tools": [call.tool for call in answer.tool_calls],
        "aborted": aborted.stop_reason,
        "healthy": healthy,
        "history": [[each["role"], each["content"][0]["text"]] for each in history],
        "after": after.content,
    }


print(json.dumps(asyncio.run(talk(sys.argv[1]))))
