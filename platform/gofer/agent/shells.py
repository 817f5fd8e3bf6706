"""The shells of conversations: lent to a run, kept between runs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from gofer.jobs.queue import Claim
from gofer.store.tables import Trust
from gofer.tool import Shell


class Shells:
    """Lends each run the shell of its conversation and agent."""

    @contextlib.asynccontextmanager
    async def lend(self, claim: Claim, trust: Trust) -> AsyncIterator[Shell | None]:
        """The shell, for as long as the run lasts; None where no sandbox can be had."""
        yield None
