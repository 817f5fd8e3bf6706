"""Ending a step of a run when somebody wants that, also in the middle of a command or a stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from gofer.agent.conversation import StopSignal

T = TypeVar("T")


async def unless_stopped(
    step: Coroutine[Any, Any, T],
    stopped: Coroutine[Any, Any, StopSignal],
    let_go: Callable[[asyncio.Task[T]], Awaitable[None]],
) -> T | StopSignal:
    """What a step gives; or the wish to stop, if that came first and the step was let go of."""
    doing, wish = asyncio.ensure_future(step), asyncio.ensure_future(stopped)
    try:
        await asyncio.wait({doing, wish}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        await let_go(doing)
        doing.cancel()
        await asyncio.wait({doing})
        return wish.result()
    finally:
        for task in (doing, wish):
            task.cancel()
            with contextlib.suppress(BaseException):
                await task
