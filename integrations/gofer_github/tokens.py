"""Tokens that belong together: each is minted once, used by whoever needs the same, and all end at once."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from dataclasses import dataclass, field
from typing import Any

from gofer.errors import Permanent

NEARLY_OVER = 300.0
"""Seconds before its end from which on a token is not begun with: a clone may take that long."""


@dataclass(frozen=True, slots=True)
class Token:
    """One that GitHub minted, and when it ends by itself."""

    value: str = field(repr=False)
    until: float = math.inf


class Tokens:
    """Those of one job, or of what is done beside the jobs for a few minutes."""

    def __init__(self) -> None:
        self._latest: dict[Hashable, asyncio.Task[Token]] = {}
        self._minted: list[asyncio.Task[Token]] = []

    async def get(
        self, what: Hashable, mint: Callable[[], Coroutine[Any, Any, Token]], refused: str = ""
    ) -> str:
        """The token for this; another than the one that GitHub refused, or that is nearly over."""
        minting = self._latest.get(what)
        if minting is None or _is_useless(minting, refused):
            minting = self._latest[what] = asyncio.create_task(mint())
            self._minted.append(minting)
        # A call that is given up must not lose the token that GitHub is about to make.
        return (await asyncio.shield(minting)).value

    async def end(self, revoke: Callable[[str], Awaitable[None]]) -> None:
        """Revoke all of them, those that are still being minted too; raises when GitHub would not."""
        minted = await asyncio.gather(*self._minted, return_exceptions=True)
        values = [one.value for one in minted if isinstance(one, Token)]
        for failed in await asyncio.gather(*map(revoke, values), return_exceptions=True):
            if isinstance(failed, BaseException) and not _is_over(failed):
                raise failed


def _is_useless(minting: asyncio.Task[Token], refused: str) -> bool:
    if not minting.done():
        return False
    if minting.cancelled() or minting.exception() is not None:
        return True
    token = minting.result()
    return token.value == refused or token.until - time.time() < NEARLY_OVER


def _is_over(error: BaseException) -> bool:
    """Whether the token had ended before: GitHub ends them after an hour, and with the installation."""
    return isinstance(error, Permanent) and error.reason == "github.credentials"
