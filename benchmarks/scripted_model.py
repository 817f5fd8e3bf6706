"""A scripted model in a process of its own, as models are: what it computes is not counted as Gofer's.

`python -m benchmarks.scripted_model MODULE` serves the `script` of that module until its standard input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from collections.abc import AsyncIterator

from gofer_standins.anthropic import Anthropic
from gofer_standins.loopback import serve


@contextlib.asynccontextmanager
async def scripted_model(module: str) -> AsyncIterator[dict[str, str]]:
    """The settings with which Gofer talks to the model that a module scripts."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", __name__, module)
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url, key = (await process.stdout.readline()).decode().split()
        yield {"anthropic_base_url": url, "anthropic_key": key}
    finally:
        process.stdin.close()
        await process.wait()


async def _serve(module: str) -> None:
    model = Anthropic(importlib.import_module(module).script)
    async with serve(model.app) as url:
        print(url, model.key, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
