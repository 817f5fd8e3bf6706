"""Tokens that belong together: each is minted once, used by whoever needs the same, and all end at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any

from gofer.errors import Permanent


class Tokens:
    """Those of one job, or of what is done beside the jobs for a few minutes."""

    def __init__(self) -> None:
        self._latest: dict[Hashable, asyncio.Task[str]] = {}
        self._minted: list[asyncio.Task[str]] = []

    async def get(
        self, what: Hashable, mint: Callable[[], Coroutine[Any, Any, str]], refused: str = ""
    ) -> str:
        """The token for this; another than the one that GitHub refused."""
        minting = self._latest.get(what)
        if minting is None or _is_useless(minting, refused):
            minting = self._latest[what] = asyncio.create_task(mint())
            self._minted.append(minting)
        # A call that is given up must not lose the token that GitHub is about to make.
        return await asyncio.shield(minting)

    async def end(self, revoke: Callable[[str], Awaitable[None]]) -> None:
        """Revoke all of them, those that are still being minted too; raises when GitHub would not."""
        minted = await asyncio.gather(*self._minted, return_exceptions=True)
        values = [one for one in minted if isinstance(one, str)]
        for failed in await asyncio.gather(*map(revoke, values), return_exceptions=True):
            if isinstance(failed, BaseException) and not _is_over(failed):
                raise failed


def _is_useless(minting: asyncio.Task[str], refused: str) -> bool:
    if not minting.done():
        return False
    return minting.cancelled() or minting.exception() is not None or minting.result() == refused


def _is_over(error: BaseException) -> bool:
    """Whether the token had ended before: GitHub ends them after an hour, and with the installation."""
    return isinstance(error, Permanent) and error.reason == "github.credentials"
