"""Telegram's rate limits: about a message a second in a chat, twenty a minute in a group, thirty a second in all."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import dataclass, field

from gofer_standins.telegram.rules import ApiError


@dataclass
class Bucket:
    """Tokens that come back with time."""

    size: float
    per_second: float
    left: float = field(init=False)
    at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.left = self.size

    def take(self) -> float:
        """Take one; the seconds to wait when there is none."""
        now = time.monotonic()
        self.left = min(self.size, self.left + (now - self.at) * self.per_second)
        self.at = now
        if self.left >= 1:
            self.left -= 1
            return 0
        return (1 - self.left) / self.per_second


class Limits:
    """Counts what the bot sends. Short bursts pass, as they do in reality."""

    def __init__(
        self, *, chat_burst: float = 20, group_per_minute: float = 20, per_second: float = 30
    ) -> None:
        self._overall = Bucket(per_second, per_second)
        self._chats: dict[int, Bucket] = defaultdict(lambda: Bucket(chat_burst, 1))
        self._groups: dict[int, Bucket] = defaultdict(lambda: Bucket(group_per_minute, group_per_minute / 60))

    def count(self, chat_id: int) -> None:
        """Raises 429 with `retry_after` when it was too much."""
        of_chat = self._groups[chat_id] if chat_id < 0 else self._chats[chat_id]
        wait = of_chat.take() or self._overall.take()
        if wait:
            seconds = math.ceil(wait)
            raise ApiError(429, f"Too Many Requests: retry after {seconds}", retry_after=seconds)
