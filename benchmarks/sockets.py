"""WebSocket clients of both protocols: what an idle one costs, and what many that talk at once wait for.

The server is a process of its own. The web chat's own socket is measured in the same run, with the same messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.measure import percentile
from benchmarks.report import Row
from gofer.app import open_app
from gofer.serve import _listen, _loop_factory
from gofer.settings import Settings
from gofer.store.events import Cursor
from gofer.web.app import public_app
from gofer.web.auth.members import add_member
from gofer.web.auth.sessions import new_token
from gofer.web.server import limit_for, listening

GROUP = "sockets"
IDLE, TALKING, ROUNDS = 1000, 200, 5
MAX_BYTES = 60 * 1024
MEMBERS = 20
"""Each may have twenty pages of the web chat open."""
STREAMING, LINES = 10, 40
"""Connections that are told what a command prints, and how many lines of it."""
COMMAND = f"$ for i in {{1..{LINES}}}; do echo at=$EPOCHREALTIME; sleep 0.05; done"
"""Each line says when it was printed."""
REFUSED = re.compile(r'"(refused|error)"')
"""Of a frame that says no, at any door: whoever waits for an acknowledgement would wait for ever."""
READS_ALL: dict[str, Any] = {"compression": None, "proxy": None, "ping_interval": None, "max_queue": None}
"""A client that reads at once whatever it is told. One that leaves frames unread says goodbye for ten seconds."""
WATCHED = 45.0
"""Seconds over which idle connections are watched: each is pinged once."""


async def main(quick: bool) -> list[Row]:
    """Run it."""
    idle, talking = (300, 50) if quick else (IDLE, TALKING)
    async with _server() as (process, url, tokens):
        seconds = WATCHED / (4 if quick else 1)
        each, share = await _idle(process.pid, url, tokens[0], idle, seconds, _session)
        theirs = await _talk(url, tokens, talking, _chat_room)
        ours = await _talk(url, tokens, talking, _session)
    async with _server() as (process, url, tokens):
        gateway = await _idle(process.pid, url, tokens[0], idle, seconds, _gateway)
        through_gateway = await _talk(url, tokens, talking, _gateway)
    async with _server("unconfined") as (process, url, tokens):
        deltas = {door: await _stream(url, tokens, door) for door in (_chat_room, _session, _gateway)}
    page = percentile(deltas[_chat_room], 50)
    note = f"{talking} at once"
    return [
        Row(
            GROUP,
            "memory of an idle connection",
            each / 1024,
            "KiB",
            at_most=MAX_BYTES / 1024,
            note=f"{idle} open",
        ),
        Row(GROUP, "processor time of idle connections", share * 100, "%", at_most=1),
        Row(GROUP, "acknowledged p99, session protocol", percentile(ours, 99) * 1000, "ms", note=note),
        Row(GROUP, "acknowledged p99, web chat", percentile(theirs, 99) * 1000, "ms", note=note),
        Row(
            GROUP,
            "session protocol / web chat, p99",
            percentile(ours, 99) / percentile(theirs, 99),
            "x",
            at_most=2,
        ),
        Row(
            GROUP,
            "memory of an idle connection, gateway",
            gateway[0] / 1024,
            "KiB",
            at_most=MAX_BYTES / 1024,
            note=f"{idle} open",
        ),
        Row(GROUP, "processor time of idle connections, gateway", gateway[1] * 100, "%", at_most=1),
        Row(
            GROUP,
            "gateway protocol / web chat, p99",
            percentile(through_gateway, 99) / percentile(theirs, 99),
            "x",
            at_most=2,
        ),
        Row(GROUP, "a delta reaches the web chat, median", page * 1000, "ms", note=f"{STREAMING} at once"),
        *(
            Row(GROUP, f"a delta, {name} / web chat", percentile(deltas[door], 50) / page, "x", at_most=1.5)
            for name, door in (("session protocol", _session), ("gateway protocol", _gateway))
        ),
    ]


@contextlib.asynccontextmanager
async def _server(sandbox: str = "off") -> AsyncIterator[tuple[Any, str, list[str]]]:
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.sockets", folder, sandbox,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            while not (line := (await process.stdout.readline()).decode()).startswith("{"):
                assert line, "the server ended"
            told = json.loads(line)
            draining = asyncio.create_task(_drain(process.stdout))
            yield process, told["url"], told["tokens"]
            draining.cancel()
        finally:
            process.stdin.close()
            await process.wait()


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.readline():
        pass


async def _idle(pid: int, url: str, token: str, count: int, seconds: float, door: Any) -> tuple[float, float]:
    """Bytes that one idle connection takes, and the share of a core that all of them do, beside what the server itself
    does while nobody is connected."""
    async with contextlib.AsyncExitStack() as stack:
        async with contextlib.AsyncExitStack() as first:
            for _ in range(20):  # what the first ones load is not theirs
                await door(first, url, token)
        await asyncio.sleep(2)
        alone = await _share(pid, seconds)
        before = _memory(pid)
        for _ in range(count):
            await door(stack, url, token)
        await asyncio.sleep(2)
        each = (_memory(pid) - before) / count
        share = await _share(pid, seconds)
    print(f"idle: {share:.2%} of a core, {alone:.2%} without connections", flush=True)
    return each, share - alone


async def _share(pid: int, seconds: float) -> float:
    used, began = _processor(pid), time.monotonic()
    await asyncio.sleep(seconds)
    return (_processor(pid) - used) / (time.monotonic() - began)


def _memory(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise LookupError("Pss")


def _processor(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def _session(
    stack: contextlib.AsyncExitStack, url: str, token: str
) -> tuple[ClientConnection, str, str]:
    """A connection of the session protocol, the message to send, and what its acknowledgement has in it."""
    headers = {"authorization": f"Bearer {token}"}
    address = f"{url.replace('http', 'ws')}/v1/agents/gofer/stream"
    opened = connect(address, additional_headers=headers, **READS_ALL)
    line = await stack.enter_async_context(opened)
    await line.recv()
    return line, json.dumps({"type": "chat.send", "id": "{id}", "text": "hello"}), '"accepted"'


async def _gateway(
    stack: contextlib.AsyncExitStack, url: str, token: str
) -> tuple[ClientConnection, str, str]:
    """The same of the gateway protocol, in a session of its own."""
    opened = connect(f"{url.replace('http', 'ws')}/gateway", **READS_ALL)
    line = await stack.enter_async_context(opened)
    await line.recv()
    client = {"id": "test", "version": "1", "platform": "linux", "mode": "test"}
    params = {"minProtocol": 4, "maxProtocol": 4, "client": client, "scopes": ["operator.write"]}
    hello = {
        "type": "req",
        "id": "hello",
        "method": "connect",
        "params": {**params, "auth": {"token": token}},
    }
    await line.send(json.dumps(hello))
    await line.recv()
    said = {"sessionKey": f"agent:gofer:{secrets.token_hex(8)}", "message": "hello", "idempotencyKey": "{id}"}
    return line, json.dumps({"type": "req", "id": "1", "method": "chat.send", "params": said}), '"started"'


async def _chat_room(
    stack: contextlib.AsyncExitStack, url: str, token: str
) -> tuple[ClientConnection, str, str]:
    """The same of the web chat."""
    headers = {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(base_url=url, headers={**headers, "accept": "application/json"}) as web:
        room = (await web.post("/chat")).json()["room"]
    address = f"{url.replace('http', 'ws')}/chat/{room}/live?after={Cursor()}"
    opened = connect(address, additional_headers=headers, **READS_ALL)
    line = await stack.enter_async_context(opened)
    return line, json.dumps({"id": "{id}", "text": "hello"}), '"taken"'


async def _talk(url: str, tokens: list[str], count: int, door: Any) -> list[float]:
    """Seconds until each of many messages that are sent at once is acknowledged."""
    async with contextlib.AsyncExitStack() as stack:
        lines = [await door(stack, url, tokens[n % len(tokens)]) for n in range(count)]
        taken: list[float] = []
        for round_ in range(ROUNDS + 1):
            waited = await asyncio.gather(*(_said(*line) for line in lines))
            taken += waited if round_ else []  # the first one makes the conversations
        return sorted(taken)


async def _said(line: ClientConnection, message: str, sign: str) -> float:
    began = time.perf_counter()
    await line.send(_with_id(message))
    while sign not in (frame := str(await line.recv())):
        assert not REFUSED.search(frame), frame
    return time.perf_counter() - began


def _with_id(message: str) -> str:
    """A message that was never said before, at whichever door: a repeat costs less."""
    return message.replace("{id}", f"message-{secrets.token_hex(12)}")


async def _stream(url: str, tokens: list[str], door: Any) -> list[float]:
    """Seconds from when a command prints a line until a client has it."""
    async with contextlib.AsyncExitStack() as stack:
        lines = [await door(stack, url, tokens[n]) for n in range(STREAMING)]
        found = await asyncio.gather(*(_heard(*line) for line in lines))
        return sorted(seconds for each in found for seconds in each)


async def _heard(line: ClientConnection, message: str, sign: str) -> list[float]:
    """When each line of a command was heard first, after the shell was brought up by another one."""
    for round_, said in enumerate(("$ true", COMMAND)):
        await line.send(_with_id(message).replace('"hello"', json.dumps(said)))
        heard: dict[str, float] = {}
        while len(heard) < (LINES if round_ else 0):
            frame = str(await line.recv())
            for printed in re.findall(r"at=([0-9]{10}\.[0-9]{6})", frame):
                heard.setdefault(printed, time.time() - float(printed))
        if not round_:
            await asyncio.sleep(5)
    return list(heard.values())


async def serve(folder: Path, sandbox: Any) -> None:
    """The other process: serve until the input ends."""
    settings = Settings(data_dir=folder / "data", port=0, sandbox=sandbox, max_per_address=5000)
    door = _listen(settings)
    async with (
        open_app(settings, roles=frozenset({"web", "worker"})) as platform,
        listening(public_app(platform), door, limit_for(settings)) as server,
    ):
        tokens = [await platform.database.write(partial(_token, number=number)) for number in range(MEMBERS)]
        print(json.dumps({"url": f"http://127.0.0.1:{server.port}", "tokens": tokens}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


def _token(connection: Any, number: int) -> str:
    member = add_member(connection, name=f"member-{number}", role="owner", password="")
    return new_token(connection, member, name="bench", scope="admin")[1]


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve(Path(sys.argv[1]), sys.argv[2]))
