"""Updates on their way to the bot: kept until confirmed by an offset or taken by a webhook, in order per chat."""

from __future__ import annotations

import asyncio
import random
import re
import time
from dataclasses import dataclass, field
from typing import Any

import httpx2

from gofer_standins.telegram.rules import ApiError, bad

DEFAULT_EXCLUDES = frozenset({"chat_member", "message_reaction", "message_reaction_count"})
KEPT_FOR = 24 * 3600.0
_SECRET = re.compile(r"[A-Za-z0-9_-]{1,256}")
CONFLICT = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
WEBHOOK_SET = (
    "Conflict: can't use getUpdates method while webhook is active; "
    "use deleteWebhook to delete the webhook first"
)


@dataclass(eq=False)
class Pending:
    """One update that the bot has not taken yet."""

    update: dict[str, Any]
    queue: int
    """Messages wait in line behind those of their chat, button presses behind those of their presser."""
    born: float = field(default_factory=time.time)


@dataclass
class Webhook:
    """Where updates are pushed to."""

    url: str
    secret: str = ""
    max_connections: int = 40
    last_error: str = ""
    last_error_at: float = 0


class Updates:
    """The bot's inbox at Telegram."""

    def __init__(self, *, first_retry: float = 2.0) -> None:
        self.pending: list[Pending] = []
        self.allowed: frozenset[str] | None = None
        self.webhook: Webhook | None = None
        self.pushed: list[tuple[int, int]] = []
        """(update id, status) of every push; 0 when the connection failed."""
        self.impatient = False
        """Whether polls are answered at once, as some other Bot API servers do."""
        self._first_retry = first_retry
        self._next_id = random.SystemRandom().randrange(100_000_000, 900_000_000)
        self._arrived = asyncio.Event()
        self._poller: asyncio.Future[None] | None = None
        self._senders: dict[int, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(40)

    def add(self, kind: str, content: dict[str, Any], queue: int) -> int | None:
        """A new update; None when the bot did not ask for its kind."""
        wanted = kind not in DEFAULT_EXCLUDES if self.allowed is None else kind in self.allowed
        if not wanted:
            return None
        update_id = self._next_id
        self._next_id += 1
        self.pending.append(Pending({"update_id": update_id, kind: content}, queue))
        self._arrived.set()
        self._push(queue)
        return update_id

    def restart_ids(self, at: int) -> None:
        """As after a week of silence."""
        self._next_id = at

    def allow(self, kinds: Any) -> None:
        """Remember `allowed_updates`; an empty list means the default."""
        if kinds is not None:
            if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
                raise bad("allowed_updates must be an Array of String")
            self.allowed = frozenset(kinds) or None

    # Polling.

    async def get(self, *, offset: int = 0, limit: int = 100, timeout: float = 0) -> list[dict[str, Any]]:
        """getUpdates: an offset confirms everything before it; a second caller ends the first one's wait."""
        if self.webhook is not None:
            raise ApiError(409, WEBHOOK_SET)
        if self._poller is not None and not self._poller.done():
            self._poller.set_exception(ApiError(409, CONFLICT))
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._poller = mine
        try:
            if offset > 0:
                self.pending = [one for one in self.pending if one.update["update_id"] >= offset]
            elif offset < 0:
                self.pending = self.pending[offset:]
            await self._wait(mine, 0 if self.impatient else timeout)
        finally:
            if self._poller is mine:
                self._poller = None
                mine.cancel()
        return [one.update for one in self.pending[: max(1, min(limit, 100))]]

    async def _wait(self, mine: asyncio.Future[None], timeout: float) -> None:
        until = time.monotonic() + min(timeout, 50)
        while not self.pending and (left := until - time.monotonic()) > 0:
            self._arrived.clear()
            arrived: asyncio.Future[Any] = asyncio.ensure_future(self._arrived.wait())
            waiting: set[asyncio.Future[Any]] = {arrived, mine}
            await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            arrived.cancel()
            if mine.done():
                break
        if mine.done():
            mine.result()

    def answer_at_once(self) -> None:
        """Answer the poll that waits, and every later one, without waiting for updates."""
        self.impatient = True
        if self._poller is not None and not self._poller.done():
            self._poller.set_result(None)

    def interrupt(self) -> None:
        """End a poll that waits, as a revoked token does."""
        if self._poller is not None and not self._poller.done():
            self._poller.set_exception(ApiError(401, "Unauthorized"))

    # Pushing.

    def set_webhook(self, url: str, *, secret: str = "", max_connections: int = 40) -> None:
        """setWebhook; an empty URL removes it."""
        self._stop_senders()
        if not url:
            self.webhook = None
            return
        if not url.startswith("https://") and not re.match(r"http://(127\.|localhost)", url):
            raise bad("bad webhook: An HTTPS URL must be provided for webhook")
        if secret and not _SECRET.fullmatch(secret):
            raise bad("secret token contains unallowed characters")
        if self._poller is not None and not self._poller.done():
            self._poller.set_exception(ApiError(409, "Conflict: terminated by setWebhook request"))
        self.webhook = Webhook(url, secret, max_connections)
        self._places = asyncio.Semaphore(max_connections)
        for queue in {one.queue for one in self.pending}:
            self._push(queue)

    def _push(self, queue: int) -> None:
        sender = self._senders.get(queue)
        if self.webhook is not None and (sender is None or sender.done()):
            self._senders[queue] = asyncio.create_task(self._send_queue(queue))

    async def _send_queue(self, queue: int) -> None:
        """Push one queue's updates in order: the next goes only after the one before it was taken."""
        async with httpx2.AsyncClient(timeout=30, trust_env=False) as client:
            while (first := next((one for one in self.pending if one.queue == queue), None)) is not None:
                await self._send(client, first)
                if first in self.pending:
                    self.pending.remove(first)

    async def _send(self, client: httpx2.AsyncClient, one: Pending) -> None:
        pause = 0.0
        while time.time() - one.born < KEPT_FOR:
            status, wait = await self._try(client, one)
            if 200 <= status < 300:
                return
            await asyncio.sleep(min(wait, 3600) if wait else pause)
            pause = min(pause * 2 or self._first_retry, random.SystemRandom().uniform(60, 120))

    async def _try(self, client: httpx2.AsyncClient, one: Pending) -> tuple[int, float]:
        webhook = self.webhook
        assert webhook is not None
        headers = {"X-Telegram-Bot-Api-Secret-Token": webhook.secret} if webhook.secret else {}
        try:
            async with self._places:
                answer = await client.post(webhook.url, json=one.update, headers=headers)
        except httpx2.HTTPError as error:
            self._failed(webhook, one, 0, f"Connection refused ({type(error).__name__})")
            return 0, 0
        if answer.is_success:
            self.pushed.append((one.update["update_id"], answer.status_code))
        else:
            text = f"Wrong response from the webhook: {answer.status_code} {answer.reason_phrase}"
            self._failed(webhook, one, answer.status_code, text)
        after = answer.headers.get("retry-after", "")
        return answer.status_code, float(after) if after.isdigit() else 0

    def _failed(self, webhook: Webhook, one: Pending, status: int, error: str) -> None:
        self.pushed.append((one.update["update_id"], status))
        webhook.last_error, webhook.last_error_at = error, time.time()

    def info(self) -> dict[str, Any]:
        """getWebhookInfo."""
        answer: dict[str, Any] = {
            "url": self.webhook.url if self.webhook else "",
            "has_custom_certificate": False,
            "pending_update_count": len(self.pending),
        }
        if self.webhook is not None:
            answer |= {"max_connections": self.webhook.max_connections, "ip_address": "127.0.0.1"}
            if self.webhook.last_error:
                answer["last_error_date"] = int(self.webhook.last_error_at)
                answer["last_error_message"] = self.webhook.last_error
        if self.allowed is not None:
            answer["allowed_updates"] = sorted(self.allowed)
        return answer

    def _stop_senders(self) -> None:
        for sender in self._senders.values():
            sender.cancel()
        self._senders.clear()

    async def close(self) -> None:
        """Stop pushing and waiting."""
        senders = list(self._senders.values())
        self._stop_senders()
        await asyncio.gather(*senders, return_exceptions=True)
        if self._poller is not None and not self._poller.done():
            self._poller.set_exception(ApiError(502, "Bad Gateway"))
