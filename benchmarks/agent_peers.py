"""The agent's peers, each in an environment of its own under `.bench/`, driven by a script run there.

Each has the same script for its model (three tools, one a turn, then an answer; or the answer alone) behind its own
interface for models, and tools whose result is ready: what is left is its own work.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass

from benchmarks.sandbox_peers import Peer

_MINI = """
import json, statistics, sys, tempfile, time
from pathlib import Path
from minisweagent.agents.default import DefaultAgent
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicModel, make_output

class Canned:
    config = None
    ran = 0
    def execute(self, action, cwd="", **more):
        if action["command"] == "end":
            extra = {"exit_status": "Submitted", "submission": "All done."}
            raise Submitted({"role": "exit", "content": "All done.", "extra": extra})
        self.ran += 1
        return {"output": "x" * 300, "returncode": 0, "exception_info": ""}
    def get_template_vars(self, **more):
        return {}
    def serialize(self):
        return {}

def task(calls, path):
    said = [make_output("", [{"command": name}], 0.0) for name in [*("bash", "read", "ls")[:calls], "end"]]
    tools = Canned()
    agent = DefaultAgent(DeterministicModel(outputs=said), tools, system_template="You are an agent.",
                         instance_template="{{task}}", output_path=path)
    began = time.perf_counter()
    ended = agent.run("Do it.")
    took = time.perf_counter() - began
    assert ended["submission"] == "All done." and tools.ran == calls
    return took

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "trajectory.json" if SAVES else None
    task(3, path)
    times = [(task(3, path), task(0, path)) for _ in range(int(sys.argv[1]))]
whole, answer = (statistics.median(column) for column in zip(*times))
print(json.dumps({"whole": whole, "answer": answer}))
"""

_NANOBOT = """
import asyncio, itertools, json, statistics, sys, tempfile, time
from pathlib import Path
import tiktoken
from loguru import logger
from nanobot.agent.loop import AgentLoop
from nanobot.agent.tools.base import Tool
from nanobot.bus.queue import MessageBus
from nanobot.providers.base import LLMProvider, LLMResponse, ToolCallRequest

NAMES = ("bash", "read", "ls")
RAN = []

class Canned(Tool):
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    async def execute(self, **arguments):
        RAN.append(self.name)
        return "x" * 300

class Scripted(LLMProvider):
    calls = 0
    numbers = itertools.count()
    async def chat(self, messages, tools=None, **more):
        done = sum(1 for _ in itertools.takewhile(lambda one: one["role"] != "user", reversed(messages))) // 2
        if done == self.calls:
            return LLMResponse("All done.")
        call = ToolCallRequest(f"call_{next(self.numbers)}", NAMES[done], {"path": "."})
        return LLMResponse(None, [call], "tool_calls")
    def get_default_model(self):
        return "scripted"

async def task(loop, provider, calls, number):
    RAN.clear()
    provider.calls, room = calls, f"{calls}-{number}"
    began = time.perf_counter()
    answer = await loop.process_direct("Do it.", session_key=f"cli:{room}", chat_id=room)
    took = time.perf_counter() - began
    assert answer.content == "All done." and RAN == list(NAMES[:calls]), (answer, RAN)
    return took

def not_there(name):
    raise OSError(f"{name} is not there")  # it would try to download it in every turn; without, it estimates

async def main():
    logger.remove()
    tiktoken.get_encoding = not_there
    with tempfile.TemporaryDirectory() as folder:
        provider = Scripted(provider_name="scripted")
        loop = AgentLoop(MessageBus(), provider, Path(folder), "scripted")
        for name in NAMES:
            loop.tools.register(type(name, (Canned,), {"name": name, "description": name})())
        await task(loop, provider, 3, "first")
        times = [(await task(loop, provider, 3, number), await task(loop, provider, 0, number))
                 for number in range(int(sys.argv[1]))]
    whole, answer = (statistics.median(column) for column in zip(*times))
    print(json.dumps({"whole": whole, "answer": answer}))

asyncio.run(main())
"""


@dataclass(frozen=True)
class Times:
    """Median seconds of the three-tool task, and of an answer without a tool."""

    whole: float
    answer: float


@dataclass(frozen=True)
class AgentPeer(Peer):
    """A peer that is driven through the task."""

    def drive(self, tasks: int) -> Times | str:
        """The times, or why there are none."""
        try:
            with tempfile.TemporaryDirectory() as home:  # nothing of the user's settings, nothing left behind
                done = subprocess.run(
                    [self._environment().absolute(), "-c", self.script, str(tasks)],
                    env={**os.environ, "HOME": home, "MSWEA_SILENT_STARTUP": "1"},
                    cwd=home,
                    capture_output=True,
                    text=True,
                    timeout=300,
                    check=True,
                )
            return Times(**json.loads(done.stdout.strip().splitlines()[-1]))
        except subprocess.SubprocessError as error:
            said = str(getattr(error, "stderr", "") or error).strip().splitlines()
            return f"not measured: {said[-1][:100] if said else error}"
        except (OSError, ValueError, IndexError, LookupError) as error:
            return f"not measured: {error}"


PEERS = (
    AgentPeer("mini-swe-agent, in memory", "mini-swe-agent", (3, 10), f"SAVES = False\n{_MINI}"),
    AgentPeer("mini-swe-agent, saving", "mini-swe-agent", (3, 10), f"SAVES = True\n{_MINI}"),
    AgentPeer("nanobot", "nanobot-ai", (3, 11), _NANOBOT),
)
