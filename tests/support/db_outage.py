"""A store that can be away for a while."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from gofer.errors import StoreUnavailable
from gofer.jobs import queue
from gofer.jobs.queue import AGENT
from gofer.store.database import Database

CLAIMING = (queue._claim_each, queue._claim_at_once)


class Away:
    """A real database behind a line that breaks."""

    def __init__(self, database: Database, *, lost_claim: bool = False) -> None:
        self._database = database
        self.dialect = database.dialect
        self.signing = database.signing
        self.away = False
        self._lost_claim = lost_claim

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def write(self, verb: Any, /, *args: Any, **kwargs: Any) -> Any:
        return await self._while_there(self._database.write, partial(verb, *args, **kwargs))

    async def write_one(self, verb: Any, /, *args: Any, **kwargs: Any) -> Any:
        return await self._while_there(self._database.write_one, partial(verb, *args, **kwargs))

    async def read(self, verb: Any, /, *args: Any, **kwargs: Any) -> Any:
        return await self._while_there(self._database.read, partial(verb, *args, **kwargs))

    async def _while_there(self, go: Any, verb: Any) -> Any:
        if self.away:
            raise StoreUnavailable
        result = await go(verb)
        if self._lost_claim and getattr(verb, "func", None) in CLAIMING and result.get(AGENT):
            self._lost_claim = False
            raise StoreUnavailable  # committed, but nobody hears of it
        return result

    async def come_back_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.away = False
