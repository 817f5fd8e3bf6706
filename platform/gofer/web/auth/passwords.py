"""Passwords: Argon2id, off the event loop, a few at a time."""

from __future__ import annotations

import asyncio
import os

from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from gofer.errors import Malformed, TooBusy

SHORTEST, LONGEST = 10, 1000
MEMORY, ITERATIONS, LANES = 32 * 1024, 2, 1
AT_ONCE, MOST_WAITING = 2, 20
"""Checks at once. Each takes 32 MB and a core, so a flood of guesses must not exhaust the machine."""

NOBODY = f"$argon2id$v=19$m={MEMORY},t={ITERATIONS},p={LANES}${'A' * 22}${'A' * 43}"
"""A hash that no password fits; checking it takes as long as checking a real one."""


class Passwords:
    """Hashes passwords and checks them."""

    def __init__(self) -> None:
        # A known browser does not stand behind strangers who guess.
        self._turns = {False: asyncio.Semaphore(AT_ONCE), True: asyncio.Semaphore(1)}
        self._waiting = {False: 0, True: 0}

    async def hashed(self, password: str) -> str:
        """A hash to store; raises Malformed when the password will not do."""
        if not SHORTEST <= len(password) <= LONGEST:
            raise Malformed(f"password: must have {SHORTEST} to {LONGEST} characters.")
        return await self._in_turn(password, None, known=True)

    async def fits(self, password: str, stored: str, *, known: bool = False) -> bool:
        """Whether a password fits its hash. Without a hash the check takes as long. Known browsers have a queue of
        their own."""
        return bool(await self._in_turn(password[: LONGEST + 1], stored or NOBODY, known=known))

    async def _in_turn(self, password: str, stored: str | None, *, known: bool) -> str:
        if self._waiting[known] >= MOST_WAITING:
            raise TooBusy("Too many people are signing in at this moment.", retry_after=2)
        self._waiting[known] += 1
        try:
            async with self._turns[known]:
                return await asyncio.to_thread(_work, password.encode("utf-8", "surrogatepass"), stored)
        finally:
            self._waiting[known] -= 1


def _work(password: bytes, stored: str | None) -> str:
    if stored is None:
        maker = Argon2id(
            salt=os.urandom(16), length=32, iterations=ITERATIONS, lanes=LANES, memory_cost=MEMORY
        )
        return maker.derive_phc_encoded(password)
    try:
        Argon2id.verify_phc_encoded(password, stored)
    except InvalidKey:
        return ""
    return stored
